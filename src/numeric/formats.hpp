#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

/// The number formats, bit by bit. Plain integer code, so that loops over it vectorise.
namespace verglas::numeric {

constexpr std::uint32_t bits(float f) noexcept { return std::bit_cast<std::uint32_t>(f); }
constexpr float from_bits(std::uint32_t u) noexcept { return std::bit_cast<float>(u); }

constexpr float bf16_to_float(std::uint16_t h) noexcept { return from_bits(std::uint32_t{h} << 16); }

constexpr std::uint16_t float_to_bf16(float f) noexcept {
  const std::uint32_t u = bits(f);
  const std::uint32_t nearest = (u + 0x7FFFU + ((u >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (u >> 16) | 0x40U;  // a NaN keeps its sign and stays one
  return static_cast<std::uint16_t>((u & 0x7FFFFFFFU) > 0x7F800000U ? quiet : nearest);
}

constexpr float fp16_to_float(std::uint16_t h) noexcept {
  const std::uint32_t sign = (h & 0x8000U) << 16;
  const std::uint32_t rest = h & 0x7FFFU;
  // Scaled by 2^112 the exponent of fp16 becomes that of fp32, subnormals included.
  const std::uint32_t finite = bits(from_bits(rest << 13) * 0x1p112F);
  return from_bits(sign | (rest >= 0x7C00U ? 0x7F800000U | (rest & 0x3FFU) << 13 : finite));
}

constexpr std::uint16_t float_to_fp16(float f) noexcept {
  const std::uint32_t u = bits(f);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t a = u & 0x7FFFFFFFU;
  // Below 2^-14: adding 0.5 aligns the last bit of an fp16 subnormal with the last bit of the sum, which rounds to nearest even.
  const std::uint32_t tiny = bits(from_bits(a < 0x38800000U ? a : 0U) + 0.5F) - 0x3F000000U;
  const std::uint32_t normal = (a - 0x38000000U + 0xFFFU + ((a >> 13) & 1U)) >> 13;
  std::uint32_t r = a < 0x38800000U ? tiny : normal;
  r = a >= 0x477FF000U ? 0x7C00U : r;  // 65520 and above
  r = a > 0x7F800000U ? 0x7E00U | ((a >> 13) & 0x3FFU) : r;
  return static_cast<std::uint16_t>(sign | r);
}

/// A small format of `Mantissa` bits with this exponent bias, no infinity wanted: rounds |f| to nearest even and cuts at `max`.
/// Answers the code without its sign.
template <int Mantissa, int Bias>
constexpr std::uint32_t encode_magnitude(float magnitude, float max, std::uint32_t max_code) noexcept {
  if (!(magnitude < max)) return max_code;
  constexpr float kSmallestNormal = from_bits(static_cast<std::uint32_t>(127 + 1 - Bias) << 23);
  if (magnitude < kSmallestNormal) {
    // One step of the format is 2^(1 − Bias − Mantissa): the sum with this constant has its last bit there.
    constexpr float kAlign = from_bits(static_cast<std::uint32_t>(127 + 1 - Bias - Mantissa + 23) << 23);
    return bits(magnitude + kAlign) - bits(kAlign);
  }
  constexpr int kDrop = 23 - Mantissa;
  const std::uint32_t u = bits(magnitude) - (static_cast<std::uint32_t>(127 - Bias) << 23);
  const std::uint32_t code = (u + (1U << (kDrop - 1)) - 1U + ((u >> kDrop) & 1U)) >> kDrop;
  return code < max_code ? code : max_code;
}

template <int Mantissa, int Bias>
constexpr float decode_magnitude(std::uint32_t code) noexcept {
  const std::uint32_t exponent = code >> Mantissa;
  const auto mantissa = static_cast<float>(code & ((1U << Mantissa) - 1U));
  constexpr float kStep = from_bits(static_cast<std::uint32_t>(127 + 1 - Bias - Mantissa) << 23);
  if (exponent == 0) return mantissa * kStep;
  return from_bits((exponent + 127U - static_cast<std::uint32_t>(Bias)) << 23 | (code & ((1U << Mantissa) - 1U))
                                                                                    << (23 - Mantissa));
}

constexpr std::uint8_t float_to_e4m3(float f) noexcept {
  const std::uint32_t sign = bits(f) >> 24 & 0x80U;
  if (f != f) return static_cast<std::uint8_t>(sign | 0x7FU);
  return static_cast<std::uint8_t>(sign | encode_magnitude<3, 7>(from_bits(bits(f) & 0x7FFFFFFFU), 448.0F, 0x7EU));
}
constexpr float e4m3_to_float(std::uint8_t b) noexcept {
  const float m = (b & 0x7FU) == 0x7FU ? std::numeric_limits<float>::quiet_NaN() : decode_magnitude<3, 7>(b & 0x7FU);
  return b & 0x80U ? -m : m;
}

constexpr std::uint8_t float_to_e5m2(float f) noexcept {
  const std::uint32_t sign = bits(f) >> 24 & 0x80U;
  if (f != f) return static_cast<std::uint8_t>(sign | 0x7FU);
  return static_cast<std::uint8_t>(sign | encode_magnitude<2, 15>(from_bits(bits(f) & 0x7FFFFFFFU), 57344.0F, 0x7BU));
}
constexpr float e5m2_to_float(std::uint8_t b) noexcept {
  const std::uint32_t code = b & 0x7FU;
  float m = decode_magnitude<2, 15>(code);
  if (code >= 0x7CU) m = code == 0x7CU ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  return b & 0x80U ? -m : m;
}

/// Scale format without sign or zero: byte b is 2^(b − 127), 255 is NaN.
constexpr float e8m0_to_float(std::uint8_t b) noexcept {
  if (b == 255) return std::numeric_limits<float>::quiet_NaN();
  return b == 0 ? 0x1p-127F : from_bits(std::uint32_t{b} << 23);
}
/// The smallest power of two that is not below f; 0 and below give byte 0, above 2^127 byte 254.
constexpr std::uint8_t float_to_e8m0(float f) noexcept {
  if (f != f) return 255;
  if (!(f > 0x1p-127F)) return 0;
  if (f >= 0x1p127F) return 254;
  if (f < 0x1p-126F) return 1;
  return static_cast<std::uint8_t>((bits(f) + 0x7FFFFFU) >> 23);
}

/// Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. NaN has no code: it becomes 6.
constexpr std::uint8_t float_to_e2m1(float f) noexcept {
  if (f != f) return 7;
  const std::uint32_t sign = bits(f) >> 28 & 8U;
  return static_cast<std::uint8_t>(sign | encode_magnitude<1, 1>(from_bits(bits(f) & 0x7FFFFFFFU), 6.0F, 7U));
}
constexpr float e2m1_to_float(std::uint8_t code) noexcept {
  const float m = decode_magnitude<1, 1>(code & 7U);
  return code & 8U ? -m : m;
}

/// Nearest even, saturating; NaN is 0.
template <class I>
I float_to_int(float f) noexcept {
  using L = std::numeric_limits<I>;
  if (f != f) return 0;
  // Both limits as doubles: max() of int64 rounds up to 2^63, which is out of range already.
  const double r = std::nearbyint(static_cast<double>(f));
  if (r <= static_cast<double>(L::min())) return L::min();
  if (r >= static_cast<double>(L::max())) return L::max();
  return static_cast<I>(r);
}

}  // namespace verglas::numeric
