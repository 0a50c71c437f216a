#include "oracle/memory.hpp"

#include <utility>

namespace oracle {

std::int64_t count_of(const std::vector<std::int64_t>& dims) {
  std::int64_t n = 1;
  for (std::int64_t d : dims) n *= d;
  return n;
}

Walk::Walk(std::vector<std::int64_t> dims) : dims_(std::move(dims)), at_(dims_.size(), 0), more_(count_of(dims_) > 0) {}

void Walk::next() {
  for (std::size_t i = dims_.size(); i-- > 0;) {
    if (++at_[i] < dims_[i]) return;
    at_[i] = 0;
  }
  more_ = false;
}

std::int64_t Walk::offset(const std::vector<std::int64_t>& strides) const {
  std::int64_t at = 0;
  for (std::size_t i = 0; i < at_.size(); ++i) at += at_[i] * strides[i];
  return at;
}

std::uint64_t bits_at(Format format, const void* base, std::int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(base);
  const int bits = bits_of(format);
  if (bits == 4) return (bytes[index / 2] >> (index % 2 * 4)) & 0xFu;
  std::uint64_t v = 0;
  for (int i = bits / 8; i-- > 0;) v = v << 8 | bytes[index * (bits / 8) + i];
  return v;
}

double value_at(Format format, const void* base, std::int64_t index) { return decode(format, bits_at(format, base, index)); }

void put_at(Format format, void* base, std::int64_t index, double value) {
  auto* bytes = static_cast<unsigned char*>(base);
  const std::uint64_t v = encode(format, value);
  const int bits = bits_of(format);
  if (bits == 4) {
    const int shift = static_cast<int>(index % 2 * 4);
    bytes[index / 2] = static_cast<unsigned char>((bytes[index / 2] & ~(0xF << shift)) | static_cast<int>(v << shift));
    return;
  }
  for (int i = 0; i < bits / 8; ++i) bytes[index * (bits / 8) + i] = static_cast<unsigned char>(v >> (8 * i));
}

}  // namespace oracle
