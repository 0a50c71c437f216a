#include "tool/host_array.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/rules.hpp"
#include "base/strides.hpp"
#include "numeric/convert.hpp"

namespace verglas::tool {
namespace {

/// SplitMix64 as a function of a counter: element i of every array is known without the ones before it.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}
double unit(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)

}  // namespace

std::int64_t HostArray::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t e : dim) n *= e;
  return n;
}

std::int64_t HostArray::offset(std::int64_t index) const { return numeric::byte_offset(place(index), dtype); }
std::int64_t HostArray::place(std::int64_t index) const {
  std::int64_t at = 0;
  for (std::size_t i = dim.size(); i-- > 0;) {
    at += index % dim[i] * stride[i];
    index /= dim[i];
  }
  return at;
}

TensorView HostArray::view() {
  TensorView v;
  v.data = data.data();
  v.dtype = dtype;
  v.rank = static_cast<std::int8_t>(dim.size());
  v.observed_bytes = static_cast<std::int64_t>(data.size());
  std::copy(dim.begin(), dim.end(), v.extent.begin());
  std::copy(stride.begin(), stride.end(), v.stride.begin());
  return v;
}

double HostArray::value(std::int64_t index) const {
  if (dtype == DataType::int32) {
    std::int32_t v;
    std::memcpy(&v, at(index), sizeof v);
    return v;
  }
  if (dtype == DataType::fp4_e2m1) return static_cast<double>(numeric::fp4_to_float(data.data(), place(index)));
  return static_cast<double>(numeric::to_float(at(index), dtype));
}

void HostArray::set(std::int64_t index, double v) {
  if (dtype == DataType::fp4_e2m1)
    numeric::fp4_from_float(static_cast<float>(v), data.data(), place(index));
  else
    numeric::from_float(static_cast<float>(v), at(index), dtype);
}

HostArray make_array(DataType dtype, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride, const std::string& who) {
  HostArray a{.dtype = dtype, .dim = std::move(dim), .stride = std::move(stride), .data = {}};
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < a.dim.size(); ++i) {
    if (a.dim[i] == 0) return a;
    reach += (a.dim[i] - 1) * a.stride[i];  // the description was checked: fits 63 bits, also in bytes
  }
  const std::int64_t bytes = dtype == DataType::fp4_e2m1 ? (reach + 1) / 2 : reach * bytes_of(dtype);
  const std::int64_t memory = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (bytes > memory)
    throw broken(Rule::tool_memory, who, fmt::format("{} bytes", bytes), fmt::format("at most the {} of this machine", memory));
  a.data.assign(static_cast<std::size_t>(bytes), std::byte{0xFF});
  return a;
}

HostArray from_npy(NpyArray file, const std::vector<std::int64_t>& stride) {
  HostArray own{.dtype = file.dtype, .dim = file.dim, .stride = file.strides(), .data = std::move(file.data)};
  if (stride.size() != own.dim.size() || stride == own.stride || !is_injective(own.dim, stride)) return own;
  HostArray out = make_array(own.dtype, own.dim, stride, "input");
  const auto width = static_cast<std::size_t>(bytes_of(own.dtype));
  const std::int64_t n = own.elements();
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(out.at(i), own.at(i), width);
  return out;
}

void save(const HostArray& a, const std::string& path) {
  const auto width = static_cast<std::size_t>(bytes_of(a.dtype));
  const std::int64_t n = a.elements();
  std::vector<std::byte> dense(static_cast<std::size_t>(n) * width);
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(dense.data() + static_cast<std::size_t>(i) * width, a.at(i), width);
  write_npy(path, is_fp8(a.dtype) ? DataType::uint8 : a.dtype, a.dim, dense.data());
}

void fill(HostArray& a, Filling how, std::uint64_t seed, std::uint64_t stream) {
  const std::uint64_t key = mix(mix(seed) ^ stream);
  const std::int64_t n = a.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t bits = mix(key + static_cast<std::uint64_t>(i));
    double v = 0;
    if (a.dtype == DataType::boolean) {
      v = static_cast<double>(bits >> 63);
    } else if (how == Filling::integers) {
      v = a.dtype == DataType::fp8_e8m0 ? std::ldexp(1.0, static_cast<int>(bits % 5) - 2)
          : a.dtype == DataType::uint8  ? static_cast<double>(bits % 5)
                                        : static_cast<double>(bits % 9) - 4;
    } else {
      v = std::sqrt(-2 * std::log(unit(bits))) * std::cos(6.283185307179586 * unit(mix(bits)));
      if (is_integer(a.dtype)) v *= 4;
    }
    a.set(i, v);
  }
}

}  // namespace verglas::tool
