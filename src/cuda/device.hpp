#pragma once
#include <cstdint>
#include <string>

#include "cuda/driver_table.hpp"

namespace verglas::cuda {

/// What engines ask about a device. No context is needed or made.
struct DeviceFacts {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int smem_optin_bytes = 0;  ///< dynamic shared memory that one block may have
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  int clock_khz = 0;         ///< highest, of the multiprocessors
  int memory_clock_khz = 0;  ///< 0 where the driver no longer says
  int memory_bus_bits = 0;
  bool clusters = false;  ///< thread block clusters
  bool tensor_maps = false;

  /// "sm_90": the architecture without its suffix.
  std::string arch() const { return "sm_" + std::to_string(major) + std::to_string(minor); }
};

/// Throws driver_failed [driver.call].
int device_count(const DriverTable& driver);
DeviceFacts device_facts(const DriverTable& driver, int ordinal);

}  // namespace verglas::cuda
