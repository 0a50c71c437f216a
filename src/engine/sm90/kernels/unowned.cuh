#pragma once
#include "group_scheduler.cuh"
#include "pointwise.cuh"

namespace vg {

// +0 for the rows that no group owns, and where rows have token indices for those without a token.

/// A row's elements of BITS, `count` of them, by a warp. Strides in elements; those of 4 bits come in pairs.
template <int BITS>
VG_DEVICE void zero_row(void* address, int64 row_stride, int64 col_stride, int row, int count) {
  constexpr int BYTES = BITS < 8 ? 1 : BITS / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, units = count / (8 * BYTES / BITS);
  char* const to = static_cast<char*>(address) + row * row_stride * BITS / 8;
  int first = 0;
  if (col_stride == 1 && reinterpret_cast<uint64>(to) % 16 == 0) {
    const int pieces = units * BYTES / 16;
    for (int i = lane; i < pieces; i += 32) reinterpret_cast<Piece<16>*>(to)[i] = {};
    first = pieces * (16 / BYTES);
  }
  for (int i = first + lane; i < units; i += 32) *reinterpret_cast<Piece<BYTES>*>(to + i * col_stride * BYTES) = {};
}
template <int BITS>
VG_DEVICE void zero_row(const Aux& x, int row, int count) {
  zero_row<BITS>(const_cast<void*>(x.address), x.row_stride, x.col_stride, row, count);
}

/// Scales of rows that are quantised BLOCK at a time: with the first of them.
template <int BLOCK>
VG_DEVICE void zero_block(const Aux& scales, int row, int count) {
  if (row % BLOCK == 0) zero_row<8>(const_cast<void*>(scales.address), scales.col_stride, scales.row_stride, row / BLOCK, count);
}

/// work(row) for each row of D of which `is_meant` says so, by warps of the consumers of all blocks, which look at 32 rows at a
/// time.
template <class C, class IsMeant, class Work>
VG_DEVICE void each_row(const Parameters& p, const IsMeant& is_meant, const Work& work) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = 4 * C::CONSUMERS * static_cast<int>(gridDim.x);
  const int warp = 4 * C::CONSUMERS * static_cast<int>(blockIdx.x) + warp_index() - 4 * C::PRODUCERS;
  for (int64 first = 32 * int64{warp}; first < p.m; first += 32 * int64{warps}) {
    const int row = static_cast<int>(first) + lane;
    for (uint32 left = __ballot_sync(0xffffffffu, row < p.m && is_meant(row)); left != 0; left &= left - 1)
      work(static_cast<int>(first) + __ffs(static_cast<int>(left)) - 1);
  }
}
template <class C, class Work>
VG_DEVICE void each_unowned(const Parameters& p, uint8* memory, const Work& work) {
  const GroupTable<C> table(memory);
  const int ahead = table.begin[0], end = table.begin[p.groups];
  each_row<C>(
      p, [&](int row) { return row < ahead || row >= end || (C::GATHERS && place_of_token<C>(p, row, false) == NO_PLACE); },
      work);
}

}  // namespace vg
