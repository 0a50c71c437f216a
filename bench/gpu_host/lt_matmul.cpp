#include "lt_matmul.hpp"

#include <stdexcept>

namespace verglas::bench {
namespace {

void check(cuda::cublasStatus_t status, const char* call) {
  if (status != cuda::CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(call) + " answered " + std::to_string(static_cast<int>(status)));
}

}  // namespace

LtMatmul::LtMatmul(const cuda::DriverTable& driver, std::int64_t m, std::int64_t n, std::int64_t k) : driver_(driver) {
  const auto found = cuda::cublaslt();
  if (!found) {
    missing_ = found.error().text;
    return;
  }
  lt_ = *found;
  try {
    prepare(m, n, k);
  } catch (const std::exception& e) {
    missing_ = e.what();
  }
}

void LtMatmul::prepare(std::int64_t m, std::int64_t n, std::int64_t k) {
  check(lt_->cublasLtCreate(&handle_), "cublasLtCreate");
  check(lt_->cublasLtMatmulDescCreate(&desc_, cuda::CUBLAS_COMPUTE_32F, cuda::CUDA_R_32F), "cublasLtMatmulDescCreate");
  // The library counts columns as contiguous, so it is asked for Dᵀ(N, M) = B · Aᵀ with B stored as (K, N) and A as (K, M).
  const cuda::cublasOperation_t transposed = cuda::CUBLAS_OP_T;
  check(lt_->cublasLtMatmulDescSetAttribute(desc_, cuda::CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "cublasLtMatmulDescSetAttribute");
  const auto layout = [&](cuda::cublasLtMatrixLayout_t& into, std::int64_t rows, std::int64_t columns) {
    check(lt_->cublasLtMatrixLayoutCreate(&into, cuda::CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
  };
  layout(b_, k, n);
  layout(a_, k, m);
  layout(d_, n, m);
  cuda::cublasLtMatmulPreference_t preference = nullptr;
  check(lt_->cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::uint64_t bytes = kWorkspaceBytes;
  check(
      lt_->cublasLtMatmulPreferenceSetAttribute(preference, cuda::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
      "cublasLtMatmulPreferenceSetAttribute");
  int answers = 0;
  check(lt_->cublasLtMatmulAlgoGetHeuristic(handle_, desc_, b_, a_, d_, d_, preference, 1, &choice_, &answers),
        "cublasLtMatmulAlgoGetHeuristic");
  lt_->cublasLtMatmulPreferenceDestroy(preference);
  if (answers == 0) throw std::runtime_error("it has no algorithm for this product");
  cuda::check(driver_, driver_.cuMemAlloc(&workspace_, kWorkspaceBytes), "cuMemAlloc", "making a workspace");
}

LtMatmul::~LtMatmul() {
  if (workspace_) driver_.cuMemFree(workspace_);
  for (const cuda::cublasLtMatrixLayout_t layout : {a_, b_, d_})
    if (layout) lt_->cublasLtMatrixLayoutDestroy(layout);
  if (desc_) lt_->cublasLtMatmulDescDestroy(desc_);
  if (handle_) lt_->cublasLtDestroy(handle_);
}

cuda::cublasStatus_t LtMatmul::operator()(const void* a, const void* b, void* d) const noexcept {
  const float one = 1.0F, zero = 0.0F;
  return lt_->cublasLtMatmul(handle_, desc_, &one, b, b_, a, a_, &zero, d, d_, d, d_, &choice_.algo,
                             reinterpret_cast<void*>(workspace_), kWorkspaceBytes, nullptr);
}

}  // namespace verglas::bench
