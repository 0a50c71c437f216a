#pragma once
#include <string>

#include "oracle/judge.hpp"
#include "verglas/error.hpp"
#include "verglas/tensor.hpp"

namespace support {

/// A view of the library as the independent judge takes it.
inline oracle::Buffer seen_by_judge(const verglas::TensorView& v) {
  oracle::Buffer b;
  b.address = reinterpret_cast<std::uintptr_t>(v.data);
  b.read_only = v.read_only;
  b.device_id = v.device.id;
  b.device = v.device.type == verglas::DeviceType::cpu    ? oracle::DeviceKind::cpu
             : v.device.type == verglas::DeviceType::cuda ? oracle::DeviceKind::cuda
                                                          : oracle::DeviceKind::unknown;
  b.bare = v.is_bare();
  if (b.bare) return b;
  b.format = static_cast<oracle::Format>(v.dtype);
  b.kernel_order = v.order == verglas::AxisOrder::kernel;
  b.observed_bytes = v.observed_bytes;
  b.dims.assign(v.extent.begin(), v.extent.begin() + v.rank);
  b.strides.assign(v.stride.begin(), v.stride.begin() + v.rank);
  return b;
}

/// What is wrong with a refusal of a call that the judge calls illegal: it says too little, or names no rule that he has found
/// too. Empty where nothing is.
std::string disputed(const verglas::Error& refusal, const oracle::Verdict& verdict);

}  // namespace support
