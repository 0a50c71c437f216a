#pragma once
#include "decode.cuh"
#include "either.cuh"
#include "load.cuh"
#include "position.cuh"
#include "shift.cuh"
#include "tile_queue.cuh"
#include "weights.cuh"

namespace vg {

/// A coordinate at which boxes are zeros.
constexpr int BEYOND = 1 << 30;

/// One operand's part of a stage by the copy engine. K-major: one box of 128 bytes of K by all rows; MN-major: a box of
/// 64 elements by BLOCK_K rows of k for each 64 lines.
template <int LINES, bool K_MAJOR, bool ONCE>
VG_DEVICE void load_by_map(uint32 to, const TensorMap* map, uint32 barrier, int mn, int k, int batch) {
  const auto load = [&](uint32 at, int x, int y) {
    if constexpr (ONCE) {
      tma_load_once(at, map, barrier, x, y, batch);
    } else {
      tma_load(at, map, barrier, x, y, batch);
    }
  };
  if constexpr (K_MAJOR) {
    load(to, k, mn);
  } else {
    for (int block = 0; block < LINES / 64; ++block) load(to + block * 64 * 128, mn + 64 * block, k);
  }
}

/// The scales of a stage by all 128 threads of the producer warpgroup, a line each: asked for when those of the stage before have
/// been written.
template <class C>
class ScaleLoader {
  using L = Layout<C>;
  static constexpr int A_WORDS = (C::BLOCK_M + 127) / 128, B_WORDS = (C::BLOCK_N + 127) / 128;
  static constexpr int A_ALL = C::A_COUNT * A_WORDS, B_ALL = C::B_COUNT * B_WORDS;

 public:
  /// Finds the lines of a tile, and asks for the scales of its first stage.
  template <class Prologues>
  VG_DEVICE void begin(const Prologues& prologues, const Parameters& p, const Tile& tile, int first, uint32 gathered, int shift) {
    const int thread = static_cast<int>(threadIdx.x) % 128, blocks = (p.k + 31) / 32;
#pragma unroll
    for (int i = 0; i < A_ALL; ++i) {
      const int line = i % A_WORDS * 128 + thread;
      const int row = !C::GATHERS          ? tile.row + line
                      : line >= C::BLOCK_M ? -1
                                           : static_cast<int>(__float_as_uint(load_float(gathered + 4 * line)));
      a_from_[i] = prologues.place_a(i / A_WORDS, row, C::GROUP_ATOMS ? shift : tile.a_batch, blocks, p);
    }
#pragma unroll
    for (int i = 0; i < B_ALL; ++i)
      b_from_[i] = prologues.place_b(i / B_WORDS, tile.n * C::BLOCK_N + i % B_WORDS * 128 + thread, tile.b_batch, blocks, p);
    read(prologues, p, first);
  }
  template <class Prologues>
  VG_DEVICE void read(const Prologues& prologues, const Parameters& p, int k_block) {
    const int blocks = (p.k + 31) / 32;
#pragma unroll
    for (int i = 0; i < A_ALL; ++i) a_[i] = prologues.scales_a(i / A_WORDS, a_from_[i], 4 * k_block, blocks);
#pragma unroll
    for (int i = 0; i < B_ALL; ++i) b_[i] = prologues.scales_b(i / B_WORDS, b_from_[i], 4 * k_block, blocks);
  }
  VG_DEVICE void write(uint32 stage) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const uint32 a = stage + L::SCALES + 16 * thread, b = a + 16 * C::A_COUNT * C::BLOCK_M;
#pragma unroll
    for (int i = 0; i < A_ALL; ++i) {
      const int line = i % A_WORDS * 128;
      if (line + thread < C::BLOCK_M) store_scales(a + 16 * (i / A_WORDS * C::BLOCK_M + line), a_[i]);
    }
#pragma unroll
    for (int i = 0; i < B_ALL; ++i) {
      const int line = i % B_WORDS * 128;
      if (line + thread < C::BLOCK_N) store_scales(b + 16 * (i / B_WORDS * C::BLOCK_N + line), b_[i]);
    }
  }

