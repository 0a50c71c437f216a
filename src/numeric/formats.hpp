#pragma once
#include <bit>
#include <cstdint>
#include <limits>

/// The number formats, bit by bit. Choices are made on integers and no arithmetic is done on fp32 subnormals: loops over it
/// vectorise, and a host program that has switched subnormals off (FTZ, DAZ) gets the same bits.
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
  const std::uint32_t subnormal = bits(static_cast<float>(static_cast<std::int32_t>(rest)) * 0x1p-24F);
  const std::uint32_t finite = rest < 0x400U ? subnormal : (rest << 13) + 0x38000000U;
  const std::uint32_t payload = (rest & 0x3FFU) << 13;
  const std::uint32_t special = 0x7F800000U | payload | (payload != 0 ? 0x400000U : 0U);  // NaN is made quiet
  return from_bits(sign | (rest >= 0x7C00U ? special : finite));
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

/// A small format of `Mantissa` bits with this exponent bias: rounds a magnitude (the bits of an fp32 without sign, no NaN) to
/// nearest even and cuts at `max_code`. Answers the code without its sign.
template <int Mantissa, int Bias>
constexpr std::uint32_t encode_magnitude(std::uint32_t magnitude, std::uint32_t max_code) noexcept {
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 + 1 - Bias) << 23;
  // One step of the format is 2^(1 − Bias − Mantissa): the sum with this constant has its last bit there.
  constexpr std::uint32_t kAlign = static_cast<std::uint32_t>(127 + 1 - Bias - Mantissa + 23) << 23;
  constexpr int kDrop = 23 - Mantissa;
  const std::uint32_t tiny = bits(from_bits(magnitude < kSmallestNormal ? magnitude : 0U) + from_bits(kAlign)) - kAlign;
  const std::uint32_t u = magnitude - (static_cast<std::uint32_t>(127 - Bias) << 23);
  const std::uint32_t normal = (u + (1U << (kDrop - 1)) - 1U + ((u >> kDrop) & 1U)) >> kDrop;
  const std::uint32_t code = magnitude < kSmallestNormal ? tiny : normal;
  return code < max_code ? code : max_code;
}

/// Bits of the fp32 of a code without sign; infinities and NaN are the caller's.
template <int Mantissa, int Bias>
constexpr std::uint32_t decode_magnitude(std::uint32_t code) noexcept {
  constexpr float kStep = from_bits(static_cast<std::uint32_t>(127 + 1 - Bias - Mantissa) << 23);
  const std::uint32_t subnormal = bits(static_cast<float>(static_cast<std::int32_t>(code)) * kStep);
  const std::uint32_t normal = (code << (23 - Mantissa)) + (static_cast<std::uint32_t>(127 - Bias) << 23);
  return code < (1U << Mantissa) ? subnormal : normal;
}

constexpr bool is_nan_bits(std::uint32_t u) noexcept { return (u & 0x7FFFFFFFU) > 0x7F800000U; }
constexpr std::uint32_t kQuietNan = 0x7FC00000U;

constexpr std::uint8_t float_to_e4m3(float f) noexcept {
  const std::uint32_t u = bits(f);
  const std::uint32_t code = encode_magnitude<3, 7>(u & 0x7FFFFFFFU, 0x7EU);
  return static_cast<std::uint8_t>((u >> 24 & 0x80U) | (is_nan_bits(u) ? 0x7FU : code));
}
constexpr float e4m3_to_float(std::uint8_t b) noexcept {
  const std::uint32_t code = b & 0x7FU;
  const std::uint32_t m = decode_magnitude<3, 7>(code);
  return from_bits((b & 0x80U) << 24 | (code == 0x7FU ? kQuietNan : m));
}

