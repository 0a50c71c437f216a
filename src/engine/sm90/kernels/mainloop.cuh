#pragma once
#include "layout.cuh"
#include "tile_scheduler.cuh"

namespace vg {

/// The same with each k-block summed apart and added in fp32: what the tensor cores keep of an fp8 sum is 14 bits of its largest
/// term. One set of temporaries, WIDTH columns at a time, and no product in flight while it is added: the other consumer's are.
template <class C, class Wgmma, class OnStage, class OnBlock>
VG_DEVICE void multiply_tile_promoted(float (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                                      Ring<C::STAGES>& ring, int k_blocks, int first_row_block, OnStage on_stage,
                                      OnBlock on_block) {
  using L = Layout<C>;
  constexpr int PARTS = C::BLOCK_N / Wgmma::WIDTH, PRODUCTS = C::GEMMS * L::M_BLOCKS * PARTS, REGISTERS = Wgmma::WIDTH / 2;
#pragma unroll
  for (int i = 0; i < PRODUCTS * REGISTERS; ++i)
    acc[i / REGISTERS / PARTS / L::M_BLOCKS][i / REGISTERS / PARTS % L::M_BLOCKS][i % (PARTS * REGISTERS)] = 0.0f;
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    on_block(k_block);
    barrier_wait(L::full(smem, ring.stage), ring.phase);
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
    on_stage(stage, k_block);
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
      const int part = product % PARTS, i = product / PARTS % L::M_BLOCKS, g = product / PARTS / L::M_BLOCKS;
      const uint32 a = stage + C::gemm_a(g) * L::A_BYTES + (first_row_block + i) * 8192,
                   b = stage + L::ALL_A_BYTES + C::gemm_b(g) * L::B_BYTES + part * Wgmma::WIDTH * L::LINE;
      float sum[REGISTERS];
      Wgmma::multiply(sum, matrix_descriptor(a, 16, 1024), matrix_descriptor(b, 16, 1024), false);
      wgmma_wait<0>();
      Wgmma::settle(sum);
      if (product == PRODUCTS - 1 && threadIdx.x % 32 == 0) barrier_arrive(L::empty(smem, ring.stage));
#pragma unroll
      for (int j = 0; j < REGISTERS; ++j) acc[g][i][part * REGISTERS + j] += sum[j];
    }
    ring.next();
  }
}

/// The same for matrices with scales of blocks of 32: each k-step is summed apart, and multiplied by the scales of its row and of
/// its column on the way into the sum.
template <class C, class Wgmma, class OnBlock>
VG_DEVICE void multiply_tile_scaled(float (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                                    Ring<C::STAGES>& ring, int k_blocks, int first_row_block, OnBlock on_block) {
  using L = Layout<C>;
  constexpr int PARTS = C::BLOCK_N / Wgmma::WIDTH, PRODUCTS = C::GEMMS * L::M_BLOCKS * PARTS, REGISTERS = Wgmma::WIDTH / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < PRODUCTS * REGISTERS; ++i)
    acc[i / REGISTERS / PARTS / L::M_BLOCKS][i / REGISTERS / PARTS % L::M_BLOCKS][i % (PARTS * REGISTERS)] = 0.0f;
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    on_block(k_block);
    barrier_wait(L::full(smem, ring.stage), ring.phase);
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int product = 0; product < PRODUCTS; ++product) {
        const int part = product % PARTS, i = product / PARTS % L::M_BLOCKS, g = product / PARTS / L::M_BLOCKS;
        const uint32 a = stage + C::gemm_a(g) * L::A_BYTES + (first_row_block + i) * 8192 + 32 * step,
                     b = stage + L::ALL_A_BYTES + C::gemm_b(g) * L::B_BYTES + part * Wgmma::WIDTH * L::LINE + 32 * step;
        float sum[REGISTERS];
        Wgmma::multiply(sum, matrix_descriptor(a, 16, 1024), matrix_descriptor(b, 16, 1024), false);
        const uint32 rows = stage + L::SCALES + 4 * ((4 * C::gemm_a(g) + step) * C::BLOCK_M + 64 * (first_row_block + i) + row);
        const uint32 columns = stage + L::SCALES + 16 * C::A_COUNT * C::BLOCK_M +
                               4 * ((4 * C::gemm_b(g) + step) * C::BLOCK_N + part * Wgmma::WIDTH + lane % 4 * 2);
        const float upper = load_float(rows), lower = load_float(rows + 32);
        wgmma_wait<0>();
        Wgmma::settle(sum);
#pragma unroll
        for (int j = 0; j < REGISTERS; j += 4) {
          float x, y;
          load_pair(columns + 8 * j, x, y);
          float* to = acc[g][i] + part * REGISTERS + j;
          to[0] = fmaf(sum[j] * x, upper, to[0]);
          to[1] = fmaf(sum[j + 1] * y, upper, to[1]);
          to[2] = fmaf(sum[j + 2] * x, lower, to[2]);
          to[3] = fmaf(sum[j + 3] * y, lower, to[3]);
        }
      }
    }
    if (threadIdx.x % 32 == 0) barrier_arrive(L::empty(smem, ring.stage));
    ring.next();
  }
}

