#pragma once
#include "epilogue.cuh"

namespace vg {

/// Drains tiles whose columns come in runs of 32, by turns of two kinds: 64 columns of the tile give the epilogue 32 values of
/// each, and Position has the column of what is made of both, of which there are half as many. A ring of RUN_SLOTS slots, each
/// with 64 rows by a pair of runs of every output.
template <class C, class Epilogue>
class RunDrain {
  using L = Layout<C>;
  using Rows = PieceRows<C>;
  static constexpr int PAIRS = C::BLOCK_N / 64;  // of runs in a tile
  /// All slots of a tile are filled between two barriers; products with scales leave no registers for that.
  static constexpr bool WHOLE_TILE = !C::SCALED && C::RUN_SLOTS >= PAIRS * L::M_BLOCKS;
  /// Each warp issues some of the copies, but where they may not be of whole row blocks.
  static constexpr bool SPREADS = L::SPREADS && !Rows::OF_ROWS;
  /// With a slot or two less all but one are filled, and the last of them while those are stored, whose slots then come again.
  static constexpr bool TWO_PARTS = !WHOLE_TILE && SPREADS && 2 * C::RUN_SLOTS > PAIRS* L::M_BLOCKS;

 public:
  VG_DEVICE RunDrain(const Parameters& p, uint32 smem, int consumer)
      : p_(p), slots_(smem + L::STAGING + consumer * L::STAGING_OF_CONSUMER), consumer_(consumer) {}

  VG_DEVICE void load_ahead(const Epilogue&, const TilePiece&) {}

  /// `piece`: this consumer's part of the tile.
  template <class Accumulator>
  VG_DEVICE void operator()(Accumulator (&acc)[1][L::M_BLOCKS][C::BLOCK_N / 2], Epilogue& epilogue, const TilePiece& piece) {
    epilogue.begin(piece);
    if constexpr (WHOLE_TILE || TWO_PARTS) reuse<0>();
#pragma unroll
    for (int i = 0; i < L::M_BLOCKS; ++i) {
      epilogue.begin_rows();
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
        // As in Drain, the branch also keeps ptxas from hoisting one pair into another.
        if constexpr (TWO_PARTS) {
          const int n = i * PAIRS + j;
          if (n == C::RUN_SLOTS) reuse<0>();
          if (has_pair(piece, j)) fill(slot(i, j), acc[0][i], epilogue, piece, i, j);
          if (n == C::RUN_SLOTS - 2) publish_some(epilogue, piece, 0, n + 1);
          if (n == PAIRS * L::M_BLOCKS - 1) publish_some(epilogue, piece, C::RUN_SLOTS - 1, n + 1);
          continue;
        }
        if (!has_pair(piece, j) || !Rows::has_any(piece, i)) continue;
        if constexpr (!WHOLE_TILE) reuse<C::RUN_SLOTS - 1>();
        fill(slot(i, j), acc[0][i], epilogue, piece, i, j);
        if constexpr (WHOLE_TILE) continue;
        publish();
        store(epilogue, piece, i, j);
        if (++next_ == C::RUN_SLOTS) next_ = 0;
      }
      epilogue.end_rows(i);
    }
    if constexpr (WHOLE_TILE) publish_some(epilogue, piece, 0, PAIRS * L::M_BLOCKS);
    epilogue.end();
  }

  /// Before the block ends: its shared memory must outlive the stores that read it.
  VG_DEVICE void finish() {
    if (leads()) bulk_wait_read<0>();
  }

