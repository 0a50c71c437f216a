#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace verglas {

/// SHA-256 of bytes that come in pieces. Source: FIPS 180-4.
class Sha256 {
 public:
  /// `plain`: without the processor's instructions for it, also where it has them.
  explicit Sha256(bool plain = false) noexcept;
  void add(std::string_view bytes) noexcept;
  std::array<unsigned char, 32> digest() const noexcept;  ///< of all bytes so far; more may follow

 private:
  std::array<std::uint32_t, 8> state_;
  void (*blocks_)(std::array<std::uint32_t, 8>&, const unsigned char*, std::size_t) noexcept;
  std::array<unsigned char, 64> buffer_{};
  std::size_t held_ = 0;  // bytes in buffer_
  std::uint64_t total_bytes_ = 0;
};

/// 32 raw bytes.
std::string sha256(std::string_view bytes);
/// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace verglas
