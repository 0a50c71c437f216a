#pragma once
// A cuBLASLt in memory: it says no where the real one does, records what it is asked, and can multiply.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/cublaslt_table.hpp"

namespace support {

struct LtMatrix {
  verglas::cuda::cudaDataType_t type{};
  std::uint64_t rows = 0, cols = 0;
  std::int64_t ld = 0;
  std::int32_t batches = 1;
  std::int64_t batch_stride = 0;
};

/// A product as the library was told of it, in its own words: columns are contiguous.
struct LtCall {
  verglas::cuda::cublasComputeType_t compute{};
  verglas::cuda::cudaDataType_t scale{};
  bool x_transposed = false, y_transposed = false;
  bool is_fast = false;  ///< fp8 sums
  std::uint32_t epilogue = 1;
  const void* bias = nullptr;
  std::int32_t bias_type = -1, aux_type = -1;
  std::int64_t bias_stride = 0, aux_ld = 0, aux_stride = 0;
  void* aux = nullptr;
  LtMatrix x, y, c, d;
  // Of a launch.
  const void *x_data = nullptr, *y_data = nullptr, *c_data = nullptr;
  void* d_data = nullptr;
  double alpha = 0, beta = 0;
  std::uint64_t algorithm = 0;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  verglas::cuda::CUstream stream = nullptr;
};

struct LtAlgorithm {
  std::uint32_t id = 66, tile = 24, split_k = 1;
  std::size_t workspace_bytes = 0;
};

/// While it lives, `cuda::cublaslt()` answers its table. One at a time, and inside the life of a RecordingDriver. All members may
/// be called from any thread.
class FakeCublasLt {
 public:
  explicit FakeCublasLt(int version = 130100);
  ~FakeCublasLt();
  FakeCublasLt(const FakeCublasLt&) = delete;
  FakeCublasLt& operator=(const FakeCublasLt&) = delete;

  /// What is offered for every product that has something to offer; best first.
  void offer(std::vector<LtAlgorithm> algorithms);
  /// Products for which there is no algorithm, beside those of the real library.
  void refuse(std::function<bool(const LtCall&)> has_none);
  /// From now on a launch multiplies, in double: addresses are those of memory.
  void multiply();

  std::vector<LtCall> launches() const;
  std::vector<LtCall> asked() const;  ///< products that algorithms were asked for
  int count(std::string_view call) const;
  void clear();  ///< forgets launches, questions and counts
  int live_handles() const;
  int live_preferences() const;

  /// The call of that name after the next `after` ones answers `status` and does nothing.
  void fail_next(std::string_view call, verglas::cuda::cublasStatus_t status, int after = 0);
  /// The `index`-th call from now, whatever it is, does so; false from `failure_pending` once it has happened.
  void fail_call(int index, verglas::cuda::cublasStatus_t status);
  bool failure_pending() const;
  void clear_failures();

  struct State;

 private:
  std::unique_ptr<State> state_;
  verglas::cuda::CublasLtOverride override_;
};

}  // namespace support
