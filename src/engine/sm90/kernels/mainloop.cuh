#pragma once
#include "cast.cuh"
#include "decode.cuh"
#include "layout.cuh"
#include "tile_scheduler.cuh"

namespace vg {

// Lane 0 of each warp gives a stage back. What its lanes have loaded from the stage by themselves (scales, an A that is decoded
// or cast) are registers of a wgmma that all of them have issued together since then, so that the loads are over; the model of
// memory that PTX has knows no such edge. A __syncwarp would be one, but ptxas serialises products around it, or spills beside
// scales.

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
  if (k_blocks == 0) return;
  // Narrow products leave little time between them: while the last one of a stage runs the next stage is waited for, and what it
  // is found by is carried along, since ptxas would form it anew behind the product.
  constexpr bool AHEAD = PRODUCTS > 1;
  constexpr uint32 STEP = L::STAGE_BYTES / 16, BACK = (C::STAGES - 1) * STEP;
  constexpr uint64 OF_MATRIX = matrix_descriptor(0, 16, 1024);
  uint32 a_low, b_low, full;
  const auto find = [&] {
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
    a_low = static_cast<uint32>(matrix_descriptor(stage + first_row_block * 8192, 16, 1024));
    b_low = static_cast<uint32>(matrix_descriptor(stage + L::ALL_A_BYTES, 16, 1024));
    full = L::full(smem, ring.stage);
    barrier_wait(full, ring.phase);
  };
  const auto descriptor = [](uint32 low) { return (OF_MATRIX & 0xffffffff00000000ull) | low; };
  if (AHEAD) find();
  int k_block = 0;
  do {
    on_block(k_block);
    if (!AHEAD) find();
    on_stage(smem + ring.stage * L::STAGE_BYTES, k_block);
    const uint32 empty = full + 8 * C::STAGES;
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
      const int part = product % PARTS, i = product / PARTS % L::M_BLOCKS, g = product / PARTS / L::M_BLOCKS;
      const uint32 a = (C::gemm_a(g) * L::A_BYTES + i * 8192) / 16,
                   b = (C::gemm_b(g) * L::B_BYTES + part * Wgmma::WIDTH * L::LINE) / 16;
      float sum[REGISTERS];
      Wgmma::multiply(sum, descriptor(a_low + a), descriptor(b_low + b), false);
      const bool is_last = product == PRODUCTS - 1;
      if (is_last) ring.next();
      if (is_last && AHEAD) {
        const bool wraps = ring.stage == 0;
        a_low = wraps ? a_low - BACK : a_low + STEP;
        b_low = wraps ? b_low - BACK : b_low + STEP;
        full = wraps ? full - 8 * (C::STAGES - 1) : full + 8;
        if (k_block + 1 != k_blocks) barrier_wait(full, ring.phase);
      }
      wgmma_wait<0>();
      Wgmma::settle(sum);
      if (is_last && threadIdx.x % 32 == 0) barrier_arrive(empty);
#pragma unroll
      for (int j = 0; j < REGISTERS; ++j) acc[g][i][part * REGISTERS + j] += sum[j];
    }
  } while (++k_block < k_blocks);
}

