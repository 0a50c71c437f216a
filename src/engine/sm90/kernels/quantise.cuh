#pragma once
#include "scales.cuh"

namespace vg {

// Blocks of a row that become narrow elements and a scale, as numeric/quantise.hpp has it, step by step.

/// The scale of a block whose largest magnitude is given, as stored, and the factor of its elements. Neither divides: a division
/// that is rounded as IEEE has it takes as long as all the rest.
struct E8m0Stored {
  /// largest <= LARGEST * 2^k is what largest / LARGEST <= 2^k says once rounded, but for the number behind the equal one where
  /// the quotient is subnormal; so k follows from the bits, as those of LARGEST end in zeros.
  template <class Elements>
  VG_DEVICE static uint32 of(float largest) {
    constexpr uint32 EXPONENT = Elements::LARGEST_BITS >> 23, MANTISSA = Elements::LARGEST_BITS & 0x7fffffu;
    constexpr uint32 LOWEST = (EXPONENT - 127) << 23 | MANTISSA;  // LARGEST * 2^-127
    const uint32 u = __float_as_uint(largest), up = (u + (0x7fffffu - MANTISSA)) >> 23;
    return u > 0x7f800000u ? 255u : u == 0x7f800000u ? 254u : u <= LOWEST + 1 ? 0u : up - (EXPONENT - 127);
  }
  VG_DEVICE static float factor(uint32 b) {
    return __uint_as_float(b < 254 ? (254 - b) << 23 : b == 254 ? 0x400000u : 0x7fffffffu);
  }
};
struct E4m3Stored {
  /// The quotient is corrected once, which rounds it; above the largest scale it does not matter, so that no step is infinite.
  template <class Elements>
  VG_DEVICE static uint32 of(float largest) {
    constexpr float LARGEST = Elements::LARGEST, INVERSE = 1.0f / LARGEST;
    const float x = smaller(largest, 1e30f), quotient = x * INVERSE;
    return pack_e4m3(multiply_add(multiply_add(-LARGEST, quotient, x), INVERSE, quotient), 0.0f) & 0xffu;
  }
  VG_DEVICE static float factor(uint32 b) {
    const float d = e4m3_to_float(b), r = reciprocal(d);
    return d == 0.0f ? 0.0f : multiply_add(multiply_add(-d, r, 1.0f), r, r);
  }
};

/// Four elements of a row as their bits, which take half as many in fp4.
struct E4m3Elements {
  static constexpr float LARGEST = 448.0f;
  static constexpr uint32 LARGEST_BITS = 0x43e00000u;
  static constexpr int BITS = 8;
  VG_DEVICE static uint32 pack(float a, float b, float c, float d) { return pack_e4m3(a, b) | uint32{pack_e4m3(c, d)} << 16; }
};
struct E5m2Elements {
  static constexpr float LARGEST = 57344.0f;
  static constexpr uint32 LARGEST_BITS = 0x47600000u;
  static constexpr int BITS = 8;
  VG_DEVICE static uint32 pack(float a, float b, float c, float d) { return pack_e5m2(a, b) | uint32{pack_e5m2(c, d)} << 16; }
};
struct E2m1Elements {
  static constexpr float LARGEST = 6.0f;
  static constexpr uint32 LARGEST_BITS = 0x40c00000u;
  static constexpr int BITS = 4;
  /// Added to a power of two whose last place is half the step of x's octave, x is rounded to nearest even, and how many such
  /// places it has stands in the sum's last bits: 0 to 4 below 2, which are codes, then 2 or 3 beyond twice the octave, which is
  /// in the power's last bits from the start. NaN is 6.
  VG_DEVICE static uint32 code(float x) {
    const float a = fminf(fabsf(x), 6.0f);
    const uint32 octave = __float_as_uint(a) & 0x7f800000u, from = octave > 0x3f800000u ? octave : 0x3f800000u;
    const uint32 power = from + 0x0b000000u + (from >> 22) - 254u;
    return (__float_as_uint(a + __uint_as_float(power)) & 7u) | (__float_as_uint(x) >> 28 & 8u);
  }
  VG_DEVICE static uint32 pack(float a, float b, float c, float d) {
    return code(a) | code(b) << 4 | code(c) << 8 | code(d) << 12;
  }
};

/// Stores pairs of units: 64 rows by 32 columns, of which four neighbouring lanes have two rows. In each row a thread has two and
/// two neighbours of each unit; with the others of its quad it exchanges them, so that each has eight in a run.
template <class Elements>
struct NarrowStore {
  static constexpr int BITS = Elements::BITS, PIECE = BITS;  // bytes of eight elements
  char* to;         // the upper row, from the first column of the tile on that this lane stores
  int left, whole;  // columns that there are from here on, and those that go by pieces
  int down;         // to the lower row
  bool has_upper, has_lower;

