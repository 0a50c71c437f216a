#pragma once
#include "narrow.cuh"

namespace vg {

// Blocks of a row or a column that become narrow elements and a scale.

/// Two values of two lanes become one: of the lane without that bit of its number the first of both, of the other the second.
VG_DEVICE float larger_of_halves(float first, float second, int bit) {
  const bool is_second = (threadIdx.x & static_cast<unsigned>(bit)) != 0;
  return larger(is_second ? second : first, __shfl_xor_sync(0xffffffffu, is_second ? first : second, bit));
}

/// One quantised output, by blocks along N. Units come in pairs, which are one block of 32 or two of 16 in each row; of the first
/// UNITS of a tile two pairs come at once, since they need not wait for each other's lanes. Of every PART columns of the product
/// it has one.
template <class Elements, class Stored, int BLOCK, bool INTERLEAVED, int PART, int UNITS>
struct Quantiser {
  float held[3][8];  // the units before
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
    const int quad = static_cast<int>(threadIdx.x) % 4, col = at.col - 2 * quad;
    // Lanes with an even number find scales of the upper row, the others of the lower one.
    if (at.unit == 0) {
      out.begin(data, at, col, p.n / PART);
      int row = at.row + at.down * (quad % 2);
      asm volatile("" : "+r"(row));
      scale = static_cast<char*>(const_cast<void*>(scales.address)) +
              place_of_scales<INTERLEAVED>(scales, row, 0, at.batch, p.m, p.n / PART / BLOCK);
    }
    if (at.unit / 4 * 4 + 4 <= UNITS)
      gather<4>(v, data, scales, p, at, col);
    else
      gather<2>(v, data, scales, p, at, col);
  }

 private:
  template <int COUNT>
  VG_DEVICE void gather(const float (&v)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at,
                        int col) {
    if (at.unit % COUNT == COUNT - 1) {
      several<COUNT>(v, data, scales, p, at, col);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) held[at.unit % COUNT][i] = v[i];
  }
  /// COUNT units, of which the last is `last`. A lane finds COUNT * 8 / BLOCK scales.
  template <int COUNT>
  VG_DEVICE void several(const float (&last)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at,
                         int col) {
    constexpr int BLOCKS = COUNT * 16 / BLOCK, EACH = BLOCKS == 1 ? 1 : BLOCKS / 2;  // of a row, of a lane
    const int quad = static_cast<int>(threadIdx.x) % 4;
    const auto value = [&](int u, int i) { return u == COUNT - 1 ? last[i] : held[u][i]; };
    float most[BLOCKS];  // of the row of this lane
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      float rows[2];
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const int i = 2 * down, u = b * BLOCK / 16;
        rows[down] =
            larger(larger(fabsf(value(u, i)), fabsf(value(u, i + 1))), larger(fabsf(value(u, i + 4)), fabsf(value(u, i + 5))));
        if (BLOCK == 32)
          rows[down] = larger(rows[down], larger(larger(fabsf(value(u + 1, i)), fabsf(value(u + 1, i + 1))),
                                                 larger(fabsf(value(u + 1, i + 4)), fabsf(value(u + 1, i + 5)))));
      }
      most[b] = larger_of_halves(rows[0], rows[1], 1);
    }
    // Lanes 0 and 1 have the first half of the blocks.
    uint32 stored[EACH];
    float factor[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const float largest = BLOCKS == 1 ? larger(most[0], __shfl_xor_sync(0xffffffffu, most[0], 2))
                                        : larger_of_halves(most[e], most[BLOCKS - EACH + e], 2);
      stored[e] = Stored::template of<Elements>(largest);
      factor[e] = Stored::factor(stored[e]);
    }
    const int blocks = p.n / PART / BLOCK;
    const uint32 first = static_cast<uint32>(col - 16 * (COUNT - 1)) / BLOCK + (BLOCKS == 1 ? 0 : EACH * (quad / 2));
    if ((quad % 2 == 0 ? out.has_upper : out.has_lower) && (BLOCKS > 1 || quad < 2)) {
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        const uint32 block = first + e;
        if (static_cast<int>(block) < blocks)
          store_u8(scale + (INTERLEAVED ? int64{block / 4 * 512 + block % 4} : block * scales.col_stride), stored[e]);
      }
    }
    uint32 packed[COUNT][2];
#pragma unroll
    for (int down = 0; down < 2; ++down) {
#pragma unroll
      for (int u = 0; u < COUNT; ++u) {
        const int b = u * 16 / BLOCK, i = 2 * down;
        const float f = __shfl_sync(0xffffffffu, factor[b % EACH], down + b / EACH * 2, 4);
        packed[u][down] = Elements::pack(value(u, i) * f, value(u, i + 1) * f, value(u, i + 4) * f, value(u, i + 5) * f);
      }
    }
#pragma unroll
    for (int u = 0; u < COUNT; u += 2) out.store(data, 16 * (at.unit - COUNT + 1 + u), packed[u], packed[u + 1]);
  }
};

/// The same by blocks along M: 16 rows are those of a warp, 32 those of two, which tell each other what is largest in words of
/// shared memory. The scales have a row for each column of the product.
template <class Elements, class Stored, int BLOCK, bool INTERLEAVED, int UNITS>
struct ColumnQuantiser {
  float held[3][8];
  NarrowStore<Elements> out;
  uint32 turn;  // two sets of words take turns, so that nobody waits for readers

