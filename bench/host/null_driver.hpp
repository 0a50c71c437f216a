#pragma once
#include "cuda/driver_table.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"

namespace verglas::bench {

/// While it lives, `cuda::driver()` answers a driver in memory under which Hopper plans compile. After `silence()` everything
/// that a call asks of it is answered at once, and nothing is recorded: what is left of a call is Verglas' own share. Hazard
/// plans must die before it
class NullDriver {
 public:
  NullDriver() : table_(recorder_.table()), use_(&table_) {
    nvrtc_.set_parameter_bytes(static_cast<int>(sizeof(sm90::ParameterBlock)));
  }

  /// The context of device 0 counts as current, as it does on a thread of a framework.
  void silence() {
    using namespace cuda;
    context_ = recorder_.primary_context(0);
    table_.cuCtxGetCurrent = [](CUcontext* now) { return *now = context_, CUDA_SUCCESS; };
    table_.cuCtxPushCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    table_.cuCtxPopCurrent = [](CUcontext*) { return CUDA_SUCCESS; };
    table_.cuLaunchKernelEx = [](const CUlaunchConfig*, CUfunction, void**, void**) { return CUDA_SUCCESS; };
    table_.cuStreamGetCaptureInfo = [](CUstream, CUstreamCaptureStatus* status, auto...) {
      return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
    };
    table_.cuStreamGetId = [](CUstream, unsigned long long* id) { return *id = 1, CUDA_SUCCESS; };
    table_.cuThreadExchangeStreamCaptureMode = [](auto...) { return CUDA_SUCCESS; };
    table_.cuMemAlloc = [](CUdeviceptr* memory, std::size_t) { return *memory = 1 << 20, CUDA_SUCCESS; };
    table_.cuMemFree = [](CUdeviceptr) { return CUDA_SUCCESS; };
    table_.cuStreamCreate = [](CUstream* stream, unsigned) { return *stream = nullptr, CUDA_SUCCESS; };
    table_.cuMemsetD8Async = [](CUdeviceptr, unsigned char, std::size_t, CUstream) { return CUDA_SUCCESS; };
    table_.cuStreamSynchronize = [](CUstream) { return CUDA_SUCCESS; };
    table_.cuTensorMapReplaceAddress = [](CUtensorMap*, void*) { return CUDA_SUCCESS; };
    table_.cuTensorMapEncodeTiled = [](CUtensorMap*, CUtensorMapDataType, std::uint32_t, void*, const std::uint64_t*,
                                       const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, CUtensorMapInterleave,
                                       CUtensorMapSwizzle, CUtensorMapL2promotion,
                                       CUtensorMapFloatOOBfill) { return CUDA_SUCCESS; };
  }

 private:
  static inline cuda::CUcontext context_ = nullptr;
  support::RecordingDriver recorder_;
  support::FakeNvrtc nvrtc_;
  cuda::DriverTable table_;
  cuda::DriverOverride use_;
};

}  // namespace verglas::bench
