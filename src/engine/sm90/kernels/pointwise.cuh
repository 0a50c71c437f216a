#pragma once
#include "elements.cuh"
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

// Operands that vary along one axis or none: asked for before a tile's products, so that nobody waits for them.

/// Along n: through BLOCK_N words of shared memory.
template <class T, int BLOCK_N>
struct RowVector {
  uint32 bits[(BLOCK_N + 127) / 128];
  VG_DEVICE void load(const Aux& aux, const Parameters& p, const TilePiece& t) {
#pragma unroll
    for (int j = 0; j < (BLOCK_N + 127) / 128; ++j) {
      const int in_tile = static_cast<int>(threadIdx.x) % 128 + 128 * j, col = t.col + in_tile;
      const int64 element = t.batch * aux.batch_stride + col * aux.col_stride;
      bits[j] = T::load(static_cast<const char*>(aux.address) + element * T::BYTES, in_tile < BLOCK_N && col < p.n);
    }
  }
  VG_DEVICE void keep(uint32 words) const {
#pragma unroll
    for (int j = 0; j < (BLOCK_N + 127) / 128; ++j) {
      const int in_tile = static_cast<int>(threadIdx.x) % 128 + 128 * j;
      if (in_tile < BLOCK_N) store_float(words + 4 * in_tile, word_of(T::value(bits[j])));
    }
  }
  template <class Lane>
  VG_DEVICE static void read(Lane (&v)[8], uint32 words, const Position& at) {
    const uint32 from = words + 4 * (16 * at.unit + threadIdx.x % 4 * 2);
    float x[4];
    load_pair(from, x[0], x[1]);
    load_pair(from + 32, x[2], x[3]);
#pragma unroll
    for (int i = 0; i < 8; ++i) from_word(v[i], x[i / 4 * 2 + i % 2]);
  }
};
/// Along m.
template <class T, int M_BLOCKS>
struct ColumnVector {
  uint32 bits[M_BLOCKS][2];
  VG_DEVICE void load(const Aux& aux, const Parameters& p, const TilePiece& t) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
    for (int i = 0; i < 2 * M_BLOCKS; ++i) {
      const int row = place_of(t, 64 * (i / 2) + 16 * warp + lane / 4 + 8 * (i % 2));
      const int64 element = t.batch * aux.batch_stride + row * aux.row_stride;
      bits[i / 2][i % 2] = T::load(static_cast<const char*>(aux.address) + element * T::BYTES, row < p.m);
    }
  }
  template <class Lane>
  VG_DEVICE void read(Lane (&v)[8], const Position& at) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = T::value(bits[at.block][i / 2 % 2]);
  }
};
/// One value a matrix.
template <class T>
struct OneValue {
  uint32 bits;
  VG_DEVICE void load(const Aux& aux, const TilePiece& t) {
    bits = T::load(static_cast<const char*>(aux.address) + t.batch * aux.batch_stride * T::BYTES, true);
  }
  template <class Lane>
  VG_DEVICE void read(Lane (&v)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = T::value(bits);
  }
};

