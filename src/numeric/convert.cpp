#include "numeric/convert.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace verglas::numeric {
namespace {

float bf16_to_float(std::uint16_t h) { return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16); }
std::uint16_t float_to_bf16(float f) {
  const auto u = std::bit_cast<std::uint32_t>(f);
  if (f != f) return static_cast<std::uint16_t>((u >> 16) | 0x40U);
  return static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}
float fp16_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t rest = h & 0x7FFFU;
  if (rest >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (rest & 0x3FFU) << 13);
  // Scaling by 2^112 turns the fp16 exponent, subnormals included, into the fp32 one.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}
std::uint16_t float_to_fp16(float f) {
  const auto u = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t a = u & 0x7FFFFFFFU;
  if (a > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U | ((a >> 13) & 0x3FFU));
  if (a >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (a < 0x38800000U) {
    // Adding 2^-1·2^... aligns the last fp16 subnormal bit with the last fp32 bit; the addition rounds to nearest even.
    const float shifted = std::bit_cast<float>(a) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  return static_cast<std::uint16_t>(sign | ((a - 0x38000000U + 0xFFFU + ((a >> 13) & 1U)) >> 13));
}
template <class I>
I saturate(float v) {
  if (v != v) return 0;
  const double r = std::nearbyint(static_cast<double>(v));
  if (r <= static_cast<double>(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
  if (r >= static_cast<double>(std::numeric_limits<I>::max())) return std::numeric_limits<I>::max();
  return static_cast<I>(r);
}
template <class I>
I clamp_to(std::int64_t v) {
  if (v < std::numeric_limits<I>::min()) return std::numeric_limits<I>::min();
  if (v > std::numeric_limits<I>::max()) return std::numeric_limits<I>::max();
  return static_cast<I>(v);
}
template <class T>
T get(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
void put(void* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

}  // namespace

float to_float(const void* s, DataType t) noexcept {
  switch (t) {
    case DataType::fp32: return get<float>(s);
    case DataType::fp16: return fp16_to_float(get<std::uint16_t>(s));
    case DataType::bf16: return bf16_to_float(get<std::uint16_t>(s));
    case DataType::int8: return get<std::int8_t>(s);
    case DataType::uint8: return get<std::uint8_t>(s);
    case DataType::boolean: return get<std::uint8_t>(s) != 0 ? 1.0F : 0.0F;
    case DataType::int32: return static_cast<float>(get<std::int32_t>(s));
    case DataType::int64: return static_cast<float>(get<std::int64_t>(s));
    default: return 0.0F;
  }
}
void from_float(float v, void* s, DataType t) noexcept {
  switch (t) {
    case DataType::fp32: return put(s, v);
    case DataType::fp16: return put(s, float_to_fp16(v));
    case DataType::bf16: return put(s, float_to_bf16(v));
    case DataType::int8: return put(s, saturate<std::int8_t>(v));
    case DataType::uint8: return put(s, saturate<std::uint8_t>(v));
    case DataType::boolean: return put(s, static_cast<std::uint8_t>(v != 0));
    case DataType::int32: return put(s, saturate<std::int32_t>(v));
    case DataType::int64: return put(s, saturate<std::int64_t>(v));
    default: return;
  }
}
float round_to(float v, DataType t) noexcept {
  char slot[8];
  from_float(v, slot, t);
  return to_float(slot, t);
}
void load_f32(const void* src, DataType t, std::int64_t stride, std::int64_t n, float* dst) noexcept {
  const auto* p = static_cast<const char*>(src);
  const std::int64_t step = stride * bytes_of(t);
  for (std::int64_t i = 0; i < n; ++i) dst[i] = to_float(p + i * step, t);
}
void store_f32(const float* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept {
  auto* p = static_cast<char*>(dst);
  const std::int64_t step = stride * bytes_of(t);
  for (std::int64_t i = 0; i < n; ++i) from_float(src[i], p + i * step, t);
}
void load_i32(const void* src, DataType t, std::int64_t stride, std::int64_t n, std::int32_t* dst) noexcept {
  const auto* p = static_cast<const char*>(src);
  const std::int64_t step = stride * bytes_of(t);
  for (std::int64_t i = 0; i < n; ++i) {
    const char* s = p + i * step;
    dst[i] = t == DataType::int32   ? get<std::int32_t>(s)
             : t == DataType::int64 ? clamp_to<std::int32_t>(get<std::int64_t>(s))
                                    : saturate<std::int32_t>(to_float(s, t));
  }
}
void store_i32(const std::int32_t* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept {
  auto* p = static_cast<char*>(dst);
  const std::int64_t step = stride * bytes_of(t);
  for (std::int64_t i = 0; i < n; ++i) {
    if (t == DataType::int32)
      put(p + i * step, src[i]);
    else if (t == DataType::int64)
      put(p + i * step, static_cast<std::int64_t>(src[i]));
    else
      from_float(static_cast<float>(src[i]), p + i * step, t);
  }
}
void round_f32(float* x, DataType t, std::int64_t n) noexcept {
  if (t == DataType::fp32) return;
  for (std::int64_t i = 0; i < n; ++i) x[i] = round_to(x[i], t);
}

}  // namespace verglas::numeric
