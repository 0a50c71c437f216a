#pragma once
#include <span>

#include "base/function_ref.hpp"
#include "engine/cpu/product.hpp"

namespace verglas::engine::cpu {

/// Products by AVX-512, from packed panels: what oneDNN does, for machines where it is not installed. Null where the processor
/// has no AVX-512. Each element is one chain of fused multiply-adds along K, 1024 of K at a time.
Sgemm panels_sgemm() noexcept;

/// Up to this depth products can take turns.
inline constexpr std::int64_t kTurnDepth = 1024;
/// Columns of each of so many products of depth k whose panels fit the second cache together.
std::int64_t columns_in_turns(std::int64_t k, std::int64_t products) noexcept;

/// One product of several that take turns. Its c lies `c_step` floats further for each row of the turns before: ldc, or 0 where
/// every turn writes over the one before.
struct Turn {
  SgemmArguments product;
  std::int64_t c_step = 0;
};
/// Products of one m, n and k, some rows of each at a time: `summed(first, rows)` when these rows of all are there, so that what
/// follows finds them in the nearest caches. Each element is the sum that `panels_sgemm` gives. False: no memory.
bool multiply_in_turns(std::span<const Turn> turns, FunctionRef<void(std::int64_t first, std::int64_t rows)> summed) noexcept;
/// The most rows of a turn.
inline constexpr std::int64_t kTurnRows = 14;

}  // namespace verglas::engine::cpu
