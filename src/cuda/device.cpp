#include "cuda/device.hpp"

#include <fmt/format.h>

#include <array>

namespace verglas::cuda {

int device_count(const DriverTable& driver) {
  int count = 0;
  check(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount", "counting devices");
  return count;
}

DeviceFacts device_facts(const DriverTable& driver, int ordinal) {
  const std::string what = fmt::format("asking about device {}", ordinal);
  DeviceFacts out;
  out.ordinal = ordinal;
  CUdevice device = 0;
  check(driver, driver.cuDeviceGet(&device, ordinal), "cuDeviceGet", what);
  std::array<char, 256> name{};
  check(driver, driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName", what);
  out.name = name.data();
  std::size_t memory = 0;
  check(driver, driver.cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem", what);
  out.memory_bytes = static_cast<std::int64_t>(memory);
  const auto ask = [&](CUdevice_attribute attribute) {
    int value = 0;
    check(driver, driver.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute", what);
    return value;
  };
  out.major = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  out.minor = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  out.multiprocessors = ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  out.smem_optin_bytes = ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  out.l2_bytes = ask(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  out.clock_khz = ask(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  out.memory_clock_khz = ask(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  out.memory_bus_bits = ask(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  out.clusters = ask(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0;
  out.tensor_maps = ask(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED) != 0;
  return out;
}

}  // namespace verglas::cuda
