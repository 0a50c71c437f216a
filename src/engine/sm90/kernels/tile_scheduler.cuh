#pragma once
#include "parameters.cuh"

namespace vg {

struct Tile {
  int m, n, batch;       // in tiles; with groups m counts from the group's first row, and batch is the group
  int row = 0, end = 0;  // first row in A and D, and the row behind the last that it may write
  int a_batch = 0, b_batch = 0, d_batch = 0;
  int k = 0, k_end = 0, k_blocks = 0;  // the part of the depth that it sums
};

/// Tile number t in the order in which blocks take them: batches outermost, then groups of tiles of the fast dimension, so that
/// the tiles that run at one time form a rectangle and share what they read from L2. No division by a runtime value.
VG_DEVICE Tile tile_at(const Parameters& p, uint32 t) {
  const uint32 batch = divide(t, p.tiles_of_batch);
  const uint32 in_batch = t - batch * p.tiles_of_batch.value;
  const uint32 group = divide(in_batch, p.tiles_of_group);
  const uint32 in_group = in_batch - group * p.tiles_of_group.value;
  const bool full = group < p.full_groups;
  const Divisor width{full ? p.group.value : p.last_group.value, full ? p.group.multiplier : p.last_group.multiplier,
                      full ? p.group.shift : p.last_group.shift};
  const uint32 slow = divide(in_group, width);
  const uint32 fast = group * p.group.value + in_group - slow * width.value;
  const bool swap = p.swap_raster != 0;
  return {static_cast<int>(swap ? slow : fast), static_cast<int>(swap ? fast : slow), static_cast<int>(batch)};
}

/// Place in the ring of stages; runs on from tile to tile, so that loads of the next tile overlap an epilogue.
template <int STAGES>
struct Ring {
  int stage = 0;
  uint32 phase = 0;
  VG_DEVICE void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  /// Past the stages of a tile that the other consumer computes.
  VG_DEVICE void skip(int count) {
    const int at = stage + count;
    const int turns = at / STAGES;  // by a constant
    stage = at - turns * STAGES;
    phase ^= static_cast<uint32>(turns & 1);
  }
};

}  // namespace vg
