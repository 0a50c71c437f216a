#pragma once
#include "staging.cuh"
#include "tile_scheduler.cuh"

namespace vg {

/// Bytes a row of chunk `c` of a row block, and its first byte in the row.
template <class L>
VG_DEVICE constexpr int chunk_width(int c) {
  return c < L::FULL_CHUNKS ? 128 : c == L::FULL_CHUNKS && L::HALF ? 64 : 32;
}
template <class L>
VG_DEVICE constexpr int chunk_start(int c) {
  return c <= L::FULL_CHUNKS ? c * 128 : L::FULL_CHUNKS * 128 + 64;
}

VG_DEVICE float as_lane(float x) { return x; }
VG_DEVICE float as_lane(int x) { return __int_as_float(x); }

/// The rows of a piece: where each lies in what is stored, and who stores them.
template <class C>
struct PieceRows {
  static constexpr bool MAPPED = C::GATHERS || C::SCATTERS, OF_ROWS = C::GROUPS > 0 && !C::DEPTH_GROUPS;

  VG_DEVICE static int row(const TilePiece& t, int in_piece) { return MAPPED ? place_of(t, in_piece) : t.row + in_piece; }
  /// To the second row of a thread, of which `row` is the first.
  VG_DEVICE static int down(const TilePiece& t, int in_piece, int row) { return MAPPED ? place_of(t, in_piece + 8) - row : 8; }
  VG_DEVICE static int end(const Parameters& p, const TilePiece& t) { return C::GROUPS > 0 ? t.end : p.m; }
  VG_DEVICE static int d_batch(const TilePiece& t) { return C::GROUPS > 0 ? t.d_batch : t.batch; }
  VG_DEVICE static uint32 places(const TilePiece& t, int block) { return MAPPED ? t.places + 256 * block : 0; }
  /// What nobody reads or writes need not be drained.
  VG_DEVICE static bool has_any(const TilePiece& t, int block) { return !OF_ROWS || C::REDUCTIONS > 0 || block < t.blocks; }
  /// All 64 rows of a block are the group's, and lie where they would without places: the copy engine may store them.
  VG_DEVICE static bool are_whole(const TilePiece& t, int block) {
    if constexpr (MAPPED) {
      const uint32 flags = t.places + 256 * Layout<C>::M_BLOCKS + 8 * block;
      return C::GATHERS && load_float(flags) != 0.0f && load_float(flags + 4) != 0.0f;
    }
    return !OF_ROWS || t.row + 64 * block + 64 <= t.end;
  }
};

/// Drains the accumulators of a tile: chain on units in registers, rounding, staging, store. D has a ring of STORE_BUFFERS
/// chunks, and so has each further output, of FURTHER_BUFFERS. An operand of D's size and type (LOADS_TILE) arrives where D will
/// lie, for as many chunks as there are buffers while the tile's products still run.
template <class C, class Epilogue>
class Drain {
  using L = Layout<C>;
  using Output = typename C::Output;
  static constexpr int CHUNKS = L::CHUNKS * L::M_BLOCKS, RING = C::STORE_BUFFERS, FURTHER = C::FURTHER_OUTPUTS;
  using Rows = PieceRows<C>;
  static constexpr bool MAPPED = Rows::MAPPED, OF_ROWS = Rows::OF_ROWS;
  static constexpr bool WHOLE_TILE = FURTHER == 0 && RING >= CHUNKS;
  /// Of short tiles whose chunks take turns: what the copy engine does not store each warp stages and stores by itself, the 16
  /// rows that it has, and no others wait. Chunks are of one width there.
  static constexpr bool OWN_ROWS = C::LISTED > 0 && !C::DEPTH_GROUPS && C::D_PIECE == 0 && !WHOLE_TILE && !MAPPED &&
                                   FURTHER == 0 && !C::LOADS_TILE && C::QUANTISED_COLUMNS == 0 && L::HALF == 0 && L::QUARTER == 0;
  static constexpr bool LOADS_LATE = C::LOADS_TILE && RING < CHUNKS;  // some chunks of the operand wait for D's stores
  static constexpr int least(int a, int b) { return a < b ? a : b; }
  /// Chunks whose stores may still read their buffers when the next is filled.
  static constexpr int BUSY =
      least(FURTHER == 0 ? RING : least(RING, C::FURTHER_BUFFERS), LOADS_LATE ? (RING > 2 ? 2 : 1) : RING) - 1;

