#include "engine/cublaslt/descriptors.hpp"

namespace verglas::cublaslt {
namespace {

using cuda::CUBLAS_STATUS_SUCCESS;
using cuda::cublasStatus_t;

/// Sets attributes until one fails.
class Setter {
 public:
  Setter(const cuda::CublasLtTable& lt, MatmulDesc& desc, cublasStatus_t status = CUBLAS_STATUS_SUCCESS)
      : lt_(lt), desc_(desc), status_(status) {}
  template <class T>
  void set(cuda::cublasLtMatmulDescAttributes_t attribute, T value) noexcept {
    if (status_ == CUBLAS_STATUS_SUCCESS)
      status_ = lt_.cublasLtMatmulDescSetAttribute(desc_.get(), attribute, &value, sizeof value);
  }
  cublasStatus_t status() const noexcept { return status_; }

 private:
  const cuda::CublasLtTable& lt_;
  MatmulDesc& desc_;
  cublasStatus_t status_;
};

cublasStatus_t fill_one(const cuda::CublasLtTable& lt, DataType type, const Lines& l, std::int64_t batches,
                        MatrixLayout& layout) noexcept {
  cublasStatus_t status =
      lt.cublasLtMatrixLayoutInit_internal(layout.get(), sizeof layout.memory, type_of(type), static_cast<std::uint64_t>(l.rows),
                                           static_cast<std::uint64_t>(l.cols), l.ld);
  if (status != CUBLAS_STATUS_SUCCESS || batches == 1) return status;
  const auto count = static_cast<std::int32_t>(batches);
  status = lt.cublasLtMatrixLayoutSetAttribute(layout.get(), cuda::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return lt.cublasLtMatrixLayoutSetAttribute(layout.get(), cuda::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &l.batch_stride,
                                             sizeof l.batch_stride);
}

}  // namespace

cublasStatus_t fill(const cuda::CublasLtTable& lt, const Product& p, MatmulDesc& desc) noexcept {
  Setter s(lt, desc, lt.cublasLtMatmulDescInit_internal(desc.get(), sizeof desc.memory, compute_of(p), scale_type_of(p)));
  // As stored, x is rows × K or, K-major, its transpose, and y is K × columns where it is K-major.
  s.set(cuda::CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{p.x_k_major() ? cuda::CUBLAS_OP_T : cuda::CUBLAS_OP_N});
  s.set(cuda::CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{p.y_k_major() ? cuda::CUBLAS_OP_N : cuda::CUBLAS_OP_T});
  s.set(cuda::CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue_of(p)));
  if (p.is_fast) s.set(cuda::CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  if (p.bias >= 0) s.set(cuda::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{type_of(p.bias_type)});
  if (p.aux >= 0) s.set(cuda::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, std::int32_t{type_of(p.aux_type)});
  return s.status();
}

cublasStatus_t address(const cuda::CublasLtTable& lt, const Product& p, const Geometry& g, const recipe::RoleView* views,
                       MatmulDesc& desc) noexcept {
  Setter s(lt, desc);
  if (p.bias >= 0) {
    s.set(cuda::CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(views[p.bias].data));
    if (g.bias_stride != 0) s.set(cuda::CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, g.bias_stride);
  }
  if (p.aux >= 0) {
    s.set(cuda::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const void*>(views[p.aux].data));
    s.set(cuda::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.aux_ld);
    if (g.aux_stride != 0) s.set(cuda::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, g.aux_stride);
  }
  return s.status();
}

cublasStatus_t fill(const cuda::CublasLtTable& lt, const Product& p, const Geometry& g, Layouts& all) noexcept {
  const DataType x = p.is_transposed ? p.b_type : p.a_type, y = p.is_transposed ? p.a_type : p.b_type;
  cublasStatus_t status = fill_one(lt, x, g.x, g.batches, all.x);
  if (status == CUBLAS_STATUS_SUCCESS) status = fill_one(lt, y, g.y, g.batches, all.y);
  if (status == CUBLAS_STATUS_SUCCESS) status = fill_one(lt, p.d_type, g.c, g.batches, all.c);
  if (status == CUBLAS_STATUS_SUCCESS) status = fill_one(lt, p.d_type, g.d, g.batches, all.d);
  return status;
}

}  // namespace verglas::cublaslt
