#pragma once
#include "layout.cuh"
#include "pointwise.cuh"

namespace vg {

/// A part of an operand in global memory: where it begins, and the extents of the whole. Nothing is read where those are 0.
struct Source {
  const View& view;
  int mn, k, batch, mn_extent, k_extent;
  uint32 rows = 0;  // shared memory: where each line is found along mn, below 0 for nowhere; where the loader has a list
};

/// Of a matrix that enters the product as it is stored.
struct NoPrologue {
  static constexpr bool CONVERTS = false;
};
/// Bytes of an element in memory, by its prologue.
template <class Prologue, int INPUT_BYTES>
struct StoredBytes {
  static constexpr int VALUE = Prologue::Stored::BYTES;
};
template <int INPUT_BYTES>
struct StoredBytes<NoPrologue, INPUT_BYTES> {
  static constexpr int VALUE = INPUT_BYTES;
};

/// Loads are predicated and asynchronous: no branch, so that none waits for another. Zero where not `in`.
VG_DEVICE void load_global(Piece<1>& x, const void* from, bool in) { x.v = static_cast<uint8>(load_byte(from, in)); }
VG_DEVICE void load_global(Piece<2>& x, const void* from, bool in) { x.v = static_cast<uint16>(load_half(from, in)); }
VG_DEVICE void load_global(Piece<4>& x, const void* from, bool in) { x.v = load_word(from, in); }
VG_DEVICE void load_global(Piece<8>& x, const void* from, bool in) { load_words(x.v[0], x.v[1], from, in); }
VG_DEVICE void load_global(Piece<16>& x, const void* from, bool in) { load_words(x.v[0], x.v[1], x.v[2], x.v[3], from, in); }

/// Sixteen bytes of a line of a stage. ROUNDS: to tf32, as the copy engine does.
template <bool ROUNDS>
VG_DEVICE void store_piece(uint32 stage, int line, int column, Piece<16> x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) x.v[i] = ROUNDS ? tf32_bits(x.v[i]) : x.v[i];
  store_shared(stage + static_cast<uint32>(line * 128 + (column ^ line % 8) * 16), x);
}

/// The first `count` elements of a piece, the others zero: a loop, since it is for edges and would be much code.
template <int PIECE, int ELEMENT>
VG_DEVICE Piece<PIECE> load_part(const Piece<ELEMENT>* from, int count) {
  uint64 low = 0, high = 0;
#pragma unroll 1
  for (int e = count - 1; e >= 0; --e) {
    if (PIECE == 16) high = high << 8 * ELEMENT | low >> (64 - 8 * ELEMENT);
    low = low << 8 * ELEMENT | from[e].v;
  }
  if constexpr (PIECE == 16) {
    return {static_cast<uint32>(low), static_cast<uint32>(low >> 32), static_cast<uint32>(high), static_cast<uint32>(high >> 32)};
  } else if constexpr (PIECE == 8) {
    return {static_cast<uint32>(low), static_cast<uint32>(low >> 32)};
  } else if constexpr (PIECE == 4) {
    return {static_cast<uint32>(low)};
  } else {
    return {static_cast<uint16>(low)};
  }
}

/// Four pieces of four bytes, turned: word i gets byte i ^ flip of each.
VG_DEVICE void turn(uint32 (&w)[4], uint32 flip) {
  const uint32 first = 0x5140 ^ 0x1111 * flip, second = 0x7362 ^ 0x1111 * flip;
  const uint32 low = __byte_perm(w[0], w[1], first), high = __byte_perm(w[0], w[1], second);
  const uint32 low2 = __byte_perm(w[2], w[3], first), high2 = __byte_perm(w[2], w[3], second);
  w[0] = __byte_perm(low, low2, 0x5410);
  w[1] = __byte_perm(low, low2, 0x7632);
  w[2] = __byte_perm(high, high2, 0x5410);
  w[3] = __byte_perm(high, high2, 0x7632);
}

/// Sixteen bytes of the type that enters the product.
template <class Stage, int DEPTH>
VG_DEVICE Piece<16> packed(const float (&f)[DEPTH]) {
  Piece<16> out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Stage::BYTES == 4) {
      out.v[i] = tf32_bits(__float_as_uint(f[i]));
    } else if constexpr (Stage::BYTES == 2) {
      out.v[i] = Stage::pack(f[2 * i], f[2 * i + 1]);
    } else {
      out.v[i] = Stage::pack(f[4 * i], f[4 * i + 1]) | static_cast<uint32>(Stage::pack(f[4 * i + 2], f[4 * i + 3])) << 16;
    }
  }
  return out;
}