/// The same for matrices with scales of blocks of 32: each k-step is summed apart, and multiplied by the scales of its row and of
/// its column on the way into the sum. The product of both scales comes from the tensor cores too, as that of a column and a row
/// of bf16: an addition is one instruction then. Two sets of temporaries: while one product is added the next one runs, that of
/// the next stage too. Behind the last stage its first product begins again, for nobody.
template <class C, class Wgmma, class OnBlock>
VG_DEVICE void multiply_tile_scaled(float (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                                    Ring<C::STAGES>& ring, int k_blocks, int first_row_block, OnBlock on_block) {
  using L = Layout<C>;
  constexpr int WIDTH = Wgmma::WIDTH, PARTS = C::BLOCK_N / WIDTH, REGISTERS = WIDTH / 2;
  constexpr int TURNS = 4 * C::GEMMS * L::M_BLOCKS * PARTS;
  static_assert(TURNS % 2 == 0);
  // What a turn multiplies.
  struct Turn {
    int part, i, g, step;
    VG_DEVICE constexpr explicit Turn(int t)
        : part(t % PARTS), i(t / PARTS % L::M_BLOCKS), g(t / PARTS / L::M_BLOCKS % C::GEMMS), step(t / (TURNS / 4)) {}
    VG_DEVICE constexpr int a() const { return C::gemm_a(g) * L::A_BYTES + i * 8192 + 32 * step; }
    VG_DEVICE constexpr int b() const { return C::gemm_b(g) * L::B_BYTES + part * WIDTH * L::LINE + 32 * step; }
    VG_DEVICE constexpr int columns() const { return 16 * (C::gemm_b(g) * C::BLOCK_N + part * WIDTH); }
  };
  const uint32 lane = threadIdx.x % 32;
  const uint32 rows = L::SCALES + 16 * (64 * first_row_block + threadIdx.x / 32 % 4 * 16 + lane / 4) + 4 * (lane % 4);
  // Of a row's four scales that of one k-step, as a fragment of A holds them: two neighbours in a lane.
  const uint32 first = lane % 4 == 0 ? 0xffffu : 0, second = lane % 4 == 1 ? 0xffffu : 0;
#pragma unroll
  for (int i = 0; i < TURNS / 4 * REGISTERS; ++i)
    acc[i / REGISTERS / PARTS / L::M_BLOCKS][i / REGISTERS / PARTS % L::M_BLOCKS][i % (PARTS * REGISTERS)] = 0.0f;
  if (L::ENDS_EARLY && k_blocks == 0) return;
  float sum[2][REGISTERS], scale[2][REGISTERS];
  uint32 words[C::A_COUNT][L::M_BLOCKS][2], fragment[2][2];
  const auto load_rows = [&](uint32 stage) {
#pragma unroll
    for (int a = 0; a < C::A_COUNT; ++a) {
#pragma unroll
      for (int i = 0; i < L::M_BLOCKS; ++i) {
        words[a][i][0] = __float_as_uint(load_float(stage + rows + 16 * (a * C::BLOCK_M + 64 * i)));
        words[a][i][1] = __float_as_uint(load_float(stage + rows + 16 * (a * C::BLOCK_M + 64 * i + 8)));
      }
    }
  };
  const auto begin = [&](int turn, uint32 stage) {
    const Turn t(turn);
    const uint64 a = matrix_descriptor(stage + first_row_block * 8192, 16, 1024);
    const uint64 b = matrix_descriptor(stage + L::ALL_A_BYTES, 16, 1024);
    const uint64 c = plain_descriptor(stage + L::SCALES + 16 * C::A_COUNT * C::BLOCK_M, 0, 128);
    const uint32 mask = (t.step / 2 == 0 ? first : second) << 16 * (t.step % 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) fragment[turn % 2][i] = words[C::gemm_a(t.g)][t.i][i] & mask;
    Wgmma::multiply_scaled(sum[turn % 2], scale[turn % 2], a + (t.a() >> 4), b + (t.b() >> 4), fragment[turn % 2],
                           c + (t.columns() >> 4));
  };
  const auto settle = [&](int set) {
    Wgmma::settle(sum[set]);
    Wgmma::settle(scale[set]);
    asm volatile("" : "+r"(fragment[set][0]), "+r"(fragment[set][1]));  // no other use of its registers before
  };
  barrier_wait(L::full(smem, ring.stage), ring.phase);
  uint32 stage = smem + ring.stage * L::STAGE_BYTES;
  load_rows(stage);
  begin(0, stage);
#pragma unroll 1
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    on_block(k_block);
    Ring<C::STAGES> following = ring;
    following.next();
    const bool is_last = k_block + 1 == k_blocks;
    const uint32 next_stage = is_last ? stage : smem + following.stage * L::STAGE_BYTES;
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const Turn t(turn);
      if (turn == 0) {
        // ptxas follows a product over the end of the loop only where nothing else is in flight when it is read.
        wgmma_wait<0>();
        settle(0);
      }
      if (turn + 1 == TURNS) {
        if (!is_last) barrier_wait(L::full(smem, following.stage), following.phase);
        load_rows(next_stage);
      }
      begin((turn + 1) % TURNS, turn + 1 < TURNS ? stage : next_stage);
      if (turn != 0) {
        wgmma_wait<1>();
        settle(turn % 2);
      }
#pragma unroll
      for (int j = 0; j < REGISTERS; ++j) {
        float& to = acc[t.g][t.i][t.part * REGISTERS + j];
        to = fmaf(sum[turn % 2][j], scale[turn % 2][j], to);
      }
    }
    if (!is_last && threadIdx.x % 32 == 0) barrier_arrive(L::empty(smem, ring.stage));
    ring = following;
    stage = next_stage;
  }
  wgmma_wait<0>();
  settle(0);
  if (threadIdx.x % 32 == 0) barrier_arrive(L::empty(smem, ring.stage == 0 ? C::STAGES - 1 : ring.stage - 1));
}

