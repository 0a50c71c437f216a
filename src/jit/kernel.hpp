#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/context.hpp"
#include "jit/nvrtc.hpp"

namespace verglas::jit {

/// What a kernel needs of a device beyond its code.
struct KernelNeeds {
  int dynamic_smem_bytes = 0;
  bool non_portable_cluster = false;  ///< clusters of more than 8 blocks
};

/// A kernel in the driver: unloaded when the last owner goes. Immutable but for the devices that were prepared.
///
/// All that could load, wait or allocate later is done by `load` and `prepare`, so that a launch only launches: with the
/// driver's lazy loading the first launch would load the module, take milliseconds, and be illegal inside a capture.
class LoadedKernel {
 public:
  static constexpr int kMostDevices = 64;

  /// Hands the image to the driver, for every device. Throws driver_failed [driver.call].
  static std::shared_ptr<LoadedKernel> load(const cuda::DriverTable& driver, CompiledKernel kernel, KernelNeeds needs);
  ~LoadedKernel();
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  /// Makes the kernel ready on a device: limits set, code resident. Any thread, with or without a current context, which stays
  /// as it was; also while another thread captures. Once it returned, `function` and `context` answer for that device.
  /// Throws driver_failed; the kernel is then as before, and a later call tries again.
  void prepare(int device) const;

  /// The function on a device that was prepared, else null. No lock, no driver call.
  cuda::CUfunction function(int device) const noexcept {
    return in_range(device) ? devices_[static_cast<std::size_t>(device)].function.load(std::memory_order_acquire) : nullptr;
  }
  /// The context that must be current for a launch there; null where not prepared.
  cuda::CUcontext context(int device) const noexcept {
    return function(device) ? devices_[static_cast<std::size_t>(device)].context->handle() : nullptr;
  }
  /// Clusters (blocks, where the kernel has none) that fit the device at once; the kernel is prepared there first.
  /// Throws driver_failed.
  int max_active_clusters(int device, const cuda::CUlaunchConfig& config) const;

  const std::string& name() const noexcept { return name_; }
  const std::string& arch() const noexcept { return arch_; }
  const ResourceReport& report() const noexcept { return report_; }
  const KernelNeeds& needs() const noexcept { return needs_; }
  const cuda::DriverTable& driver() const noexcept { return driver_; }

 private:
  LoadedKernel(const cuda::DriverTable& driver, CompiledKernel kernel, KernelNeeds needs);
  static bool in_range(int device) noexcept { return device >= 0 && device < kMostDevices; }

  struct OnDevice {
    std::optional<cuda::PrimaryContext> context;  // guarded by mutex_ until `function` is set, then constant
    std::atomic<cuda::CUfunction> function{nullptr};
  };

  const cuda::DriverTable& driver_;
  const std::string name_, arch_;
  const ResourceReport report_;
  const KernelNeeds needs_;
  const std::string cubin_;  // hazard: with lazy loading the driver may read the image later, so it lives as long as the library
  const int process_;
  cuda::CUlibrary library_ = nullptr;
  cuda::CUkernel kernel_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::array<OnDevice, kMostDevices> devices_;
};

}  // namespace verglas::jit
