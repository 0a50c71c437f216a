#include "jit/kernel.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/rules.hpp"

namespace verglas::jit {

using cuda::check;

LoadedKernel::LoadedKernel(const cuda::DriverTable& driver, CompiledKernel kernel, KernelNeeds needs)
    : driver_(driver),
      name_(std::move(kernel.kernel)),
      arch_(std::move(kernel.arch)),
      report_(std::move(kernel.report)),
      needs_(needs),
      cubin_(std::move(kernel.cubin)),
      process_(::getpid()) {}

LoadedKernel::~LoadedKernel() {
  if (!library_ || process_ != ::getpid()) return;
  const cuda::RelaxedCapture relaxed(driver_);  // dropping a plan must not spoil a capture of another thread
  driver_.cuLibraryUnload(library_);
}

std::shared_ptr<LoadedKernel> LoadedKernel::load(const cuda::DriverTable& driver, CompiledKernel kernel, KernelNeeds needs) {
  std::shared_ptr<LoadedKernel> out(new LoadedKernel(driver, std::move(kernel), needs));
  const cuda::RelaxedCapture relaxed(driver);
  check(driver, driver.cuLibraryLoadData(&out->library_, out->cubin_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData", fmt::format("loading kernel {} ({}, {} bytes)", out->name_, out->arch_, out->cubin_.size()));
  check(driver, driver.cuLibraryGetKernel(&out->kernel_, out->library_, out->name_.c_str()), "cuLibraryGetKernel",
        fmt::format("looking for kernel {} in its image", out->name_));
  return out;
}

void LoadedKernel::prepare(int device) const {
  if (!in_range(device))
    throw broken(Rule::driver_call, fmt::format("kernel {} cannot be prepared on device {}: devices 0 to {} are served", name_,
                                                device, kMostDevices - 1));
  OnDevice& here = devices_[static_cast<std::size_t>(device)];
  if (here.function.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (here.function.load(std::memory_order_relaxed)) return;

  const std::string what = fmt::format("preparing kernel {} on device {}", name_, device);
  cuda::PrimaryContext context(driver_, device);
  const cuda::CurrentContext current(driver_, context.handle());
  const cuda::RelaxedCapture relaxed(driver_);
  // Attributes are of a device, not of the library: each device that is prepared gets its own.
  if (needs_.dynamic_smem_bytes > 0)
    check(driver_,
          driver_.cuKernelSetAttribute(cuda::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, needs_.dynamic_smem_bytes, kernel_,
                                       context.device()),
          "cuKernelSetAttribute", fmt::format("{}, allowing {} bytes of dynamic shared memory", what, needs_.dynamic_smem_bytes));
  if (needs_.non_portable_cluster)
    check(driver_,
          driver_.cuKernelSetAttribute(cuda::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel_, context.device()),
          "cuKernelSetAttribute", what + ", allowing clusters of more than 8 blocks");
  cuda::CUfunction function = nullptr;
  check(driver_, driver_.cuKernelGetFunction(&function, kernel_), "cuKernelGetFunction", what);
  check(driver_, driver_.cuFuncLoad(function), "cuFuncLoad", what);
  here.context.emplace(std::move(context));
  here.function.store(function, std::memory_order_release);
}

int LoadedKernel::max_active_clusters(int device, const cuda::CUlaunchConfig& config) const {
  prepare(device);
  const cuda::CurrentContext current(driver_, context(device));
  int clusters = 0;
  check(driver_, driver_.cuOccupancyMaxActiveClusters(&clusters, function(device), &config), "cuOccupancyMaxActiveClusters",
        fmt::format("asking how many clusters of kernel {} fit device {}", name_, device));
  return clusters;
}

}  // namespace verglas::jit
