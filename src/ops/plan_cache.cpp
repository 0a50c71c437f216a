#include "ops/plan_cache.hpp"

#include <algorithm>
#include <bit>

namespace verglas::ops {
namespace {

/// How wide a piece of memory can be moved, as a power of two from 1 to 16 bytes: kernels for a GPU depend on it.
std::uint8_t width_class(const TensorView& v, std::uint8_t major) {
  if (v.device.type != DeviceType::cuda || v.rank != 3) return 0;
  std::uint64_t bits = 16;
  for (const std::size_t axis : {std::size_t{1} - major, std::size_t{2}})
    if (v.extent[axis] > 1) bits |= static_cast<std::uint64_t>(v.stride[axis]) * static_cast<std::uint64_t>(bytes_of(v.dtype));
  return static_cast<std::uint8_t>(std::countr_zero(bits));
}

/// Up to 16, 64, 256, ..., 16384, and more: kernels for a GPU are chosen by extents, and few of them are compiled for any number
/// of tokens.
std::uint8_t size_class(std::int64_t extent) {
  const auto bits = static_cast<int>(extent > 1 ? std::bit_width(static_cast<std::uint64_t>(extent - 1)) : 0);
  return static_cast<std::uint8_t>(std::clamp((bits + 1) / 2, 2, 8));
}

}  // namespace

Key key_of(const Problem& p) {
  Key key{};
  std::size_t at = 0;
  const auto add = [&](std::size_t value) { key[at++] = static_cast<std::uint8_t>(value); };
  const auto names = Operation::names();
  add(static_cast<std::size_t>(std::find(names.begin(), names.end(), p.definition.name()) - names.begin()));
  add((p.l == 1 ? 1U : 0U) | (p.alpha_in_memory ? 2U : 0U));
  add(static_cast<std::size_t>(p.block));
  add(static_cast<std::size_t>(p.head / 32));
  add(static_cast<std::size_t>(p.rotated / 32));
  const Device device = p.at(0).device;
  add(static_cast<std::size_t>(device.type));
  if (device.type == DeviceType::cuda) {
    add(static_cast<std::size_t>(device.id & 0xFF));
    add(static_cast<std::size_t>(device.id >> 8));
  }
  for (std::size_t i = 0; i < p.given.size(); ++i) {
    add(static_cast<std::size_t>(p.given[i].dtype));
    add(p.major[i] | width_class(p.given[i], p.major[i]) << 1);
  }
  if (device.type == DeviceType::cuda) {
    at = key.size() - kSizeBytes;
    for (const std::int64_t extent : {p.m, p.n, p.k}) add(size_class(extent));
  }
  return key;
}

bool is_served(const Key& by, const Key& other) noexcept { return std::equal(by.begin(), by.end() - kSizeBytes, other.begin()); }

std::shared_ptr<const Built> PlanCache::find(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return nullptr;
  ++found_;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->built;
}

std::shared_ptr<const Built> PlanCache::put(const Key& key, std::shared_ptr<const Built> built) {
  const std::lock_guard lock(mutex_);
  ++compiled_;
  if (const auto it = by_key_.find(key); it != by_key_.end()) return it->second->built;
  if (entries_.size() == limit_) {
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({key, std::move(built)});
  by_key_.emplace(key, entries_.begin());
  return entries_.front().built;
}

void PlanCache::clear() {
  const std::lock_guard lock(mutex_);
  by_key_.clear();
  entries_.clear();
}

CacheStatistics PlanCache::statistics() const {
  const std::lock_guard lock(mutex_);
  return {.plans = entries_.size(), .limit = limit_, .compiled = compiled_, .found = found_};
}

PlanCache& plan_cache() {
  static PlanCache& cache = *new PlanCache(256);  // never destroyed: a thread may still use it while the program ends
  return cache;
}

CacheStatistics plan_cache_statistics() { return plan_cache().statistics(); }
void clear_plan_cache() { plan_cache().clear(); }

}  // namespace verglas::ops