/// A unit of an operand that varies along both axes, from memory; nothing is read outside D.
template <class T, class Lane>
VG_DEVICE void load_aux(Lane (&v)[8], const Aux& aux, const Parameters& p, const Position& at) {
  // Opaque, so that addresses are formed here and not for the whole tile ahead.
  int row = at.row, col = at.col;
  asm volatile("" : "+r"(row), "+r"(col));
  const char* from = static_cast<const char*>(aux.address) +
                     (at.batch * aux.batch_stride + row * aux.row_stride + col * aux.col_stride) * T::BYTES;
  const auto in = [&](int i) { return row + i / 2 % 2 * at.down < at.end && col + i / 4 * 8 + i % 2 < p.n; };
  const auto row_by_row = [](int order) { return order % 2 + order / 2 % 2 * 4 + order / 4 * 2; };
  uint32 bits[8];
  if (T::BYTES == 2 && aux.in_pairs<T>()) {
#pragma unroll
    for (int order = 0; order < 8; order += 2) {
      const int i = row_by_row(order);
      if (i == 2) from += at.down * aux.row_stride * T::BYTES;
      bits[i] = load_word(from + i / 4 * 8 * T::BYTES, in(i + 1)) | load_half(from + i / 4 * 8 * T::BYTES, in(i) && !in(i + 1));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = T::value(i % 2 ? bits[i - 1] >> 16 : bits[i] & 0xffffu);
    return;
  }
#pragma unroll
  for (int order = 0; order < 8; ++order) {
    const int i = row_by_row(order);
    if (i == 2) from += at.down * aux.row_stride * T::BYTES;
    bits[i] = T::load(from + (i / 4 * 8 + i % 2) * T::BYTES * aux.col_stride, in(i));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = T::value(bits[i]);
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
      if (down != 0 && across == 0) to += at.down * out.row_stride * T::BYTES;
      if (row + at.down * down >= at.end) continue;
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
    if (i == 2) to += at.down * out.row_stride * T::BYTES;
    if (row + i / 2 % 2 * at.down < at.end && col + i / 4 * 8 + i % 2 < p.n)
      T::store(to + (i / 4 * 8 + i % 2) * T::BYTES * out.col_stride, v[i]);
  }
}

VG_DEVICE float round_bf16(float f) { return bf16_to_float(bf16_bits(f)); }
VG_DEVICE float round_f16(float f) { return f16_to_float(f16_bits(f)); }
/// Rounds by pairs: single conversions have an eighth of their rate.
template <class T>
VG_DEVICE void round_to(float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const uint32 pair = T::pack(v[i], v[i + 1]);
    v[i] = T::value(pair & 0xffffu);
    v[i + 1] = T::value(pair >> 16);
  }
}

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
constexpr float LOG2_E = 1.4426950408889634f;
/// n / d within an ulp for d from 1 to 4; no branch, of which the full division has one for each element.
VG_DEVICE float quotient(float n, float d) {
  const float r = reciprocal(d), q = n * r;
  return fmaf(fmaf(-q, d, n), r, q);
}
VG_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp2_approx(-LOG2_E * x)); }
/// σ(x)·(1 − σ(x)) without the cancellation.
VG_DEVICE float sigmoid_slope(float x) {
  const float e = exp2_approx(-LOG2_E * fabsf(x));
  return quotient(e, (1.0f + e) * (1.0f + e));
}
VG_DEVICE float swish(float x, float beta) {
  const float v = larger(x, -3.0e38f);  // −∞ · 0 is −0, not NaN
  return v * sigmoid(beta * v);
}
VG_DEVICE float softplus(float x, float beta) {
  const float t = beta * x;
  return ((t > 0.0f ? t : 0.0f) + log1pf(expf(-fabsf(t)))) / beta;
}
/// exp(−x²/2) and ½ erfc(|x| / √2), the second as t·Q(t)·exp(−x²/2) with t = 1 / (1 + |x| / √8): Q fits within 4e-8 up to |x| = 3
/// and 8e-7 beyond.
struct Tail {
  float density, tail;
};
VG_DEVICE Tail normal_tail(float x) {
  constexpr float Q[9] = {1.410466582e-01f, 1.410956383e-01f,  1.224418655e-01f, 9.706407785e-02f, -1.692510908e-03f,
                          1.203365847e-01f, -2.259102613e-01f, 1.331887245e-01f, -2.757076174e-02f};
  const float t = reciprocal(fmaf(3.535533845e-01f, fabsf(x), 1.0f)), density = exp2_approx(-0.5f * LOG2_E * x * x);
  float sum = Q[8];
#pragma unroll
  for (int i = 7; i >= 0; --i) sum = fmaf(sum, t, Q[i]);
  return {density, sum * t * density};
}
VG_DEVICE float normal_below(float x, float tail) { return x < 0.0f ? tail : 1.0f - tail; }
VG_DEVICE float gelu(float x) {
  const float v = larger(x, -50.0f);  // −∞ · 0 is −0, not NaN
  return v * normal_below(v, normal_tail(v).tail);
}
VG_DEVICE float gelu_argument(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
VG_DEVICE float gelu_tanh(float x) {
  constexpr float FIRST = -2.0f * 0.7978845608028654f * LOG2_E, THIRD = FIRST * 0.044715f;
  const float v = larger(x, -1.0e4f);
  return v * reciprocal(1.0f + exp2_approx(v * fmaf(THIRD * v, v, FIRST)));
}
VG_DEVICE float gelu_bwd(float dy, float x) {
  const float v = smaller(larger(x, -50.0f), 50.0f);
  const Tail t = normal_tail(v);
  return dy * (normal_below(v, t.tail) + v * t.density * 0.3989422804014327f);
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
