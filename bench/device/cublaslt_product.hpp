#pragma once
#include "cuda/cublaslt_table.hpp"
#include "gpu.hpp"

namespace bench {

/// D (m, n) = A (m, k) Bᵀ with b (n, k), bf16, rows contiguous, by cuBLASLt: the fastest of its first eight heuristics.
class CublasLtProduct {
 public:
  CublasLtProduct(const Gpu& gpu, const cuda::CublasLtTable& lt, std::int64_t m, std::int64_t n, std::int64_t k)
      : gpu_(gpu), lt_(lt), workspace_(gpu, kWorkspace) {
    ok(lt.cublasLtCreate(&handle_));
    ok(lt.cublasLtMatmulDescCreate(&desc_, cuda::CUBLAS_COMPUTE_32F, cuda::CUDA_R_32F));
    const std::int32_t transpose = cuda::CUBLAS_OP_T;
    ok(lt.cublasLtMatmulDescSetAttribute(desc_, cuda::CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    // Column-major words: Dᵀ (n, m) = B (n, k) · A (m, k)ᵀ, each matrix as it lies.
    ok(lt.cublasLtMatrixLayoutCreate(&b_, cuda::CUDA_R_16BF, static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(n), k));
    ok(lt.cublasLtMatrixLayoutCreate(&a_, cuda::CUDA_R_16BF, static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(m), k));
    ok(lt.cublasLtMatrixLayoutCreate(&d_, cuda::CUDA_R_16BF, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(m), n));
    cuda::cublasLtMatmulPreference_t preference = nullptr;
    ok(lt.cublasLtMatmulPreferenceCreate(&preference));
    const std::uint64_t bytes = kWorkspace;
    ok(lt.cublasLtMatmulPreferenceSetAttribute(preference, cuda::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    const std::uint32_t alignment = k % 8 == 0 ? 16 : 2;
    for (const auto which : {cuda::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, cuda::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES})
      ok(lt.cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment));
    cuda::cublasLtMatmulHeuristicResult_t found[kMost] = {};
    int count = 0;
    ok(lt.cublasLtMatmulAlgoGetHeuristic(handle_, desc_, b_, a_, d_, d_, preference, kMost, found, &count));
    lt.cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < count; ++i)
      if (found[i].state == cuda::CUBLAS_STATUS_SUCCESS) algorithms_.push_back(found[i].algo);
    if (algorithms_.empty()) throw std::runtime_error("cuBLASLt has no algorithm for this product");
  }
  ~CublasLtProduct() {
    lt_.cublasLtMatrixLayoutDestroy(a_);
    lt_.cublasLtMatrixLayoutDestroy(b_);
    lt_.cublasLtMatrixLayoutDestroy(d_);
    lt_.cublasLtMatmulDescDestroy(desc_);
    lt_.cublasLtDestroy(handle_);
  }
  CublasLtProduct(const CublasLtProduct&) = delete;
  CublasLtProduct& operator=(const CublasLtProduct&) = delete;

  void launch(std::uint64_t a, std::uint64_t b, std::uint64_t d) const {
    const float one = 1, zero = 0;
    ok(lt_.cublasLtMatmul(handle_, desc_, &one, reinterpret_cast<void*>(b), b_, reinterpret_cast<void*>(a), a_, &zero,
                          reinterpret_cast<void*>(d), d_, reinterpret_cast<void*>(d), d_, &algorithms_[best_],
                          reinterpret_cast<void*>(workspace_.address()), kWorkspace, gpu_.stream));
  }
  /// Two rounds over all algorithms, the better time of each; `time` answers that of the current one.
  template <class Time>
  void pick(Time&& time) {
    std::vector<double> best(algorithms_.size(), 1e300);
    for (int round = 0; round < 2; ++round)
      for (best_ = 0; best_ < algorithms_.size(); ++best_) best[best_] = std::min(best[best_], time());
    best_ = static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  }
  std::size_t chosen() const noexcept { return best_; }

 private:
  static constexpr std::size_t kWorkspace = 64 << 20;
  static constexpr int kMost = 8;
  void ok(cuda::cublasStatus_t s) const {
    if (s != cuda::CUBLAS_STATUS_SUCCESS) throw std::runtime_error(fmt::format("cuBLASLt: {}", lt_.cublasLtGetStatusName(s)));
  }
  const Gpu& gpu_;
  const cuda::CublasLtTable& lt_;
  DeviceMemory workspace_;
  cuda::cublasLtHandle_t handle_ = nullptr;
  cuda::cublasLtMatmulDesc_t desc_ = nullptr;
  cuda::cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  std::vector<cuda::cublasLtMatmulAlgo_t> algorithms_;
  std::size_t best_ = 0;
};

}  // namespace bench