 private:
  const char *a_from_[A_ALL], *b_from_[B_ALL];
  uint32 a_[A_ALL], b_[B_ALL];
};
/// Of products without.
struct NoScales {};

template <bool COPIED, class C, class Prologue, int LINES, bool K_MAJOR, bool TURNED, int PIECE, int BUDGET, bool LISTED>
struct LoaderOf {
  using Type = NoLoader;
};
template <class C, int LINES, bool K_MAJOR, int BUDGET>
struct LoaderOf<true, C, NoPrologue, LINES, K_MAJOR, false, C::INPUT_BYTES, BUDGET, false> {
  using Type = ShiftLoader<C, LINES, K_MAJOR>;
};
template <class C, class Prologue, int LINES, bool K_MAJOR, bool TURNED, int PIECE, int BUDGET, bool LISTED>
struct LoaderOf<true, C, Prologue, LINES, K_MAJOR, TURNED, PIECE, BUDGET, LISTED> {
  using Type = Loader<C, Prologue, LINES, K_MAJOR, TURNED, PIECE, BUDGET, LISTED>;
};

/// Of an A that consumers hold, where those who decode B also ask for it.
struct NoBearer {};

/// The producer warpgroup: fills stages in the order in which consumers read them. With maps alone one lane comes here; with a
/// copied operand or scales all 128 threads do. Where they decode or copy, DECODERS warpgroups take k-blocks in turn.
template <class C, class Prologues, class Arguments>
VG_DEVICE void produce(const Parameters& p, const Arguments& arguments, uint8* memory, uint32 smem, [[maybe_unused]] int which) {
  using L = Layout<C>;
  // Registers for loads in flight, of all matrices together.
  constexpr int BUDGET = (C::PRODUCER_REGISTERS > 96 ? (C::PROMOTED ? 48 : 64) : 32) /
                         ((L::A_COPIED ? C::A_COUNT : 0) + (L::B_COPIED ? C::B_COUNT : 0) + (L::ANY_COPIED ? 0 : 1));
  using PrologueA = decltype(Prologues::a);
  using PrologueB = decltype(Prologues::b);
  const bool leader = threadIdx.x % 128 == 0;
  Ring<C::STAGES> ring;
  if (C::PROGRAMMATIC) wait_for_previous_kernel();
  const Prologues prologues(arguments);
  Tiles<C> tiles(p, memory);
  Weights<C> weights(p, memory);
  const uint32 step = gridDim.x / C::SPLIT, count = tiles.count();
  const int first_block = C::SPLIT == 1 ? 0 : static_cast<int>(cluster_rank()) * p.k_blocks;
  [[maybe_unused]] typename LoaderOf<L::A_COPIED && C::A_DECODED == 0, C, PrologueA, L::A_LINES, C::A_K_MAJOR, C::A_TURNED,
                                     C::A_PIECE, BUDGET, C::GATHERS>::Type a_loader[C::A_COUNT];
  [[maybe_unused]] typename LoaderOf<L::B_COPIED && C::B_DECODED == 0, C, PrologueB, L::B_LINES, C::B_K_MAJOR, C::B_TURNED,
                                     C::B_PIECE, BUDGET, false>::Type b_loader[C::B_COUNT];
  const uint32 slots = smem + L::DECODING + which * (L::A_DECODING + L::B_DECODING);
  int turn = which;  // k-blocks of the tile in hand before the first that is ours
  DecodersOf<C::A_DECODED != 0 && !C::HELD, C, PrologueA, L::A_LINES, C::A_COUNT> a_decoders(slots, prologues.a, p.a_view);
  DecodersOf<C::B_DECODED != 0, C, PrologueB, L::B_LINES, C::B_COUNT, typename HeldOf<C::HELD, PrologueA>::Type,
             C::B_ADDRESSED != 0>
      b_decoders(slots + L::A_DECODING, prologues.b, p.b_view);
  [[maybe_unused]] Either<C::HELD, Decoder<PrologueA, C::BLOCK_M, C::DECODERS, void, true>, NoBearer> bearer;
  if constexpr (C::HELD) bearer.open(smem, p.a_view[0], prologues.a.scales(0));
  [[maybe_unused]] Either<C::SCALED, ScaleLoader<C>, NoScales> scales;
  Turns<C> turns(p, tiles, memory, smem);
  for (uint32 t = turns.first(); t < count; t = turns.after(t)) {
    const Tile tile = turns.find(t);
    const int ask_at = tile.k_blocks > 4 ? tile.k_blocks - 4 : 0;
    // Boxes of A: whole blocks of 64 rows, then where a group ends rows that somebody has, and zeros for the others of the block,
    // once for each stage: they are multiplied too, and zeros take less power. Not where few k-blocks follow on the first ones.
    constexpr bool BLOCKS = C::GROUPS > 0 && !C::DEPTH_GROUPS, TAILS = C::TAIL_ROWS > 0;
    constexpr int TAIL_ROWS = TAILS ? C::TAIL_ROWS : 64;
    const int left = tile.end - tile.row, rows = left < C::BLOCK_M ? left : C::BLOCK_M;
    const int whole = BLOCKS ? (TAILS ? rows : rows + 63) / 64 : 0, tail = TAILS ? rows % 64 : 0;
    const int tails = (tail + TAIL_ROWS - 1) / TAIL_ROWS, with_zeros = tail == 0                       ? 0
                                                                       : tile.k_blocks < 4 * C::STAGES ? tails
                                                                                                       : 64 / TAIL_ROWS;
    const int m = tile.row, n = tile.n * C::BLOCK_N, first = tile.k + first_block * L::BLOCK_K;
    // The part of a k-block; none behind the last.
    const auto a_source = [&](int i, int k_block) {
      const bool in = k_block < tile.k_blocks;
      return Source{
          p.a_view[i],       m, first + k_block * L::BLOCK_K, tile.a_batch, in ? rows_of_groups<C>(p) : 0, in ? tile.k_end : 0,
          smem + L::GATHERED};
    };
    const auto b_source = [&](int i, int k_block) {
      const bool in = k_block < tile.k_blocks;
      return Source{weights.view(i),    n, first + k_block * L::BLOCK_K, C::B_ADDRESSED != 0 ? 0 : tile.b_batch, in ? p.n : 0,
                    in ? tile.k_end : 0};
    };
    if (C::PROGRAMMATIC && t + step >= count) let_next_kernel_start();
    if (L::B_COPIED || leader || !(L::ANY_COPIED || C::SCALED)) weights.begin(tile);
    if constexpr (C::GATHERS) find_gathered<C>(p, tile, smem + L::GATHERED);
    int slot = 0;
    const auto fetch = [&](int to, int k_block) {
      if (k_block < tile.k_blocks) {
        a_decoders.fetch(to);
        b_decoders.fetch(to);
      }
      async_commit();
    };
    if constexpr (L::A_COPIED && C::A_DECODED == 0) {
#pragma unroll
      for (int i = 0; i < C::A_COUNT; ++i) a_loader[i].begin(a_source(i, turn));
    }
    if constexpr (L::B_COPIED && C::B_DECODED == 0) {
#pragma unroll
      for (int i = 0; i < C::B_COUNT; ++i) b_loader[i].begin(b_source(i, turn));
    }
    if constexpr (C::HELD)
      bearer.begin(m, first + turn * L::BLOCK_K, first_block + turn, tile.a_batch, tile.a_batch * PrologueA::scale_step(0), p.m,
                   p.k);
    int shift = 0;
    if constexpr (C::GROUP_ATOMS) shift = tiles.shift_of(tile);
    if constexpr (L::ANY_DECODED) {
      a_decoders.begin(m, first + turn * L::BLOCK_K, first_block + turn, tile.a_batch, rows_of_groups<C>(p), p.k, shift);
      if constexpr (C::B_DECODED != 0 && C::B_ADDRESSED != 0) b_decoders.aim(weights, tile.b_batch);
      b_decoders.begin(n, first + turn * L::BLOCK_K, first_block + turn, tile.b_batch, p.n, p.k, 0);
      for (int i = 0; i < C::SLOTS; ++i) fetch(i, turn + i * C::DECODERS);
    }
    if constexpr (C::SCALED) scales.begin(prologues, p, tile, first_block + turn, smem + L::GATHERED, shift);
    for (int k_block = 0; k_block < tile.k_blocks; ++k_block, ring.next()) {
      if (C::DECODERS > 1 && k_block != turn) continue;
      const uint32 full = L::full(smem, ring.stage), a = smem + ring.stage * L::STAGE_BYTES, b = a + L::ALL_A_BYTES;
      const int k = first + k_block * L::BLOCK_K;
      if (k_block == ask_at) turns.ask();
      barrier_wait(L::empty(smem, ring.stage), ring.phase ^ 1);
      if constexpr (C::HELD) {
        bearer.fetch(ring.stage * L::STAGE_BYTES);
        barrier_arrive_copied(full);  // what it stored by hand counts with what is decoded
      }
      if (L::ANY_TMA && (leader || !(L::ANY_COPIED || C::SCALED))) {
        const int asked = k_block < C::STAGES ? with_zeros : tails;
        barrier_arrive_expect(full, static_cast<uint32>(p.stage_bytes + whole * p.row_block_bytes + asked * p.tail_bytes));
        for (int i = 0; i < (L::A_COPIED ? 0 : C::A_COUNT); ++i) {
          const uint32 to = a + i * L::A_BYTES;
          const int batch = tile.a_batch * p.a_batch_step[i];
          if constexpr (BLOCKS) {
#pragma unroll 1
            for (int block = 0; block < whole; ++block)
              tma_load(to + block * 64 * L::LINE, &p.a[i], full, k, m + 64 * block, batch);
#pragma unroll 1
            for (int box = 0; box < asked; ++box)
              tma_load(to + (64 * whole + TAIL_ROWS * box) * L::LINE, &p.a[1], full, box < tails ? k : BEYOND,
                       m + 64 * whole + TAIL_ROWS * box, batch);
          } else {
            load_by_map<L::A_LINES, C::A_K_MAJOR, C::A_ONCE>(to, &p.a[i], full, m, k, batch);
          }
        }
        for (int i = 0; i < (L::B_COPIED ? 0 : C::B_COUNT); ++i)
          load_by_map<L::B_LINES, C::B_K_MAJOR, C::B_ONCE>(b + i * L::B_BYTES, weights.map(i), full, n, k,
                                                           tile.b_batch * p.b_batch_step[i]);
        if (k_block == 0) weights.prepare(t + step, step);
      }
      if constexpr (L::ANY_COPIED || C::SCALED) {
        if constexpr (L::A_COPIED && C::A_DECODED == 0) {
#pragma unroll
          for (int i = 0; i < C::A_COUNT; ++i)
            a_loader[i].write(a + i * L::A_BYTES, a_source(i, k_block), a_source(i, k_block + C::DECODERS), prologues.a);
        }
        if constexpr (L::B_COPIED && C::B_DECODED == 0) {
#pragma unroll
          for (int i = 0; i < C::B_COUNT; ++i)
            b_loader[i].write(b + i * L::B_BYTES, b_source(i, k_block), b_source(i, k_block + C::DECODERS), prologues.b);
        }
        if constexpr (L::ANY_DECODED) {
          async_wait<C::SLOTS - 1>();
          a_decoders.decode(a, slot, first_block + k_block, p.k - k);
          b_decoders.decode(b, slot, first_block + k_block, p.k - k);
          fetch(slot, k_block + C::SLOTS * C::DECODERS);
          slot = (slot + 1) % C::SLOTS;
        }
        turn += C::DECODERS;
        if constexpr (C::SCALED) scales.write(a);
        if (L::ANY_COPIED || C::SCALED) fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full);
        if constexpr (C::SCALED) scales.read(prologues, p, first_block + k_block + C::DECODERS);
      }
    }
    turn -= tile.k_blocks;
  }
}

}  // namespace vg
