#pragma once
#include <cstdint>
#include <vector>

#include "oracle/formats.hpp"

namespace oracle {

/// Product of the extents; 1 for rank 0.
std::int64_t count_of(const std::vector<std::int64_t>& dims);

/// Steps through all coordinates of `dims` in row-major order: `for (Walk w(dims); w.more(); w.next())`.
class Walk {
 public:
  explicit Walk(std::vector<std::int64_t> dims);
  bool more() const { return more_; }
  void next();
  const std::vector<std::int64_t>& at() const { return at_; }
  /// Σ coordinate · stride.
  std::int64_t offset(const std::vector<std::int64_t>& strides) const;

 private:
  std::vector<std::int64_t> dims_, at_;
  bool more_;
};

/// Element `index` of memory that begins at `base`; fp4 holds two a byte, the even one in the low nibble.
std::uint64_t bits_at(Format format, const void* base, std::int64_t index);
double value_at(Format format, const void* base, std::int64_t index);
void put_at(Format format, void* base, std::int64_t index, double value);

}  // namespace oracle
