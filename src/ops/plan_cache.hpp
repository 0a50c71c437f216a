#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "ops/definition.hpp"

namespace verglas::ops {

/// Compiled plans of operations, the least recently used one leaves first.
///
/// Threads  any number; two that miss the same key at one time both compile, and one result is kept
class PlanCache {
 public:
  explicit PlanCache(std::size_t limit) : limit_(limit) {}

  /// Null when there is none.
  std::shared_ptr<const Built> find(const Key& key);
  /// The plan kept for that key: this one, or the one that another thread was first to put.
  std::shared_ptr<const Built> put(const Key& key, std::shared_ptr<const Built> built);
  void clear();
  CacheStatistics statistics() const;

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const Built> built;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const noexcept {
      return std::hash<std::string_view>()({reinterpret_cast<const char*>(k.data()), k.size()});
    }
  };
  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  ///< the last used first
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> by_key_;
  std::uint64_t compiled_ = 0, found_ = 0;
};

PlanCache& plan_cache();

}  // namespace verglas::ops
