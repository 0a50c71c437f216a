#pragma once
#include "elements.cuh"
#include "layout.cuh"
#include "position.cuh"

namespace vg {

// A chunk is 64 rows of an output, or of an operand of its size, by as many columns as WIDTH = 128, 64 or 32 bytes hold, in
// swizzled shared memory.
//   along N   64 lines of WIDTH bytes
//   along M   for each 128 bytes of rows a block of one line a column: one block of 16-bit elements, two of 32-bit ones

/// Byte of a chunk or block with lines of `width` bytes: 16-byte columns are exchanged by bits of the line.
VG_DEVICE uint32 swizzled(int width, int line, int byte) {
  const int mask = width == 128 ? line % 8 : width == 64 ? line / 2 % 4 : line / 4 % 2;
  return static_cast<uint32>(line * width + (byte ^ mask * 16));
}
template <class T, bool ALONG_M>
VG_DEVICE uint32 element_address(uint32 chunk, int width, int row, int col) {
  if constexpr (ALONG_M)
    return chunk + static_cast<uint32>(row * T::BYTES / 128 * (width / T::BYTES) * 128) +
           swizzled(128, col, row * T::BYTES % 128);
  return chunk + swizzled(width, row, col * T::BYTES);
}
/// What a lane tells stmatrix and ldmatrix of a unit of 16-bit elements.
template <class T, bool ALONG_M>
VG_DEVICE uint32 matrix_address(const Place& at) {
  const int lane = at.lane(), warp = at.warp();
  return ALONG_M ? element_address<T, true>(at.chunk, at.width, 16 * warp + lane / 8 % 2 * 8, at.col + lane / 16 * 8 + lane % 8)
                 : element_address<T, false>(at.chunk, at.width, 16 * warp + lane % 16, at.col + lane / 16 * 8);
}
/// Element i of a thread's part of a unit.
template <class T, bool ALONG_M>
VG_DEVICE uint32 value_address(const Place& at, int i) {
  const int lane = at.lane(), warp = at.warp();
  return element_address<T, ALONG_M>(at.chunk, at.width, 16 * warp + lane / 4 + i / 2 % 2 * 8,
                                     at.col + lane % 4 * 2 + i / 4 * 8 + i % 2);
}

/// One unit into its chunk, rounded once; words of 4 bytes as they are. Bytes lie along N only.
template <class T, bool ALONG_M>
VG_DEVICE void stage(const Place& at, const float (&x)[8]) {
  if constexpr (T::BYTES == 2) {
    store_matrices<ALONG_M>(matrix_address<T, ALONG_M>(at), T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]),
                            T::pack(x[6], x[7]));
  } else if constexpr (T::BYTES == 1) {
    const int lane = at.lane();
    int row = 16 * at.warp() + lane / 4;
    asm volatile("" : "+r"(row));  // addresses are formed here, and not for the whole tile ahead
#pragma unroll
    for (int i = 0; i < 8; i += 2)
      store_shared(element_address<T, false>(at.chunk, at.width, row + i / 2 % 2 * 8, at.col + lane % 4 * 2 + i / 4 * 8),
                   Piece<2>{T::pack(x[i], x[i + 1])});
  } else if constexpr (ALONG_M) {
#pragma unroll
    for (int i = 0; i < 8; ++i) store_float(value_address<T, true>(at, i), x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i += 2) store_pair(value_address<T, false>(at, i), x[i], x[i + 1]);
  }
}

/// A unit of an operand that lies where D will, in two steps: it is asked for before it is needed.
template <class T, bool ALONG_M>
struct TileUnit {
  uint32 words[T::BYTES == 2 ? 4 : 8];
  VG_DEVICE void fetch(const Place& at) {
    if constexpr (T::BYTES == 2) {
      load_matrices<ALONG_M>(matrix_address<T, ALONG_M>(at), words);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i] = __float_as_uint(load_float(value_address<T, ALONG_M>(at, i)));
    }
  }
  VG_DEVICE void read(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      x[i] = T::value(T::BYTES == 4 ? words[i % (sizeof(words) / 4)] : i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffffu);
  }
};

/// Where the elements of an output lie in memory. Strides in elements.
struct Target {
  void* address;
  int64 batch_stride, row_stride, col_stride;
};

/// A piece of a staged line, from shared address `from`, to memory: the first `left` elements have a place there.
template <class T, int PIECE>
VG_DEVICE void store_piece(Piece<T::BYTES>* to, const Piece<PIECE>& value, uint32 from, int left) {
  if (left >= PIECE / T::BYTES) {
    *reinterpret_cast<Piece<PIECE>*>(to) = value;
    return;
  }
#pragma unroll 1
  for (int e = 0; e < left; ++e) load_shared(from + static_cast<uint32>(e * T::BYTES), to[e]);
}

