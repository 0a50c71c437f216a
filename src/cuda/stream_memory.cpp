#include "cuda/stream_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "cuda/context.hpp"

namespace verglas::cuda {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr std::uintptr_t kLegacyHandle = 1;             ///< the driver's own name; null is the same stream
constexpr std::uint64_t kLegacyId = ~std::uint64_t{0};  ///< no stream's number

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

StreamMemoryPool::StreamMemoryPool(const DriverTable& driver, CUcontext context)
    : driver_(driver), context_(context), process_(::getpid()) {}

StreamMemoryPool::~StreamMemoryPool() {
  Node* first = first_.load(std::memory_order_acquire);
  if (first != nullptr && process_ == ::getpid() && driver_.cuCtxPushCurrent(context_) == CUDA_SUCCESS) {
    const RelaxedCapture relaxed(driver_);
    for (const Node* n = first; n != nullptr; n = n->next) driver_.cuMemFree(n->memory.plain);
    CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent(&popped);
  }
  while (first != nullptr) delete std::exchange(first, first->next);
}

/// By which numbers the memory of a stream goes: its own, or where it is captured its handle and the capture's number.
CUresult StreamMemoryPool::identify(CUstream stream, std::uint64_t& id, std::uint64_t& capture) const noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (const auto code = driver_.cuStreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr, nullptr);
      code != CUDA_SUCCESS)
    return code;
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
    id = reinterpret_cast<std::uintptr_t>(stream);
    return CUDA_SUCCESS;
  }
  capture = 0;
  // The number and not the handle, which a later stream may get. A stream that is captured must not be asked.
  unsigned long long number = 0;
  const CUresult code = driver_.cuStreamGetId(stream, &number);
  id = number;
  return code;
}

CUresult StreamMemoryPool::find(CUstream stream, StreamNeed need, StreamMemory& memory) noexcept {
  // The legacy default stream is there for all time and is never captured: the driver need not be asked.
  std::uint64_t id = kLegacyId, capture = 0;
  if (stream != nullptr && reinterpret_cast<std::uintptr_t>(stream) != kLegacyHandle)
    if (const CUresult code = identify(stream, id, capture); code != CUDA_SUCCESS) return code;
  for (const Node* n = first_.load(std::memory_order_acquire); n != nullptr; n = n->next)
    if (n->stream == id && n->capture == capture && n->holds.plain >= need.plain && n->holds.zeroed >= need.zeroed) {
      memory = n->memory;
      return CUDA_SUCCESS;
    }
  return add(id, capture, need, memory);
}

CUresult StreamMemoryPool::add(std::uint64_t stream, std::uint64_t capture, StreamNeed need, StreamMemory& memory) noexcept {
  auto* const node = new (std::nothrow) Node{stream, capture, need, {}, nullptr};
  if (node == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  // Room for what an earlier piece of the stream held, so that calls of two sizes do not take turns in allocating.
  for (const Node* n = first_.load(std::memory_order_acquire); n != nullptr; n = n->next)
    if (n->stream == stream && n->capture == capture) {
      node->holds.plain = std::max(node->holds.plain, n->holds.plain);
      node->holds.zeroed = std::max(node->holds.zeroed, n->holds.zeroed);
    }
  node->holds.plain = round_up(node->holds.plain);
  // Nothing here is recorded: the stream that clears is one of its own.
  const RelaxedCapture relaxed(driver_);
  CUdeviceptr base = 0;
  CUstream own = nullptr;
  CUresult code = driver_.cuMemAlloc(&base, node->holds.plain + node->holds.zeroed);
  if (node->holds.zeroed > 0) {
    if (code == CUDA_SUCCESS) code = driver_.cuStreamCreate(&own, kStreamNonBlocking);
    if (code == CUDA_SUCCESS) code = driver_.cuMemsetD8Async(base + node->holds.plain, 0, node->holds.zeroed, own);
    if (code == CUDA_SUCCESS) code = driver_.cuStreamSynchronize(own);
    if (own != nullptr) driver_.cuStreamDestroy(own);
  }
  if (code != CUDA_SUCCESS && base != 0) driver_.cuMemFree(base);
  if (code != CUDA_SUCCESS) {
    delete node;
    return code;
  }
  node->memory = {base, base + node->holds.plain};
  memory = node->memory;
  const std::lock_guard lock(adding_);
  node->next = first_.load(std::memory_order_relaxed);
  first_.store(node, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace verglas::cuda
