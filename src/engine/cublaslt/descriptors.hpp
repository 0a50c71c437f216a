#pragma once
#include <cstddef>

#include "engine/cublaslt/library.hpp"
#include "engine/cublaslt/product.hpp"

namespace verglas::cublaslt {

/// The library's semi-opaque descriptors in our memory: plain bytes, so that a copy is a descriptor of its own and nothing is
/// allocated for a call. cublasLt.h of 13.1 declares 256 bytes for a product and 112 for a matrix; it is told how much there is.
struct alignas(16) MatmulDesc {
  std::byte memory[512];
  cuda::cublasLtMatmulDesc_t get() const noexcept {
    return reinterpret_cast<cuda::cublasLtMatmulDesc_t>(const_cast<std::byte*>(memory));
  }
};
struct alignas(16) MatrixLayout {
  std::byte memory[256];
  cuda::cublasLtMatrixLayout_t get() const noexcept {
    return reinterpret_cast<cuda::cublasLtMatrixLayout_t>(const_cast<std::byte*>(memory));
  }
};

struct Layouts {
  MatrixLayout x, y, c, d;
};

/// What is the same in all calls of a plan: types, transpositions, epilogue.
cuda::cublasStatus_t fill(const cuda::CublasLtTable& lt, const Product& product, MatmulDesc& desc) noexcept;
/// What a call adds: addresses and pitches of operands of the epilogue. `views` by role.
cuda::cublasStatus_t address(const cuda::CublasLtTable& lt, const Product& product, const Geometry& geometry,
                             const recipe::RoleView* views, MatmulDesc& desc) noexcept;
cuda::cublasStatus_t fill(const cuda::CublasLtTable& lt, const Product& product, const Geometry& geometry,
                          Layouts& layouts) noexcept;

}  // namespace verglas::cublaslt
