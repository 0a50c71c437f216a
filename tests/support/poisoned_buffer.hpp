#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oracle/formats.hpp"

namespace support {

/// Memory of one strided tensor between guards. Every byte that is no element holds a NaN pattern (0xFF), the guards 0xA5.
/// Outputs start as 0xFF all over, so that an element that nobody wrote is a NaN or −1.
class PoisonedBuffer {
 public:
  static constexpr std::size_t kGuard = 256;  ///< bytes on either side, on top of what alignment adds

  PoisonedBuffer() = default;
  /// `shift`: elements by which the first one lies beyond a 64-byte boundary.
  PoisonedBuffer(oracle::Format format, std::vector<std::int64_t> dims, std::vector<std::int64_t> strides,
                 std::int64_t shift = 0);

  void* data() const { return const_cast<std::byte*>(bytes_.data()) + offset_; }
  std::int64_t span_bytes() const { return span_; }  ///< from data() to the end of the last element
  oracle::Format format() const { return format_; }
  const std::vector<std::int64_t>& dims() const { return dims_; }
  const std::vector<std::int64_t>& strides() const { return strides_; }

  /// Writes the number that `value()` answers into each element, row-major, and remembers the memory.
  void fill(const std::function<double()>& value);
  /// Lets `write` put bytes where it likes, and remembers the memory.
  void paint(const std::function<void(unsigned char*)>& write);
  /// 0xFF in every byte between the guards; remembers the memory.
  void clear();

  /// What changed since `fill` or `clear` and is no element (outputs) or changed at all (inputs); empty when nothing did.
  std::string stray_write() const;
  std::string any_write() const;
  /// The bytes between the guards.
  std::vector<std::byte> content() const;

 private:
  oracle::Format format_ = oracle::Format::fp32;
  std::vector<std::int64_t> dims_, strides_;
  std::int64_t span_ = 0;
  std::size_t offset_ = 0;
  std::vector<std::byte> bytes_, before_;
};

}  // namespace support
