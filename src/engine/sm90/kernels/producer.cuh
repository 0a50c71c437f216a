#pragma once
#include "load.cuh"
#include "tile_scheduler.cuh"

namespace vg {

/// One operand's part of a stage by the copy engine. K-major: one box of 128 bytes of K by all rows; MN-major: a box of
/// 64 elements by BLOCK_K rows of k for each 64 lines.
template <class C, int LINES, bool K_MAJOR>
VG_DEVICE void load_by_map(uint32 to, const TensorMap* map, uint32 barrier, int mn, int k, int batch) {
  if constexpr (K_MAJOR) {
    tma_load(to, map, barrier, k, mn, batch);
  } else {
    for (int block = 0; block < LINES / 64; ++block) tma_load(to + block * 64 * 128, map, barrier, mn + 64 * block, k, batch);
  }
}

template <bool COPIED, class C, class Prologue, int LINES, bool K_MAJOR, bool TURNED, int PIECE, int BUDGET>
struct LoaderOf {
  using Type = NoLoader;
};
template <class C, class Prologue, int LINES, bool K_MAJOR, bool TURNED, int PIECE, int BUDGET>
struct LoaderOf<true, C, Prologue, LINES, K_MAJOR, TURNED, PIECE, BUDGET> {
  using Type = Loader<C, Prologue, LINES, K_MAJOR, TURNED, PIECE, BUDGET>;
};

/// The producer warpgroup: fills stages in the order in which consumers read them. With maps alone one lane comes here; with a
/// copied operand all 128 threads do.
template <class C, class Prologues, class Arguments>
VG_DEVICE void produce(const Parameters& p, const Arguments& arguments, uint32 smem) {
  using L = Layout<C>;
  // Registers for loads in flight, of all matrices together.
  constexpr int BUDGET = 32 / ((L::A_COPIED ? C::A_COUNT : 0) + (L::B_COPIED ? C::B_COUNT : 0) + (L::ANY_COPIED ? 0 : 1));
  using PrologueA = decltype(Prologues::a);
  using PrologueB = decltype(Prologues::b);
  const bool leader = threadIdx.x % 128 == 0;
  Ring<C::STAGES> ring;
  if (C::PROGRAMMATIC) wait_for_previous_kernel();
  const Prologues prologues(arguments);
  const uint32 step = gridDim.x / C::SPLIT;
  const int first = C::SPLIT == 1 ? p.k_first : p.k_first + static_cast<int>(cluster_rank()) * p.k_blocks * L::BLOCK_K;
  [[maybe_unused]]
  typename LoaderOf<L::A_COPIED, C, PrologueA, L::A_LINES, C::A_K_MAJOR, C::A_TURNED, C::A_PIECE, BUDGET>::Type
      a_loader[C::A_COUNT];
  [[maybe_unused]]
  typename LoaderOf<L::B_COPIED, C, PrologueB, L::B_LINES, C::B_K_MAJOR, C::B_TURNED, C::B_PIECE, BUDGET>::Type
      b_loader[C::B_COUNT];
  for (uint32 t = blockIdx.x / C::SPLIT; t < p.tiles; t += step) {
    const Tile tile = tile_at(p, t);
    const int m = tile.m * C::BLOCK_M, n = tile.n * C::BLOCK_N;
    // The part of a k-block; none behind the last.
    const auto a_source = [&](int i, int k_block) {
      const bool in = k_block < p.k_blocks;
      return Source{p.a_view[i], m, first + k_block * L::BLOCK_K, tile.batch, in ? p.m : 0, in ? p.k : 0};
    };
    const auto b_source = [&](int i, int k_block) {
      const bool in = k_block < p.k_blocks;
      return Source{p.b_view[i], n, first + k_block * L::BLOCK_K, tile.batch, in ? p.n : 0, in ? p.k : 0};
    };
    if (C::PROGRAMMATIC && t + step >= p.tiles) let_next_kernel_start();
    if constexpr (L::A_COPIED) {
#pragma unroll
      for (int i = 0; i < C::A_COUNT; ++i) a_loader[i].begin(a_source(i, 0));
    }
    if constexpr (L::B_COPIED) {
#pragma unroll
      for (int i = 0; i < C::B_COUNT; ++i) b_loader[i].begin(b_source(i, 0));
    }
    for (int k_block = 0; k_block < p.k_blocks; ++k_block, ring.next()) {
      const uint32 full = L::full(smem, ring.stage), a = smem + ring.stage * L::STAGE_BYTES, b = a + L::ALL_A_BYTES;
      const int k = first + k_block * L::BLOCK_K;
      barrier_wait(L::empty(smem, ring.stage), ring.phase ^ 1);
      if (L::ANY_TMA && (leader || !L::ANY_COPIED)) {
        barrier_arrive_expect(full, static_cast<uint32>(p.stage_bytes));
        for (int i = 0; i < (L::A_COPIED ? 0 : C::A_COUNT); ++i)
          load_by_map<C, L::A_LINES, C::A_K_MAJOR>(a + i * L::A_BYTES, &p.a[i], full, m, k, tile.batch * p.a_batch_step[i]);
        for (int i = 0; i < (L::B_COPIED ? 0 : C::B_COUNT); ++i)
          load_by_map<C, L::B_LINES, C::B_K_MAJOR>(b + i * L::B_BYTES, &p.b[i], full, n, k, tile.batch * p.b_batch_step[i]);
      }
      if constexpr (L::ANY_COPIED) {
        if constexpr (L::A_COPIED) {
#pragma unroll
          for (int i = 0; i < C::A_COUNT; ++i)
            a_loader[i].write(a + i * L::A_BYTES, a_source(i, k_block), a_source(i, k_block + 1), prologues.a);
        }
        if constexpr (L::B_COPIED) {
#pragma unroll
          for (int i = 0; i < C::B_COUNT; ++i)
            b_loader[i].write(b + i * L::B_BYTES, b_source(i, k_block), b_source(i, k_block + 1), prologues.b);
        }
        fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full);
      }
    }
  }
}

}  // namespace vg
