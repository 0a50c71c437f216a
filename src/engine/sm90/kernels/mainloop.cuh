#pragma once
#include "decode.cuh"
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
/// its column on the way into the sum. Two sets of temporaries, and scales asked for a turn ahead: the next product of a k-block
/// runs while one is added.
template <class C, class Wgmma, class OnBlock>
VG_DEVICE void multiply_tile_scaled(float (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                                    Ring<C::STAGES>& ring, int k_blocks, int first_row_block, OnBlock on_block) {
  using L = Layout<C>;
  constexpr int WIDTH = Wgmma::WIDTH, PARTS = C::BLOCK_N / WIDTH, REGISTERS = WIDTH / 2;
  constexpr int TURNS = 4 * C::GEMMS * L::M_BLOCKS * PARTS, AHEAD = C::GEMMS > 1 || REGISTERS < 16 ? 4 : 6;
  // What a turn multiplies, and where the scales of its rows and columns lie.
  struct Turn {
    int part, i, g, step;
    VG_DEVICE constexpr explicit Turn(int t)
        : part(t % PARTS), i(t / PARTS % L::M_BLOCKS), g(t / PARTS / L::M_BLOCKS % C::GEMMS), step(t / (TURNS / 4)) {}
    VG_DEVICE constexpr int a() const { return C::gemm_a(g) * L::A_BYTES + i * 8192 + 32 * step; }
    VG_DEVICE constexpr int b() const { return C::gemm_b(g) * L::B_BYTES + part * WIDTH * L::LINE + 32 * step; }
    VG_DEVICE constexpr int rows() const { return 4 * ((4 * C::gemm_a(g) + step) * C::BLOCK_M + 64 * i); }
    VG_DEVICE constexpr int columns() const { return 4 * ((4 * C::gemm_b(g) + step) * C::BLOCK_N + part * WIDTH); }
  };
  const uint32 lane = threadIdx.x % 32, row = 64 * first_row_block + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < TURNS / 4 * REGISTERS; ++i)
    acc[i / REGISTERS / PARTS / L::M_BLOCKS][i / REGISTERS / PARTS % L::M_BLOCKS][i % (PARTS * REGISTERS)] = 0.0f;
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    on_block(k_block);
    barrier_wait(L::full(smem, ring.stage), ring.phase);
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
    const uint64 a = matrix_descriptor(stage + first_row_block * 8192, 16, 1024);
    const uint64 b = matrix_descriptor(stage + L::ALL_A_BYTES, 16, 1024);
    const uint32 row_scales = stage + L::SCALES + 4 * row;
    const uint32 column_scales = stage + L::SCALES + 16 * C::A_COUNT * C::BLOCK_M + lane % 4 * 8;
    float sum[2][REGISTERS], column[REGISTERS / 2], next[AHEAD], next_upper = 0.0f, next_lower = 0.0f;
    const auto begin = [&](int turn) {
      const Turn t(turn);
      Wgmma::multiply(sum[turn % 2], a + (t.a() >> 4), b + (t.b() >> 4), false);
    };
    const auto ask = [&](int turn) {
      const Turn t(turn);
      if (t.part == 0) {
        next_upper = load_float(row_scales + t.rows());
        next_lower = load_float(row_scales + t.rows() + 32);
      }
#pragma unroll
      for (int j = 0; j < AHEAD; j += 2) load_pair(column_scales + t.columns() + 16 * j, next[j], next[j + 1]);
    };
    begin(0);
    ask(0);
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const Turn t(turn);
      if (turn + 1 < TURNS) {
        begin(turn + 1);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      Wgmma::settle(sum[turn % 2]);
      const float upper = next_upper, lower = next_lower;
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) column[j] = next[j];
      if (turn + 1 < TURNS) ask(turn + 1);
#pragma unroll
      for (int j = 0; j < REGISTERS; ++j) {
        if (j / 2 >= AHEAD && j % 4 == 0) load_pair(column_scales + t.columns() + 8 * j, column[j / 2], column[j / 2 + 1]);
        float& to = acc[t.g][t.i][t.part * REGISTERS + j];
        to = fmaf(sum[turn % 2][j] * column[j / 4 * 2 + j % 2], j / 2 % 2 == 0 ? upper : lower, to);
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
/// have. ROWS: row blocks that are multiplied, where those behind belong to nobody.
template <class C, class Wgmma, int ROWS = Layout<C>::M_BLOCKS, class OnStage, class OnBlock, class OnIssued>
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
      for (int i = 0; i < ROWS; ++i) Wgmma::multiply(acc[g][i], a_matrix + i * (8192 >> 4), b_matrix, k_block != 0);
    }
    on_block(k_block);
    if (k_block != 0) {
      wgmma_wait<C::GEMMS * ROWS>();
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
    for (int i = 0; i < ROWS; ++i) Wgmma::settle(acc[g][i]);
  }
  if (arriving && (!L::ENDS_EARLY || k_blocks != 0)) barrier_arrive(L::empty(smem, previous));
}

