#pragma once
#include "scales.cuh"

namespace vg {

// Blocks of a row that become narrow elements and a scale, as numeric/quantise.hpp has it, step by step.

/// The smallest power of two that is not below f, which is not negative.
struct E8m0Stored {
  VG_DEVICE static uint32 of(float f) {
    const uint32 u = __float_as_uint(f), up = (u + 0x7fffffu) >> 23;
    return u > 0x7f800000u ? 255u : u <= 0x400000u ? 0u : up < 254u ? up : 254u;
  }
  VG_DEVICE static float held(uint32 b) { return power_of_two(b); }
};
struct E4m3Stored {
  VG_DEVICE static uint32 of(float f) { return pack_e4m3(f, 0.0f) & 0xffu; }
  VG_DEVICE static float held(uint32 b) { return e4m3_to_float(b); }
};

/// Two elements as their bits: LARGEST of the type, BITS of one.
struct E4m3Elements {
  static constexpr float LARGEST = 448.0f;
  static constexpr int BITS = 8;
  VG_DEVICE static uint32 pack(float x, float y) { return pack_e4m3(x, y); }
};
struct E5m2Elements {
  static constexpr float LARGEST = 57344.0f;
  static constexpr int BITS = 8;
  VG_DEVICE static uint32 pack(float x, float y) { return pack_e5m2(x, y); }
};
struct E2m1Elements {
  static constexpr float LARGEST = 6.0f;
  static constexpr int BITS = 4;
  /// Added to a power of two whose last place is half the step of x's octave, x is rounded to nearest even, and how many such
  /// places it has stands in the sum's last bits: 0 to 4 below 2, which are codes, then 2 or 3 beyond twice the octave. NaN is 6.
  VG_DEVICE static uint32 code(float x) {
    const float a = fminf(fabsf(x), 6.0f);
    const uint32 octave = __float_as_uint(a) & 0x7f800000u, from = octave > 0x3f800000u ? octave : 0x3f800000u;
    const uint32 power = from + 0x0b000000u;
    return __float_as_uint(a + __uint_as_float(power)) - power + (from >> 22) - 254u + (__float_as_uint(x) >> 28 & 8u);
  }
  VG_DEVICE static uint32 pack(float x, float y) { return code(x) | code(y) << 4; }
};

/// Item i of each of four neighbouring lanes comes together in lane i, the items in order of lanes. Of 16 bits.
VG_DEVICE void gather_in_quad(const uint32 (&item)[4], uint32& low, uint32& high) {
  const uint32 lane = threadIdx.x % 4;
  const uint32 first = item[0] | item[1] << 16, second = item[2] | item[3] << 16;
  // Lanes 0 and 1 keep what lanes 0 and 1 want, 2 and 3 the others.
  const uint32 kept = lane < 2 ? first : second, got = __shfl_xor_sync(0xffffffffu, lane < 2 ? second : first, 2);
  // Of the lane pairs (0, 2) and (1, 3): items of the even lane, and of the odd one.
  const uint32 even = __byte_perm(kept, got, 0x5410), odd = __byte_perm(kept, got, 0x7632);
  const uint32 other = __shfl_xor_sync(0xffffffffu, lane % 2 == 0 ? odd : even, 1), mine = lane % 2 == 0 ? even : odd;
  // `mine` is of this lane and of the one two away, `other` of its neighbour and of that one's.
  const uint32 a = lane % 2 == 0 ? mine : other, b = lane % 2 == 0 ? other : mine;  // of an even lane, of an odd one
  const uint32 near_pair = __byte_perm(a, b, 0x5410), far_pair = __byte_perm(a, b, 0x7632);
  low = lane < 2 ? near_pair : far_pair;
  high = lane < 2 ? far_pair : near_pair;
}

/// One quantised output, by blocks along N. BLOCK is 16, a unit, or 32, two. OF_GROUPS: rows end where Position says, else with
/// D.
template <class Elements, class Stored, int BLOCK, bool INTERLEAVED, bool OF_GROUPS = false>
struct Quantiser {
  float held[BLOCK == 32 ? 8 : 1];  // the first unit of a block

  VG_DEVICE static char* scale_at(const Aux& scales, int row, int column, int batch, const Parameters& p) {
    const int first = INTERLEAVED ? column / 4 * 4 : column;
    return static_cast<char*>(const_cast<void*>(scales.address)) +
           place_of_scales<INTERLEAVED>(scales, row, first, batch, p.m, p.n / BLOCK) + (INTERLEAVED ? column % 4 : 0);
  }

