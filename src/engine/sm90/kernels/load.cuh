#pragma once
#include "layout.cuh"
#include "pointwise.cuh"

namespace vg {

/// A part of an operand in global memory: where it begins, and the extents of the whole.
struct Source {
  const View& view;
  int mn, k, batch, mn_extent, k_extent;
};

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

/// Of a matrix that enters the product as it is stored.
struct NoPrologue {
  static constexpr bool CONVERTS = false;
};

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
VG_DEVICE void load_by_threads(uint32 to, const Source& s) {
  constexpr int ELEMENTS = PIECE / C::INPUT_BYTES, PIECES = 128 / PIECE;  // elements a piece, pieces a line
  constexpr int LINES_A_PASS = 128 / PIECES, PASSES = (LINES + LINES_A_PASS - 1) / LINES_A_PASS;
  constexpr int MOST = PIECE == 16 || PIECE == 1 ? 4 : 8,
                AHEAD = PASSES < MOST ? PASSES : MOST;  // loads in flight a thread; registers bound them
  using Element = Piece<C::INPUT_BYTES>;
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % PIECES;
  const Element* base = static_cast<const Element*>(s.view.address) + s.batch * s.view.batch_stride;
  const int inner_extent = K_MAJOR ? s.k_extent : s.mn_extent, outer_extent = K_MAJOR ? s.mn_extent : s.k_extent;

  for (int first = 0; first < PASSES; first += AHEAD) {
    Piece<PIECE> values[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int line = (first + i) * LINES_A_PASS + thread / PIECES;
      const int outer = K_MAJOR ? s.mn + line : s.k + line % 64;
      const int inner = (K_MAJOR ? s.k : s.mn + line / 64 * 64) + piece * ELEMENTS;
      values[i] = {};
      if (outer >= outer_extent || inner >= inner_extent) continue;
      const Element* from = base + outer * s.view.outer_stride + inner * s.view.inner_stride;
      if constexpr (ELEMENTS == 1) {
        values[i] = *from;
      } else if (inner + ELEMENTS <= inner_extent) {
        values[i] = *reinterpret_cast<const Piece<PIECE>*>(from);
      } else {
        values[i] = load_part<PIECE>(from, inner_extent - inner);
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
VG_DEVICE void load_turned(uint32 to, const Source& s) {
  constexpr int ROWS = PIECE / C::INPUT_BYTES, DEPTH = 16 / C::INPUT_BYTES, GROUPS = LINES / ROWS;
  static_assert(LINES % ROWS == 0 && (C::INPUT_BYTES == 4 || ROWS == 1 || ROWS == 4));
  using Element = Piece<C::INPUT_BYTES>;
  const Element* base = static_cast<const Element*>(s.view.address) + s.batch * s.view.batch_stride;
  for (int task = static_cast<int>(threadIdx.x); task < GROUPS * 8; task += 128) {
    const int line = task % GROUPS * ROWS, column = task / GROUPS, row = s.mn + line;
    Parts<PIECE, C::INPUT_BYTES> values[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int at = s.k + column * DEPTH + d;
      values[d] = {};
      if (at >= s.k_extent) continue;
      const Element* from = base + (ROWS == 1 ? row * s.view.outer_stride : row) + at * s.view.inner_stride;
      if (row + ROWS <= s.mn_extent) {
        values[d] = *reinterpret_cast<const Parts<PIECE, C::INPUT_BYTES>*>(from);
      } else {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) values[d].e[r] = row + r < s.mn_extent ? from[r] : Element{};
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

/// For operands with a prologue: each element through its steps, 16 bytes of a stage a thread. PIECE: bytes a load of what is
/// stored; with pieces of one element any strides. TURNED: neighbouring threads take neighbouring lines.
template <class C, class Prologue, int LINES, bool K_MAJOR, bool TURNED, int PIECE>
VG_DEVICE void load_converted(uint32 to, const Source& s, const Prologue& prologue) {
  using Stored = typename Prologue::Stored;
  using Element = Piece<Stored::BYTES>;
  constexpr int DEPTH = 16 / C::INPUT_BYTES, ELEMENTS = PIECE / Stored::BYTES, PIECES = DEPTH / ELEMENTS, TASKS = LINES * 8;
  constexpr int MOST = (PIECE >= 8 ? 4 : 8) / PIECES, AHEAD = MOST < 1 ? 1 : MOST > TASKS / 128 ? TASKS / 128 : MOST;
  static_assert(PIECES * ELEMENTS == DEPTH);
  const Element* base = static_cast<const Element*>(s.view.address) + s.batch * s.view.batch_stride;
  const int inner_extent = K_MAJOR ? s.k_extent : s.mn_extent, outer_extent = K_MAJOR ? s.mn_extent : s.k_extent;
  const auto line_of = [](int task) { return TURNED ? task % LINES : task / 8; };
  const auto column_of = [](int task) { return TURNED ? task / LINES : task % 8; };
  const auto inner_of = [&](int task) { return (K_MAJOR ? s.k : s.mn + line_of(task) / 64 * 64) + column_of(task) * DEPTH; };
  for (int first = static_cast<int>(threadIdx.x); first < TASKS; first += 128 * AHEAD) {
    Parts<PIECE, Stored::BYTES> raw[AHEAD][PIECES];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int task = first + 128 * i, line = line_of(task), outer = K_MAJOR ? s.mn + line : s.k + line % 64;
#pragma unroll
      for (int j = 0; j < PIECES; ++j) {
        const int inner = inner_of(task) + j * ELEMENTS;
        raw[i][j] = {};
        if (task >= TASKS || outer >= outer_extent || inner >= inner_extent) continue;
        const Element* from = base + outer * s.view.outer_stride + inner * s.view.inner_stride;
        if (inner + ELEMENTS <= inner_extent) {
          raw[i][j] = *reinterpret_cast<const Parts<PIECE, Stored::BYTES>*>(from);
        } else if constexpr (ELEMENTS > 1) {
          raw[i][j] = __builtin_bit_cast(Parts<PIECE, Stored::BYTES>, load_part<PIECE>(from, inner_extent - inner));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int task = first + 128 * i, line = line_of(task), inner = inner_of(task);
      if (task >= TASKS) continue;
      const bool in = (K_MAJOR ? s.mn + line : s.k + line % 64) < outer_extent;
      float f[DEPTH];
#pragma unroll
      for (int e = 0; e < DEPTH; ++e) {
        const float value = prologue(Stored::value(raw[i][e / ELEMENTS].e[e % ELEMENTS].v));
        f[e] = in && inner + e < inner_extent ? value : 0.0f;  // of no element: nothing, whatever the steps make of 0
      }
      store_shared(to + static_cast<uint32>(line * 128 + (column_of(task) ^ line % 8) * 16),
                   packed<typename Prologue::Stage, DEPTH>(f));
    }
  }
}

/// One operand's part of a stage, by threads.
template <class C, int LINES, bool K_MAJOR, bool TURNED, int PIECE, class Prologue>
VG_DEVICE void load_copied(uint32 to, const Source& source, const Prologue& prologue) {
  if constexpr (Prologue::CONVERTS) {
    load_converted<C, Prologue, LINES, K_MAJOR, TURNED, PIECE>(to, source, prologue);
  } else if constexpr (TURNED) {
    load_turned<C, LINES, PIECE>(to, source);
  } else {
    load_by_threads<C, LINES, K_MAJOR, PIECE>(to, source);
  }
}

}  // namespace vg
