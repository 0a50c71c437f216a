#pragma once
#include "cuda/driver_table.hpp"

namespace verglas::cuda {

/// A reference to the primary context of a device, the one that the runtime, torch and JAX use.
class PrimaryContext {
 public:
  /// Throws driver_failed.
  PrimaryContext(const DriverTable& driver, int ordinal);
  ~PrimaryContext();
  PrimaryContext(PrimaryContext&& other) noexcept;
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  CUdevice device() const noexcept { return device_; }
  CUcontext handle() const noexcept { return handle_; }

 private:
  const DriverTable* driver_;
  CUdevice device_ = 0;
  CUcontext handle_ = nullptr;
  int process_;  // a child of fork() must not touch the parent's driver
};

/// While it lives, a context is current on this thread; then the thread's own is again, or none as before.
class CurrentContext {
 public:
  /// Throws driver_failed. Does nothing where `context` is current already.
  CurrentContext(const DriverTable& driver, CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const DriverTable& driver_;
  CUcontext before_ = nullptr;
  bool changed_ = false;
};

/// While it lives, calls of this thread that a capture elsewhere forbids (loading and unloading code) are allowed and leave that
/// capture as it is.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverTable& driver) noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverTable& driver_;
  CUstreamCaptureMode before_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool changed_ = false;
};

/// True while the stream is captured into a graph, or its capture was spoilt; false for a stream that cannot be asked.
bool is_capturing(const DriverTable& driver, CUstream stream) noexcept;

}  // namespace verglas::cuda