/// A staged chunk along N to global memory by the 128 threads of a warpgroup, where no map describes D. PIECE: bytes a store;
/// base, pitch and batch stride are multiples of it. Pieces of one element take any inner stride. `places`: shared memory that
/// says where each line goes, or 0.
template <class T, int PIECE>
VG_DEVICE void store_by_threads(uint32 chunk, int width, const Target& to, int batch, int row, int col, int m, int n,
                                uint32 places = 0) {
  constexpr int ELEMENTS = PIECE / T::BYTES;
  const int pieces = width / PIECE;
  using Element = Piece<T::BYTES>;
  Element* base = static_cast<Element*>(to.address) + batch * to.batch_stride;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  for (int i = thread; i < 64 * pieces; i += 128) {
    const int line = i / pieces, piece = i % pieces, inner = col + piece * ELEMENTS;
    if (places == 0 && row + line >= m) break;
    const int place = places == 0 ? row + line : static_cast<int>(__float_as_uint(load_float(places + 4 * line)));
    if (place >= m || inner >= n) continue;
    const uint32 from = chunk + swizzled(width, line, piece * PIECE);
    Piece<PIECE> value;
    load_shared(from, value);
    store_piece<T>(base + place * to.row_stride + inner * to.col_stride, value, from, n - inner);
  }
}

/// The elements behind the last whole 16 bytes of a line, from a staged chunk that has them: `mapped` is the first of them. The
/// copy engine clips a store at whole pieces of 16 bytes, not at elements: it would write into the gap between lines.
template <class T, bool ALONG_M>
VG_DEVICE void store_tail(uint32 chunk, int width, const Target& to, int mapped, int batch, int row, int col, int m, int n) {
  constexpr int MOST = 16 / T::BYTES;  // a tail is shorter
  using Element = Piece<T::BYTES>;
  const int inner = mapped + static_cast<int>(threadIdx.x) % MOST, lines = ALONG_M ? width / T::BYTES : 64;
  if (inner >= (ALONG_M ? m : n)) return;
  Element* base = static_cast<Element*>(to.address) + batch * to.batch_stride;
  for (int line = static_cast<int>(threadIdx.x) % 128 / MOST; line < lines; line += 128 / MOST) {
    const int r = ALONG_M ? inner : row + line, c = ALONG_M ? col + line : inner;
    if (r >= m || c >= n) return;
    Element value;
    load_shared(element_address<T, ALONG_M>(chunk, width, r - row, c - col), value);
    base[r * to.row_stride + c * to.col_stride] = value;
  }
}

/// Elements of an extent that the copy engine stores.
template <class T>
VG_DEVICE int mapped_of(int extent) {
  return extent & -(16 / T::BYTES);
}
/// A chunk of an output by its map. `leader` is the thread that issues copies.
template <class T, bool ALONG_M>
VG_DEVICE void copy_chunk(const TensorMap* map, bool leader, uint32 chunk, int width, int batch, int row, int col, int m, int n) {
  constexpr int BLOCKS = ALONG_M ? 64 * T::BYTES / 128 : 1;
  const int mapped = mapped_of<T>(ALONG_M ? m : n);
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    const int at = (ALONG_M ? row : col) + b * (128 / T::BYTES);
    tma_store_where(leader && at < mapped, map, chunk + static_cast<uint32>(b * (width / T::BYTES) * 128), at,
                    ALONG_M ? col : row, batch);
  }
}
/// What copies of it leave, by the warpgroup's threads.
template <class T, bool ALONG_M>
VG_DEVICE void store_rest(uint32 chunk, int width, const Target& to, int batch, int row, int col, int m, int n) {
  const int first = ALONG_M ? row : col, extent = ALONG_M ? m : n, mapped = mapped_of<T>(extent);
  if (mapped != extent && first <= mapped && mapped < first + (ALONG_M ? 64 : width / T::BYTES))
    store_tail<T, ALONG_M>(chunk, width, to, mapped, batch, row, col, m, n);
}
/// Both. In one function they take fewer registers.
template <class T, bool ALONG_M>
VG_DEVICE void store_chunk(const TensorMap* map, bool leader, uint32 chunk, int width, const Target& to, int batch, int row,
                           int col, int m, int n) {
  constexpr int BLOCKS = ALONG_M ? 64 * T::BYTES / 128 : 1, PIECE = 16 / T::BYTES;
  const int first = ALONG_M ? row : col, extent = ALONG_M ? m : n, mapped = extent - extent % PIECE;
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    const int at = first + b * (128 / T::BYTES);
    if (leader && at < mapped)
      tma_store(map, chunk + static_cast<uint32>(b * (width / T::BYTES) * 128), at, ALONG_M ? col : row, batch);
  }
  if (mapped < extent && first <= mapped && mapped < first + (ALONG_M ? 64 : width / T::BYTES))
    store_tail<T, ALONG_M>(chunk, width, to, mapped, batch, row, col, m, n);
}
/// A chunk of an operand; all of its bytes count at the barrier, wherever they lie.
template <class T, bool ALONG_M>
VG_DEVICE void load_chunk(const TensorMap* map, uint32 barrier, uint32 chunk, int width, int batch, int row, int col) {
  constexpr int BLOCKS = ALONG_M ? 64 * T::BYTES / 128 : 1;
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    const int at = (ALONG_M ? row : col) + b * (128 / T::BYTES);
    tma_load(chunk + static_cast<uint32>(b * (width / T::BYTES) * 128), map, barrier, at, ALONG_M ? col : row, batch);
  }
}

}  // namespace vg
