#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "cuda/driver_table.hpp"

namespace verglas::cuda {

/// Device memory of one stream: bytes whose content never matters, and bytes that begin as zeros.
struct StreamMemory {
  std::uint64_t plain = 0, zeroed = 0;  ///< addresses
};
struct StreamNeed {
  std::uint64_t plain = 0, zeroed = 0;  ///< bytes
};

/// Scratch memory of a plan: one piece for each stream, and for each capture, since a graph is replayed beside the stream that
/// it was captured from. Memory is allocated when a stream is first seen or needs more, also during a capture, and freed with
/// the pool. Finding what is there takes no lock.
class StreamMemoryPool {
 public:
  StreamMemoryPool(const DriverTable& driver, CUcontext context);
  ~StreamMemoryPool();
  StreamMemoryPool(const StreamMemoryPool&) = delete;
  StreamMemoryPool& operator=(const StreamMemoryPool&) = delete;

  /// The calling thread's current context is the plan's. Something is needed.
  CUresult find(CUstream stream, StreamNeed need, StreamMemory& memory) noexcept;

 private:
  struct Node {
    std::uint64_t stream, capture;
    StreamNeed holds;
    StreamMemory memory;
    Node* next;
  };
  CUresult identify(CUstream stream, std::uint64_t& id, std::uint64_t& capture) const noexcept;
  CUresult add(std::uint64_t stream, std::uint64_t capture, StreamNeed need, StreamMemory& memory) noexcept;

  const DriverTable& driver_;
  CUcontext context_;
  int process_;                        // a child of fork() must not touch the parent's driver
  std::atomic<Node*> first_{nullptr};  ///< newest first: a larger piece of a stream shadows its smaller ones, which may be in use
  std::mutex adding_;
};

}  // namespace verglas::cuda
