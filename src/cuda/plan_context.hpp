#pragma once
#include "cuda/driver_table.hpp"
#include "verglas/tensor.hpp"

namespace verglas::cuda {

/// What a launcher asks about the thread that calls it: is the plan's context current, another device's, or none; and is this the
/// process that made the plan.
class PlanContext {
 public:
  PlanContext(const DriverTable& driver, CUcontext context);

  /// True in a child of fork(), which must not touch the parent's driver. No system call.
  bool is_of_parent() const noexcept;
  /// The current device; that of the plan where no context is current. `is_ready`: the plan's context is.
  Device current_device(Device plan, bool& is_ready) const noexcept;
  /// A thread that has no context yet borrows the plan's for a call (a fresh thread of a framework, for one).
  CUresult borrow() const noexcept { return driver_.cuCtxPushCurrent(context_); }
  void give_back() const noexcept;

  CUcontext handle() const noexcept { return context_; }

 private:
  const DriverTable& driver_;
  CUcontext context_;
  int forks_;
};

}  // namespace verglas::cuda
