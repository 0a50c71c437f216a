#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "chain/chain.hpp"
#include "cuda/stream_memory.hpp"
#include "engine/sm90/configuration.hpp"

namespace verglas::sm90 {

inline constexpr std::size_t kMaxReductions = 8;

/// Where the parts of each reduction of one call lie, in bytes, and how much all of them take.
struct ScratchNeed {
  struct Part {
    std::uint64_t partials = 0, counters = 0;
  };
  std::array<Part, kMaxReductions> reduction{};  ///< from the first zeroed byte on
  std::uint64_t products = 0;                    ///< from the first byte on that is not zeroed, behind the maps
  std::uint64_t plain = 0, zeroed = 0;
};
/// `live`: extents by Symbol. At most kMaxReductions. Maps are those that `blocks` make for themselves, products those whose rows
/// are summed token by token, and which row is next in the list of its place; what is zeroed begins with the counter of the tiles
/// which are taken, and, where blocks wait for each other, has words of that and of rows (kernels/together.cuh, combine.cuh).
ScratchNeed scratch_need(const KernelConfig& config, std::span<const chain::Reduction> reductions, const std::int64_t* live,
                         std::int64_t top_k, int blocks) noexcept;

/// Device memory of one stream: what matters in no later launch, and partial results and counters, which every launch leaves at
/// zero.
struct Scratch {
  std::uint64_t plain = 0, zeroed = 0;
};

/// The scratch of a plan, a piece for each stream and capture.
class ScratchPool {
 public:
  ScratchPool(const cuda::DriverTable& driver, cuda::CUcontext context) : pool_(driver, context) {}

  /// The calling thread's current context is the plan's.
  cuda::CUresult find(cuda::CUstream stream, const ScratchNeed& need, Scratch& scratch) noexcept {
    cuda::StreamMemory memory;
    const cuda::CUresult code = pool_.find(stream, {need.plain, need.zeroed}, memory);
    scratch = {memory.plain, memory.zeroed};
    return code;
  }

 private:
  cuda::StreamMemoryPool pool_;
};

}  // namespace verglas::sm90