/// Writes one matrix's part of a stage by the 128 threads of a producer warpgroup, for matrices that no map describes (pitch or
/// base not a multiple of 16 bytes, or no contiguous dimension), that wgmma cannot read as they lie (TURNED: contiguous along M
/// or N, of a type that is read along K), or that go through a prologue. Elements beyond the edge are zeros without being read.
///
/// A task is 16 bytes of a line, or of ROWS lines where it is turned. Each thread has COUNT tasks a stage and keeps the loads of
/// DEEP of them in flight: when one is written, its registers take the task DEEP further on, of this stage or of the next one of
/// the tile.
///   LISTED  lines are found where Source::rows says
///   PIECE   bytes a load; base, pitch and batch stride are multiples of it. Pieces of one element take any strides.
template <class C, class Prologue, int LINES, bool K_MAJOR, bool TURNED, int PIECE, int BUDGET, bool LISTED = false>
class Loader {
  static constexpr int BYTES = StoredBytes<Prologue, C::INPUT_BYTES>::VALUE, DEPTH = 16 / C::INPUT_BYTES,
                       ELEMENTS = PIECE / BYTES, ROWS = TURNED ? ELEMENTS : 1, LOADS = TURNED ? DEPTH : DEPTH / ELEMENTS,
                       TASKS = LINES * 8 / ROWS, COUNT = (TASKS + 127) / 128, GROUPS = LINES / ROWS;
  static_assert(TURNED || LOADS * ELEMENTS == DEPTH);
  static_assert(!TURNED || ROWS == 1 || (!Prologue::CONVERTS && (BYTES == 4 || ROWS == 4)));
  using Element = Piece<BYTES>;
  struct Raw {
    Piece<PIECE> piece[LOADS];
  };
  struct Elements {
    Element e[DEPTH];
  };
  VG_DEVICE static constexpr int deep() {
    constexpr int REGISTERS = Prologue::CONVERTS && BUDGET < 32 ? BUDGET * 3 / 4 : BUDGET;  // converting takes some
    int most = 1;
    for (int d = 1; d <= COUNT; ++d)
      if (COUNT % d == 0 && d * LOADS * (PIECE < 4 ? 1 : PIECE / 4) <= REGISTERS) most = d;
    return most;
  }
  static constexpr int DEEP = deep();

 public:
  /// The first loads of a tile.
  VG_DEVICE void begin(const Source& first) {
#pragma unroll
    for (int i = 0; i < DEEP; ++i) load(raw_[i], i, first);
  }
  /// The stage of `now`; meanwhile the first loads of `next`.
  VG_DEVICE void write(uint32 to, const Source& now, const Source& next, const Prologue& prologue) {
#pragma unroll 1
    for (int group = 0; group < COUNT; group += DEEP) {
      const bool is_last = group + DEEP == COUNT;
      const Source ahead{now.view,
                         now.mn,
                         is_last ? next.k : now.k,
                         now.batch,
                         is_last ? next.mn_extent : now.mn_extent,
                         is_last ? next.k_extent : now.k_extent,
                         now.rows};
#pragma unroll
      for (int i = 0; i < DEEP; ++i) {
        finish(raw_[i], group + i, now, to, prologue);
        load(raw_[i], (is_last ? 0 : group + DEEP) + i, ahead);
      }
    }
  }

 private:
  struct Task {
    int line, column;
    bool in;
  };
  VG_DEVICE static Task task(int i) {
    int t = static_cast<int>(threadIdx.x) % 128 + 128 * i;
    asm volatile("" : "+r"(t));  // nothing of a task is computed ahead and kept
    return {TURNED ? t % GROUPS * ROWS : t / 8, TURNED ? t / GROUPS : t % 8, TASKS % 128 == 0 || t < TASKS};
  }