 private:
  VG_DEVICE static bool leader() { return threadIdx.x % 128 == 0; }
  /// Where many slots are stored at once each warp issues some of the copies.
  VG_DEVICE static bool leads() { return SPREADS && (WHOLE_TILE || TWO_PARTS) ? threadIdx.x % 32 == 0 : leader(); }
  VG_DEVICE static int row(const TilePiece& piece, int n) { return piece.row + 64 * (n / PAIRS); }
  VG_DEVICE static int pair(const TilePiece& piece, int n) { return piece.col / 64 + n % PAIRS; }
  /// Of pairs that quantisers take at once all where there is one.
  VG_DEVICE bool has_pair(const TilePiece& piece, int j) const {
    constexpr int AT_ONCE = C::QUANTISED_COLUMNS > 32 ? C::QUANTISED_COLUMNS / 32 : 1;
    return j < AT_ONCE || piece.col + 64 * (j / AT_ONCE * AT_ONCE) < p_.n;
  }
  VG_DEVICE uint32 slot(int i, int j) const {
    return slots_ + (WHOLE_TILE ? i * PAIRS + j : TWO_PARTS ? (i * PAIRS + j) % C::RUN_SLOTS : next_) * C::RUN_BYTES;
  }
  VG_DEVICE void publish_some(const Epilogue& epilogue, const TilePiece& piece, int first, int end) {
    publish();
#pragma unroll
    for (int n = first; n < end; ++n)
      if (has_pair(piece, n % PAIRS) && Rows::has_any(piece, n / PAIRS))
        store_runs(epilogue, piece, n, leads(), Epilogue::COPIES * n, 1);
    if (leads()) bulk_commit();
    if constexpr (!Rows::OF_ROWS) {
      if (!epilogue.has_rests()) return;
#pragma unroll 1
      for (int n = first; n < end; ++n)
        if (has_pair(piece, n % PAIRS)) store_rests(epilogue, piece, n);
    }
  }
  VG_DEVICE void store_runs(const Epilogue& epilogue, const TilePiece& piece, int n, bool leads, int turn, int step) const {
    const int i = n / PAIRS;
    epilogue.store_runs(leads, turn, step, slot(i, n % PAIRS), Rows::d_batch(piece), row(piece, n), pair(piece, n),
                        Rows::end(p_, piece), Rows::are_whole(piece, i), Rows::places(piece, i));
  }
  VG_DEVICE void store_rests(const Epilogue& epilogue, const TilePiece& piece, int n) const {
    epilogue.store_rests(slot(n / PAIRS, n % PAIRS), piece.batch, row(piece, n), pair(piece, n));
  }
  /// All but the newest N stores have read their slots.
  template <int N>
  VG_DEVICE void reuse() {
    if (leads()) bulk_wait_read<N>();
    consumer_sync(consumer_);
  }
  VG_DEVICE void publish() {
    fence_async_proxy();
    consumer_sync(consumer_);
  }
  VG_DEVICE void store(const Epilogue& epilogue, const TilePiece& piece, int i, int j) const {
    const int n = i * PAIRS + j;
    store_runs(epilogue, piece, n, leader(), 0, 0);
    if (leader()) bulk_commit();
    if (!Rows::OF_ROWS && epilogue.has_rests()) store_rests(epilogue, piece, n);
  }

  template <class Accumulator>
  VG_DEVICE void fill(uint32 slot, Accumulator (&acc)[C::BLOCK_N / 2], Epilogue& epilogue, const TilePiece& piece, int block,
                      int j) {
    const int lane = piece.lane(), warp = piece.warp();
    const int pair = piece.col / 64 + j, in_piece = 64 * block + 16 * warp + lane / 4;
    const int row = Rows::row(piece, in_piece), down = Rows::down(piece, in_piece, row), end = Rows::end(p_, piece);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      float x[2][8];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        x[i / 8][i % 8] = as_lane(acc[8 * (4 * j + 2 * (i / 8) + u) + i % 8]);
        asm volatile("" : "+f"(x[i / 8][i % 8]));  // nothing of a unit is computed ahead of it
      }
      const Place place{slot, 0, 16 * u, piece.thread};
      const Position at{piece.batch, row, 32 * pair + 16 * u + lane % 4 * 2, block, 2 * j + u, place, place, end, down};
      epilogue.unit(x, at);
      // A pair that is there for quantisers alone has no columns.
      if (C::QUANTISED_COLUMNS <= 32 || 64 * pair < p_.n) epilogue.template absorb<1>(at);
    }
    if constexpr (C::QUANTISED_COLUMNS > 0)
      epilogue.end_units(
          {piece.batch, row, 32 * pair + 16 + lane % 4 * 2, block, 2 * j + 1, {0, 0, 0, piece.thread}, {}, end, down});
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