/// The sum over k of one tile. `Wgmma` is generated: `multiply` issues fence, the k-steps of one 128-byte k-block, and commit as
/// one statement, on WIDTH columns; `settle` names every accumulator, so that no use of one moves above the last wait.
///   acc   of each product M_BLOCKS row blocks of 64 by BLOCK_N; register i of thread t (w = t / 32, l = t % 32) holds
///         row 16w + l/4 + 8(i/2 % 2), column 8(i/4) + 2(l % 4) + i%2
/// The newest stage stays in flight: stage s is released once the products of stage s + 1 have been issued and those of s are
/// done. `on_stage` runs when a stage is there, `on_block` when the products of a k-block have been issued, `on_issued` when all
/// have.
template <class C, class Wgmma, class OnStage, class OnBlock, class OnIssued>
VG_DEVICE void multiply_tile(typename Wgmma::Accumulator (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                             Ring<C::STAGES>& ring, int k_blocks, int first_row_block, OnStage on_stage, OnBlock on_block,
                             OnIssued on_issued) {
  using L = Layout<C>;
  const bool arriving = threadIdx.x % 32 == 0;
  int previous = 0;
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    barrier_wait(L::full(smem, ring.stage), ring.phase);  // acquires what the copy engine wrote
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
    on_stage(stage, k_block);
#pragma unroll
    for (int g = 0; g < C::GEMMS; ++g) {
      const uint32 a = stage + C::gemm_a(g) * L::A_BYTES + first_row_block * 8192,
                   b = stage + L::ALL_A_BYTES + C::gemm_b(g) * L::B_BYTES;
      // K-major: groups of 8 rows lie 1024 bytes apart. MN-major: groups of 8 k lie 1024 apart, blocks of 64 along MN 8192.
      const uint64 a_matrix = matrix_descriptor(a, C::A_K_MAJOR ? 16 : 8192, 1024);
      const uint64 b_matrix = matrix_descriptor(b, C::B_K_MAJOR ? 16 : 8192, 1024);
#pragma unroll
      for (int i = 0; i < L::M_BLOCKS; ++i) Wgmma::multiply(acc[g][i], a_matrix + i * (8192 >> 4), b_matrix, k_block != 0);
    }
    on_block(k_block);
    if (k_block != 0) {
      wgmma_wait<C::GEMMS * L::M_BLOCKS>();
      if (arriving) barrier_arrive(L::empty(smem, previous));
    }
    previous = ring.stage;
    ring.next();
  }
  on_issued();
  wgmma_wait<0>();
#pragma unroll
  for (int g = 0; g < C::GEMMS; ++g) {
#pragma unroll
    for (int i = 0; i < L::M_BLOCKS; ++i) Wgmma::settle(acc[g][i]);
  }
  if (arriving) barrier_arrive(L::empty(smem, previous));
}

}  // namespace vg
