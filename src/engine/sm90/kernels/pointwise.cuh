#pragma once
#include "position.cuh"

namespace vg {

/// One operand of the epilogue. Strides in elements, 0 along an axis of extent 1.
struct Aux {
  const void* address;
  int64 batch_stride, row_stride, col_stride;

  /// Columns 2i and 2i + 1 lie in one aligned piece.
  template <class T>
  VG_DEVICE bool in_pairs() const {
    const uint64 all = reinterpret_cast<uint64>(address) | static_cast<uint64>(batch_stride * T::BYTES) |
                       static_cast<uint64>(row_stride * T::BYTES);
    return col_stride == 1 && all % (2 * T::BYTES) == 0;
  }
};

// Stored elements. Loads are volatile so that they stay with their unit: hoisted over the tile they would spill. They are
// predicated, 0 where not `in`, and not converted on the spot: with a branch around each the loads of a unit wait for one
// another.
struct F32 {
  static constexpr int BYTES = 4;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_word(from, in); }
  VG_DEVICE static float value(uint32 bits) { return __uint_as_float(bits); }
  VG_DEVICE static void store(void* to, float v) { store_u32(to, __float_as_uint(v)); }
  VG_DEVICE static void store_pair(void* to, float x, float y) { store_u64(to, __float_as_uint(x), __float_as_uint(y)); }
};
struct Bf16 {
  static constexpr int BYTES = 2;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_half(from, in); }
  VG_DEVICE static float value(uint32 bits) { return __uint_as_float(bits << 16); }
  VG_DEVICE static uint32 pack(float x, float y) { return pack_bf16(x, y); }
  VG_DEVICE static void store(void* to, float v) { store_u16(to, bf16_bits(v)); }
  VG_DEVICE static void store_pair(void* to, float x, float y) { store_u32(to, pack_bf16(x, y)); }
};
struct F16 {
  static constexpr int BYTES = 2;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_half(from, in); }
  VG_DEVICE static float value(uint32 bits) { return f16_to_float(static_cast<uint16>(bits)); }
  VG_DEVICE static uint32 pack(float x, float y) { return pack_fp16(x, y); }
  VG_DEVICE static void store(void* to, float v) { store_u16(to, f16_bits(v)); }
  VG_DEVICE static void store_pair(void* to, float x, float y) { store_u32(to, pack_fp16(x, y)); }
};
/// Types of one byte: `Type::pack` makes two of them, the first in the low byte.
template <class Type>
struct Byte {
  static constexpr int BYTES = 1;
  VG_DEVICE static uint32 load(const void* from, bool in) { return load_byte(from, in); }
  VG_DEVICE static void store(void* to, float v) { store_u8(to, Type::pack(v, 0.0f) & 0xffu); }
  VG_DEVICE static void store_pair(void* to, float x, float y) { store_u16(to, Type::pack(x, y)); }
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
  VG_DEVICE static float value(uint32 bits) { return bits != 0 ? 1.0f : 0.0f; }
  VG_DEVICE static float round(int i) { return i != 0 ? 1.0f : 0.0f; }
  VG_DEVICE static float round(float f) { return f != 0.0f ? 1.0f : 0.0f; }
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
  VG_DEVICE static void store(void* to, int v) { store_u32(to, static_cast<uint32>(v)); }
  VG_DEVICE static void store_pair(void* to, int x, int y) { store_u64(to, static_cast<uint32>(x), static_cast<uint32>(y)); }
};

/// The operand's values for a unit; nothing is read outside D. ROWS, COLS: it varies along that axis.
template <class T, bool ROWS, bool COLS, class Lane>
VG_DEVICE void load_aux(Lane (&v)[8], const Aux& aux, const Parameters& p, const Position& at) {
  // Opaque, so that addresses are formed here and not for the whole tile ahead.
  int row = at.row, col = at.col;
  asm volatile("" : "+r"(row), "+r"(col));
  int64 element = at.batch * aux.batch_stride;
  if (ROWS) element += row * aux.row_stride;
  if (COLS) element += col * aux.col_stride;
  const char* from = static_cast<const char*>(aux.address) + element * T::BYTES;
  const auto in = [&](int i) { return (!ROWS || row + i / 2 % 2 * 8 < p.m) && (!COLS || col + i / 4 * 8 + i % 2 < p.n); };
  const auto row_by_row = [](int order) { return order % 2 + order / 2 % 2 * 4 + order / 4 * 2; };
  uint32 bits[8];
  if (COLS && T::BYTES == 2 && aux.in_pairs<T>()) {
#pragma unroll
    for (int order = 0; order < 8; order += 2) {
      const int i = row_by_row(order);
      if (!ROWS && i & 2) continue;
      if (i == 2) from += 8 * T::BYTES * aux.row_stride;
      bits[i] = load_word(from + i / 4 * 8 * T::BYTES, in(i + 1)) | load_half(from + i / 4 * 8 * T::BYTES, in(i) && !in(i + 1));
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const uint32 both = bits[ROWS ? i : i & ~2];
      v[i] = T::value(both & 0xffffu);
      v[i + 1] = T::value(both >> 16);
    }
    return;
  }
#pragma unroll
  for (int order = 0; order < 8; ++order) {
    const int i = row_by_row(order);
    // A value that does not vary along an axis is loaded once for it.
    if (i != ((ROWS ? i : i & ~2) & (COLS ? ~0 : ~5))) continue;
    if (ROWS && i == 2) from += 8 * T::BYTES * aux.row_stride;
    bits[i] = T::load(COLS ? from + (i / 4 * 8 + i % 2) * T::BYTES * aux.col_stride : from, in(i));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = T::value(bits[(ROWS ? i : i & ~2) & (COLS ? ~0 : ~5)]);
}

/// A unit of an output other than the first, rounded once; nothing is written outside D.
template <class T, class Lane>
VG_DEVICE void store_output(const Aux& out, const Lane (&v)[8], const Parameters& p, const Position& at) {
  int row = at.row, col = at.col;
  asm volatile("" : "+r"(row), "+r"(col));
  char* to = static_cast<char*>(const_cast<void*>(out.address)) +
             (at.batch * out.batch_stride + row * out.row_stride + col * out.col_stride) * T::BYTES;
  if (out.in_pairs<T>()) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int down = i / 4, across = i / 2 % 2, x = 2 * down + 4 * across;
      if (down != 0 && across == 0) to += 8 * T::BYTES * out.row_stride;
      if (row + 8 * down >= p.m) continue;
      if (col + 8 * across + 1 < p.n) {
        T::store_pair(to + 8 * across * T::BYTES, v[x], v[x + 1]);
      } else if (col + 8 * across < p.n) {
        T::store(to + 8 * across * T::BYTES, v[x]);
      }
    }
    return;
  }
