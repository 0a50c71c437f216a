#include "cuda/plan_context.hpp"

#include <pthread.h>

#include <atomic>

namespace verglas::cuda {
namespace {

/// Forks that led to this process since the first plan, counted in the child.
std::atomic<int> forks{0};

int forks_so_far() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { forks.store(forks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

PlanContext::PlanContext(const DriverTable& driver, CUcontext context)
    : driver_(driver), context_(context), forks_(forks_so_far()) {}

bool PlanContext::is_of_parent() const noexcept { return forks.load(std::memory_order_relaxed) != forks_; }

Device PlanContext::current_device(Device plan, bool& is_ready) const noexcept {
  if (is_of_parent()) return plan;
  CUcontext now = nullptr;
  is_ready = driver_.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == context_;
  if (is_ready || now == nullptr) return plan;
  CUdevice ordinal = 0;
  if (driver_.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) return {DeviceType::unknown, -1};
  return {DeviceType::cuda, static_cast<std::int16_t>(ordinal)};
}

void PlanContext::give_back() const noexcept {
  CUcontext now = nullptr;
  driver_.cuCtxPopCurrent(&now);
}

}  // namespace verglas::cuda
