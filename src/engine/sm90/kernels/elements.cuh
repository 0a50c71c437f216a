#pragma once
#include "ptx.cuh"

namespace vg {

// Stored elements. Loads are volatile so that they stay with their unit: hoisted over the tile they would spill. They are
// predicated, 0 where not `in`, and not converted on the spot: with a branch around each the loads of a unit wait for one
// another.
struct F32 {
  static constexpr int BYTES = 4;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_word(from, in); }
  VG_DEVICE static float value(uint32 bits) { return __uint_as_float(bits); }
  VG_DEVICE static void store(void* to, float v, bool in) { store_u32(to, __float_as_uint(v), in); }
  VG_DEVICE static void store_pair(void* to, float x, float y, bool in) {
    store_u64(to, __float_as_uint(x), __float_as_uint(y), in);
  }
};
struct Bf16 {
  static constexpr int BYTES = 2;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_half(from, in); }
  VG_DEVICE static float value(uint32 bits) { return __uint_as_float(bits << 16); }
  VG_DEVICE static void store(void* to, float v, bool in) { store_u16(to, bf16_bits(v), in); }
  VG_DEVICE static uint32 pack(float x, float y) { return pack_bf16(x, y); }
  VG_DEVICE static void store_pair(void* to, float x, float y, bool in) { store_u32(to, pack_bf16(x, y), in); }
};
struct F16 {
  static constexpr int BYTES = 2;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_half(from, in); }
  VG_DEVICE static float value(uint32 bits) { return f16_to_float(static_cast<uint16>(bits)); }
  VG_DEVICE static void store(void* to, float v, bool in) { store_u16(to, f16_bits(v), in); }
  VG_DEVICE static uint32 pack(float x, float y) { return pack_fp16(x, y); }
  VG_DEVICE static void store_pair(void* to, float x, float y, bool in) { store_u32(to, pack_fp16(x, y), in); }
};
/// Types of one byte: `Type::pack` makes two of them, the first in the low byte.
template <class Type>
struct Byte {
  static constexpr int BYTES = 1;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_byte(from, in); }
  VG_DEVICE static void store(void* to, float v, bool in) { store_u8(to, Type::pack(v, 0.0f) & 0xffu, in); }
  VG_DEVICE static void store_pair(void* to, float x, float y, bool in) { store_u16(to, Type::pack(x, y), in); }
};
VG_DEVICE int clamped(int i, int low, int high) { return i < low ? low : i > high ? high : i; }
VG_DEVICE uint16 two_bytes(int x, int y) { return static_cast<uint16>((x & 0xff) | (y & 0xff) << 8); }
struct I8 : Byte<I8> {
  VG_DEVICE static float value(uint32 bits) { return static_cast<float>(static_cast<signed char>(bits)); }
  VG_DEVICE static float round(int i) { return static_cast<float>(clamped(i, -128, 127)); }
  VG_DEVICE static float round(float f) { return round(nearest_int(f)); }
  VG_DEVICE static uint16 pack(float x, float y) {
    return two_bytes(clamped(nearest_int(x), -128, 127), clamped(nearest_int(y), -128, 127));
  }
};
struct U8 : Byte<U8> {
  VG_DEVICE static float value(uint32 bits) { return static_cast<float>(bits); }
  VG_DEVICE static float round(int i) { return static_cast<float>(clamped(i, 0, 255)); }
  VG_DEVICE static float round(float f) { return round(nearest_int(f)); }
  VG_DEVICE static uint16 pack(float x, float y) {
    return two_bytes(clamped(nearest_int(x), 0, 255), clamped(nearest_int(y), 0, 255));
  }
};
struct Bool : Byte<Bool> {
  VG_DEVICE static float value(uint32 bits) { return truth(bits != 0); }
  VG_DEVICE static float round(int i) { return truth(i != 0); }
  VG_DEVICE static float round(float f) { return truth(f != 0.0f); }
  VG_DEVICE static uint16 pack(float x, float y) { return two_bytes(x != 0.0f, y != 0.0f); }
};
struct E4m3 : Byte<E4m3> {
  VG_DEVICE static float value(uint32 bits) { return e4m3_to_float(bits); }
  VG_DEVICE static float round(float f) { return value(pack_e4m3(f, 0.0f)); }
  VG_DEVICE static uint16 pack(float x, float y) { return pack_e4m3(x, y); }
};
struct E5m2 : Byte<E5m2> {
  VG_DEVICE static float value(uint32 bits) { return e5m2_to_float(bits); }
  VG_DEVICE static float round(float f) { return value(pack_e5m2(f, 0.0f)); }
  VG_DEVICE static uint16 pack(float x, float y) { return pack_e5m2(x, y); }
};
/// Kept as an integer: what computes in fp32 converts it.
struct I32 {
  static constexpr int BYTES = 4;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_word(from, in); }
  VG_DEVICE static int value(uint32 bits) { return static_cast<int>(bits); }
  VG_DEVICE static void store(void* to, int v, bool in) { store_u32(to, static_cast<uint32>(v), in); }
  VG_DEVICE static void store_pair(void* to, int x, int y, bool in) {
    store_u64(to, static_cast<uint32>(x), static_cast<uint32>(y), in);
  }
};

// A value is held in fp32, but for int32, which is an int; words in shared memory keep its bits.
VG_DEVICE float word_of(float v) { return v; }
VG_DEVICE float word_of(int v) { return __uint_as_float(static_cast<uint32>(v)); }
VG_DEVICE void from_word(float& v, float word) { v = word; }
VG_DEVICE void from_word(int& v, float word) { v = static_cast<int>(__float_as_uint(word)); }

}  // namespace vg
