#pragma once
#include "combine.cuh"
#include "either.cuh"
#include "epilogue.cuh"
#include "few_rows.cuh"
#include "mainloop.cuh"
#include "producer.cuh"
#include "rope.cuh"
#include "runs.cuh"
#include "split.cuh"
#include "together.cuh"

namespace vg {

/// D[l,m,n] = chain(sum over k of A[l,m,k] B[l,k,n]), of one product or of two that share an operand or none. One block an SM,
/// persistent over tiles; the first warpgroup loads (or the first few), the others multiply and drain. Cooperative: the consumers
/// share a tile's rows. Ping-pong: each has tiles of its own, and while one drains, the other multiplies. With SPLIT a cluster of
/// blocks takes the place of one.
template <class C, class Wgmma, class Prologues, class Epilogue, class Arguments>
VG_DEVICE void gemm(const Parameters& p, const Arguments& arguments) {
  using L = Layout<C>;
  static_assert(L::SMEM_BYTES == C::SMEM_BYTES, "what the host asks for is what lies here");
  extern __shared__ uint8 memory[];
  const uint32 smem = shared_address(memory);  // 1024-byte aligned: the kernel has no static shared memory
  const int warpgroup = warp_index() / 4;

  if (threadIdx.x == 0) {
    if (p.tiles != 0) {  // else nobody made the maps
      for (int i = 0; i < (L::A_COPIED ? 0 : C::A_COUNT); ++i) prefetch_map(&p.a[i]);
      for (int i = 0; i < (L::B_COPIED || C::B_ADDRESSED != 0 ? 0 : C::B_COUNT); ++i) prefetch_map(&p.b[i]);
      if (C::HAS_D && C::D_PIECE == 0) prefetch_map(&p.d);
    }
    for (int s = 0; s < C::STAGES; ++s) {
      barrier_init(L::full(smem, s), L::FULL_ARRIVALS);
      barrier_init(L::empty(smem, s), L::EMPTY_ARRIVALS);
    }
    for (int c = 0; c < 2; ++c) barrier_init(L::order(smem, c), 4);
    if constexpr (C::CLAIMS) Turns<C>::init(smem);
    for (int i = 0; i < L::LOADED_BARRIERS; ++i) barrier_init(smem + L::LOADED + 8 * i, 1);
    for (int c = 0; c < (C::SPLIT > 1 ? C::CONSUMERS : 0); ++c) {
      barrier_init(L::landed(smem, c), 1);
      barrier_init(L::read(smem, c), 4);
    }
    fence_barrier_init();
  }
  if constexpr (C::SPLIT > 1) {
    __syncwarp();
    cluster_sync();
  } else {
    __syncthreads();
  }
  if constexpr (C::GROUPS > 0) {
    if (C::PROGRAMMATIC) wait_for_previous_kernel();
    const Prologues prologues(arguments);
    GroupTable<C>(memory).read(p, [&](int expert) {
      if constexpr (requires { prologues.lacks_scales(expert); }) return prologues.lacks_scales(expert);
      return false;
    });
    if constexpr (C::LISTED > 0) GroupTiles<C>(p, memory).list();
  }

  if (warpgroup < C::PRODUCERS) {
    if constexpr (C::CARRIED) {
      if (warpgroup == 0) {
        if constexpr (C::CONSUMERS > 1) lower_registers<C::CARRIER_REGISTERS>();
        carry<C, Prologues>(p, arguments, memory, smem);
      } else {
        if constexpr (C::CONSUMERS > 1) lower_registers<C::PRODUCER_REGISTERS>();
        spread<C, Prologues>(p, arguments, memory, smem);
      }
    } else {
      if constexpr (C::CONSUMERS > 1) lower_registers<C::PRODUCER_REGISTERS>();
      if (L::ANY_COPIED || C::SCALED || (warp_index() == 0 && elect_one()))
        produce<C, Prologues>(p, arguments, memory, smem, warpgroup);
    }
    return;
  }

  if constexpr (C::CONSUMERS > 1) raise_registers<C::CONSUMER_REGISTERS>();
  const int consumer = warpgroup - C::PRODUCERS;
  Ring<C::STAGES> ring;
  Epilogue epilogue(p, arguments);
  constexpr Drains DRAINS = C::ROTATES ? Drains::rotated : C::RUN_BYTES > 0 ? Drains::runs : Drains::whole;
  typename DrainOf<typename C::Results, Epilogue, DRAINS>::Type drain(p, smem, consumer);
  Either<(C::SPLIT > 1), Split<C>, Whole> split(smem, consumer);
  if (C::PROGRAMMATIC) wait_for_previous_kernel();
  Tiles<C> tiles(p, memory);
  [[maybe_unused]] const auto pass_row = [&](int row) {
    if constexpr (C::ZERO_FILL) {
      if constexpr (C::HAS_D)
        zero_row<8 * C::Output::BYTES>(p.d_view.address, p.d_view.outer_stride, p.d_view.inner_stride, row, p.n);
      epilogue.pass_row(row);
    }
  };
  if constexpr (C::ZERO_FILL && !C::SCATTERS) each_unowned<C>(p, memory, pass_row);
  const uint32 count = tiles.count();
  Turns<C> turns(p, tiles, memory, smem);
  if constexpr (C::PINGPONG) {
    // Consumer 0 has the first turn; the second starts at the block's second tile.
    if (consumer == 1) {
      if (threadIdx.x % 32 == 0) barrier_arrive(L::order(smem, 0));
      ring.skip(turns.k_blocks_of_first());
    }
  }
  const TilePiece whole{
      .consumer = consumer, .scratch = smem + L::SCRATCH + consumer * L::SCRATCH_BYTES, .thread = threadIdx.x % 128};
  epilogue.start(whole);
  [[maybe_unused]] Either<C::COMBINES, Combiner<C, Epilogue>, NoCombiner> combiner(p, memory, smem, consumer);
  for (turns.begin(consumer); turns.more(); turns.next()) {
    const Tile tile = turns.tile();
    const int share = C::PINGPONG ? 0 : consumer, first_row_block = share * L::M_BLOCKS;
    TilePiece piece{tile.batch,
                    tile.m * (C::PINGPONG ? 1 : C::CONSUMERS) + share,
                    tile.n,
                    tile.row + 64 * first_row_block,
                    tile.n * C::BLOCK_N,
                    consumer,
                    smem + L::SCRATCH + consumer * L::SCRATCH_BYTES,
                    C::GATHERS || C::SCATTERS ? p.m : tile.end,
                    tile.d_batch,
                    L::ENDS_EARLY ? (tile.end - tile.row + 63) / 64 - first_row_block : L::M_BLOCKS,
                    C::GATHERS || C::SCATTERS ? smem + L::PLACES + consumer * L::PLACES_BYTES : 0,
                    threadIdx.x % 128};
    if constexpr (C::GATHERS || C::SCATTERS) find_places<C>(p, piece, tile.end);
    if constexpr (!C::COMBINES) epilogue.load_ahead(piece);
    typename Wgmma::Accumulator acc[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2];
    // The first products do not read them, but the compiler would keep those of the tile before over a drain that needs registers
    // for something else.
    if constexpr (C::ROTATES || (C::UNITS_AT_ONCE > 1 && L::M_BLOCKS * C::BLOCK_N > 256)) {
#pragma unroll
      for (auto& product : acc) {
#pragma unroll
        for (auto& rows : product) {
#pragma unroll
          for (auto& x : rows) x = 0;
        }
      }
    }
    if constexpr (C::PINGPONG) {
      // Needed for right results, not for speed: a parity cannot tell phase n from n + 2, so a consumer may wait for its stages
      // only once the other has waited for all of its own.
      barrier_wait(L::order(smem, consumer), turns.phase());
    }
    // A few k-blocks in, the stores of the tile before have read what they store.
    const int load_at = tile.k_blocks < 3 ? tile.k_blocks - 1 : 2;
    const auto on_block = [&](int k_block) {
      if (C::LOADS_TILE && !C::COMBINES && k_block == load_at && split.drains()) drain.load_ahead(epilogue, piece);
    };
    const auto on_stage = [&](uint32 stage, int k_block) {
      if constexpr (C::DEPTH_GROUPS) tiles.cut(stage, first_row_block, tile.k_end - tile.k - k_block * L::BLOCK_K, consumer);
    };
    const auto on_issued = [&] {
      if (C::PINGPONG && threadIdx.x % 32 == 0) barrier_arrive(L::order(smem, consumer ^ 1));
    };
    int k_blocks = tile.k_blocks, last_steps = 4;
    bool cuts = false;  // the last k-block
    if constexpr (L::CUTS_STEPS) {
      const int left = tile.k_end - tile.k - (k_blocks - 1) * L::BLOCK_K;
      last_steps = tiles.steps_of(left);
      cuts = C::DEPTH_GROUPS ? left < L::BLOCK_K : last_steps < 4;
    }
    if (L::ENDS_EARLY && piece.blocks <= 0) {
      pass_tile<C>(smem, ring, k_blocks, on_block);
      k_blocks = 0;
    }
    if constexpr (C::CARRIED) {
      multiply_tile_carried<C, Wgmma, decltype(Prologues::a)>(acc, smem, ring, k_blocks, first_row_block, on_block);
    } else if constexpr (C::HELD) {
      const int block = C::SPLIT == 1 ? 0 : static_cast<int>(cluster_rank()) * p.k_blocks;
      multiply_tile_held<C, Wgmma, decltype(Prologues::a)>(acc, smem, ring, k_blocks, first_row_block, block, on_block);
    } else if constexpr (C::CASTS) {
      multiply_tile_cast<C, Wgmma, decltype(Prologues::a)>(acc, smem, ring, k_blocks, first_row_block, on_block, on_issued);
    } else if constexpr (C::SCALED) {
      multiply_tile_scaled<C, Wgmma>(acc, smem, ring, k_blocks, first_row_block, on_block);
    } else if constexpr (C::PROMOTED) {
      multiply_tile_promoted<C, Wgmma>(acc, smem, ring, k_blocks, first_row_block, on_stage, on_block);
    } else if (L::ENDS_EARLY && L::M_BLOCKS > 1 && piece.blocks == 1) {
      multiply_tile<C, Wgmma, 1>(acc, smem, ring, k_blocks, first_row_block, on_stage, on_block, on_issued, cuts, last_steps);
    } else {
      multiply_tile<C, Wgmma>(acc, smem, ring, k_blocks, first_row_block, on_stage, on_block, on_issued, cuts, last_steps);
    }
    if constexpr (C::PINGPONG) ring.skip(turns.k_blocks_between());
    if (!split.join(acc)) continue;
    if constexpr (C::CARRIED) {
      constexpr int SHORT = decltype(Prologues::a)::Scale::SHORT;
#pragma unroll
      for (float& x : acc[0][0])
        if constexpr (SHORT != 0) x *= static_cast<float>(1 << SHORT);
    }
    // What is formed of it is formed here: the compiler would keep it from tile to tile, beside products that leave no registers.
    if constexpr (C::SCALED || C::HELD) asm volatile("" : "+r"(piece.thread));
    if constexpr (C::COMBINES) {
      combiner.keep(acc, piece);
    } else {
      drain(acc, epilogue, piece);
    }
    split.release();
  }
  if constexpr (C::COMBINES) {
    combiner.sum(drain, epilogue, whole);
  } else if constexpr (C::ZERO_FILL && C::SCATTERS) {
    wait_for_all_blocks<C>(p, consumer);
    each_unscattered<C>(p, pass_row);
  }
  const uint32 drained = C::COMBINES ? p.tiles : count;
  if (drained != 0) epilogue.finish(whole);
  if (consumer == 0 && ((C::Results::GROUPS > 0 && !C::DEPTH_GROUPS) || (drained == 0 && blockIdx.x == 0)))
    epilogue.clear({.scratch = smem + L::SCRATCH});
  split.finish();
  drain.finish();
}

}  // namespace vg