  /// Of the thread's rows; `col` is the first column of the part of the tile, `n` how many there are.
  VG_DEVICE void begin(const Aux& data, const Position& at, int col, int n) {
    int row = at.row;
    asm volatile("" : "+r"(row));  // addresses are formed here and not for the whole tile ahead
    col += 8 * (static_cast<int>(threadIdx.x) % 4);
    to = static_cast<char*>(const_cast<void*>(data.address)) +
         (at.batch * data.batch_stride + row * data.row_stride + col * data.col_stride) * BITS / 8;
    left = n - col;
    down = at.down;
    has_upper = row < at.end;
    has_lower = row + at.down < at.end;
    whole = data.col_stride == 1 && reinterpret_cast<uint64>(to) % PIECE == 0 ? left : 0;
  }

  /// The pair at column `at` of the tile: elements of both units, of the upper and of the lower row.
  VG_DEVICE void store(const Aux& data, int at, const uint32 (&first)[2], const uint32 (&second)[2]) const {
    uint32 words[2][BITS / 4];
    exchange(first, second, words);
    const int count = left - at;
    if (whole - at >= 8) {
      char* const piece = to + at * BITS / 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!(i == 0 ? has_upper : has_lower)) continue;
        char* const row = piece + i * down * data.row_stride * BITS / 8;
        if constexpr (BITS == 8) {
          store_u64(row, words[i][0], words[i][1]);
        } else {
          store_u32(row, words[i][0]);
        }
      }
    } else {
      char* row = to + at * data.col_stride * BITS / 8;
#pragma unroll 1
      for (int i = 0; i < 2 * BITS; ++i) {  // bytes
        const int byte = i % BITS;
        uint32 word = i < BITS ? words[0][0] : words[1][0];
        if (BITS == 8 && byte >= 4) word = i < BITS ? words[0][BITS / 4 - 1] : words[1][BITS / 4 - 1];
        if ((i < BITS ? has_upper : has_lower) && byte * 8 / BITS < count)
          store_u8(row + i / BITS * down * data.row_stride * BITS / 8 + byte * data.col_stride, word >> 8 * (byte % 4));
      }
    }
  }

 private:
  /// Lanes 0 and 1 keep what lanes 0 and 1 want, 2 and 3 the others; then neighbours exchange. Selectors count bytes of two
  /// words.
  VG_DEVICE static void exchange(const uint32 (&first)[2], const uint32 (&second)[2], uint32 (&words)[2][BITS / 4]) {
    const uint32 lane = threadIdx.x % 4;
    const bool is_right = lane >= 2, is_odd = lane % 2 != 0;
    if constexpr (BITS == 8) {
      const uint32 mine_of = is_odd ? 0x7632u : 0x5410u;
      const uint32 low_of = (is_odd ? 0x1054u : 0x5410u) ^ (is_right ? 0x2222u : 0u);
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const uint32 kept = is_right ? second[down] : first[down];
        const uint32 got = __shfl_xor_sync(0xffffffffu, is_right ? first[down] : second[down], 2);
        const uint32 mine = __byte_perm(kept, got, mine_of);
        const uint32 other = __shfl_xor_sync(0xffffffffu, __byte_perm(kept, got, mine_of ^ 0x2222u), 1);
        words[down][0] = __byte_perm(mine, other, low_of);
        words[down][1] = __byte_perm(mine, other, low_of ^ 0x2222u);
      }
    } else {
      // Both rows at once: two bytes of each unit.
      const uint32 upper = first[0] | second[0] << 16, lower = first[1] | second[1] << 16;
      const uint32 kept_of = is_right ? 0x7632u : 0x5410u, mine_of = is_odd ? 0x7531u : 0x6420u;
      const uint32 row_of = (is_odd ? 0x2604u : 0x6240u) ^ (is_right ? 0x2222u : 0u);
      const uint32 kept = __byte_perm(upper, lower, kept_of);
      const uint32 got = __shfl_xor_sync(0xffffffffu, __byte_perm(upper, lower, kept_of ^ 0x2222u), 2);
      const uint32 mine = __byte_perm(kept, got, mine_of);
      const uint32 other = __shfl_xor_sync(0xffffffffu, __byte_perm(kept, got, mine_of ^ 0x1111u), 1);
      words[0][0] = __byte_perm(mine, other, row_of);
      words[1][0] = __byte_perm(mine, other, row_of ^ 0x1111u);
    }
  }
};

