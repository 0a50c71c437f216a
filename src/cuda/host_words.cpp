#include "cuda/host_words.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "cuda/context.hpp"

namespace verglas::cuda {

HostWords::HostWords(const DriverTable& driver, CUcontext context) : driver_(driver), context_(context), process_(::getpid()) {
  const RelaxedCapture relaxed(driver_);
  void* memory = nullptr;
  check(driver_, driver_.cuMemHostAlloc(&memory, kWords * sizeof(std::uint32_t), kHostAllocPortable | kHostAllocDeviceMap),
        "cuMemHostAlloc", "words in which kernels report");
  words_ = static_cast<std::uint32_t*>(memory);
  std::fill_n(words_, kWords, 0U);
}

HostWords::~HostWords() {
  if (process_ != ::getpid() || driver_.cuCtxPushCurrent(context_) != CUDA_SUCCESS) return;
  const RelaxedCapture relaxed(driver_);
  driver_.cuMemFreeHost(words_);
  CUcontext popped = nullptr;
  driver_.cuCtxPopCurrent(&popped);
}

std::uint32_t HostWords::bits() const noexcept {
  std::uint32_t bits = 0;
  for (int i = 0; i < kWords; ++i)
    if (std::atomic_ref(words_[i]).load(std::memory_order_relaxed) != 0) bits |= 1U << i;
  return bits;
}

std::uint32_t HostWords::take() noexcept {
  std::uint32_t bits = 0;
  for (int i = 0; i < kWords; ++i)
    if (std::atomic_ref(words_[i]).exchange(0, std::memory_order_relaxed) != 0) bits |= 1U << i;
  return bits;
}

}  // namespace verglas::cuda