/// The sum over k of one tile. `Wgmma` is generated: `multiply` issues fence, the k-steps of one 128-byte k-block, and commit as
/// one statement, on WIDTH columns; `settle` names every accumulator, so that no use of one moves above the last wait.
///   acc   of each product M_BLOCKS row blocks of 64 by BLOCK_N; register i of thread t (w = t / 32, l = t % 32) holds
///         row 16w + l/4 + 8(i/2 % 2), column 8(i/4) + 2(l % 4) + i%2
/// The newest stage stays in flight: stage s is released once the products of stage s + 1 have been issued and those of s are
/// done. `on_block` runs when the products of a k-block have been issued, `on_issued` when all have. ROWS: row blocks that are
/// multiplied, where those behind belong to nobody. `cuts`: the depth of a group ends inside of the last k-block, of which
/// `last_steps` k-steps are multiplied, apart from the others; `on_stage` runs when its stage is there.
template <class C, class Wgmma, int ROWS = Layout<C>::M_BLOCKS, class OnStage, class OnBlock, class OnIssued>
VG_DEVICE void multiply_tile(typename Wgmma::Accumulator (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                             Ring<C::STAGES>& ring, int k_blocks, int first_row_block, OnStage on_stage, OnBlock on_block,
                             OnIssued on_issued, bool cuts = false, int last_steps = 4) {
  using L = Layout<C>;
  const bool arriving = threadIdx.x % 32 == 0;
  const int whole = L::CUTS_STEPS && cuts && k_blocks != 0 ? k_blocks - 1 : k_blocks;
  int previous = 0;
  // ptxas takes long for each product that names many sums. Where they are few, a second k-block a turn saves short products 1%.
  constexpr int K_BLOCKS_A_TURN = C::GEMMS * L::M_BLOCKS * C::BLOCK_N > 128 ? 1 : 2;
#pragma unroll K_BLOCKS_A_TURN
  for (int k_block = 0; k_block < whole; ++k_block) {
    barrier_wait(L::full(smem, ring.stage), ring.phase);  // acquires what the copy engine wrote
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
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
  int last = -1;
  if constexpr (L::CUTS_STEPS) {
    if (whole != k_blocks) {
      barrier_wait(L::full(smem, ring.stage), ring.phase);
      const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
      on_stage(stage, whole);
#pragma unroll
      for (int g = 0; g < C::GEMMS; ++g) {
        const uint64 a_matrix =
            matrix_descriptor(stage + C::gemm_a(g) * L::A_BYTES + first_row_block * 8192, C::A_K_MAJOR ? 16 : 8192, 1024);
        const uint64 b_matrix =
            matrix_descriptor(stage + L::ALL_A_BYTES + C::gemm_b(g) * L::B_BYTES, C::B_K_MAJOR ? 16 : 8192, 1024);
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
          Wgmma::multiply_steps(acc[g][i], a_matrix + i * (8192 >> 4), b_matrix, last_steps, whole != 0);
      }
      on_block(whole);
      last = ring.stage;
      ring.next();
    }
  }
  on_issued();
  wgmma_wait<0>();
#pragma unroll
  for (int g = 0; g < C::GEMMS; ++g) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) Wgmma::settle(acc[g][i]);
  }
  if (arriving && (!(L::CUTS_STEPS || L::ENDS_EARLY) || whole != 0)) barrier_arrive(L::empty(smem, previous));
  if (L::CUTS_STEPS && arriving && last >= 0) barrier_arrive(L::empty(smem, last));
}