 public:
  VG_DEVICE Drain(const Parameters& p, uint32 smem, int consumer)
      : p_(p),
        buffers_(smem + L::STAGING + consumer * L::STAGING_OF_CONSUMER),
        loaded_(smem + L::LOADED + consumer * 8 * RING),
        consumer_(consumer) {}

  /// Asks for the operand's chunks, while the products run.
  VG_DEVICE void load_ahead(const Epilogue& epilogue, const TilePiece& piece) {
    if (!leader()) return;
    bulk_wait_read<0>();
#pragma unroll 1
    for (int i = 0; i < least(RING, CHUNKS); ++i) load(epilogue, piece, i, wrapped(next_ + i));
  }

  /// `piece`: this consumer's part of the tile.
  template <class Accumulator>
  VG_DEVICE void operator()(Accumulator (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2], Epilogue& epilogue,
                            const TilePiece& piece) {
    epilogue.begin(piece);
    if constexpr (!C::HAS_D) {
      consumer_sync(consumer_);
      each_chunk(epilogue, [&](int i, int c, auto width) {
        if (has_rows(piece, i)) fill<width>(0, 0, acc, epilogue, piece, i, c);
      });
    } else if constexpr (C::D_FIRST) {
      reuse<0>();
      each_chunk(epilogue, [&](int, int c, auto width) {
        epilogue.begin_chunk();
        fill_units<width, false>(buffer(c), 0, acc, epilogue, piece, 0, c);
      });
      publish();
      store_all(epilogue, piece);
#pragma unroll
      for (int start = 0; start < C::BLOCK_N; start += AT_ONCE) {
        if (start != 0 && piece.col + start >= p_.n) continue;
#pragma unroll
        for (int col = start; col < least(start + AT_ONCE, C::BLOCK_N); col += 16 * STEP)
          end_units(epilogue, piece, 0, least(col + 16 * STEP, C::BLOCK_N) / 16 - 1);
      }
    } else if constexpr (WHOLE_TILE) {
      reuse<0>();
      each_chunk(epilogue, [&](int i, int c, auto width) {
        const int b = i * L::CHUNKS + c;
        wait_for_loaded(b);
        fill<width>(buffer(b), 0, acc, epilogue, piece, i, c);
      });
      phase_ ^= 1;
      publish();
      store_all(epilogue, piece);
    } else {
      bool copied = true;  // the row block in hand
      each_chunk(epilogue, [&](int i, int c, auto width) {
        if (!has_rows(piece, i)) return;
        if (c == 0) copied = copies(piece, i);
        if constexpr (OWN_ROWS) {
          if (!copied) {
            if (c == 0) reuse<0>();
            if (!owns_rows(piece, i)) return;
          }
        }
        const bool own = OWN_ROWS && !copied;
        const int chunk = i * L::CHUNKS + c, free = chunk - 1 - BUSY;
        if (!own) {
          if (leader()) {
            bulk_wait_read<BUSY>();
            if (LOADS_LATE && free >= 0 && free + RING < CHUNKS)
              load(epilogue, piece, free + RING, wrapped(next_ + RING - 1 - BUSY));
          }
          // Where a chunk of the operand has arrived nobody stores from.
          if (!C::LOADS_TILE || FURTHER > 0 || chunk == 0) consumer_sync(consumer_);
          wait_for_loaded(next_);
        }
        const uint32 further = buffers_ + (RING + further_) * L::CHUNK_BYTES;
        fill<width>(buffer(own ? c % RING : next_), further, acc, epilogue, piece, i, c);
        if (own) {
          if ((c + 1) % RING != 0 && c + 1 != L::CHUNKS) return;
          store_own(piece, i, c / RING * RING, c + 1);
          return;
        }
        publish(copied);
        store<width>(epilogue, buffer(next_), further, piece, i, c, copied);
        if (leader()) bulk_commit();
        // Runs on from tile to tile: with an odd number of chunks a count of each tile's own would refill a busy buffer.
        if (++next_ == RING) next_ = 0, phase_ ^= 1;
        if (FURTHER > 0 && ++further_ == C::FURTHER_BUFFERS) further_ = 0;
      });
    }
    epilogue.end();
  }