constexpr std::uint8_t float_to_e5m2(float f) noexcept {
  const std::uint32_t u = bits(f);
  const std::uint32_t code = encode_magnitude<2, 15>(u & 0x7FFFFFFFU, 0x7BU);
  return static_cast<std::uint8_t>((u >> 24 & 0x80U) | (is_nan_bits(u) ? 0x7FU : code));
}
constexpr float e5m2_to_float(std::uint8_t b) noexcept {
  const std::uint32_t code = b & 0x7FU;
  const std::uint32_t finite = decode_magnitude<2, 15>(code);
  const std::uint32_t special = code == 0x7CU ? 0x7F800000U : kQuietNan;
  return from_bits((b & 0x80U) << 24 | (code >= 0x7CU ? special : finite));
}

/// Scale format without sign or zero: byte b is 2^(b − 127), 255 is NaN.
constexpr float e8m0_to_float(std::uint8_t b) noexcept {
  const std::uint32_t u = b == 0 ? 0x400000U : std::uint32_t{b} << 23;  // 2^-127 is a subnormal of fp32
  return from_bits(b == 255 ? kQuietNan : u);
}
/// The smallest power of two that is not below f; 0 and below give byte 0, above 2^127 byte 254.
constexpr std::uint8_t float_to_e8m0(float f) noexcept {
  const std::uint32_t u = bits(f);
  const std::uint32_t up = (u + 0x7FFFFFU) >> 23;
  std::uint32_t code = up < 254U ? up : 254U;
  code = u <= 0x400000U || u >= 0x80000000U ? 0U : code;
  return static_cast<std::uint8_t>(is_nan_bits(u) ? 255U : code);
}

/// Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. NaN has no code: it becomes 6.
constexpr std::uint8_t float_to_e2m1(float f) noexcept {
  const std::uint32_t u = bits(f);
  const std::uint32_t code = (u >> 28 & 8U) | encode_magnitude<1, 1>(u & 0x7FFFFFFFU, 7U);
  return static_cast<std::uint8_t>(is_nan_bits(u) ? 7U : code);
}
constexpr float e2m1_to_float(std::uint8_t code) noexcept {
  return from_bits((code & 8U) << 28 | decode_magnitude<1, 1>(code & 7U));
}

/// Zero is what has no bit but the sign: a subnormal is not zero, whatever the processor was told.
constexpr std::uint8_t float_to_boolean(float f) noexcept { return (bits(f) & 0x7FFFFFFFU) != 0 ? 1 : 0; }

/// Nearest even below 2^23; from there on every fp32 is a whole number.
constexpr float nearest_whole(float f) noexcept {
  const std::uint32_t u = bits(f);
  const float large = from_bits((u & 0x80000000U) | 0x4B000000U);
  const std::uint32_t rounded = bits((f + large) - large);
  return from_bits((u & 0x7FFFFFFFU) < 0x4B000000U ? rounded : u);
}

/// Nearest even, saturating; NaN is 0.
template <class I>
constexpr I float_to_int(float f) noexcept {
  using L = std::numeric_limits<I>;
  const std::uint32_t u = bits(f);
  // The largest fp32 that is an I, and what lies beyond it.
  constexpr float kHigh = sizeof(I) == 8 ? 0x1.fffffep62F : sizeof(I) == 4 ? 0x1.fffffep30F : static_cast<float>(L::max());
  constexpr float kLow = static_cast<float>(L::min());
  float c = f > kLow ? f : kLow;  // NaN becomes kLow for now
  c = c < kHigh ? c : kHigh;
  const float r = nearest_whole(c);
  if constexpr (sizeof(I) == 1) {
    const auto narrow = static_cast<I>(static_cast<std::int32_t>(r));
    return is_nan_bits(u) ? I{0} : narrow;
  } else {
    const I inside = static_cast<I>(r);
    const I cut = static_cast<std::int32_t>(u) > static_cast<std::int32_t>(bits(kHigh)) ? L::max() : inside;
    return is_nan_bits(u) ? I{0} : cut;
  }
}

}  // namespace verglas::numeric
