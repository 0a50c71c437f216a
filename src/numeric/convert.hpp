#pragma once
#include <cstdint>

#include "verglas/dtype.hpp"

/// Conversions between stored elements and the lanes that engines compute in. docs/numerics.md has the rules as tables:
/// to nearest, ties to even; fp16 overflows to infinity; fp8 and fp4 saturate; integers saturate and NaN becomes 0.
/// Strides are in elements, offsets are formed in 64 bits. fp4 holds two elements a byte: strides and counts are of bytes there,
/// and only the single-element forms with an index know halves.
namespace verglas::numeric {

/// The element at `slot`; of fp4 the low half.
float to_float(const void* slot, DataType t) noexcept;
void from_float(float v, void* slot, DataType t) noexcept;
/// Element `index` of a packed fp4 run: the low half of byte index / 2 when index is even, else the high half.
float fp4_to_float(const void* run, std::int64_t index) noexcept;
void fp4_from_float(float v, void* run, std::int64_t index) noexcept;
/// n elements of a packed fp4 run, from an even element on.
void load_fp4(const void* run, std::int64_t n, float* dst) noexcept;
/// Writes n elements, an even number.
void store_fp4(const float* src, void* run, std::int64_t n) noexcept;
/// Bytes to an element; of fp4 to an even one.
constexpr std::int64_t byte_offset(std::int64_t element, DataType t) noexcept {
  return t == DataType::fp4_e2m1 ? element / 2 : element * bytes_of(t);
}
/// What is left of v after it was stored as t.
float round_to(float v, DataType t) noexcept;

/// fp32 lanes.
void load_f32(const void* src, DataType t, std::int64_t stride, std::int64_t n, float* dst) noexcept;
void store_f32(const float* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept;
void round_f32(float* x, DataType t, std::int64_t n) noexcept;
/// int32 lanes; wider and floating sources saturate.
void load_i32(const void* src, DataType t, std::int64_t stride, std::int64_t n, std::int32_t* dst) noexcept;
/// Through fp32 (nearest even) where the stored type is floating.
void store_i32(const std::int32_t* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept;

/// Every value of t is an fp32 value.
constexpr bool exact_in_float(DataType t) noexcept { return t != DataType::int32 && t != DataType::int64; }

}  // namespace verglas::numeric
