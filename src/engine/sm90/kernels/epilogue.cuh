#pragma once
#include "layout.cuh"
#include "position.cuh"
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

/// Byte of a chunk in its swizzled layout: rows of WIDTH bytes, 16-byte columns exchanged by bits of the row.
template <int WIDTH>
VG_DEVICE uint32 swizzled(int row, int byte) {
  const int mask = WIDTH == 128 ? row % 8 : WIDTH == 64 ? row / 2 % 4 : row / 4 % 2;
  return static_cast<uint32>(row * WIDTH + (byte ^ mask * 16));
}

/// One unit into its chunk, rounded once to the type of D; words of 4 bytes as they are.
template <class C, int WIDTH>
VG_DEVICE void stage_unit(uint32 chunk, int byte, const float (&x)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  if constexpr (C::OUTPUT_BYTES == 2) {
    const uint32 to = chunk + swizzled<WIDTH>(16 * warp + lane % 16, byte + lane / 16 * 16);
    if constexpr (C::OUTPUT_BF16) {
      store_matrices(to, pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
    } else {
      store_matrices(to, pack_fp16(x[0], x[1]), pack_fp16(x[2], x[3]), pack_fp16(x[4], x[5]), pack_fp16(x[6], x[7]));
    }
  } else if constexpr (C::OUTPUT_BYTES == 1) {
    int row = 16 * warp + lane / 4;
    asm volatile("" : "+r"(row));  // addresses are formed here, and not for the whole tile ahead
    const int at = byte + lane % 4 * 2;
    store_shared(chunk + swizzled<WIDTH>(row, at), Piece<2>{C::Output::pack(x[0], x[1])});
    store_shared(chunk + swizzled<WIDTH>(row + 8, at), Piece<2>{C::Output::pack(x[2], x[3])});
    store_shared(chunk + swizzled<WIDTH>(row, at + 8), Piece<2>{C::Output::pack(x[4], x[5])});
    store_shared(chunk + swizzled<WIDTH>(row + 8, at + 8), Piece<2>{C::Output::pack(x[6], x[7])});
  } else {
    const int row = 16 * warp + lane / 4, at = byte + lane % 4 * 8;
    store_shared(chunk + swizzled<WIDTH>(row, at), x[0], x[1]);
    store_shared(chunk + swizzled<WIDTH>(row + 8, at), x[2], x[3]);
    store_shared(chunk + swizzled<WIDTH>(row, at + 32), x[4], x[5]);
    store_shared(chunk + swizzled<WIDTH>(row + 8, at + 32), x[6], x[7]);
  }
}

/// A staged chunk to global memory by the 128 threads of a warpgroup, where no map describes D. PIECE: bytes a store; base, pitch
/// and batch stride are multiples of it. Pieces of one element take any inner stride.
template <class C, int WIDTH>
VG_DEVICE void store_by_threads(uint32 chunk, const View& view, int batch, int row, int col, int m, int n) {
  constexpr int PIECE = C::D_PIECE, ELEMENTS = PIECE / C::OUTPUT_BYTES, PIECES = WIDTH / PIECE;
  using Element = Piece<C::OUTPUT_BYTES>;
  Element* base = static_cast<Element*>(view.address) + batch * view.batch_stride;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  for (int i = thread; i < 64 * PIECES; i += 128) {
    const int line = i / PIECES, piece = i % PIECES, inner = col + piece * ELEMENTS;
    if (row + line >= m || inner >= n) continue;
    Piece<PIECE> value;
    load_shared(chunk + swizzled<WIDTH>(line, piece * PIECE), value);
    Element* to = base + (row + line) * view.outer_stride + inner * view.inner_stride;
    if constexpr (ELEMENTS == 1) {
      *to = value;
    } else if (inner + ELEMENTS <= n) {
      *reinterpret_cast<Piece<PIECE>*>(to) = value;
    } else {
      const auto parts = __builtin_bit_cast(Parts<PIECE, C::OUTPUT_BYTES>, value);
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) {
        if (inner + e < n) to[e] = parts.e[e];
      }
    }
  }
}

/// The columns behind the last whole 16 bytes of a row, from a staged chunk that has them. The copy engine clips a store at whole
/// pieces of 16 bytes, not at elements: it would write into the gap between rows.
template <class C, int WIDTH>
VG_DEVICE void store_tail(uint32 chunk, const Parameters& p, int batch, int row, int col) {
  constexpr int MOST = 16 / C::OUTPUT_BYTES;  // a tail is shorter
  using Element = Piece<C::OUTPUT_BYTES>;
  const int element = static_cast<int>(threadIdx.x) % MOST, column = p.d_columns + element;
  if (column >= p.n) return;
  Element* to = static_cast<Element*>(p.d_view.address) + batch * p.d_view.batch_stride + column;
  for (int line = static_cast<int>(threadIdx.x) % 128 / MOST; line < 64 && row + line < p.m; line += 128 / MOST) {
    Element value;
    load_shared(chunk + swizzled<WIDTH>(line, (column - col) * C::OUTPUT_BYTES), value);
    to[(row + line) * p.d_view.outer_stride] = value;
  }
}

/// Barrier of one consumer warpgroup.
VG_DEVICE void consumer_sync(int consumer) {
  if (consumer == 0) {
    warpgroup_sync<1>();
  } else if (consumer == 1) {
    warpgroup_sync<2>();
  } else {
    warpgroup_sync<3>();
  }
}

VG_DEVICE float as_lane(float x) { return x; }
VG_DEVICE float as_lane(int x) { return __int_as_float(x); }

/// Drains the accumulators of a tile: chain on units in registers, rounding, staging, store.
template <class C, class Epilogue>
class Drain {
  using L = Layout<C>;