/// The stages of a tile of whose rows this consumer has none.
template <class C, class OnBlock>
VG_DEVICE void pass_tile(uint32 smem, Ring<C::STAGES>& ring, int k_blocks, OnBlock on_block) {
  for (int k_block = 0; k_block < k_blocks; ++k_block, ring.next()) {
    on_block(k_block);
    barrier_wait(Layout<C>::full(smem, ring.stage), ring.phase);
    __syncwarp();  // no lane falls behind: a parity cannot tell phase n from n + 2
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
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    barrier_wait(L::full(smem, ring.stage), ring.phase);
    const uint32 from = smem + ring.stage * L::STAGE_BYTES;
    const uint64 b_matrix = matrix_descriptor(from + L::ALL_A_BYTES, 16, 1024);
#pragma unroll
    for (int turn = 0; turn < 2 * L::M_BLOCKS; ++turn) {
      const int i = turn / 2, half = turn % 2;
      if (half == 0) part.load(from, i);
      wgmma_wait<1>();  // what read these registers last
      if (turn == 1 && k_block != 0 && arriving) barrier_arrive(L::empty(smem, previous));
      if (half == 0) part.decode_scales(block + k_block);
      part.decode(half, fragments[half]);
      // Two k-steps of 32 bytes of a line of B.
      Wgmma::multiply(acc[0][i], fragments[half], b_matrix + half * 4, k_block != 0 || half != 0);
    }
    on_block(k_block);
    previous = ring.stage;
    ring.next();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < L::M_BLOCKS; ++i) Wgmma::settle(acc[0][i]);
  if (arriving) barrier_arrive(L::empty(smem, previous));
}

/// The same of an A in bytes that the copy engine brings and consumers cast, half a k-block of 64 rows at a time: while wgmma
/// reads one half from registers, the next is cast. B is as it is stored.
template <class C, class Wgmma, class Way, class OnBlock, class OnIssued>
VG_DEVICE void multiply_tile_cast(typename Wgmma::Accumulator (&acc)[C::GEMMS][Layout<C>::M_BLOCKS][C::BLOCK_N / 2], uint32 smem,
                                  Ring<C::STAGES>& ring, int k_blocks, int first_row_block, OnBlock on_block,
                                  OnIssued on_issued) {
  using L = Layout<C>;
  constexpr int STEPS_OF_B = 2 * (C::B_K_MAJOR ? 2 : 128);  // of a descriptor's address, from half to half
  const bool arriving = threadIdx.x % 32 == 0;
  int previous = 0;
  CastPart<C, Way> part(first_row_block);
  uint32 fragments[2][8];
#pragma unroll 1
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    barrier_wait(L::full(smem, ring.stage), ring.phase);
    const uint32 stage = smem + ring.stage * L::STAGE_BYTES;
    const uint64 b_matrix = matrix_descriptor(stage + L::ALL_A_BYTES, C::B_K_MAJOR ? 16 : 8192, 1024);
#pragma unroll
    for (int turn = 0; turn < 2 * L::M_BLOCKS; ++turn) {
      const int i = turn / 2, half = turn % 2;
      part.load(stage, i, half);
      wgmma_wait<1>();  // what read these registers last
      if (turn == 1 && k_block != 0 && arriving) barrier_arrive(L::empty(smem, previous));
      part.cast(half, fragments[half]);
      Wgmma::multiply(acc[0][i], fragments[half], b_matrix + half * STEPS_OF_B, k_block != 0 || half != 0);
    }
    on_block(k_block);
    previous = ring.stage;
    ring.next();
  }
  on_issued();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < L::M_BLOCKS; ++i) Wgmma::settle(acc[0][i]);
  if (arriving) barrier_arrive(L::empty(smem, previous));
}

}  // namespace vg
