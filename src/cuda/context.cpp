#include "cuda/context.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace verglas::cuda {

PrimaryContext::PrimaryContext(const DriverTable& driver, int ordinal) : driver_(&driver), process_(::getpid()) {
  check(driver, driver.cuDeviceGet(&device_, ordinal), "cuDeviceGet", fmt::format("asking for device {}", ordinal));
  check(driver, driver.cuDevicePrimaryCtxRetain(&handle_, device_), "cuDevicePrimaryCtxRetain",
        fmt::format("taking the primary context of device {}", ordinal));
}
PrimaryContext::~PrimaryContext() {
  if (handle_ && process_ == ::getpid()) driver_->cuDevicePrimaryCtxRelease(device_);
}
PrimaryContext::PrimaryContext(PrimaryContext&& other) noexcept
    : driver_(other.driver_), device_(other.device_), handle_(std::exchange(other.handle_, nullptr)), process_(other.process_) {}

CurrentContext::CurrentContext(const DriverTable& driver, CUcontext context) : driver_(driver) {
  check(driver, driver.cuCtxGetCurrent(&before_), "cuCtxGetCurrent", "asking for the thread's context");
  if (before_ == context) return;
  check(driver, driver.cuCtxPushCurrent(context), "cuCtxPushCurrent", "making a device's context current");
  changed_ = true;
}
CurrentContext::~CurrentContext() {
  if (!changed_) return;
  CUcontext popped = nullptr;
  if (driver_.cuCtxPopCurrent(&popped) != CUDA_SUCCESS) driver_.cuCtxSetCurrent(before_);
}

RelaxedCapture::RelaxedCapture(const DriverTable& driver) noexcept : driver_(driver) {
  changed_ = driver_.cuThreadExchangeStreamCaptureMode(&before_) == CUDA_SUCCESS;
}
RelaxedCapture::~RelaxedCapture() {
  // Twice if need be: a thread left relaxed would let later calls spoil its own captures unseen.
  if (changed_ && driver_.cuThreadExchangeStreamCaptureMode(&before_) != CUDA_SUCCESS)
    driver_.cuThreadExchangeStreamCaptureMode(&before_);
}

bool is_capturing(const DriverTable& driver, CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace verglas::cuda
