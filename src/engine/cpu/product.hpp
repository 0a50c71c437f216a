#pragma once
#include <cstdint>
#include <span>

#include "chain/chain.hpp"
#include "recipe/recipe.hpp"

namespace verglas::engine::cpu {

/// Elements of K that are packed at once; int8 sums of that many products are exact in fp32 (128 · 128 · 1024 = 2^24).
inline constexpr std::int64_t kPackedK = 1024;

/// A single-threaded fp32 product, C (m, n) = A · B + beta · C, all row-major; A is (m, k) with leading dimension lda, or (k, m)
/// when a_transposed; B is (k, n), or (n, k) when b_transposed.
struct SgemmArguments {
  bool a_transposed, b_transposed;
  std::int64_t m, n, k;
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float beta;
  float* c;
  std::int64_t ldc;
};
using Sgemm = void (*)(const SgemmArguments&) noexcept;

/// oneDNN's, opened at run time; null when the library is not there (`onednn_text` says why).
Sgemm onednn_sgemm() noexcept;
const char* onednn_text() noexcept;
/// Plain blocked loops.
void loops_sgemm(const SgemmArguments& s) noexcept;

/// One operand of one product in one tile.
struct MatrixBlock {
  const char* data = nullptr;  ///< element (0, 0) of the block's batch and first row
  DataType dtype = DataType::fp32;
  std::int64_t rows = 0;                      ///< M or N of the tile
  std::int64_t row_stride = 0, k_stride = 0;  ///< elements
  const chain::MatrixInput* input = nullptr;
  std::int64_t batch = 0, first_row = 0;  ///< of the block in its matrix: where its scales are
  const std::int64_t* row_at = nullptr;   ///< the rows of the block, where they do not lie one behind the other
  std::int64_t scale_shift = 0;           ///< from a row to one of its scales, where these are in atoms of each group

  std::int64_t row(std::int64_t r) const noexcept { return row_at ? row_at[r] : r; }
};

/// fp32 that enters the product as it is stored.
bool is_plain_fp32(const chain::MatrixInput& input, DataType stored) noexcept;
/// One axis is contiguous and the other at least as far apart, so that such a matrix is multiplied where it lies.
bool is_read_in_place(std::int64_t rows, std::int64_t row_stride, std::int64_t k, std::int64_t k_stride) noexcept;
/// The product of two blocks that are multiplied where they lie.
SgemmArguments direct_product(const MatrixBlock& a, const MatrixBlock& b, std::int64_t k, float* c, std::int64_t ldc) noexcept;

/// Sums of one tile: c (a.rows, b.rows) with leading dimension ldc; int32 lanes when `integer`. False: no memory to pack
/// operands.
bool tile_product(Sgemm sgemm, const MatrixBlock& a, const MatrixBlock& b, std::int64_t k, bool integer,
                  const chain::FusionChain& chain, const recipe::Binding& binding, float* c, std::int64_t ldc) noexcept;

}  // namespace verglas::engine::cpu