/// Zeros for the padding of atoms behind a part of the scales: rows `row` to `row_end` and columns `column` to `column_end` are
/// those that its owner writes.
VG_DEVICE void pad_scales(const Aux& scales, int batch, int rows, int columns, int row, int row_end, int column, int column_end) {
  const int thread = static_cast<int>(threadIdx.x) % 128, padded = (columns + 3) / 4 * 4;
  const auto clear = [&](int r, int c) {
    char* const atom = static_cast<char*>(const_cast<void*>(scales.address));
    store_u8(atom + place_of_scales<true>(scales, r, c / 4 * 4, batch, rows, columns) + c % 4, 0);
  };
  const int end = column_end >= columns ? padded : column_end;
  if (column_end >= columns)
    for (int r = row + thread; r < row_end && r < rows; r += 128)
      for (int c = columns; c < padded; ++c) clear(r, c);
  if (row_end < rows) return;
  for (int r = rows + thread; r < (rows + 127) / 128 * 128; r += 128)
    for (int c = column; c < end; ++c) clear(r, c);
}

/// Two values of two lanes become one: of the lane without that bit of its number the first of both, of the other the second.
VG_DEVICE float larger_of_halves(float first, float second, int bit) {
  const bool is_second = (threadIdx.x & static_cast<unsigned>(bit)) != 0;
  return larger(is_second ? second : first, __shfl_xor_sync(0xffffffffu, is_second ? first : second, bit));
}

/// One quantised output, by blocks along N. Units come in pairs, which are one block of 32 or two of 16 in each row. Of every
/// PART columns of the product it has one.
template <class Elements, class Stored, int BLOCK, bool INTERLEAVED, int PART>
struct Quantiser {
  float held[8];  // the first unit of a pair
  NarrowStore<Elements> out;
  char* scale;  // of this lane's row, from the first block of the row on

  /// Of this consumer's part of a tile, ROWS by COLUMNS.
  template <int ROWS, int COLUMNS>
  VG_DEVICE static void pad(const Aux& scales, const Parameters& p, const TilePiece& t) {
    if (INTERLEAVED && t.row < p.m)
      pad_scales(scales, t.batch, p.m, p.n / PART / BLOCK, t.row, t.row + ROWS, t.col / PART / BLOCK,
                 (t.col + COLUMNS) / PART / BLOCK);
  }

  VG_DEVICE void unit(const float (&v)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at, uint32,
                      int) {
    const int quad = static_cast<int>(threadIdx.x) % 4, col = at.col - 2 * quad, blocks = p.n / PART / BLOCK;
    // Lanes with an even number find scales of the upper row, the others of the lower one.
    if (at.unit == 0) {
      out.begin(data, at, col, p.n / PART);
      int row = at.row + at.down * (quad % 2);
      asm volatile("" : "+r"(row));
      scale = static_cast<char*>(const_cast<void*>(scales.address)) +
              place_of_scales<INTERLEAVED>(scales, row, 0, at.batch, p.m, blocks);
    }
    if (at.unit % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) held[i] = v[i];
      return;
    }
    float most[2][2];  // of a unit, of a row
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const int i = 2 * down;
      most[0][down] = larger(larger(fabsf(held[i]), fabsf(held[i + 1])), larger(fabsf(held[i + 4]), fabsf(held[i + 5])));
      most[1][down] = larger(larger(fabsf(v[i]), fabsf(v[i + 1])), larger(fabsf(v[i + 4]), fabsf(v[i + 5])));
      if (BLOCK == 32) most[0][down] = larger(most[0][down], most[1][down]);
    }
    float largest = larger_of_halves(most[0][0], most[0][1], 1);
    if constexpr (BLOCK == 32)
      largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    else
      largest = larger_of_halves(largest, larger_of_halves(most[1][0], most[1][1], 1), 2);
    const uint32 stored = Stored::template of<Elements>(largest);
    const float factor = Stored::factor(stored), beside = __shfl_xor_sync(0xffffffffu, factor, 1);
    const int block = (col - 16) / BLOCK + (BLOCK == 32 ? 0 : quad / 2);
    if ((quad % 2 == 0 ? out.has_upper : out.has_lower) && (BLOCK == 32 ? quad < 2 : block < blocks))
      store_u8(scale + (INTERLEAVED ? block / 4 * 512 + block % 4 : block * scales.col_stride), stored);
    float factors[2][2];
    factors[0][0] = quad % 2 == 0 ? factor : beside;
    factors[0][1] = quad % 2 == 0 ? beside : factor;
    if constexpr (BLOCK == 32) {
      factors[1][0] = factors[0][0], factors[1][1] = factors[0][1];
    } else {
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const float mine = factors[0][down], other = __shfl_xor_sync(0xffffffffu, mine, 2);
        factors[0][down] = quad < 2 ? mine : other;
        factors[1][down] = quad < 2 ? other : mine;
      }
    }
    uint32 first[2], second[2];
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const int i = 2 * down;
      const float f = factors[0][down], s = factors[1][down];
      first[down] = Elements::pack(held[i] * f, held[i + 1] * f, held[i + 4] * f, held[i + 5] * f);
      second[down] = Elements::pack(v[i] * s, v[i + 1] * s, v[i + 4] * s, v[i + 5] * s);
    }
    out.store(data, 16 * (at.unit - 1), first, second);
  }
};

