#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/npy.hpp"
#include "verglas/tensor.hpp"

namespace verglas::tool {

/// An array in host memory with any non-negative strides, in elements.
struct HostArray {
  DataType dtype = DataType::not_set;
  std::vector<std::int64_t> dim, stride;
  std::vector<std::byte> data;

  std::int64_t elements() const;
  TensorView view();
  /// Address of the element with this number in row-major order; of fp4 the byte that it shares.
  const std::byte* at(std::int64_t index) const { return data.data() + offset(index); }
  std::byte* at(std::int64_t index) { return data.data() + offset(index); }
  /// The element as a number; every type that is served is exact in a double, int64 beyond 2^53 apart.
  double value(std::int64_t index) const;
  void set(std::int64_t index, double v);

 private:
  std::int64_t offset(std::int64_t index) const;  ///< bytes
  std::int64_t place(std::int64_t index) const;   ///< elements
};

/// Every byte set, so that what is never written shows: 0xFF is a NaN in the floating types.
HostArray make_array(DataType dtype, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride, const std::string& who);
/// The elements of a file laid out with the strides given, or as in the file where these put two elements in one place.
HostArray from_npy(NpyArray file, const std::vector<std::int64_t>& stride);
/// Writes the elements in C order.
void save(const HostArray& a, const std::string& path);

enum class Filling { integers, normal };
/// Reproducible numbers, the same on every machine: integers from −4 to 4 (0 to 4 unsigned, 0 or 1 boolean), or normal with mean
/// 0 and deviation 1 (4 for integer types).
void fill(HostArray& a, Filling how, std::uint64_t seed, std::uint64_t stream);

}  // namespace verglas::tool
