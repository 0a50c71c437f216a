#pragma once
#include <cstdint>
#include <vector>

#include "cuda/context.hpp"
#include "tool/host_array.hpp"

namespace verglas::tool {

/// Copies of host arrays in the memory of one GPU, for the length of a run. Its primary context is current meanwhile.
class DeviceArrays {
 public:
  /// Throws driver.missing, driver.call.
  explicit DeviceArrays(int ordinal);
  ~DeviceArrays();
  DeviceArrays(const DeviceArrays&) = delete;
  DeviceArrays& operator=(const DeviceArrays&) = delete;

  /// Copies the bytes there, and answers a view of the copy with the same extents and strides.
  TensorView place(HostArray& a);
  /// Bytes of scratch memory, aligned as the driver aligns (256).
  void* scratch(std::int64_t bytes);
  /// Copies a placed array back; `copy` is what `place` answered.
  void fetch(const TensorView& copy, HostArray& a);
  /// Waits for all that was launched.
  void wait();

 private:
  const cuda::DriverTable& driver_;
  int ordinal_;
  cuda::PrimaryContext context_;
  cuda::CurrentContext current_;
  std::vector<cuda::CUdeviceptr> owned_;
};

}  // namespace verglas::tool