  /// Before the block ends: its shared memory must outlive the stores that read it.
  VG_DEVICE void finish() {
    if (leads()) bulk_wait_read<0>();
  }

 private:
  VG_DEVICE static bool leader() { return C::HAS_D && C::D_PIECE == 0 && threadIdx.x % 128 == 0; }
  /// Each warp issues a fourth of the copies of a tile that is staged whole, but where one thread waits for them before it asks
  /// for the next operand.
  static constexpr bool SPREADS =
      WHOLE_TILE && C::HAS_D && C::D_PIECE == 0 && (C::GROUPS == 0 || C::DEPTH_GROUPS) && !C::LOADS_TILE && L::SPREADS;
  VG_DEVICE static bool leads() { return SPREADS ? threadIdx.x % 32 == 0 : leader(); }
  VG_DEVICE static bool has_rows(const TilePiece& piece, int block) { return C::LOADS_TILE || Rows::has_any(piece, block); }
  VG_DEVICE static uint32 places(const TilePiece& piece, int block) { return Rows::places(piece, block); }
  VG_DEVICE int end_of(const TilePiece& piece) const { return Rows::end(p_, piece); }
  VG_DEVICE static int d_batch(const TilePiece& piece) { return Rows::d_batch(piece); }
  VG_DEVICE static int wrapped(int i) { return i < RING ? i : i - RING; }
  VG_DEVICE uint32 buffer(int i) const { return buffers_ + i * L::CHUNK_BYTES; }

  /// Widths as constants of the front end: else the compiler would copy for a narrow chunk all units that a wide one has.
  template <class Work>
  VG_DEVICE static void each_chunk_of(int block, const Work& work) {
#pragma unroll
    for (int c = 0; c < L::FULL_CHUNKS; ++c) work(block, c, Constant<128>());
    if constexpr (L::HALF != 0) work(block, L::FULL_CHUNKS, Constant<64>());
    if constexpr (L::QUARTER != 0) work(block, L::CHUNKS - 1, Constant<32>());
  }
  template <class Work>
  VG_DEVICE void each_chunk(Epilogue& epilogue, Work work) {
#pragma unroll
    for (int i = 0; i < L::M_BLOCKS; ++i) {
      epilogue.begin_rows();
      each_chunk_of(i, work);
      epilogue.end_rows(i);
    }
  }

  /// All but the newest N stores have read their buffers.
  template <int N>
  VG_DEVICE void reuse() {
    if (leads()) bulk_wait_read<N>();
    consumer_sync(consumer_);
  }
  /// `copied`: the copy engine reads what was staged. Its fence also waits for what threads have stored so far.
  VG_DEVICE void publish(bool copied = true) {
    if (C::D_PIECE == 0 && (copied || FURTHER > 0 || C::LOADS_TILE)) fence_async_proxy();
    consumer_sync(consumer_);
  }
  /// Has this warp any of the row block's rows?
  VG_DEVICE static bool owns_rows(const TilePiece& piece, int block) {
    return piece.row + 64 * block + 16 * (static_cast<int>(threadIdx.x) / 32 % 4) < piece.end;
  }
  /// Chunks that this warp has staged for its 16 rows, four at a time, 16 bytes a lane.
  VG_DEVICE void store_own(const TilePiece& piece, int block, int first, int last) {
    constexpr int IN_CHUNK = L::LINE / Output::BYTES, ELEMENTS = 16 / Output::BYTES;
    using Element = Piece<Output::BYTES>;
    const int lane = static_cast<int>(threadIdx.x) % 32, line = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 8;
    const int row = piece.row + 64 * block + line, col = piece.col + lane % 8 * ELEMENTS;
    Element* to = static_cast<Element*>(p_.d_view.address) + row * p_.d_view.outer_stride + col;
    __syncwarp();
#pragma unroll
    for (int c = 0; c < RING; ++c) {
      if (first + c >= last) break;
      const auto from = [&](int i) { return buffer(c) + swizzled(L::LINE, line + 4 * i, lane % 8 * 16); };
      Piece<16> value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_shared(from(i), value[i]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (first + c) * IN_CHUNK, left = p_.n - col - at;
        if (row + 4 * i < piece.end && left > 0)
          store_piece<Output>(to + 4 * i * p_.d_view.outer_stride + at, value[i], from(i), left);
      }
    }
    __syncwarp();  // before these lines are written anew
  }
  /// Does the copy engine store a row block? Not what it would leave a part of, which threads store anyway here.
  VG_DEVICE bool copies(const TilePiece& piece, int block) const {
    return !OF_ROWS || (mapped_of<Output>(p_.n) == p_.n && Rows::are_whole(piece, block));
  }

