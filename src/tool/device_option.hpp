#pragma once
#include <charconv>
#include <string>

#include "tool/command.hpp"

namespace verglas::tool {

inline constexpr const char* kDeviceHelp = "Where the plan runs: cpu, cuda, or cuda:I";

/// "cpu", "cuda" or "cuda:3"; anything else is wrong usage.
inline Device device_of(const std::string& text) {
  if (text == "cpu") return {};
  Device d{DeviceType::cuda, 0};
  if (text == "cuda") return d;
  const char* end = text.data() + text.size();
  if (text.starts_with("cuda:")) {
    const auto read = std::from_chars(text.data() + 5, end, d.id);
    if (read.ec == std::errc() && read.ptr == end && d.id >= 0) return d;
  }
  throw CLI::ValidationError("--device", "'" + text + "' is not cpu, cuda or cuda:I");
}

}  // namespace verglas::tool