/// The same by blocks along M: 16 rows are those of a warp, 32 those of two, which tell each other what is largest in words of
/// shared memory. The scales have a row for each column of the product.
template <class Elements, class Stored, int BLOCK, bool INTERLEAVED>
struct ColumnQuantiser {
  float held[8];
  NarrowStore<Elements> out;
  uint32 turn = 0;  // two sets of words take turns, so that nobody waits for readers

  template <int ROWS, int COLUMNS>
  VG_DEVICE static void pad(const Aux& scales, const Parameters& p, const TilePiece& t) {
    if (INTERLEAVED && t.row < p.m)
      pad_scales(scales, t.batch, p.n, p.m / BLOCK, t.col, t.col + COLUMNS, t.row / BLOCK, (t.row + ROWS) / BLOCK);
  }

  VG_DEVICE void unit(const float (&v)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at,
                      uint32 words, int consumer) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, quad = lane % 4;
    if (at.unit == 0) out.begin(data, at, at.col - 2 * quad, p.n);
    if (at.unit % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) held[i] = v[i];
      return;
    }
    // Lanes of eight rows halve their eight columns until each has one.
    const auto most = [&](const float(&x)[8], int i) { return larger(fabsf(x[i]), fabsf(x[i + 2])); };
    float pairs[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
      pairs[odd] = larger_of_halves(larger_of_halves(most(held, odd), most(v, odd), 16),
                                    larger_of_halves(most(held, odd + 4), most(v, odd + 4), 16), 8);
    float largest = larger_of_halves(pairs[0], pairs[1], 4);
    const int own = (lane & 24) + 2 * quad + lane / 4 % 2;  // of 32
    if constexpr (BLOCK == 32) {
      const uint32 set = words + turn + static_cast<uint32>(4 * lane);
      turn ^= 512;
      store_float(set + static_cast<uint32>(128 * warp), largest);
      consumer_sync(consumer);
      largest = larger(largest, load_float(set + static_cast<uint32>(128 * (warp ^ 1))));
    }
    const uint32 stored = Stored::template of<Elements>(largest);
    const float factor = Stored::factor(stored);
    const int col = at.col - 2 * quad - 16, block = (at.row - lane / 4) / BLOCK;
    if ((BLOCK == 16 || warp % 2 == 0) && out.has_upper && col + own < p.n) {
      // Columns of a pair are neighbours in an atom, since the first is a multiple of 32.
      char* const to = static_cast<char*>(const_cast<void*>(scales.address)) +
                       place_of_scales<INTERLEAVED>(scales, col, INTERLEAVED ? block / 4 * 4 : block, at.batch, p.n, p.m / BLOCK);
      store_u8(to + (INTERLEAVED ? own * 16 + block % 4 : own * scales.row_stride), stored);
    }
    float factors[2][4];  // of a unit, of a column
#pragma unroll
    for (int i = 0; i < 8; ++i) factors[i / 4][i % 4] = __shfl_sync(0xffffffffu, factor, quad + i % 2 * 4 + i / 2 * 8);
    uint32 first[2], second[2];
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const int i = 2 * down;
      first[down] = Elements::pack(held[i] * factors[0][0], held[i + 1] * factors[0][1], held[i + 4] * factors[0][2],
                                   held[i + 5] * factors[0][3]);
      second[down] =
          Elements::pack(v[i] * factors[1][0], v[i + 1] * factors[1][1], v[i + 4] * factors[1][2], v[i + 5] * factors[1][3]);
    }
    out.store(data, 16 * (at.unit - 1), first, second);
  }
};

}  // namespace vg