  VG_DEVICE static void load(Raw& raw, int i, const Source& s) {
    const Task t = task(i);
    // In memory: of the first load. `step`: to the next one.
    static_assert(!LISTED || (K_MAJOR && !TURNED));
    const int listed = LISTED ? static_cast<int>(__float_as_uint(load_float(s.rows + 4 * (t.in ? t.line : 0)))) : 0;
    const int outer = LISTED ? (listed < 0 ? 0 : listed) : K_MAJOR ? s.mn + t.line : s.k + t.line % 64;
    const int inner = (K_MAJOR ? s.k : s.mn + t.line / 64 * 64) + t.column * DEPTH;
    const int inner_extent = K_MAJOR ? s.k_extent : s.mn_extent, outer_extent = K_MAJOR ? s.mn_extent : s.k_extent;
    const Element* from = static_cast<const Element*>(s.view.address) + s.batch * s.view.batch_stride +
                          outer * s.view.outer_stride + inner * s.view.inner_stride;
    const int64 step = (TURNED ? 1 : ELEMENTS) * s.view.inner_stride;
    constexpr int STEP = TURNED ? 1 : ELEMENTS;  // along `inner`
    const bool whole_rows = t.in && (LISTED ? listed >= 0 && outer_extent > 0 : outer + ROWS <= outer_extent);
    bool cut = false;
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
      const int at = inner + j * STEP;
      load_global(raw.piece[j], from + j * step, whole_rows && at + STEP <= inner_extent);
      if (STEP > 1) cut = cut || (whole_rows && at < inner_extent && at + STEP > inner_extent);
    }
    if (ROWS > 1) cut = t.in && outer < outer_extent && outer + ROWS > outer_extent;
    if (ELEMENTS > 1 && cut) load_cut(raw, from, step, inner, inner_extent, outer_extent - outer);
  }

  /// A task that is cut by the edge.
  VG_DEVICE static void load_cut(Raw& raw, const Element* from, int64 step, int inner, int inner_extent, int rows) {
    if constexpr (ELEMENTS > 1) {
#pragma unroll
      for (int j = 0; j < LOADS; ++j) {
        const int left = TURNED ? (inner + j < inner_extent ? rows : 0) : inner_extent - inner - j * ELEMENTS;
        if (left > 0 && left < ELEMENTS) raw.piece[j] = load_part<PIECE>(from + j * step, left);
      }
    }
  }

  VG_DEVICE static void finish(const Raw& raw, int i, const Source& s, uint32 to, const Prologue& prologue) {
    const Task t = task(i);
    if (!t.in) return;
    if constexpr (Prologue::CONVERTS) {
      const Elements elements = __builtin_bit_cast(Elements, raw);
      const bool in = (K_MAJOR ? s.mn + t.line : s.k + t.line % 64) < (K_MAJOR ? s.mn_extent : s.k_extent);
      const int inner = (K_MAJOR ? s.k : s.mn + t.line / 64 * 64) + t.column * DEPTH, extent = K_MAJOR ? s.k_extent : s.mn_extent;
      float f[DEPTH];
#pragma unroll
      for (int e = 0; e < DEPTH; ++e) {
        const float value = prologue(Prologue::Stored::value(elements.e[e].v));
        f[e] = in && inner + e < extent ? value : 0.0f;  // of no element: nothing, whatever the steps make of 0
      }
      store(to, t, 0, packed<typename Prologue::Stage, DEPTH>(f));
    } else if constexpr (ROWS == 1) {
      store(to, t, 0, __builtin_bit_cast(Piece<16>, raw));
    } else if constexpr (BYTES == 4) {
      uint32 w[4][4];
#pragma unroll
      for (int i = 0; i < 16; ++i) w[i / 4][i % 4] = raw.piece[i / 4].v[i % 4];
      const int flip = flip_of(t);
#pragma unroll
      for (auto& piece : w) {
#pragma unroll
        for (int bit = 1; bit < 4; bit *= 2) {
          const uint32 x[4] = {piece[0], piece[1], piece[2], piece[3]};
#pragma unroll
          for (int i = 0; i < 4; ++i) piece[i] = flip & bit ? x[i ^ bit] : x[i];
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) store(to, t, r ^ flip, {w[0][r], w[1][r], w[2][r], w[3][r]});
    } else {
      const int flip = flip_of(t);
      Piece<16> lines[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        uint32 w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = raw.piece[4 * word + j].v;
        turn(w, static_cast<uint32>(flip));
#pragma unroll
        for (int r = 0; r < 4; ++r) lines[r].v[word] = w[r];
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) store(to, t, r ^ flip, lines[r]);
    }
  }
  /// Lanes have lines four apart, which lie in two of eight columns of banks: they store their four in another order each.
  VG_DEVICE static int flip_of(const Task& t) { return t.line / 8 % 4; }

  VG_DEVICE static void store(uint32 to, const Task& t, int row, Piece<16> x) {
    store_piece<C::INPUT_BYTES == 4 && !Prologue::CONVERTS>(to, t.line + row, t.column, x);
  }

  Raw raw_[DEEP];
};
/// In the place of a loader where the copy engine does its work.
struct NoLoader {};

}  // namespace vg