/// The stages of a tile of whose rows this consumer has none.
template <class C, class OnBlock>
VG_DEVICE void pass_tile(uint32 smem, Ring<C::STAGES>& ring, int k_blocks, OnBlock on_block) {
  for (int k_block = 0; k_block < k_blocks; ++k_block, ring.next()) {
    on_block(k_block);
    barrier_wait(Layout<C>::full(smem, ring.stage), ring.phase);
    if (threadIdx.x % 32 == 0) barrier_arrive(Layout<C>::empty(smem, ring.stage));
  }
}

/// The same of an A that consumers decode to registers, half a k-block of 64 rows at a time: while wgmma reads one half, the next
/// is decoded. `Way`: the prologue of A. `block`: the number of the first k-block.
template <class C, class Wgmma, class Way, class OnBlock>
VG_DEVICE void multiply_tile_held(typename Wgmma::Accumulator (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                                  Ring<C::STAGES>& ring, int k_blocks, int first_row_block, int block, OnBlock on_block) {
  using L = Layout<C>;
  const bool arriving = threadIdx.x % 32 == 0;
  int previous = 0;
  HeldPart<C, Way> part(first_row_block);
  uint32 fragments[2][8];
  for (int k_block = 0; k_block < k_blocks; k_block += C::JOINED) {
    barrier_wait(L::full(smem, ring.stage), ring.phase);
    uint32 from = smem + ring.stage * L::STAGE_BYTES;
#pragma unroll 1  // ptxas serialises these products where several k-blocks are one piece of code
    for (int j = 0; j < C::JOINED; ++j, from += L::BLOCK_BYTES) {
      const uint64 b_matrix = matrix_descriptor(from + L::ALL_A_BYTES, 16, 1024);
#pragma unroll
      for (int turn = 0; turn < 2 * L::M_BLOCKS; ++turn) {
        const int i = turn / 2, half = turn % 2;
        if (half == 0) part.load(from, i);
        wgmma_wait<1>();  // what read these registers last
        if (C::JOINED == 1 && turn == 1 && k_block != 0 && arriving) barrier_arrive(L::empty(smem, previous));
        if (half == 0) part.decode_scales(block + k_block + j);
        part.decode(half, fragments[half]);
        // Two k-steps of 32 bytes of a line of B.
        Wgmma::multiply(acc[0][i], fragments[half], b_matrix + half * 4, k_block + j != 0 || half != 0);
      }
      on_block(k_block + j);
    }
    if (C::JOINED > 1 && k_block != 0 && arriving) barrier_arrive(L::empty(smem, previous));
    previous = ring.stage;
    ring.next();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < L::M_BLOCKS; ++i) Wgmma::settle(acc[0][i]);
  if (arriving) barrier_arrive(L::empty(smem, previous));
}

}  // namespace vg