  /// Chunk number `chunk` of the piece into buffer b.
  VG_DEVICE void load(const Epilogue& epilogue, const TilePiece& piece, int chunk, int b) {
    if constexpr (C::LOADS_TILE) {
      const int i = chunk / L::CHUNKS, c = chunk % L::CHUNKS, width = chunk_width<L>(c);
      barrier_arrive_expect(loaded_ + 8 * b, static_cast<uint32>(64 * width));
      load_chunk<Output, C::D_ALONG_M>(epilogue.map(0, width), loaded_ + 8 * b, buffer(b), width,
                                       epilogue.tile_batch(piece.batch), piece.row + 64 * i,
                                       piece.col + chunk_start<L>(c) / Output::BYTES);
    }
  }
  VG_DEVICE void wait_for_loaded(int b) {
    if (C::LOADS_TILE) barrier_wait(loaded_ + 8 * b, phase_);
  }

  /// Quantisers take some columns at once.
  static constexpr int AT_ONCE = C::QUANTISED_COLUMNS > 64 ? C::QUANTISED_COLUMNS : 64;
  /// Chunks of these columns, where nothing stands between them and all are of one width; one of bytes has more of them.
  static constexpr int TOGETHER = C::QUANTISED_COLUMNS == 0 || AT_ONCE * Output::BYTES <= 128 || (C::HAS_D && !WHOLE_TILE) ||
                                          C::LOADS_TILE || C::COLUMN_REDUCTIONS > 0 || L::HALF != 0 || L::QUARTER != 0
                                      ? 1
                                      : AT_ONCE* Output::BYTES / 128;

  /// Units of a chunk behind which quantisers and reductions of columns may have what they take at once.
  static constexpr int STEP = least(Epilogue::STEP == 0 ? 8 : Epilogue::STEP, 8 / Output::BYTES);

