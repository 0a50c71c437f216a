#pragma once
#include "pointwise.cuh"

namespace vg {

/// Where the scale of a row and of block `first` lies, a multiple of 4. INTERLEAVED: in atoms of 128 rows by 4 blocks; four
/// blocks are four bytes there.
template <bool INTERLEAVED>
VG_DEVICE int64 place_of_scales(const Aux& scales, int row, int first, int batch, int rows, int blocks) {
  if constexpr (INTERLEAVED) {
    // Of a blob below 2^40 bytes. None is negative, and so said a division is a shift.
    const auto r = static_cast<uint32>(row), lines = (static_cast<uint32>(rows) + 127) / 128,
               across = (static_cast<uint32>(blocks) + 3) / 4, next = static_cast<uint32>(first) / 4;
    return int64{(static_cast<uint32>(batch) * lines + r / 128) * across + next} * 512 + (r % 32 * 16 + r % 128 / 32 * 4);
  }
  return batch * scales.batch_stride + row * scales.row_stride + first * scales.col_stride;
}

/// Those of an expert, whose address a table holds; strides are those of each matrix.
VG_DEVICE Aux scales_of_expert(const Aux& table, int expert, int64 row_stride, int64 col_stride) {
  return {static_cast<const void* const*>(table.address)[expert * table.batch_stride], 0, row_stride, col_stride};
}

/// Four of 1.0.
constexpr uint32 NO_SCALES = 0x7f7f7f7fu;

/// The scale of a row and of block 0, nullptr where there is no such row, or it is nobody's.
template <bool INTERLEAVED>
VG_DEVICE const char* scales_of_row(const Aux& scales, int row, int batch, int rows, int blocks) {
  if (static_cast<uint32>(row) >= static_cast<uint32>(rows)) return nullptr;
  return static_cast<const char*>(scales.address) + place_of_scales<INTERLEAVED>(scales, row, 0, batch, rows, blocks);
}

/// The same in atoms of each group of rows, `shift` rows further.
VG_DEVICE const char* scales_of_row_in_group(const Aux& scales, int row, int shift, int rows, int blocks) {
  if (static_cast<uint32>(row) >= static_cast<uint32>(rows)) return nullptr;
  return static_cast<const char*>(scales.address) + place_of_scales<true>(scales, row + shift, 0, 0, 0, blocks);
}

/// The bytes of four blocks of the row at `from`, from block `first` on, a multiple of 4; 1.0 where there is no such row or
/// block, since the data there are zeros. Padding is not looked at.
template <bool INTERLEAVED>
VG_DEVICE uint32 load_scales(const Aux& scales, const char* from, int first, int blocks) {
  const int count = blocks - first;
  if (from == nullptr || count <= 0) return NO_SCALES;
  const int64 step = INTERLEAVED ? 1 : scales.col_stride;
  from += first * (INTERLEAVED ? 128 : step);
  if (step == 1 && count >= 4 && reinterpret_cast<uint64>(from) % 4 == 0) return load_word(from, true);
  uint32 word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= load_byte(from + i * step, i < count) << 8 * i;
  const uint32 mask = count >= 4 ? 0xffffffffu : (1u << 8 * count) - 1;
  return (word & mask) | (NO_SCALES & ~mask);
}

/// Four scales of a line as bf16, and 8 bytes of zeros: a line of 16 bytes along K of what wgmma multiplies. Byte b of e8m0 is
/// the exponent of bf16, 2^(b - 127), 0 among them, and 255 is NaN.
VG_DEVICE void store_scales(uint32 to, uint32 word) {
  Piece<16> line{__byte_perm(word, 0, 0x4140) << 7, __byte_perm(word, 0, 0x4342) << 7, 0, 0};
  // A byte of 0 or 255 is rare, and looked for in all four at once.
  if ((((word - 0x01010101u) & ~word) | ((~word - 0x01010101u) & word)) & 0x80808080u) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const uint32 b = word >> 8 * i & 0xff, fix = b == 0 || b == 255 ? 0x40u << 16 * (i % 2) : 0;
      line.v[0] |= i < 2 ? fix : 0;
      line.v[1] |= i < 2 ? 0 : fix;
    }
  }
  store_shared(to, line);
}

}  // namespace vg
