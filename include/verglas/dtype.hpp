#pragma once
#include <cstdint>
#include <string_view>

namespace verglas {

/// Type of the elements of a tensor, or of the arithmetic of a node.
///
/// `tf32` is a compute type only: no tensor is stored in it. What engines do not serve is declined by name
/// (`chain.dtype_not_yet`).
/// Enumerators keep their numbers for ever: they are stored in files.
enum class DataType : std::uint8_t {
  not_set = 0,
  fp32 = 1,
  tf32 = 2,
  fp16 = 3,
  bf16 = 4,
  fp8_e4m3 = 5,
  fp8_e5m2 = 6,
  fp8_e8m0 = 7,
  fp4_e2m1 = 8,
  int8 = 9,
  uint8 = 10,
  int32 = 11,
  int64 = 12,
  boolean = 13,
};
inline constexpr int kDataTypeCount = 14;

/// Bits that one element takes in memory: 4 for fp4 (two a byte), 0 for `not_set` and `tf32`, which are never stored.
constexpr int bits_of(DataType t) noexcept {
  switch (t) {
    case DataType::fp32:
    case DataType::int32: return 32;
    case DataType::int64: return 64;
    case DataType::fp16:
    case DataType::bf16: return 16;
    case DataType::fp8_e4m3:
    case DataType::fp8_e5m2:
    case DataType::fp8_e8m0:
    case DataType::int8:
    case DataType::uint8:
    case DataType::boolean: return 8;
    case DataType::fp4_e2m1: return 4;
    case DataType::not_set:
    case DataType::tf32: return 0;
  }
  return 0;
}

/// Bytes of one element; 1 for fp4, whose storage slot is a byte of two elements.
constexpr int bytes_of(DataType t) noexcept { return (bits_of(t) + 7) / 8; }

/// The floating types of one byte, whose bytes a caller may also hand over as uint8.
constexpr bool is_fp8(DataType t) noexcept {
  return t == DataType::fp8_e4m3 || t == DataType::fp8_e5m2 || t == DataType::fp8_e8m0;
}

/// True for the types whose arithmetic is on integers.
constexpr bool is_integer(DataType t) noexcept {
  return t == DataType::int8 || t == DataType::uint8 || t == DataType::int32 || t == DataType::int64 || t == DataType::boolean;
}

/// Lower-case name as written in files, errors and docs: "bf16", "fp8_e4m3"; "not_set" where there is none.
std::string_view name_of(DataType t) noexcept;

/// The type of that name; `not_set` when there is none. Accepts cuDNN's upper-case names too (HALF, BFLOAT16, FP8_E4M3 …).
DataType dtype_from_name(std::string_view name) noexcept;

}  // namespace verglas
