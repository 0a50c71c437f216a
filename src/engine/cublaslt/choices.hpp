#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "engine/cublaslt/heuristic.hpp"

namespace verglas::cublaslt {

/// An algorithm for the layouts of a call.
struct Choice {
  Geometry geometry;
  Algorithm algorithm;
  /// The library loads a kernel when it first launches it, which a capture elsewhere forbids unless the thread is relaxed.
  mutable std::atomic<bool> is_loaded{false};
  Choice* next = nullptr;
};

/// Choices by layout, for any number of threads: finding takes no lock, and nothing goes before the table does.
class Choices {
 public:
  Choices() = default;
  ~Choices();
  Choices(const Choices&) = delete;
  Choices& operator=(const Choices&) = delete;

  const Choice* find(const Geometry& geometry) const noexcept;
  /// Keeps a choice; null where memory is short, or so many are kept that one more would be of no use.
  const Choice* keep(const Geometry& geometry, const Algorithm& algorithm) noexcept;

 private:
  static constexpr std::size_t kBuckets = 256;
  static constexpr std::size_t kMost = 4096;
  static std::size_t bucket_of(const Geometry& g) noexcept;

  std::array<std::atomic<Choice*>, kBuckets> first_{};
  std::mutex keeping_;
  std::size_t count_ = 0;
};

}  // namespace verglas::cublaslt
