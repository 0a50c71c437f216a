#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>

#include "chain/chain.hpp"
#include "cuda/driver_table.hpp"
#include "engine/sm90/configuration.hpp"

namespace verglas::sm90 {

inline constexpr std::size_t kMaxReductions = 8;

/// Where the parts of each reduction of one call lie, in bytes, and how much all of them take.
struct ScratchNeed {
  struct Part {
    std::uint64_t partials = 0, counters = 0;
  };
  std::array<Part, kMaxReductions> reduction{};
  std::uint64_t partials = 0, counters = 0;
};
/// `live`: extents by Symbol. At most kMaxReductions.
ScratchNeed scratch_need(const KernelConfig& config, std::span<const chain::Reduction> reductions,
                         const std::int64_t* live) noexcept;

/// Device memory of one stream: partial results, whose content never matters, and counters, which every launch leaves at zero.
struct Scratch {
  std::uint64_t partials = 0, counters = 0;
};

/// The scratch of a plan: one piece for each stream, and for each capture, since a graph is replayed beside the stream that it
/// was captured from. Memory is allocated when a stream is first seen or needs more, also during a capture, and freed with the
/// plan. Finding what is there takes no lock.
class ScratchPool {
 public:
  ScratchPool(const cuda::DriverTable& driver, cuda::CUcontext context);
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  /// The calling thread's current context is the plan's.
  cuda::CUresult find(cuda::CUstream stream, const ScratchNeed& need, Scratch& scratch) noexcept;

 private:
  struct Node {
    std::uint64_t stream, capture;
    ScratchNeed holds;
    Scratch memory;
    Node* next;
  };
  cuda::CUresult add(std::uint64_t stream, std::uint64_t capture, const ScratchNeed& need, Scratch& scratch) noexcept;

  const cuda::DriverTable& driver_;
  cuda::CUcontext context_;
  int process_;                        // a child of fork() must not touch the parent's driver
  std::atomic<Node*> first_{nullptr};  ///< newest first: a larger piece of a stream shadows its smaller ones, which may be in use
  std::mutex adding_;
};

}  // namespace verglas::sm90