#pragma unroll
  for (int order = 0; order < 8; ++order) {
    const int i = order % 2 + order / 2 % 2 * 4 + order / 4 * 2;
    if (i == 2) to += 8 * T::BYTES * out.row_stride;
    if (row + i / 2 % 2 * 8 < p.m && col + i / 4 * 8 + i % 2 < p.n)
      T::store(to + (i / 4 * 8 + i % 2) * T::BYTES * out.col_stride, v[i]);
  }
}

VG_DEVICE float round_bf16(float f) { return bf16_to_float(bf16_bits(f)); }
VG_DEVICE float round_f16(float f) { return f16_to_float(f16_bits(f)); }

// Arithmetic of integers wraps.
VG_DEVICE int add_int(int a, int b) { return static_cast<int>(static_cast<uint32>(a) + static_cast<uint32>(b)); }
VG_DEVICE int sub_int(int a, int b) { return static_cast<int>(static_cast<uint32>(a) - static_cast<uint32>(b)); }
VG_DEVICE int mul_int(int a, int b) { return static_cast<int>(static_cast<uint32>(a) * static_cast<uint32>(b)); }
VG_DEVICE int div_int(int a, int b) { return b == 0 ? 0 : b == -1 ? sub_int(0, a) : a / b; }
VG_DEVICE int mod_int(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
VG_DEVICE int abs_int(int a) { return a < 0 ? sub_int(0, a) : a; }

// The formulas are those of docs/numerics.md. Comparisons with NaN are false: that is how it goes through.
VG_DEVICE float max_nan(float a, float b) { return a > b ? a : (b >= a ? b : a + b); }
VG_DEVICE float min_nan(float a, float b) { return a < b ? a : (b <= a ? b : a + b); }
VG_DEVICE float leaky(float x, float slope) { return x > 0.0f ? x : (x <= 0.0f ? slope * x : x); }
/// n / d within an ulp for d from 1 to 4; no branch, of which the full division has one for each element.
VG_DEVICE float quotient(float n, float d) {
  const float r = reciprocal(d), q = n * r;
  return fmaf(fmaf(-q, d, n), r, q);
}
VG_DEVICE float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return quotient(x < 0.0f ? e : 1.0f, 1.0f + e);
}
/// σ(x)·(1 − σ(x)) without the cancellation.
VG_DEVICE float sigmoid_slope(float x) {
  const float e = expf(-fabsf(x));
  return quotient(e, (1.0f + e) * (1.0f + e));
}
VG_DEVICE float swish(float x, float beta) {
  const float held = max_nan(x, -3.0e38f);  // −∞ · 0 is −0, not NaN
  return (x < -3.0e38f ? held : x) * sigmoid(beta * held);
}
VG_DEVICE float softplus(float x, float beta) {
  const float t = beta * x;
  return ((t > 0.0f ? t : 0.0f) + log1pf(expf(-fabsf(t)))) / beta;
}
VG_DEVICE float gelu(float x) {
  const float v = x < -50.0f ? -50.0f : x;
  return 0.5f * v * erfcf(-v * 0.70710678118654752f);
}
VG_DEVICE float gelu_argument(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
VG_DEVICE float gelu_tanh(float x) {
  const float v = x < -1.0e4f ? -1.0e4f : x;
  return v * sigmoid(2.0f * gelu_argument(v));
}
VG_DEVICE float gelu_bwd(float dy, float x) {
  const float v = x < -50.0f ? -50.0f : x > 50.0f ? 50.0f : x;
  return dy * (0.5f * erfcf(-v * 0.70710678118654752f) + v * expf(-0.5f * v * v) * 0.3989422804014327f);
}
VG_DEVICE float gelu_tanh_bwd(float dy, float x) {
  const float v = x < -1.0e4f ? -1.0e4f : x > 1.0e4f ? 1.0e4f : x;
  const float t = 2.0f * gelu_argument(v);
  return dy * (sigmoid(t) + 2.0f * v * sigmoid_slope(t) * 0.7978845608028654f * (1.0f + 0.134145f * v * v));
}
VG_DEVICE float swish_bwd(float dy, float x, float beta) {
  const float t = beta * x, held = t < -1.0e4f ? -1.0e4f : t > 1.0e4f ? 1.0e4f : t;
  return dy * (sigmoid(held) + held * sigmoid_slope(held));
}

}  // namespace vg
