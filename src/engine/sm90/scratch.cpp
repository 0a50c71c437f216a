#include "engine/sm90/scratch.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "cuda/context.hpp"

namespace verglas::sm90 {
namespace {

constexpr std::uint64_t kAlignment = 128;

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
std::uint64_t ceil_div(std::int64_t x, int y) { return static_cast<std::uint64_t>((x + y - 1) / y); }

}  // namespace

ScratchNeed scratch_need(const KernelConfig& c, std::span<const chain::Reduction> reductions, const std::int64_t* live) noexcept {
  using chain::Symbol;
  const auto extent = [live](Symbol s) { return live[static_cast<std::size_t>(s)]; };
  const int shares = c.schedule == Schedule::pingpong ? 1 : c.consumers;
  const std::uint64_t pieces[3] = {static_cast<std::uint64_t>(extent(Symbol::l)),
                                   ceil_div(extent(Symbol::m), c.block_m) * static_cast<std::uint64_t>(shares),
                                   ceil_div(extent(Symbol::n), c.block_n)};
  ScratchNeed need;
  for (std::size_t j = 0; j < reductions.size(); ++j) {
    const chain::Reduction& r = reductions[j];
    const std::uint64_t length = static_cast<std::uint64_t>(!r.reduces[1] ? c.block_m / shares : r.reduces[2] ? 1 : c.block_n);
    std::uint64_t groups = 1;
    for (std::size_t axis = 0; axis < 3; ++axis) groups *= r.reduces[axis] ? 1 : pieces[axis];
    need.reduction[j] = {need.partials, need.counters};
    need.partials += round_up(pieces[0] * pieces[1] * pieces[2] * length * sizeof(float));
    need.counters += round_up(groups * sizeof(std::uint32_t));
  }
  return need;
}

ScratchPool::ScratchPool(const cuda::DriverTable& driver, cuda::CUcontext context)
    : driver_(driver), context_(context), process_(::getpid()) {}

ScratchPool::~ScratchPool() {
  Node* first = first_.load(std::memory_order_acquire);
  if (first != nullptr && process_ == ::getpid() && driver_.cuCtxPushCurrent(context_) == cuda::CUDA_SUCCESS) {
    const cuda::RelaxedCapture relaxed(driver_);
    for (const Node* n = first; n != nullptr; n = n->next) driver_.cuMemFree(n->memory.partials);
    cuda::CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent(&popped);
  }
  while (first != nullptr) delete std::exchange(first, first->next);
}

cuda::CUresult ScratchPool::find(cuda::CUstream stream, const ScratchNeed& need, Scratch& scratch) noexcept {
  unsigned long long id = 0;
  std::uint64_t capture = 0;
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  if (const auto code = driver_.cuStreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr, nullptr);
      code != cuda::CUDA_SUCCESS)
    return code;
  if (status == cuda::CU_STREAM_CAPTURE_STATUS_NONE) {
    capture = 0;
    // The number and not the handle, which a later stream may get. A stream that is captured must not be asked.
    if (const auto code = driver_.cuStreamGetId(stream, &id); code != cuda::CUDA_SUCCESS) return code;
  } else {
    id = reinterpret_cast<std::uintptr_t>(stream);
  }
  for (const Node* n = first_.load(std::memory_order_acquire); n != nullptr; n = n->next)
    if (n->stream == id && n->capture == capture && n->holds.partials >= need.partials && n->holds.counters >= need.counters) {
      scratch = n->memory;
      return cuda::CUDA_SUCCESS;
    }
  return add(id, capture, need, scratch);
}

cuda::CUresult ScratchPool::add(std::uint64_t stream, std::uint64_t capture, const ScratchNeed& need, Scratch& scratch) noexcept {
  auto* const node = new (std::nothrow) Node{stream, capture, need, {}, nullptr};
  if (node == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  // Room for what an earlier piece of the stream held, so that calls of two sizes do not take turns in allocating.
  for (const Node* n = first_.load(std::memory_order_acquire); n != nullptr; n = n->next)
    if (n->stream == stream && n->capture == capture) {
      node->holds.partials = std::max(node->holds.partials, n->holds.partials);
      node->holds.counters = std::max(node->holds.counters, n->holds.counters);
    }
  // Nothing here is recorded: the stream that clears is one of its own.
  const cuda::RelaxedCapture relaxed(driver_);
  cuda::CUdeviceptr memory = 0;
  cuda::CUstream own = nullptr;
  cuda::CUresult code = driver_.cuMemAlloc(&memory, node->holds.partials + node->holds.counters);
  if (code == cuda::CUDA_SUCCESS) code = driver_.cuStreamCreate(&own, cuda::kStreamNonBlocking);
  if (code == cuda::CUDA_SUCCESS) code = driver_.cuMemsetD8Async(memory + node->holds.partials, 0, node->holds.counters, own);
  if (code == cuda::CUDA_SUCCESS) code = driver_.cuStreamSynchronize(own);
  if (own != nullptr) driver_.cuStreamDestroy(own);
  if (code != cuda::CUDA_SUCCESS && memory != 0) driver_.cuMemFree(memory);
  if (code != cuda::CUDA_SUCCESS) {
    delete node;
    return code;
  }
  node->memory = {memory, memory + node->holds.partials};
  scratch = node->memory;
  const std::lock_guard lock(adding_);
  node->next = first_.load(std::memory_order_relaxed);
  first_.store(node, std::memory_order_release);
  return cuda::CUDA_SUCCESS;
}

}  // namespace verglas::sm90
