#pragma once
#include "elements.cuh"
#include "position.cuh"

namespace vg {

/// One operand of the epilogue. Strides in elements, 0 along an axis of extent 1.
struct Aux {
  const void* address;
  int64 batch_stride, row_stride, col_stride;

  /// Columns 2i and 2i + 1 lie in one aligned piece; none of n columns is alone.
  template <class T>
  VG_DEVICE bool in_pairs(int n) const {
    const uint64 all = reinterpret_cast<uint64>(address) | static_cast<uint64>(batch_stride * T::BYTES) |
                       static_cast<uint64>(row_stride * T::BYTES);
    return col_stride == 1 && all % (2 * T::BYTES) == 0 && n % 2 == 0;
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
    const uint32 from = words + 4 * (16 * at.unit + at.place.thread % 4 * 2);
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

/// A unit of a matrix in memory, of whose elements those of D alone are read or written: four pairs of neighbours, two a row.
/// Where a pair is one piece it is moved at once, else by single elements.
template <class T>
struct UnitInMemory {
  int row, down, end, left;  // columns from the first of the unit on
  char* at;
  int64 step, to_next_row;
  VG_DEVICE UnitInMemory(const Aux& aux, const Parameters& p, const Position& place, int64 col_stride)
      : row(place.row), down(place.down), end(place.end), step(col_stride * T::BYTES) {
    // Opaque, so that addresses are formed here and not for the whole tile ahead, one for all columns.
    int col = place.col;
    asm volatile("" : "+r"(row), "+r"(col));
    left = p.n - col;
    at = static_cast<char*>(const_cast<void*>(aux.address)) + (place.batch * aux.batch_stride + row * aux.row_stride) * T::BYTES +
         col * step;
    keep_apart(at);
    to_next_row = down * aux.row_stride * T::BYTES;
  }
  VG_DEVICE bool in(int across) const { return row < end && across < left; }
  VG_DEVICE char* place(int across) const { return at + across * step; }
  /// Where columns lie beside each other.
  VG_DEVICE char* place_in_line(int across) const { return at + across * T::BYTES; }
  VG_DEVICE void next_row() {
    at += to_next_row;
    row += down;
    keep_apart(at);
  }
};

/// The single elements of an operand, into `bits`.
template <class T>
VG_DEVICE void load_elements(uint32 (&bits)[8], UnitInMemory<T> unit) {
#pragma unroll
  for (int order = 0; order < 8; ++order) {
    const int i = order % 2 + order / 2 % 2 * 4 + order / 4 * 2, across = i / 4 * 8 + i % 2;
    if (i == 2) unit.next_row();
    bits[i] = T::load(unit.place(across), unit.in(across));
  }
}
/// The same by a loop, of a row a turn: half the code, but two waits.
template <class T>
VG_DEVICE void load_by_rows(uint32 (&bits)[8], UnitInMemory<T> unit) {
#pragma unroll
  for (uint32& x : bits) x = 0;
#pragma unroll 1
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = e / 2 * 4 + e % 2, across = e / 2 * 8 + e % 2;
      bits[i] = bits[i + 2];
      bits[i + 2] = T::load(unit.place(across), unit.in(across));
    }
    unit.next_row();
  }
}
/// An operand that varies along both axes. IN_LINES: its columns lie beside each other. SHORT: rather little code than no waits.
template <class T, bool IN_LINES, bool SHORT, class Lane>
VG_DEVICE void load_aux(Lane (&v)[8], const Aux& aux, const Parameters& p, const Position& at) {
  uint32 bits[8];
  if (IN_LINES) {
    load_elements<T>(bits, {aux, p, at, 1});
  } else if (UnitInMemory<T> unit(aux, p, at, aux.col_stride); T::BYTES == 2 && aux.in_pairs<T>(p.n)) {
    uint32 pairs[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const int across = pair % 2 * 8;
      if (pair == 2) unit.next_row();
      pairs[pair] = load_word(unit.place_in_line(across), unit.in(across));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32 pair = pairs[i / 2 % 2 * 2 + i / 4];
      bits[i] = i % 2 ? pair >> 16 : pair & 0xffffu;
    }
  } else if constexpr (SHORT && T::BYTES == 2) {
    load_by_rows<T>(bits, unit);
  } else {
    load_elements<T>(bits, unit);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = T::value(bits[i]);
}

/// Asks L2 for what the units of a piece will read, if its columns lie beside each other; by a consumer before its products.
template <class T, int ROWS, int COLS>
VG_DEVICE void ask_for_lines(const Aux& aux, const Parameters& p, const TilePiece& t) {
  constexpr int LINE = 128 / T::BYTES, LINES = (COLS + LINE - 1) / LINE;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 128; i < ROWS * LINES; i += 128) {
    const int row = t.row + i / LINES, col = t.col + i % LINES * LINE;
    const int64 element = t.batch * aux.batch_stride + row * aux.row_stride + col;
    if (row < t.end && col < p.n) prefetch_l2(static_cast<const char*>(aux.address) + element * T::BYTES);
  }
}

/// An output other than the first, rounded once.
template <class T, class Lane>
VG_DEVICE void store_output(const Aux& out, const Lane (&v)[8], const Parameters& p, const Position& at) {
  UnitInMemory<T> unit(out, p, at, out.col_stride);
  if (out.in_pairs<T>(p.n)) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const int across = pair % 2 * 8, i = pair % 2 * 4 + pair / 2 * 2;
      if (pair == 2) unit.next_row();
      T::store_pair(unit.place_in_line(across), v[i], v[i + 1], unit.in(across));
    }
    return;
  }
  Lane x[4] = {v[0], v[1], v[4], v[5]};
  // A row a turn: half the code.
#pragma unroll 1
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int across = e / 2 * 8 + e % 2;
      T::store(unit.place(across), x[e], unit.in(across));
      x[e] = v[e / 2 * 4 + 2 + e % 2];
    }
    unit.next_row();
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
