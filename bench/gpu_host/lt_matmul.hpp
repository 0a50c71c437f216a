#pragma once
#include <cstdint>
#include <string>

#include "cuda/cublaslt_table.hpp"
#include "cuda/driver_table.hpp"

namespace verglas::bench {

/// D(M, N) = A(M, K) · B(N, K)ᵀ in bf16 with fp32 sums, rows contiguous, by cuBLASLt's first choice: the rival of a call.
class LtMatmul {
 public:
  LtMatmul(const cuda::DriverTable& driver, std::int64_t m, std::int64_t n, std::int64_t k);
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  /// Why it cannot be called, in words; empty when it can.
  const std::string& missing() const noexcept { return missing_; }
  cuda::cublasStatus_t operator()(const void* a, const void* b, void* d) const noexcept;

 private:
  void prepare(std::int64_t m, std::int64_t n, std::int64_t k);

  static constexpr std::size_t kWorkspaceBytes = 32 << 20;

  const cuda::DriverTable& driver_;
  const cuda::CublasLtTable* lt_ = nullptr;
  std::string missing_;
  cuda::cublasLtHandle_t handle_ = nullptr;
  cuda::cublasLtMatmulDesc_t desc_ = nullptr;
  cuda::cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cuda::cublasLtMatmulHeuristicResult_t choice_{};
  cuda::CUdeviceptr workspace_ = 0;
};

}  // namespace verglas::bench
