#pragma once
#include "parameters.cuh"

namespace vg {

template <int N>
struct Constant {
  VG_DEVICE constexpr operator int() const { return N; }
};

/// Of a row that is neither read nor written: beyond every end below 2^31 - 7, and aligned as few are, so that it is in nobody's
/// way.
constexpr int NO_PLACE = 0x7ffffff8;

/// A unit's place in a staged chunk: lines of `width` bytes, first column. `thread`: see TilePiece.
struct Place {
  uint32 chunk;
  int width, col;
  uint32 thread;
  VG_DEVICE int lane() const { return static_cast<int>(thread % 32); }
  VG_DEVICE int warp() const { return static_cast<int>(thread / 32); }
};

/// Where the first of a thread's 8 values lies in D. A unit is 64 rows by 16 columns of one warpgroup:
///   x[0] x[1] at (row, col) (row, col + 1)             x[4] x[5] the same at col + 8
///   x[2] x[3] at (row + 8, col) (row + 8, col + 1)     x[6] x[7] the same at (row + 8, col + 8)
/// Rows and columns may lie outside D: such values are computed and not stored.
struct Position {
  int batch, row, col;   // batch: of operands; the group where there are groups
  int block, unit;       // of the consumer's part of the tile: row block and column / 16
  Place place, further;  // in the chunk of D, and in that of the first further output; the others follow FURTHER_BUFFERS apart
  int end;               // the row behind the last that is stored: of D, or of a group
  int down = 8;          // from the first row to the second: where rows have places of their own, these are row and row + down
  /// Of the columns of a run, of pairs that drain as one.
  VG_DEVICE Position of_run(int run) const {
    Position columns = *this;
    columns.unit = unit / 2 * 4 + 2 * run + unit % 2;
    return columns;
  }
  /// Of an operand that all batches, or groups, share.
  VG_DEVICE Position shared() const {
    Position all = *this;
    all.batch = 0;
    return all;
  }
};

/// The part of a tile that one consumer drains, and its place among all parts.
struct TilePiece {
  int batch, m, n;  // in pieces
  int row, col;     // of its first element in D
  int consumer;
  uint32 scratch;  // shared memory of this consumer: COLUMN_REDUCTIONS x 4 x BLOCK_N words, then 8 for each reduction, then
                   // VECTORS x BLOCK_N for operands that vary along n, QUANTISED_COLUMNS x 34 for each COLUMN_QUANTISER
  int end;         // see Position
  int d_batch;     // of D and what is stored like it, where `batch` is a group
  int blocks;      // of 64 rows, up to the last row that it may write
  uint32 places;  // shared memory: where each row of the piece lies in D, NO_PLACE where it has none; where the flavor has places
  uint32 thread;  // of the warpgroup, as the drain knows it: what it forms of it is not kept from tile to tile where registers
                  // are few beside products
  VG_DEVICE int lane() const { return static_cast<int>(thread % 32); }
  VG_DEVICE int warp() const { return static_cast<int>(thread / 32); }
};

/// Where row `i` of a piece lies in D.
VG_DEVICE int place_of(const TilePiece& t, int i) {
  return t.places == 0 ? t.row + i : static_cast<int>(__float_as_uint(load_float(t.places + 4 * i)));
}

}  // namespace vg