  /// Zeros for the padding of atoms behind this consumer's part of a tile: ROWS of it.
  template <int ROWS, int COLUMNS>
  VG_DEVICE static void pad(const Aux& scales, const Parameters& p, const TilePiece& t) {
    if (!INTERLEAVED || t.row >= p.m) return;
    const int blocks = p.n / BLOCK, thread = static_cast<int>(threadIdx.x) % 128;
    const bool is_last = t.col + COLUMNS >= p.n;
    const int end = is_last ? (blocks + 3) / 4 * 4 : (t.col + COLUMNS) / BLOCK;
    if (is_last && end != blocks)
      for (int row = t.row + thread; row < t.row + ROWS && row < p.m; row += 128)
        for (int c = blocks; c < end; ++c) store_u8(scale_at(scales, row, c, t.batch, p), 0);
    if (t.row + ROWS < p.m) return;
    for (int row = p.m + thread; row < (p.m + 127) / 128 * 128; row += 128)
      for (int c = t.col / BLOCK; c < end; ++c) store_u8(scale_at(scales, row, c, t.batch, p), 0);
  }

  VG_DEVICE void unit(const float (&v)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at) {
    if constexpr (BLOCK == 32) {
      if (at.unit % 2 == 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) held[i] = v[i];
        return;
      }
    }
    const int quad = static_cast<int>(threadIdx.x) % 4, col = at.col - 2 * quad - (BLOCK == 32 ? 16 : 0);
    uint32 item[2][4];
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const auto value = [&](int i) {
        return i < 4 && BLOCK == 32 ? held[2 * down + i / 2 * 4 + i % 2] : v[2 * down + i % 4 / 2 * 4 + i % 2];
      };
      constexpr int VALUES = BLOCK / 4;  // of a row that this thread has
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < VALUES; ++i) largest = larger(largest, fabsf(value(i)));
      largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const uint32 stored = Stored::of(largest / Elements::LARGEST);
      const float scale = Stored::held(stored), factor = scale == 0.0f ? 0.0f : 1.0f / scale;
      const int row = at.row + at.down * down;
      if (quad == 0 && row < end_of(p, at)) store_u8(scale_at(scales, row, col / BLOCK, at.batch, p), stored);
#pragma unroll
      for (int i = 0; i < VALUES; i += 2) item[down][i / 2] = Elements::pack(value(i) * factor, value(i + 1) * factor);
    }
    uint32 low, high;
    if constexpr (BLOCK == 32) {
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        gather_in_quad(item[down], low, high);
        store(data, p, at, at.row + at.down * down, col + 8 * quad, low, high);
      }
    } else {
      const uint32 all[4] = {item[0][0], item[0][1], item[1][0], item[1][1]};
      gather_in_quad(all, low, high);
      store(data, p, at, at.row + at.down * (quad / 2), col + 8 * (quad % 2), low, high);
    }
  }

 private:
  VG_DEVICE static int end_of(const Parameters& p, const Position& at) { return OF_GROUPS ? at.end : p.m; }
  /// Eight elements of a row, two in 16 bits.
  VG_DEVICE static void store(const Aux& data, const Parameters& p, const Position& at, int row, int col, uint32 low,
                              uint32 high) {
    if (row >= end_of(p, at)) return;
    asm volatile("" : "+r"(row), "+r"(col));  // addresses are formed here and not for the whole tile ahead
    const int64 element = at.batch * data.batch_stride + row * data.row_stride + col * data.col_stride;
    char* to = static_cast<char*>(const_cast<void*>(data.address)) + element * Elements::BITS / 8;
    if constexpr (Elements::BITS == 4) {
      const uint32 word = __byte_perm(low, high, 0x6420);
      if (reinterpret_cast<uint64>(to) % 4 == 0) {
        store_u32(to, word);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) store_u8(to + i, word >> 8 * i);
      }
    } else if (data.col_stride == 1 && reinterpret_cast<uint64>(to) % 8 == 0) {
      store_u64(to, low, high);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) store_u8(to + i * data.col_stride, (i < 4 ? low : high) >> 8 * (i % 4));
    }
  }
};

}  // namespace vg
