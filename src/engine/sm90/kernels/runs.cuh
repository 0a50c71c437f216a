#pragma once
#include "epilogue.cuh"

namespace vg {

/// Drains tiles whose columns come in runs of 32, by turns of two kinds: 64 columns of the tile give the epilogue 32 values of
/// each, and Position has the column of what is made of both, of which there are half as many. A ring of RUN_SLOTS slots, each
/// with 64 rows by a pair of runs of every output.
template <class C, class Epilogue>
class RunDrain {
  using L = Layout<C>;
  static constexpr int PAIRS = C::BLOCK_N / 64;  // of runs in a tile

 public:
  VG_DEVICE RunDrain(const Parameters& p, uint32 smem, int consumer)
      : p_(p), slots_(smem + L::STAGING + consumer * L::STAGING_OF_CONSUMER), consumer_(consumer) {}

  VG_DEVICE void load_ahead(const Epilogue&, const TilePiece&) {}

  /// `piece`: this consumer's part of the tile.
  template <class Accumulator>
  VG_DEVICE void operator()(Accumulator (&acc)[1][L::M_BLOCKS][C::BLOCK_N / 2], Epilogue& epilogue, const TilePiece& piece) {
    epilogue.begin(piece);
#pragma unroll
    for (int i = 0; i < L::M_BLOCKS; ++i) {
      epilogue.begin_rows();
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
        // As in Drain, the branch also keeps ptxas from hoisting one pair into another.
        if (j > 0 && piece.col + 64 * j >= p_.n) continue;
        const int pair = piece.col / 64 + j, row = piece.row + 64 * i;
        const uint32 slot = slots_ + next_ * C::RUN_BYTES;
        if (leader()) bulk_wait_read<C::RUN_SLOTS - 1>();
        consumer_sync(consumer_);
        fill(slot, acc[0][i], epilogue, piece.batch, row, pair, i, j);
        fence_async_proxy();
        consumer_sync(consumer_);
        epilogue.store_runs(leader(), slot, piece.batch, row, pair);
        if (leader()) bulk_commit();
        if (++next_ == C::RUN_SLOTS) next_ = 0;
      }
      epilogue.end_rows(i);
    }
    epilogue.end();
  }

  /// Before the block ends: its shared memory must outlive the stores that read it.
  VG_DEVICE void finish() {
    if (leader()) bulk_wait_read<0>();
  }

 private:
  VG_DEVICE static bool leader() { return threadIdx.x % 128 == 0; }

  template <class Accumulator>
  VG_DEVICE void fill(uint32 slot, Accumulator (&acc)[C::BLOCK_N / 2], Epilogue& epilogue, int batch, int row, int pair,
                      int block, int j) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      float x[2][8];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        x[i / 8][i % 8] = as_lane(acc[8 * (4 * j + 2 * (i / 8) + u) + i % 8]);
        asm volatile("" : "+f"(x[i / 8][i % 8]));  // nothing of a unit is computed ahead of it
      }
      const Place place{slot, 0, 16 * u};
      epilogue.unit(x,
                    {batch, row + 16 * warp + lane / 4, 32 * pair + 16 * u + lane % 4 * 2, block, 2 * j + u, place, place, p_.m});
    }
  }

  const Parameters& p_;
  uint32 slots_;
  int consumer_;
  int next_ = 0;
};

enum class Drains { whole, runs, rotated };
template <class C, class Epilogue, Drains>
struct DrainOf {
  using Type = Drain<C, Epilogue>;
};
template <class C, class Epilogue>
struct DrainOf<C, Epilogue, Drains::runs> {
  using Type = RunDrain<C, Epilogue>;
};

}  // namespace vg
