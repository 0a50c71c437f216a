#pragma once
#include "carry.cuh"
#include "layout.cuh"
#include "producer.cuh"

namespace vg {

/// A warpgroup that asks for A and its scales, and does nothing else.
template <class C, class Prologues, class Arguments>
VG_DEVICE void carry(const Parameters& p, const Arguments& arguments, uint8* memory, uint32 smem) {
  using L = Layout<C>;
  using Stage = CarriedStage<C::BLOCK_M>;
  static_assert(L::ALL_A_BYTES == Stage::B);
  Ring<C::STAGES> ring;
  if (C::PROGRAMMATIC) wait_for_previous_kernel();
  const Prologues prologues(arguments);
  Tiles<C> tiles(p, memory);
  const uint32 step = gridDim.x / C::SPLIT, count = tiles.count();
  const int first_block = C::SPLIT == 1 ? 0 : static_cast<int>(cluster_rank()) * p.k_blocks;
  using Way = decltype(Prologues::a);
  RowScales<Way> scales(prologues.a.scales(0));
  const int thread = static_cast<int>(threadIdx.x);
  for (uint32 t = blockIdx.x / C::SPLIT; t < count; t += step) {
    const Tile tile = tiles.at(t);
    const int first = tile.k + first_block * L::BLOCK_K;
    const int row = tile.row + thread;
    scales.begin(row < p.m ? row : p.m - 1, p.m, first, p.k, tile.a_batch * Way::scale_step(0));
    for (int k_block = 0; k_block < tile.k_blocks; k_block += C::JOINED, ring.next()) {
      const uint32 full = L::full(smem, ring.stage), stage = smem + ring.stage * L::STAGE_BYTES;
      barrier_wait(L::empty(smem, ring.stage), ring.phase ^ 1);
      if (thread == 0) {
        barrier_arrive_expect(full, static_cast<uint32>(p.stage_bytes));
        load_by_map<C::BLOCK_M, true, C::A_ONCE>(stage, &p.a[0], full, tile.row, (first + k_block * L::BLOCK_K) / 2,
                                                 tile.a_batch * p.a_batch_step[0]);
      }
      if (thread < C::BLOCK_M) scales.fetch(stage + Stage::SCALES + thread * Stage::SCALE_BYTES);
      barrier_arrive_copied(full);
      __syncwarp();
      if (thread % 32 == 0) barrier_arrive(full);  // what was stored by hand
    }
  }
}

/// Brings B of a tile to the order of K of its stages, asked for some stages ahead, since its latency is that of a stage's
/// products.
template <class C, class Rows, class Place>
VG_DEVICE void spread_tile(uint32 smem, Ring<C::STAGES>& ring, int k_blocks, Rows& rows, const Place& place) {
  using L = Layout<C>;
  constexpr int AHEAD = 4 / Place::LINES;  // as registers allow
  typename Rows::Part part[AHEAD][Place::LINES][4];
#pragma unroll
  for (int i = 0; i < AHEAD; ++i)
    if (i * C::JOINED < k_blocks) rows.load(part[i]);
  for (int k_block = 0; k_block < k_blocks;) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (k_block >= k_blocks) break;
      barrier_wait(L::empty(smem, ring.stage), ring.phase ^ 1);
#pragma unroll
      for (int j = 0; j < Place::LINES; ++j) place.template store_line<Rows>(smem + ring.stage * L::STAGE_BYTES, j, part[i][j]);
      fence_async_proxy();
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(L::full(smem, ring.stage));
      if (k_block + AHEAD * C::JOINED < k_blocks) rows.load(part[i]);
      k_block += C::JOINED;
      ring.next();
    }
  }
}

