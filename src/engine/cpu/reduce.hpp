#pragma once
#include <cstdint>

#include "engine/cpu/program.hpp"
#include "recipe/recipe.hpp"

namespace verglas::engine::cpu {

/// Partial results of one reduction over one tile: `rows × columns` lanes, 1 along a reduced axis.
struct Partial {
  float* lanes;  ///< int32 bits when the reduction computes in int32
  std::int64_t rows, columns;
};

/// The identity of the mode in every lane.
void reset(const ReduceOp& op, const Partial& partial) noexcept;
/// Takes in row `row` of the tile: n lanes of the source (already in the compute type of the reduction).
void absorb(const ReduceOp& op, const Partial& partial, std::int64_t row, const float* lanes, std::int64_t n) noexcept;
/// Combines the tile at (l, m, n) into the output, which holds what came before it. `rows`: those of the tile, where they do not
/// follow m.
void combine(const ReduceOp& op, const Partial& partial, const recipe::RoleView& out, std::int64_t l, std::int64_t m,
             std::int64_t n, const std::int64_t* rows = nullptr) noexcept;
/// The identity in every element of the output.
void seed(const ReduceOp& op, const recipe::RoleView& out) noexcept;
/// avg divides by `count`, norm2 takes the root; the others are done.
void finish(const ReduceOp& op, const recipe::RoleView& out, double count) noexcept;

}  // namespace verglas::engine::cpu
