#pragma once
#include <string_view>

#include "cuda/cublaslt_table.hpp"
#include "gpu.hpp"

namespace bench {

/// What enters a product and what leaves it, in cuBLASLt's words.
struct LtTypes {
  cuda::cudaDataType_t in = cuda::CUDA_R_16BF, out = cuda::CUDA_R_16BF, scale = cuda::CUDA_R_32F;
  cuda::cublasComputeType_t compute = cuda::CUBLAS_COMPUTE_32F;
  bool fast_fp8 = false;  ///< sums of fp8 with what a tensor core keeps

  static LtTypes of(std::string_view name) {
    if (name == "bf16") return {};
    if (name == "fp8" || name == "fp8 fast") {
      LtTypes fp8;
      fp8.in = cuda::CUDA_R_8F_E4M3;
      fp8.fast_fp8 = name == "fp8 fast";
      return fp8;
    }
    if (name == "fp16") return {cuda::CUDA_R_16F, cuda::CUDA_R_16F, cuda::CUDA_R_32F, cuda::CUBLAS_COMPUTE_32F};
    if (name == "tf32") return {cuda::CUDA_R_32F, cuda::CUDA_R_32F, cuda::CUDA_R_32F, cuda::CUBLAS_COMPUTE_32F_FAST_TF32};
    if (name == "int8") return {cuda::CUDA_R_8I, cuda::CUDA_R_32I, cuda::CUDA_R_32I, cuda::CUBLAS_COMPUTE_32I};
    throw std::runtime_error(fmt::format("no product of {} to compare with", name));
  }
  std::int64_t bytes_in() const {
    return in == cuda::CUDA_R_8I || in == cuda::CUDA_R_8F_E4M3 ? 1 : in == cuda::CUDA_R_32F ? 4 : 2;
  }
};

/// D (l, m, n) = A (l, m, k) Bᵀ with b (l, n, k), rows contiguous, by cuBLASLt: the fastest of its first eight heuristics.
class CublasLtProduct {
 public:
  CublasLtProduct(const Gpu& gpu, const cuda::CublasLtTable& lt, std::int64_t m, std::int64_t n, std::int64_t k,
                  const LtTypes& types = {}, std::int64_t l = 1)
      : gpu_(gpu), lt_(lt), types_(types), workspace_(gpu, kWorkspace) {
    ok(lt.cublasLtCreate(&handle_));
    ok(lt.cublasLtMatmulDescCreate(&desc_, types.compute, types.scale));
    const std::int32_t transpose = cuda::CUBLAS_OP_T;
    ok(lt.cublasLtMatmulDescSetAttribute(desc_, cuda::CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    const std::int8_t fast = types.fast_fp8 ? 1 : 0;
    if (types.in == cuda::CUDA_R_8F_E4M3)
      ok(lt.cublasLtMatmulDescSetAttribute(desc_, cuda::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    // Column-major words: Dᵀ (n, m) = B (n, k) · A (m, k)ᵀ, each matrix as it lies.
    layout(b_, types.in, k, n, l);
    layout(a_, types.in, k, m, l);
    layout(d_, types.out, n, m, l);
    cuda::cublasLtMatmulPreference_t preference = nullptr;
    ok(lt.cublasLtMatmulPreferenceCreate(&preference));
    const std::uint64_t bytes = kWorkspace;
    ok(lt.cublasLtMatmulPreferenceSetAttribute(preference, cuda::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    const auto alignment = static_cast<std::uint32_t>(k * types.bytes_in() % 16 == 0 ? 16 : types.bytes_in());
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
    const float one = 1;
    const std::int32_t whole_one = 1, zero = 0;  // zero is all bits 0 in either type
    const void* alpha = types_.scale == cuda::CUDA_R_32I ? static_cast<const void*>(&whole_one) : &one;
    ok(lt_.cublasLtMatmul(handle_, desc_, alpha, reinterpret_cast<void*>(b), b_, reinterpret_cast<void*>(a), a_, &zero,
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
  std::size_t algorithms() const noexcept { return algorithms_.size(); }
  void choose(std::size_t algorithm) { best_ = algorithm; }

 private:
  static constexpr std::size_t kWorkspace = 64 << 20;
  static constexpr int kMost = 8;
  void ok(cuda::cublasStatus_t s) const {
    if (s != cuda::CUBLAS_STATUS_SUCCESS) throw std::runtime_error(fmt::format("cuBLASLt: {}", lt_.cublasLtGetStatusName(s)));
  }
  void layout(cuda::cublasLtMatrixLayout_t& into, cuda::cudaDataType_t type, std::int64_t rows, std::int64_t cols,
              std::int64_t l) {
    ok(lt_.cublasLtMatrixLayoutCreate(&into, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols), rows));
    if (l == 1) return;
    const auto count = static_cast<std::int32_t>(l);
    const std::int64_t between = rows * cols;
    ok(lt_.cublasLtMatrixLayoutSetAttribute(into, cuda::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    ok(lt_.cublasLtMatrixLayoutSetAttribute(into, cuda::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &between, sizeof between));
  }
  const Gpu& gpu_;
  const cuda::CublasLtTable& lt_;
  LtTypes types_;
  DeviceMemory workspace_;
  cuda::cublasLtHandle_t handle_ = nullptr;
  cuda::cublasLtMatmulDesc_t desc_ = nullptr;
  cuda::cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  std::vector<cuda::cublasLtMatmulAlgo_t> algorithms_;
  std::size_t best_ = 0;
};

}  // namespace bench