/// A warpgroup that does so, or goes by single elements where B lies otherwise. Lines behind the last are the last.
template <class C, class Rows>
VG_DEVICE void spread(const Parameters& p, Rows rows, uint8* memory, uint32 smem) {
  using L = Layout<C>;
  using Place = SpreadPlace<C::BLOCK_N, C::BLOCK_M>;
  const Place place;
  Ring<C::STAGES> ring;
  Tiles<C> tiles(p, memory);
  const uint32 step = gridDim.x / C::SPLIT, count = tiles.count();
  const int first_block = C::SPLIT == 1 ? 0 : static_cast<int>(cluster_rank()) * p.k_blocks;
  for (uint32 t = blockIdx.x / C::SPLIT; t < count; t += step) {
    const Tile tile = tiles.at(t);
    const auto row = [&](int i) {
      const int line = tile.n * C::BLOCK_N + place.line + 16 * i;
      return line < p.n ? line : p.n - 1;
    };
    int lines[Place::LINES];
#pragma unroll
    for (int i = 0; i < Place::LINES; ++i) lines[i] = row(i);
    const int first = tile.k + first_block * L::BLOCK_K + 8 * place.word;
    rows.begin(lines, p.n, first, p.k, tile.b_batch);
    if (C::PROGRAMMATIC && t + step >= count) let_next_kernel_start();
    if (rows.is_whole()) {
      spread_tile<C>(smem, ring, tile.k_blocks, rows, place);
      continue;
    }
    for (int k_block = 0; k_block < tile.k_blocks; k_block += C::JOINED, ring.next()) {
      barrier_wait(L::empty(smem, ring.stage), ring.phase ^ 1);
#pragma unroll 1
      for (int i = 0; i < Place::LINES; ++i) {
        typename Rows::Part part[4];
        rows.load_line(row(i), first + k_block * L::BLOCK_K, part);
        place.template store_line<Rows>(smem + ring.stage * L::STAGE_BYTES, i, part);
      }
      fence_async_proxy();
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(L::full(smem, ring.stage));
    }
  }
}
template <class C, class Prologues, class Arguments>
VG_DEVICE void spread(const Parameters& p, const Arguments& arguments, uint8* memory, uint32 smem) {
  using Way = decltype(Prologues::b);
  if (C::PROGRAMMATIC) wait_for_previous_kernel();
  const Prologues prologues(arguments);
  using Place = SpreadPlace<C::BLOCK_N, C::BLOCK_M>;
  if constexpr (C::B_DECODED != 0) {
    spread<C>(p, Fp4Rows<Way, Place::LINES>(p.b_view[0], prologues.b.scales(0)), memory, smem);
  } else {
    spread<C>(p, PlainRows<Place::LINES>(p.b_view[0]), memory, smem);
  }
}

/// The sum over k of one tile.
template <class C, class Wgmma, class Way, class OnBlock>
VG_DEVICE void multiply_tile_carried(float (&acc)[1][1][C::BLOCK_N / 2], uint32 smem, Ring<C::STAGES>& ring, int k_blocks,
                                     int first_row_block, OnBlock on_block) {
  using L = Layout<C>;
  const bool arriving = threadIdx.x % 32 == 0;
  int previous = 0;
  CarriedPart<Way, C::BLOCK_M> part(first_row_block);
  uint32 fragments[2][16];
#pragma unroll
  for (float& x : acc[0][0]) x = 0.0f;
  for (int k_block = 0; k_block < k_blocks; k_block += C::JOINED) {
    barrier_wait(L::full(smem, ring.stage), ring.phase);
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
    const uint64 b_matrix = matrix_descriptor(stage + L::ALL_A_BYTES, 16, 1024);
    part.load(stage);
    part.decode_scales();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      wgmma_wait<1>();  // what read these registers last
      if (j == 1 && k_block != 0 && arriving) barrier_arrive(L::empty(smem, previous));
      part.decode(j, fragments[j % 2]);
      Wgmma::multiply(acc[0][0], fragments[j % 2], b_matrix + j * (L::B_BYTES >> 4), true);
      on_block(k_block + j);
    }
    previous = ring.stage;
    ring.next();
  }
  wgmma_wait<0>();
  Wgmma::settle(acc[0][0]);
  if (arriving) barrier_arrive(L::empty(smem, previous));
}

}  // namespace vg
