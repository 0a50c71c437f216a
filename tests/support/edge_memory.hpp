#pragma once
#include <cstddef>
#include <string>

#include "cuda/driver_table.hpp"

namespace support {

/// Device memory between two stretches of address space that are reserved and not mapped: a kernel that reads or writes one byte
/// before or behind it faults. The driver's calls for it are the tests' alone, and not in the library's table.
class EdgeMemory {
 public:
  /// `bytes` are rounded up to what the device maps at once (2 MiB).
  EdgeMemory(const verglas::cuda::DriverTable& driver, std::size_t bytes);
  ~EdgeMemory();
  EdgeMemory(const EdgeMemory&) = delete;
  EdgeMemory& operator=(const EdgeMemory&) = delete;

  verglas::cuda::CUdeviceptr begin() const noexcept { return base_ + bytes_; }
  verglas::cuda::CUdeviceptr end() const noexcept { return base_ + 2 * bytes_; }
  std::size_t size() const noexcept { return bytes_; }
  bool is_mapped(verglas::cuda::CUdeviceptr address) const;
  void fill(int byte) const;

 private:
  const verglas::cuda::DriverTable& driver_;
  std::size_t bytes_ = 0;
  verglas::cuda::CUdeviceptr base_ = 0;  ///< of three stretches, the middle one mapped
  unsigned long long handle_ = 0;
};

}  // namespace support