 public:
  VG_DEVICE Drain(const Parameters& p, uint32 smem, int consumer)
      : p_(p), buffers_(smem + L::STAGING + consumer * C::STORE_BUFFERS * L::CHUNK_BYTES), consumer_(consumer) {}

  /// `piece`: this consumer's part of the tile.
  template <class Accumulator>
  VG_DEVICE void operator()(Accumulator (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2], Epilogue& epilogue,
                            const TilePiece& piece) {
    const int batch = piece.batch, row = piece.row, col = piece.col;
    epilogue.begin(piece);
    if constexpr (L::WHOLE_TILE_STAGED) {
      reuse<0>();
#pragma unroll
      for (int i = 0; i < L::M_BLOCKS; ++i) {
        epilogue.begin_rows();
#pragma unroll
        for (int c = 0; c < L::CHUNKS; ++c) fill(buffer(i * L::CHUNKS + c), acc, epilogue, {batch, row + 64 * i, col, i, 0}, c);
        epilogue.end_rows(i);
      }
      publish();
#pragma unroll
      for (int i = 0; i < L::M_BLOCKS; ++i) {
#pragma unroll
        for (int c = 0; c < L::CHUNKS; ++c) store(buffer(i * L::CHUNKS + c), batch, row + 64 * i, col, c);
      }
      if (leader()) bulk_commit();
    } else {
#pragma unroll
      for (int i = 0; i < L::M_BLOCKS; ++i) {
        epilogue.begin_rows();
#pragma unroll
        for (int c = 0; c < L::CHUNKS; ++c) {
          reuse<C::STORE_BUFFERS - 1>();
          fill(buffer(next_), acc, epilogue, {batch, row + 64 * i, col, i, 0}, c);
          publish();
          store(buffer(next_), batch, row + 64 * i, col, c);
          if (leader()) bulk_commit();
          // Runs on from tile to tile: with an odd number of chunks a count of each tile's own would refill a busy buffer.
          next_ = next_ + 1 == C::STORE_BUFFERS ? 0 : next_ + 1;
        }
        epilogue.end_rows(i);
      }
    }
    epilogue.end();
  }

  /// Before the block ends: its shared memory must outlive the stores that read it.
  VG_DEVICE void finish() {
    if (C::D_PIECE == 0 && leader()) bulk_wait_read<0>();
  }

 private:
  VG_DEVICE static bool leader() { return C::D_PIECE == 0 && threadIdx.x % 128 == 0; }
  VG_DEVICE uint32 buffer(int i) const { return buffers_ + i * L::CHUNK_BYTES; }

  /// All but the newest BUSY stores have read their buffers.
  template <int BUSY>
  VG_DEVICE void reuse() {
    if (leader()) bulk_wait_read<BUSY>();
    consumer_sync(consumer_);
  }
  VG_DEVICE void publish() {
    if (C::D_PIECE == 0) fence_async_proxy();
    consumer_sync(consumer_);
  }
  template <class Accumulator>
  VG_DEVICE void fill(uint32 chunk, Accumulator (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2], Epilogue& epilogue, Position at,
                      int c) {
    constexpr int UNIT_BYTES = 16 * C::OUTPUT_BYTES;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int width = chunk_width<L>(c), start = chunk_start<L>(c), first = at.col;
    at.row += 16 * warp + lane / 4;
    at.col += lane % 4 * 2;
#pragma unroll
    for (int byte = 0; byte < width; byte += UNIT_BYTES) {
      const int u = (start + byte) / UNIT_BYTES;
      // Units beyond D need no work; and a branch around each keeps ptxas from hoisting one into another, which spills.
      if (first + 16 * u >= p_.n) continue;
      float x[C::GEMMS][8];
#pragma unroll
      for (int i = 0; i < 8 * C::GEMMS; ++i) {
        x[i / 8][i % 8] = as_lane(acc[i / 8][at.block][8 * u + i % 8]);
        asm volatile("" : "+f"(x[i / 8][i % 8]));  // nothing of a unit is computed ahead of it
      }
      epilogue.unit(x, {at.batch, at.row, at.col + 16 * u, at.block, u});
      if (width == 128) stage_unit<C, 128>(chunk, byte, x[0]);
      if (width == 64) stage_unit<C, 64>(chunk, byte, x[0]);
      if (width == 32) stage_unit<C, 32>(chunk, byte, x[0]);
    }
  }
  VG_DEVICE void store(uint32 chunk, int batch, int row, int col, int c) {
    const int width = chunk_width<L>(c), first = col + chunk_start<L>(c) / C::OUTPUT_BYTES;
    if constexpr (C::D_PIECE == 0) {
      const TensorMap* map = width == 128 ? &p_.d : width == 64 ? &p_.d_half : &p_.d_quarter;
      if (leader() && first < p_.d_columns) tma_store(map, chunk, first, row, batch);
      if (p_.d_columns < p_.n && first <= p_.d_columns && p_.d_columns < first + width / C::OUTPUT_BYTES) {
        if (width == 128) store_tail<C, 128>(chunk, p_, batch, row, first);
        if (width == 64) store_tail<C, 64>(chunk, p_, batch, row, first);
        if (width == 32) store_tail<C, 32>(chunk, p_, batch, row, first);
      }
    } else {
      if (width == 128) store_by_threads<C, 128>(chunk, p_.d_view, batch, row, first, p_.m, p_.n);
      if (width == 64) store_by_threads<C, 64>(chunk, p_.d_view, batch, row, first, p_.m, p_.n);
      if (width == 32) store_by_threads<C, 32>(chunk, p_.d_view, batch, row, first, p_.m, p_.n);
    }
  }

  const Parameters& p_;
  uint32 buffers_;
  int consumer_;
  int next_ = 0;
};

}  // namespace vg
