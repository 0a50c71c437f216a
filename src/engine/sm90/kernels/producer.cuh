#pragma once
#include "layout.cuh"
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

/// A piece as it enters the product: fp32 is rounded to tf32, as the copy engine does it.
template <class C, int BYTES>
VG_DEVICE Piece<BYTES> entering(Piece<BYTES> x) {
  if constexpr (C::INPUT_BYTES == 4) {
    Parts<BYTES, 4> words = __builtin_bit_cast(decltype(words), x);
#pragma unroll
    for (int i = 0; i < BYTES / 4; ++i) words.e[i].v = tf32_bits(words.e[i].v);
    return __builtin_bit_cast(Piece<BYTES>, words);
  }
  return x;
}

/// The same bytes, written by the 128 threads of the producer warpgroup, for operands that no map describes: pitch or base not a
/// multiple of 16 bytes, or no contiguous dimension. Elements beyond the edge become zeros without being read.
/// PIECE: bytes a load; base, pitch and batch stride are multiples of it. Pieces of one element take any inner stride.
template <class C, int LINES, bool K_MAJOR, int PIECE>
VG_DEVICE void load_by_threads(uint32 to, const View& view, int mn, int k, int batch, int mn_extent, int k_extent) {
  constexpr int ELEMENTS = PIECE / C::INPUT_BYTES, PIECES = 128 / PIECE;  // elements a piece, pieces a line
  constexpr int LINES_A_PASS = 128 / PIECES, PASSES = (LINES + LINES_A_PASS - 1) / LINES_A_PASS;
  constexpr int MOST = PIECE == 16 || PIECE == 1 ? 4 : 8,
                AHEAD = PASSES < MOST ? PASSES : MOST;  // loads in flight a thread; registers bound them
  using Element = Piece<C::INPUT_BYTES>;
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % PIECES;
  const Element* base = static_cast<const Element*>(view.address) + batch * view.batch_stride;
  const int inner_extent = K_MAJOR ? k_extent : mn_extent, outer_extent = K_MAJOR ? mn_extent : k_extent;

  for (int first = 0; first < PASSES; first += AHEAD) {
    Piece<PIECE> values[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int line = (first + i) * LINES_A_PASS + thread / PIECES;
      const int outer = K_MAJOR ? mn + line : k + line % 64;
      const int inner = (K_MAJOR ? k : mn + line / 64 * 64) + piece * ELEMENTS;
      values[i] = {};
      if (outer >= outer_extent || inner >= inner_extent) continue;
      const Element* from = base + outer * view.outer_stride + inner * view.inner_stride;
      if constexpr (ELEMENTS == 1) {
        values[i] = *from;
      } else if (inner + ELEMENTS <= inner_extent) {
        values[i] = *reinterpret_cast<const Piece<PIECE>*>(from);
      } else {
        Parts<PIECE, C::INPUT_BYTES> parts;
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) parts.e[e] = inner + e < inner_extent ? from[e] : Element{};
        values[i] = __builtin_bit_cast(Piece<PIECE>, parts);
      }
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int line = (first + i) * LINES_A_PASS + thread / PIECES;
      if ((LINES % LINES_A_PASS != 0 || PASSES % AHEAD != 0) && line >= LINES) continue;
      store_shared(to + static_cast<uint32>(line * 128 + ((piece * PIECE) ^ (line % 8 * 16))), entering<C>(values[i]));
    }
  }
}

/// Four pieces of four bytes, turned: word i gets byte i of each.
VG_DEVICE void turn(uint32 (&w)[4]) {
  const uint32 low = __byte_perm(w[0], w[1], 0x5140), high = __byte_perm(w[0], w[1], 0x7362);
  const uint32 low2 = __byte_perm(w[2], w[3], 0x5140), high2 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low, low2, 0x5410);
  w[1] = __byte_perm(low, low2, 0x7632);
  w[2] = __byte_perm(high, high2, 0x5410);
  w[3] = __byte_perm(high, high2, 0x7632);
}

