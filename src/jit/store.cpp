#include "jit/store.hpp"

#include <algorithm>
#include <utility>

#include "base/canonical.hpp"
#include "base/sha256.hpp"

namespace verglas::jit {

std::shared_ptr<KernelStore::Slot> KernelStore::slot_of(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (slots_.size() >= sweep_at_) {
    // Nobody can take a slot while we hold the lock, so a use count of one means that only the table has it.
    std::erase_if(slots_, [](const auto& item) { return item.second.use_count() == 1 && item.second->kernel.expired(); });
    sweep_at_ = std::max<std::size_t>(64, 2 * slots_.size());
  }
  std::shared_ptr<Slot>& slot = slots_[key];
  if (!slot) slot = std::make_shared<Slot>();
  return slot;
}

std::size_t KernelStore::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(slots_.begin(), slots_.end(), [](const auto& item) {
    return item.second.use_count() > 1 || !item.second->kernel.expired();
  }));
}

CompiledKernel KernelStore::compile(const cuda::NvrtcTable& nvrtc, const CompileRequest& request) {
  const std::string key = cache_key(request, nvrtc);
  const std::shared_ptr<Slot> slot = slot_of(sha256(key));
  const std::lock_guard lock(slot->mutex);
  if (auto cached = cache_.load(key)) return std::move(*cached);
  CompiledKernel kernel = jit::compile(nvrtc, request);
  cache_.store(key, kernel);
  return kernel;
}

std::shared_ptr<const LoadedKernel> KernelStore::load(const cuda::DriverTable& driver, const cuda::NvrtcTable& nvrtc,
                                                      const CompileRequest& request, KernelNeeds needs) {
  CanonicalBytes loaded;  // what is loaded depends on more than the code
  loaded.add("code", cache_key(request, nvrtc));
  loaded.add("smem", std::int64_t{needs.dynamic_smem_bytes});
  loaded.add("cluster", std::int64_t{needs.non_portable_cluster});
  loaded.add("driver", static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&driver)));
  const std::shared_ptr<Slot> slot = slot_of(sha256(loaded.bytes()));
  const std::lock_guard lock(slot->mutex);
  if (auto kernel = slot->kernel.lock()) return kernel;
  CompiledKernel code = compile(nvrtc, request);  // under the lock of the code: one order, so no deadlock
  std::shared_ptr<const LoadedKernel> kernel = LoadedKernel::load(driver, std::move(code), needs);
  slot->kernel = kernel;
  return kernel;
}

KernelStore& process_store() {
  static KernelStore& store = *new KernelStore(process_cache());  // never destroyed: used by plans at exit
  return store;
}

}  // namespace verglas::jit
