#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "jit/cache.hpp"
#include "jit/kernel.hpp"

namespace verglas::jit {

/// Kernels of this process by key: from memory, from the disk cache, or compiled, in this order. One thread compiles a key and
/// the others that want it wait; different keys go in parallel. A kernel stays loaded while somebody holds it.
class KernelStore {
 public:
  explicit KernelStore(KernelCache& cache) : cache_(cache) {}

  /// Compiled code without loading it: for compiling ahead of time, and for tests. Throws compile_failed.
  CompiledKernel compile(const cuda::NvrtcTable& nvrtc, const CompileRequest& request);

  /// The kernel, loaded into the driver. Throws compile_failed or driver_failed; a later call tries again.
  std::shared_ptr<const LoadedKernel> load(const cuda::DriverTable& driver, const cuda::NvrtcTable& nvrtc,
                                           const CompileRequest& request, KernelNeeds needs);

  /// Keys that are loaded or being compiled.
  std::size_t size() const;

 private:
  struct Slot {
    std::mutex mutex;  // held while compiling and loading
    std::weak_ptr<const LoadedKernel> kernel;
  };
  std::shared_ptr<Slot> slot_of(const std::string& key);

  KernelCache& cache_;
  mutable std::mutex mutex_;  // guards slots_
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots_;
  std::size_t sweep_at_ = 64;
};

/// The store of this process, over process_cache().
KernelStore& process_store();

}  // namespace verglas::jit