/// For operands that are contiguous along M or N, of types that wgmma reads along K only. A thread takes a piece of PIECE bytes
/// along MN at as many k as fill 16 bytes, and writes each of its lines. Pieces of one element take any strides.
template <class C, int LINES, int PIECE>
VG_DEVICE void load_turned(uint32 to, const View& view, int mn, int k, int batch, int mn_extent, int k_extent) {
  constexpr int ROWS = PIECE / C::INPUT_BYTES, DEPTH = 16 / C::INPUT_BYTES, GROUPS = LINES / ROWS;
  static_assert(LINES % ROWS == 0 && (C::INPUT_BYTES == 4 || ROWS == 1 || ROWS == 4));
  using Element = Piece<C::INPUT_BYTES>;
  const Element* base = static_cast<const Element*>(view.address) + batch * view.batch_stride;
  for (int task = static_cast<int>(threadIdx.x); task < GROUPS * 8; task += 128) {
    const int line = task % GROUPS * ROWS, column = task / GROUPS, row = mn + line;
    Parts<PIECE, C::INPUT_BYTES> values[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int at = k + column * DEPTH + d;
      values[d] = {};
      if (at >= k_extent) continue;
      const Element* from = base + (ROWS == 1 ? row * view.outer_stride : row) + at * view.inner_stride;
      if (row + ROWS <= mn_extent) {
        values[d] = *reinterpret_cast<const Parts<PIECE, C::INPUT_BYTES>*>(from);
      } else {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) values[d].e[r] = row + r < mn_extent ? from[r] : Element{};
      }
    }
    Piece<16> lines[ROWS];
    if constexpr (C::INPUT_BYTES == 4) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) lines[r].v[d] = values[d].e[r].v;
      }
    } else if constexpr (ROWS == 4) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        uint32 w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __builtin_bit_cast(Piece<4>, values[4 * word + i]).v;
        turn(w);
#pragma unroll
        for (int r = 0; r < 4; ++r) lines[r].v[word] = w[r];
      }
    } else {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        lines[0].v[word] = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) lines[0].v[word] |= static_cast<uint32>(values[4 * word + i].e[0].v) << 8 * i;
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      store_shared(to + static_cast<uint32>((line + r) * 128 + (column ^ (line + r) % 8) * 16), entering<C>(lines[r]));
  }
}

/// One operand's part of a stage, by threads.
template <class C, int LINES, bool K_MAJOR, bool TURNED, int PIECE>
VG_DEVICE void load_copied(uint32 to, const View& view, int mn, int k, int batch, int mn_extent, int k_extent) {
  if constexpr (TURNED) {
    load_turned<C, LINES, PIECE>(to, view, mn, k, batch, mn_extent, k_extent);
  } else {
    load_by_threads<C, LINES, K_MAJOR, PIECE>(to, view, mn, k, batch, mn_extent, k_extent);
  }
}

/// The producer warpgroup: fills stages in the order in which consumers read them. With maps alone one lane comes here; with a
/// copied operand all 128 threads do.
template <class C>
VG_DEVICE void produce(const Parameters& p, uint32 smem) {
  using L = Layout<C>;
  const bool leader = threadIdx.x % 128 == 0;
  Ring<C::STAGES> ring;
  if (C::PROGRAMMATIC) wait_for_previous_kernel();
  for (uint32 t = blockIdx.x; t < p.tiles; t += gridDim.x) {
    const Tile tile = tile_at(p, t);
    const int m = tile.m * C::BLOCK_M, n = tile.n * C::BLOCK_N;
    if (C::PROGRAMMATIC && t + gridDim.x >= p.tiles) let_next_kernel_start();
    for (int k_block = 0; k_block < p.k_blocks; ++k_block, ring.next()) {
      const uint32 full = L::full(smem, ring.stage), a = smem + ring.stage * L::STAGE_BYTES, b = a + L::ALL_A_BYTES;
      const int k = p.k_first + k_block * L::BLOCK_K;
      barrier_wait(L::empty(smem, ring.stage), ring.phase ^ 1);
      if (L::ANY_TMA && (leader || !L::ANY_COPIED)) {
        barrier_arrive_expect(full, L::TMA_BYTES);
        for (int i = 0; i < (L::A_COPIED ? 0 : C::A_COUNT); ++i)
          load_by_map<C, L::A_LINES, C::A_K_MAJOR>(a + i * L::A_BYTES, &p.a[i], full, m, k, tile.batch * p.a_batch_step[i]);
        for (int i = 0; i < (L::B_COPIED ? 0 : C::B_COUNT); ++i)
          load_by_map<C, L::B_LINES, C::B_K_MAJOR>(b + i * L::B_BYTES, &p.b[i], full, n, k, tile.batch * p.b_batch_step[i]);
      }
      if constexpr (L::ANY_COPIED) {
        if constexpr (L::A_COPIED)
          for (int i = 0; i < C::A_COUNT; ++i)
            load_copied<C, L::A_LINES, C::A_K_MAJOR, C::A_TURNED, C::A_PIECE>(a + i * L::A_BYTES, p.a_view[i], m, k, tile.batch,
                                                                              p.m, p.k);
        if constexpr (L::B_COPIED)
          for (int i = 0; i < C::B_COUNT; ++i)
            load_copied<C, L::B_LINES, C::B_K_MAJOR, C::B_TURNED, C::B_PIECE>(b + i * L::B_BYTES, p.b_view[i], n, k, tile.batch,
                                                                              p.n, p.k);
        fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full);
      }
    }
  }
}

}  // namespace vg
