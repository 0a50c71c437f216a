#pragma once
#include <cstdint>

#include "cuda/driver_table.hpp"

namespace verglas::cuda {

/// A few words of host memory at the same address on the device: what kernels tell the host that nobody waits for. Zeros at
/// first. A kernel writes whole words; those of work that is done are seen.
class HostWords {
 public:
  static constexpr int kWords = 8;

  /// The context is current. Throws driver_failed.
  HostWords(const DriverTable& driver, CUcontext context);
  ~HostWords();
  HostWords(const HostWords&) = delete;
  HostWords& operator=(const HostWords&) = delete;

  std::uint64_t address() const noexcept { return reinterpret_cast<std::uint64_t>(words_); }
  /// Bit i is set where word i is not zero.
  std::uint32_t bits() const noexcept;
  /// The same, and makes those words zero.
  std::uint32_t take() noexcept;

 private:
  const DriverTable& driver_;
  CUcontext context_;
  int process_;  // a child of fork() must not touch the parent's driver
  std::uint32_t* words_ = nullptr;
};

}  // namespace verglas::cuda
