#pragma once
#include <cstdint>

#include "base/result.hpp"
#include "chain/chain.hpp"
#include "cuda/cublaslt_types.hpp"
#include "recipe/recipe.hpp"

namespace verglas::cublaslt {

enum class Activation : std::uint8_t { none, relu, gelu, gelu_gradient };

/// A chain in the library's words: D = act(alpha · A · Bᵀ + C + bias). Indices are roles, −1 where there is none.
///
/// The library counts columns as contiguous. With D contiguous along N it is asked for Dᵀ = B · Aᵀ, with D contiguous along M for
/// D = A · Bᵀ; its first operand, "x", has the rows of its result and "y" the columns. A bias is a row of D in the first case, a
/// column in the second: it always lies along the rows of the library's result.
struct Product {
  int a = 0, b = 0, d = 0;
  int c = -1, bias = -1;
  int aux = -1;         ///< argument of gelu: stored beside D, or read by its gradient
  int alpha_role = -1;  ///< fp32 in host memory, read at each call
  float alpha = 1.0F;   ///< without a role
  Activation activation = Activation::none;
  bool is_transposed = true;  ///< D is contiguous along N
  bool a_k_major = true, b_k_major = true;
  bool is_fast = false;  ///< fp8: sums of all of K in what a tensor core keeps
  DataType a_type{}, b_type{}, d_type{}, accumulate{};
  DataType bias_type = DataType::not_set, aux_type = DataType::not_set;

  int x() const noexcept { return is_transposed ? b : a; }
  int y() const noexcept { return is_transposed ? a : b; }
  bool x_k_major() const noexcept { return is_transposed ? b_k_major : a_k_major; }
  bool y_k_major() const noexcept { return is_transposed ? a_k_major : b_k_major; }
  bool is_integer() const noexcept { return accumulate == DataType::int32; }
};

/// The chain as a product, or the rule why it is none; needs neither library nor device.
Result<Product> product_of(const chain::FusionChain& chain);

/// What the library reads of the operands of a call, from their views in canonical axes.
struct Lines {
  std::int64_t rows = 0, cols = 0, ld = 0, batch_stride = 0;  ///< elements; rows are contiguous
  friend bool operator==(const Lines&, const Lines&) = default;
};
struct Geometry {
  std::int64_t batches = 1;
  Lines x, y, c, d;
  std::int64_t bias_stride = 0;  ///< from batch to batch
  std::int64_t aux_ld = 0, aux_stride = 0;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};
Geometry geometry_of(const Product& product, const recipe::RoleView* views) noexcept;

/// Bytes, a power of two up to 16, of which addresses and strides of each operand are multiples as declared.
struct Alignments {
  int x = 16, y = 16, c = 16, d = 16;
};
Alignments alignments_of(const Product& product, const Geometry& declared) noexcept;

/// What the library asks of a call beyond the rules that hold everywhere.
recipe::Requirements requirements_of(const chain::FusionChain& chain, const Product& product, Device device);

cuda::cudaDataType_t type_of(DataType t) noexcept;
cuda::cublasComputeType_t compute_of(const Product& product) noexcept;
cuda::cudaDataType_t scale_type_of(const Product& product) noexcept;
cuda::cublasLtEpilogue_t epilogue_of(const Product& product) noexcept;

}  // namespace verglas::cublaslt
