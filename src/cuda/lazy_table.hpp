#pragma once
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "cuda/library.hpp"

namespace verglas::cuda {

/// One function table, filled on first use by whichever thread comes first, or replaced by a test.
///
/// Success is for the life of the process. A failure is remembered until `add_site_packages` brings new folders, so that a
/// program without a GPU does not search the disk at each plan.
template <class Table>
class LazyTable {
 public:
  /// Fills the table; on failure the report's sentence says why.
  using Open = LibraryReport (*)(Table& into, const SearchPlaces& places);

  constexpr LazyTable(Rule rule, Open open) noexcept : rule_(rule), open_(open) {}

  Result<const Table*> get() {
    if (const Replacement* r = replacement_.load(std::memory_order_acquire)) {
      if (r->table) return r->table;
      return decline(rule_, "hidden by an override");
    }
    if (const Table* table = ready_.load(std::memory_order_acquire)) return table;
    const std::lock_guard lock(mutex_);
    search_locked();
    if (const Table* table = ready_.load(std::memory_order_relaxed)) return table;
    return decline(rule_, report_->sentence);
  }

  LibraryReport report() {
    const std::lock_guard lock(mutex_);
    search_locked();
    return *report_;
  }

  /// What `get` answers while an Override lives; a null table means "not found".
  struct Replacement {
    const Table* table;
    const Replacement* below;
  };
  void push(Replacement& r) noexcept {
    r.below = replacement_.load(std::memory_order_relaxed);
    replacement_.store(&r, std::memory_order_release);
  }
  void pop(const Replacement& r) noexcept { replacement_.store(r.below, std::memory_order_release); }

 private:
  void search_locked() {
    if (ready_.load(std::memory_order_relaxed)) return;
    const unsigned generation = site_packages_generation();
    if (report_ && generation == generation_) return;
    generation_ = generation;
    report_ = open_(table_, SearchPlaces::system());
    if (report_->found) ready_.store(&table_, std::memory_order_release);
  }

  Rule rule_;
  Open open_;
  std::mutex mutex_;
  Table table_{};
  std::optional<LibraryReport> report_;
  unsigned generation_ = 0;
  std::atomic<const Table*> ready_{nullptr};
  std::atomic<const Replacement*> replacement_{nullptr};
};

/// While it lives, a table stands in for the library. Overrides nest; the last one made must be the first to go.
template <class Table, LazyTable<Table>& (*Lazy)()>
class TableOverride {
 public:
  /// `table` null: the library counts as not found.
  explicit TableOverride(const Table* table) noexcept : here_{table, nullptr} { Lazy().push(here_); }
  ~TableOverride() { Lazy().pop(here_); }
  TableOverride(const TableOverride&) = delete;
  TableOverride& operator=(const TableOverride&) = delete;

 private:
  typename LazyTable<Table>::Replacement here_;
};

}  // namespace verglas::cuda