  template <int ROWS, int COLUMNS>
  VG_DEVICE static void pad(const Aux& scales, const Parameters& p, const TilePiece& t) {
    if (INTERLEAVED && t.row < p.m)
      pad_scales(scales, t.batch, p.n, p.m / BLOCK, t.col, t.col + COLUMNS, t.row / BLOCK, (t.row + ROWS) / BLOCK);
  }

  VG_DEVICE void unit(const float (&v)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at,
                      uint32 words, int consumer) {
    if (at.block == 0 && at.unit == 0) turn = 0;
    if (at.unit == 0) out.begin(data, at, at.col - 2 * (static_cast<int>(threadIdx.x) % 4), p.n);
    if (at.unit / 4 * 4 + 4 <= UNITS)
      gather<4>(v, data, scales, p, at, words, consumer);
    else
      gather<2>(v, data, scales, p, at, words, consumer);
  }

 private:
  template <int COUNT>
  VG_DEVICE void gather(const float (&v)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at,
                        uint32 words, int consumer) {
    if (at.unit % COUNT == COUNT - 1) {
      several<COUNT>(v, data, scales, p, at, words, consumer);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) held[at.unit % COUNT][i] = v[i];
  }
  /// COUNT units, of which the last is `last`. A lane finds the scales of COUNT / 2 columns.
  template <int COUNT>
  VG_DEVICE void several(const float (&last)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at,
                         uint32 words, int consumer) {
    constexpr int EACH = COUNT / 2;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, quad = lane % 4;
    const auto value = [&](int u, int i) { return u == COUNT - 1 ? last[i] : held[u][i]; };
    // Lanes of eight rows halve their columns until each has those of one place: 16 times u, 8 times half, odd or not.
    const auto most = [&](int u, int i) { return larger(fabsf(value(u, i)), fabsf(value(u, i + 2))); };
    float largest[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      float pairs[2];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd)
        pairs[odd] = larger_of_halves(larger_of_halves(most(e, odd), most(e + EACH, odd), 16),
                                      larger_of_halves(most(e, odd + 4), most(e + EACH, odd + 4), 16), 8);
      largest[e] = larger_of_halves(pairs[0], pairs[1], 4);
    }
    if constexpr (BLOCK == 32) {
      const uint32 set = words + turn + static_cast<uint32>(4 * lane);
      turn ^= 1024;
#pragma unroll
      for (int e = 0; e < EACH; ++e) store_float(set + static_cast<uint32>(256 * warp + 128 * e), largest[e]);
      consumer_sync(consumer);
#pragma unroll
      for (int e = 0; e < EACH; ++e)
        largest[e] = larger(largest[e], load_float(set + static_cast<uint32>(256 * (warp ^ 1) + 128 * e)));
    }
    const int own = lane / 16 * (8 * COUNT) + (lane & 8) + 2 * quad + lane / 4 % 2;
    const int col = at.col - 2 * quad - 16 * (COUNT - 1), atoms = (p.m / BLOCK + 3) / 4;
    int block = (at.row - lane / 4) / BLOCK;
    asm volatile("" : "+r"(block));  // addresses are formed here: kept from unit to unit they would take registers
    char* const scale = static_cast<char*>(const_cast<void*>(scales.address)) + (INTERLEAVED ? block % 4 : 0) +
                        place_of_scales<INTERLEAVED>(scales, 0, INTERLEAVED ? block / 4 * 4 : block, at.batch, p.n, p.m / BLOCK);
    float factor[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const uint32 stored = Stored::template of<Elements>(largest[e]);
      factor[e] = Stored::factor(stored);
      const uint32 c = static_cast<uint32>(col + own + 16 * e);  // row of the scales
      const int64 place =
          INTERLEAVED ? int64{c / 128} * (512 * atoms) + (c % 32 * 16 + c / 32 % 4 * 4) : int64{c} * scales.row_stride;
      if ((BLOCK == 16 || warp % 2 == 0) && out.has_upper && static_cast<int>(c) < p.n) store_u8(scale + place, stored);
    }
    uint32 packed[COUNT][2];
    float factors[COUNT][4];  // of columns
#pragma unroll
    for (int i = 0; i < 4 * COUNT / EACH; ++i) {
      const int from = quad + i % 2 * 4 + i / 2 % 2 * 8 + i / 4 * 16;
      if constexpr (EACH == 2 && Stored::IS_POWER) {
        const uint32 both =
            __shfl_sync(0xffffffffu, __byte_perm(__float_as_uint(factor[0]), __float_as_uint(factor[1]), 0x7632), from, 32);
        factors[i / 4 * 2][i % 4] = __uint_as_float(both << 16);
        factors[i / 4 * 2 + 1][i % 4] = __uint_as_float(both & 0xffff0000u);
      } else {
#pragma unroll
        for (int e = 0; e < EACH; ++e) factors[i / 4 * EACH + e][i % 4] = __shfl_sync(0xffffffffu, factor[e], from, 32);
      }
    }
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
      const float(&f)[4] = factors[u];
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const int i = 2 * down;
        packed[u][down] =
            Elements::pack(value(u, i) * f[0], value(u, i + 1) * f[1], value(u, i + 4) * f[2], value(u, i + 5) * f[3]);
      }
    }
#pragma unroll
    for (int u = 0; u < COUNT; u += 2) out.store(data, 16 * (at.unit - COUNT + 1 + u), packed[u], packed[u + 1]);
  }
};

}  // namespace vg
