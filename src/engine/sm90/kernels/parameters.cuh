#pragma once
#include "ptx.cuh"

namespace vg {

/// Division by a value known when the call is prepared: x / value = x * multiplier >> shift for every x < 2^31.
struct Divisor {
  uint32 value, multiplier, shift;
};
VG_DEVICE uint32 divide(uint32 x, const Divisor& d) { return static_cast<uint32>(uint64{x} * d.multiplier >> d.shift); }

/// An operand that the copy engine cannot reach. Strides in elements; `inner` is the dimension that is contiguous in shared
/// memory.
struct View {
  void* address;
  int64 outer_stride, inner_stride, batch_stride;
};

/// Mirror of ParameterBlock in parameter_block.hpp; the offsets below are asserted on both sides.
struct alignas(64) Parameters {
  TensorMap a[2], b[2];               // loads
  TensorMap d, d_half, d_quarter;     // stores of 128, 64 and 32 bytes a row
  View a_view[2], b_view[2], d_view;  // for the loader and the store that go without maps
  int m, n, k, batches;
  int k_blocks;                          // k-blocks that a block of the grid sums of a tile: ceil(k / BLOCK_K / SPLIT)
  int a_batch_step[2], b_batch_step[2];  // 0: one matrix for all batches
  int swap_raster;                       // 1: groups run along n
  uint32 tiles, full_groups;             // groups of raster_group tiles of the fast dimension
  Divisor tiles_of_batch, tiles_of_group, group, last_group;
  int k_first;          // coordinate of the first k: beyond the maps when K = 0, so that every box is zeros and nothing is read
  int stage_bytes;      // that the copy engine brings into a stage: boxes are no taller than the operand
  const void* offsets;  // of groups; without groups this and what follows mean nothing
  int64 offset_stride;  // elements
  void* faults;         // words of host memory, one for each kind of data that did not fit
  int groups, experts, tiles_n;
  int tokens, top_k;           // rows of A where they are not M, or tokens of a result of M rows; places of a token
  const int *indices, *slots;  // of rows; what the flavor does not read means nothing
  int64 index_stride, slot_stride;
  TensorMap* maps;      // memory of this launch, where each block makes those of weights by address
  int row_block_bytes;  // of 64 rows of A in a stage, where they are rows of groups; stage_bytes is without A then
  int tail_bytes;       // of TAIL_ROWS of A, by the second map, where a group ends
  uint32* claimed;      // memory: tiles that blocks have taken so far beyond their first; then what together.cuh has there
  void* products;       // memory of this launch: products of rows that are summed token by token (combine.cuh)
};

static_assert(sizeof(TensorMap) == 128 && sizeof(View) == 32 && sizeof(Divisor) == 12);
static_assert(sizeof(Parameters) == 1280);

}  // namespace vg