  template <int WIDTH, class Accumulator>
  VG_DEVICE void fill(uint32 chunk, uint32 further, Accumulator (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2], Epilogue& epilogue,
                      const TilePiece& piece, int block, int c) {
    if (TOGETHER > 1 && c % TOGETHER != 0) return;
    // The first columns are always there: else the compiler would keep what quantisers hold of the tile before, beside the
    // products.
    const int start = chunk_start<L>(c) / Output::BYTES / AT_ONCE * AT_ONCE;
    const bool is_there = C::QUANTISED_COLUMNS == 0 || start == 0 || piece.col + start < p_.n;
    if (TOGETHER > 1 && !is_there) return;
#pragma unroll
    for (int more = 0; more < TOGETHER; ++more) {
      if (c + more >= L::CHUNKS) continue;
      const int first = chunk_start<L>(c + more) / Output::BYTES;
      epilogue.begin_chunk();
      if (is_there) fill_units<WIDTH>(chunk + more * L::CHUNK_BYTES, further, acc, epilogue, piece, block, c + more);
      epilogue.template end_chunk<WIDTH / Output::BYTES / 16>(block, first / 16);
    }
  }
  template <int WIDTH, bool ENDS = true, class Accumulator>
  VG_DEVICE void fill_units(uint32 chunk, uint32 further, Accumulator (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2],
                            Epilogue& epilogue, const TilePiece& piece, int block, int c) {
    const int lane = piece.lane(), warp = piece.warp();
    const int first = chunk_start<L>(c) / Output::BYTES;
    const int in_piece = 64 * block + 16 * warp + lane / 4, col = piece.col + lane % 4 * 2;
    const int row = Rows::row(piece, in_piece), down = Rows::down(piece, in_piece, row);
    // Groups of units end behind the loop: in it, the compiler would copy for each unit what only the last one has, and again for
    // each chunk, before it sees which that is.
#pragma unroll
    for (int start = 0; start < WIDTH / Output::BYTES; start += 16 * STEP) {
      const auto drain_units = [&](int in_chunk, auto count) {
        constexpr int COUNT = count;
        const int u = (first + in_chunk) / 16;
        // Units beyond D need no work; and a branch around each keeps ptxas from hoisting one into another, which spills. A few
        // at once wait less for shared memory and for each other's results.
        if (C::QUANTISED_COLUMNS == 0 && piece.col + 16 * u >= p_.n) {
#pragma unroll
          for (int i = 0; i < COUNT; ++i) epilogue.pass(block, u + i);
          return;
        }
        float x[COUNT][C::GEMMS][8];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) epilogue.fetch({chunk, WIDTH, in_chunk + 16 * k, piece.thread}, u + k);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
#pragma unroll
          for (int i = 0; i < 8 * C::GEMMS; ++i) {
            x[k][i / 8][i % 8] = as_lane(acc[i / 8][block][8 * (u + k) + i % 8]);
            asm volatile("" : "+f"(x[k][i / 8][i % 8]));  // nothing of a unit is computed ahead of it
          }
        }
        const auto position = [&](int k) -> Position {
          return {piece.batch,
                  row,
                  col + 16 * (u + k),
                  block,
                  u + k,
                  {chunk, WIDTH, in_chunk + 16 * k, piece.thread},
                  {further, WIDTH, in_chunk + 16 * k, piece.thread},
                  end_of(piece),
                  down};
        };
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
          epilogue.unit(x[k], position(k));
          if constexpr (COUNT == 1) epilogue.template absorb<1>(position(0));
          if constexpr (C::HAS_D) stage<Output, C::D_ALONG_M>(position(k).place, x[k][0]);
        }
        if constexpr (COUNT > 1) epilogue.template absorb<COUNT>(position(0));
      };
      const int last = least(start + 16 * STEP, WIDTH / Output::BYTES);
      constexpr int MOST = least(C::UNITS_AT_ONCE, STEP);
      static_assert(STEP % MOST == 0);
      // Registers are fewest behind the products of a large tile.
      constexpr bool IS_LARGE = L::M_BLOCKS * C::BLOCK_N > 256,
                     ALIKE = MOST == 1 || (!IS_LARGE && WIDTH / Output::BYTES / 16 % MOST == 0);
      const bool is_first = IS_LARGE && block == 0 && c == 0;
#pragma unroll
      for (int in_chunk = start; in_chunk < last; in_chunk += 16 * MOST) {
        if (ALIKE || (!is_first && in_chunk + 16 * MOST <= last)) {
          drain_units(in_chunk, Constant<MOST>());
        } else if constexpr (!ALIKE) {
#pragma unroll
          for (int i = in_chunk; i < least(in_chunk + 16 * MOST, last); i += 16) drain_units(i, Constant<1>());
        }
      }
      if constexpr (Epilogue::STEP > 0 && ENDS) {
        const int last = (first + least(start + 16 * STEP, WIDTH / Output::BYTES)) / 16 - 1;
        // The column is formed anew: kept over the units, it spills beside producers that decode.
        epilogue.end_units({piece.batch,
                            row,
                            piece.col + lane % 4 * 2 + 16 * last,
                            block,
                            last,
                            {0, 0, 0, piece.thread},
                            {},
                            end_of(piece),
                            down});
      }
    }
  }
  VG_DEVICE void end_units(Epilogue& epilogue, const TilePiece& piece, int block, int last) {
    const int lane = piece.lane(), warp = piece.warp();
    const int in_piece = 64 * block + 16 * warp + lane / 4;
    const int row = Rows::row(piece, in_piece), down = Rows::down(piece, in_piece, row);
    epilogue.end_units(
        {piece.batch, row, piece.col + lane % 4 * 2 + 16 * last, block, last, {0, 0, 0, piece.thread}, {}, end_of(piece), down});
  }
  /// All chunks of a tile.
  VG_DEVICE void store_all(const Epilogue& epilogue, const TilePiece& piece) {
    if constexpr (SPREADS) {
      const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
      const auto col = [&](int c) { return piece.col + chunk_start<L>(c) / Output::BYTES; };
#pragma unroll
      for (int b = 0; b < CHUNKS; ++b) {
        const int i = b / L::CHUNKS, c = b % L::CHUNKS, width = chunk_width<L>(c);
        if (warp != b % 4) continue;
        copy_chunk<Output, C::D_ALONG_M>(width == 128  ? &p_.d
                                         : width == 64 ? &p_.d_half
                                                       : &p_.d_quarter,
                                         leads(), buffer(b), width, d_batch(piece), piece.row + 64 * i, col(c), p_.m, p_.n);
      }
      if (leads()) bulk_commit();
      const int extent = C::D_ALONG_M ? p_.m : p_.n;
      if (mapped_of<Output>(extent) == extent) return;
#pragma unroll 1
      for (int b = 0; b < CHUNKS; ++b) {
        const int i = b / L::CHUNKS, c = b % L::CHUNKS;
        store_rest<Output, C::D_ALONG_M>(buffer(b), chunk_width<L>(c), target(), d_batch(piece), piece.row + 64 * i, col(c), p_.m,
                                         p_.n);
      }
    } else {
#pragma unroll
      for (int i = 0; i < L::M_BLOCKS; ++i)
        each_chunk_of(i, [&](int, int c, auto width) {
          store<width>(epilogue, buffer(i * L::CHUNKS + c), 0, piece, i, c, copies(piece, i));
        });
      if (leader()) bulk_commit();
    }
  }
  VG_DEVICE Target target() const {
    return {p_.d_view.address, p_.d_view.batch_stride, p_.d_view.outer_stride, p_.d_view.inner_stride};
  }
  template <int WIDTH>
  VG_DEVICE void store(const Epilogue& epilogue, uint32 chunk, uint32 further, const TilePiece& piece, int block, int c,
                       bool copied) {
    const int row = piece.row + 64 * block, col = piece.col + chunk_start<L>(c) / Output::BYTES;
    const Target to = target();
    if constexpr (C::D_PIECE == 0) {
      const TensorMap* map = WIDTH == 128 ? &p_.d : WIDTH == 64 ? &p_.d_half : &p_.d_quarter;
      if constexpr (OF_ROWS) {
        if (copied)
          copy_chunk<Output, false>(map, leader(), chunk, WIDTH, d_batch(piece), row, col, p_.m, p_.n);
        else
          store_by_threads<Output, 16>(chunk, WIDTH, to, 0, row, col, piece.end, p_.n, places(piece, block));
        return;
      }
      store_chunk<Output, C::D_ALONG_M>(map, leader(), chunk, WIDTH, to, d_batch(piece), row, col, p_.m, p_.n);
      if constexpr (FURTHER > 0) epilogue.store_further(leader(), further, WIDTH, d_batch(piece), row, col);
    } else {
      store_by_threads<Output, C::D_PIECE>(chunk, WIDTH, to, d_batch(piece), row, col, end_of(piece), p_.n, places(piece, block));
    }
  }

  const Parameters& p_;
  uint32 buffers_, loaded_;
  int consumer_;
  int next_ = 0, further_ = 0;
  uint32 phase_ = 0;
};

}  // namespace vg
