#pragma once
#include "pointwise.cuh"

namespace vg {

/// e8m0 as an fp32: byte b is 2^(b - 127), 0 among them, and 255 is NaN.
VG_DEVICE float power_of_two(uint32 b) { return __uint_as_float(b << 23 | (b == 0 || b == 255 ? 0x400000u : 0u)); }

/// Where the scale of a row and of block `first` lies, a multiple of 4. INTERLEAVED: in atoms of 128 rows by 4 blocks; four
/// blocks are four bytes there.
template <bool INTERLEAVED>
VG_DEVICE int64 place_of_scales(const Aux& scales, int row, int first, int batch, int rows, int blocks) {
  if constexpr (INTERLEAVED) {
    const int atom = (batch * ((rows + 127) / 128) + row / 128) * ((blocks + 3) / 4) + first / 4;  // of a blob below 2^40 bytes
    return int64{atom} * 512 + (row % 32 * 16 + row % 128 / 32 * 4);
  }
  return batch * scales.batch_stride + row * scales.row_stride + first * scales.col_stride;
}

/// The bytes of four blocks of one row of a matrix, from block `first` on, a multiple of 4; 1.0 where there is no such row or
/// block, since the data there are zeros, or nobody's. Padding is not looked at.
template <bool INTERLEAVED>
VG_DEVICE uint32 load_scales(const Aux& scales, int row, int first, int batch, int rows, int blocks) {
  constexpr uint32 ONES = 0x7f7f7f7fu;
  if (static_cast<uint32>(row) >= static_cast<uint32>(rows) || first >= blocks) return ONES;
  const char* from =
      static_cast<const char*>(scales.address) + place_of_scales<INTERLEAVED>(scales, row, first, batch, rows, blocks);
  const int64 step = INTERLEAVED ? 1 : scales.col_stride;
  const int count = blocks - first;
  uint32 word = 0;
  if (step == 1 && count >= 4 && reinterpret_cast<uint64>(from) % 4 == 0) {
    word = load_word(from, true);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= load_byte(from + i * step, i < count) << 8 * i;
  }
  const uint32 mask = count >= 4 ? 0xffffffffu : (1u << 8 * count) - 1;
  return (word & mask) | (ONES & ~mask);
}

/// Of a matrix without.
VG_DEVICE uint32 no_scales() { return 0x7f7f7f7fu; }

/// Four scales of a line as fp32, LINES apart: one k-step of 32 behind the other.
template <int LINES>
VG_DEVICE void store_scales(uint32 to, int line, uint32 word) {
#pragma unroll
  for (int i = 0; i < 4; ++i) store_float(to + 4 * (i * LINES + line), power_of_two(word >> 8 * i & 0xffu));
}

}  // namespace vg
