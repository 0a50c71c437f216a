#include "tool/device_arrays.hpp"

#include <fmt/format.h>

#include "base/rules.hpp"

namespace verglas::tool {
namespace {

const cuda::DriverTable& driver_or_refuse() {
  const auto driver = cuda::driver();
  if (!driver) throw broken(driver.error().rule, driver.error().text);
  return **driver;
}

}  // namespace

DeviceArrays::DeviceArrays(int ordinal)
    : driver_(driver_or_refuse()), ordinal_(ordinal), context_(driver_, ordinal), current_(driver_, context_.handle()) {}

DeviceArrays::~DeviceArrays() {
  for (const cuda::CUdeviceptr p : owned_) driver_.cuMemFree(p);
}

void* DeviceArrays::scratch(std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  cuda::CUdeviceptr p = 0;
  cuda::check(driver_, driver_.cuMemAlloc(&p, static_cast<std::size_t>(bytes)), "cuMemAlloc",
              fmt::format("taking {} bytes of device {}", bytes, ordinal_));
  owned_.push_back(p);
  return reinterpret_cast<void*>(p);
}

TensorView DeviceArrays::place(HostArray& a) {
  TensorView v = a.view();
  v.device = {DeviceType::cuda, static_cast<std::int16_t>(ordinal_)};
  v.data = scratch(v.observed_bytes);
  if (v.data != nullptr)
    cuda::check(driver_, driver_.cuMemcpyHtoD(reinterpret_cast<cuda::CUdeviceptr>(v.data), a.data.data(), a.data.size()),
                "cuMemcpyHtoD", "copying an operand to the device");
  return v;
}

void DeviceArrays::fetch(const TensorView& copy, HostArray& a) {
  if (copy.data == nullptr) return;
  cuda::check(driver_, driver_.cuMemcpyDtoH(a.data.data(), reinterpret_cast<cuda::CUdeviceptr>(copy.data), a.data.size()),
              "cuMemcpyDtoH", "copying an output from the device");
}

void DeviceArrays::wait() { cuda::check(driver_, driver_.cuCtxSynchronize(), "cuCtxSynchronize", "waiting for the device"); }

}  // namespace verglas::tool
