#pragma once
#include "epilogue.cuh"
#include "pointwise.cuh"

namespace vg {

VG_DEVICE Target target_of(const Aux& x) { return {const_cast<void*>(x.address), x.batch_stride, x.row_stride, x.col_stride}; }

/// A reduction of one call. Partial results go to memory, one a piece; the piece that arrives last at its group's counter joins
/// them in order of rank and writes the result. The counter wraps to zero there: no launch has to clear it, and every run gives
/// the same bits.
struct Reduction {
  float* partials;   // [group][rank][element]
  uint32* counters;  // one a group
  float* out;
  int64 batch_stride, row_stride, col_stride;  // of out, in elements
  float count;                                 // elements that become one
};

// Mean and root with a correction instead of the exact ones, whose rare cases are subroutines that cost a tile its registers.
// Where the correction is no number, of 0 and infinities, there is nothing to correct.
VG_DEVICE float mean_of(float v, float count) {
  const float r = reciprocal(count), near = v * r, better = fmaf(fmaf(-near, count, v), r, near);
  return better == better ? better : near;
}
VG_DEVICE float root(float v) {
  const float near = root_approx(v), better = fmaf(fmaf(-near, near, v), 0.5f * reciprocal(near), near);
  return better == better ? better : near;
}

// What a mode does; NaN goes through all of them.
struct Add {
  static constexpr bool COUNTS = false;     // how many elements became one
  static constexpr bool ANY_ORDER = false;  // of joining has the same bits
  VG_DEVICE static float identity() { return 0.0f; }
  VG_DEVICE static float element(float x) { return x; }
  VG_DEVICE static float join(float a, float b) { return a + b; }
  VG_DEVICE static float finish(float v, float) { return v; }
};
struct Avg : Add {
  static constexpr bool COUNTS = true;
  VG_DEVICE static float finish(float v, float count) { return count > 0.0f ? mean_of(v, count) : v; }
};
struct Norm1 : Add {
  VG_DEVICE static float element(float x) { return fabsf(x); }
};
struct Norm2 : Add {
  VG_DEVICE static float element(float x) { return x * x; }
  VG_DEVICE static float finish(float v, float) { return root(v); }
};
struct Mul : Add {
  VG_DEVICE static float identity() { return 1.0f; }
  VG_DEVICE static float join(float a, float b) { return a * b; }
};
struct MulNoZeros : Mul {
  VG_DEVICE static float element(float x) { return x == 0.0f ? 1.0f : x; }
};
struct Max : Add {
  static constexpr bool ANY_ORDER = true;
  VG_DEVICE static float identity() { return __uint_as_float(0xff800000u); }
  VG_DEVICE static float join(float a, float b) { return larger(a, b); }
};
struct Min : Add {
  static constexpr bool ANY_ORDER = true;
  VG_DEVICE static float identity() { return __uint_as_float(0x7f800000u); }
  VG_DEVICE static float join(float a, float b) { return smaller(a, b); }
};
struct Amax : Max {
  VG_DEVICE static float identity() { return 0.0f; }
  VG_DEVICE static float element(float x) { return fabsf(x); }
};

VG_DEVICE float exchanged(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }

// What is reduced over one axis alone need not care for the other: rows and columns outside have results that nobody writes.

/// An element at `at` below `end`, else the identity. By masks: a condition would be a branch around each element.
template <class Mode>
VG_DEVICE float masked(float x, int at, int end) {
  const uint32 in = static_cast<uint32>((at - end) >> 31);
  return __uint_as_float((__float_as_uint(x) & in) | (__float_as_uint(Mode::identity()) & ~in));
}
template <class Mode>
VG_DEVICE float element_below(float v, int at, int end) {
  return masked<Mode>(Mode::element(v), at, end);
}

/// Over n, or over both: two running rows a thread. Columns beyond the last of D hold the identity.
template <class Mode>
VG_DEVICE void absorb_rows(float (&rows)[2], const float (&v)[8], const Parameters& p, const Position& at) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = Mode::element(v[i]);
  if (at.col + 10 > p.n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = masked<Mode>(x[i], at.col + 8 * (i / 4) + i % 2, p.n);
  }
  rows[0] = Mode::join(rows[0], Mode::join(Mode::join(x[0], x[1]), Mode::join(x[4], x[5])));
  rows[1] = Mode::join(rows[1], Mode::join(Mode::join(x[2], x[3]), Mode::join(x[6], x[7])));
}
/// Over both: what a thread has of a row block joins the one running value, of rows that lie in D.
template <class C, class Mode>
VG_DEVICE void join_rows(float& all, const float (&rows)[2], const Parameters& p, const TilePiece& t, int block) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int in_piece = 64 * block + 16 * warp + lane / 4, end = C::GROUPS > 0 ? t.end : p.m;
#pragma unroll
  for (int i = 0; i < 2; ++i) all = Mode::join(all, masked<Mode>(rows[i], place_of(t, in_piece + 8 * i), end));
}
/// Over m: the rows of a warp in four columns a unit; those of a chunk wait for fold_columns,
/// unless COUNT is 4. Rows beyond the last of D hold the
/// identity.
template <class Mode, int COUNT>
VG_DEVICE void absorb_columns(float (&columns)[COUNT], const float (&v)[8], const Position& at) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // columns 0, 1, 8, 9 of the lane's
    const int j = i % 2 + i / 2 * 4;
    columns[(COUNT == 4 ? 0 : at.place.col / 16 * 4) + i] =
        Mode::join(element_below<Mode>(v[j], at.row, at.end), element_below<Mode>(v[j + 2], at.row + at.down, at.end));
  }
}
/// Lanes that hold parts of the same COUNT columns exchange halves: each is left with half of them.
template <class Mode, int COUNT, int LANES>
VG_DEVICE void halve(float (&c)[COUNT < 2 ? 1 : COUNT / 2], const float (&from)[COUNT], int& column) {
  if constexpr (COUNT == 1) {
    c[0] = Mode::join(from[0], exchanged(from[0], LANES));
  } else {
    constexpr int LEFT = COUNT / 2;
    const bool high = threadIdx.x & LANES;
#pragma unroll
    for (int i = 0; i < LEFT; ++i)
      c[i] = Mode::join(high ? from[i + LEFT] : from[i], exchanged(high ? from[i] : from[i + LEFT], LANES));
    if (high) column += LEFT / 4 * 16 + LEFT / 2 % 2 * 8 + LEFT % 2;  // the first of the upper half
  }
}
/// The columns of some units into shared memory, as four rows, one a warp. UNITS: 1, 2, 4 or 8, the first is number `unit`.
template <class Mode, int BLOCK_N, int UNITS, int ALL>
VG_DEVICE void fold_columns(uint32 scratch, const float (&columns)[ALL], int block, int unit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  constexpr int COUNT = 4 * UNITS, LEFT = UNITS < 4 ? 1 : UNITS / 2;
  float all[COUNT], half[COUNT / 2], quarter[COUNT / 4], c[LEFT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) all[i] = columns[i];
  int column = lane % 4 * 2;
  halve<Mode, COUNT, 16>(half, all, column);
  halve<Mode, COUNT / 2, 8>(quarter, half, column);
  halve<Mode, COUNT / 4, 4>(c, quarter, column);
  if (UNITS == 1 && lane & 4) return;  // the last exchange made twins
#pragma unroll
  for (int i = 0; i < LEFT; ++i) {
    const uint32 to = scratch + 4 * (warp * BLOCK_N + 16 * unit + column + i / 2 * 8 + i % 2);
    store_float(to, block == 0 ? c[i] : Mode::join(load_float(to), c[i]));
  }
}

/// What GroupTable holds, by the scratch memory of a consumer.
template <class C>
struct GroupRows {
  using L = Layout<C>;
  uint32 table;
  VG_DEVICE explicit GroupRows(const TilePiece& t)
      : table(t.scratch - t.consumer * L::SCRATCH_BYTES + (L::BEGIN_TABLE - L::SCRATCH)) {}
  VG_DEVICE int first(int g) const { return __float_as_int(load_float(table + 4 * g)); }
  VG_DEVICE int tiles(int g) const { return __float_as_int(load_float(table + 4 * (C::GROUPS + 1 + g))); }
};

/// The pieces whose partial results become one: their number, the rank of a piece among them, how many there are, and which
/// partial result of all is their first.
struct Group {
  int group, rank, arrivals;
  int64 first;
};
template <class C, bool ROWS, bool COLS, bool BATCHES>
VG_DEVICE Group group_of(const Parameters& p, const TilePiece& t) {
  constexpr int SHARES = C::PINGPONG ? 1 : C::CONSUMERS;
  const int pieces_m = (p.m + C::BLOCK_M - 1) / C::BLOCK_M * SHARES, pieces_n = (p.n + C::BLOCK_N - 1) / C::BLOCK_N;
  if constexpr (C::GROUPS > 0 && !C::DEPTH_GROUPS) {
    // Pieces of rows are counted over all groups of rows.
    const GroupRows<C> rows(t);
    const int first = rows.tiles(t.batch) / p.tiles_n * SHARES, own = rows.tiles(t.batch + 1) / p.tiles_n * SHARES - first;
    if (!ROWS) return {first + t.m, t.n, pieces_n, int64{first + t.m} * pieces_n};
    const int m = BATCHES ? first + t.m : t.m, all = BATCHES ? rows.tiles(p.groups) / p.tiles_n * SHARES : own;
    const int group = BATCHES ? 0 : t.batch;
    const int64 base = BATCHES ? 0 : int64{first} * pieces_n;
    if (COLS) return {group, m * pieces_n + t.n, all * pieces_n, base};
    return {group * pieces_n + t.n, m, all, base + int64{t.n} * all};
  }
  Group g{0, 0, 1, 0};
  const auto axis = [&](bool over, int at, int extent) {
    if (over) {
      g.rank = g.rank * extent + at;
      g.arrivals *= extent;
    } else {
      g.group = g.group * extent + at;
    }
  };
  axis(BATCHES, t.batch, p.batches);
  axis(ROWS, t.m, pieces_m);
  axis(COLS, t.n, pieces_n);
  g.first = int64{g.group} * g.arrivals;
  return g;
}

/// Everything of one reduction between the last unit of a piece and its result. ROWS, COLS, BATCHES: it reduces over m, n, l.
template <class C, class Mode, bool ROWS, bool COLS, bool BATCHES>
struct Reducer {
  static constexpr int LENGTH = ROWS ? (COLS ? 1 : C::BLOCK_N) : C::BLOCK_M / (C::PINGPONG ? 1 : C::CONSUMERS);
  /// One value of all that a consumer drains, whichever tiles these are, joins the others once, when it has drained all.
  static constexpr bool LASTS = ROWS && COLS && BATCHES && Mode::ANY_ORDER;

  VG_DEVICE static Group group(const Parameters& p, const TilePiece& t) {
    if constexpr (LASTS) {
      const int blocks = static_cast<int>(gridDim.x), rank = static_cast<int>(blockIdx.x) * C::CONSUMERS + t.consumer;
      return {0, rank, blocks * C::CONSUMERS, 0};
    }
    return group_of<C, ROWS, COLS, BATCHES>(p, t);
  }

  VG_DEVICE static float* partial(const Reduction& r, const Group& g) { return r.partials + (g.first + g.rank) * LENGTH; }

  /// The rows of one block of 64 to memory.
  VG_DEVICE static void store_rows(const Reduction& r, const Parameters& p, const TilePiece& t, int block,
                                   const float (&rows)[2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    float* to = partial(r, group(p, t)) + 64 * block + 16 * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x = Mode::join(rows[i], exchanged(rows[i], 1));
      x = Mode::join(x, exchanged(x, 2));
      if (lane % 4 == 0) to[8 * i] = x;
    }
  }
  /// The four rows in shared memory to one in memory.
  VG_DEVICE static void store_columns(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 scratch) {
    float* to = partial(r, group(p, t));
#pragma unroll 1
    for (int c = static_cast<int>(threadIdx.x) % 128; c < C::BLOCK_N; c += 128) {
      float x = load_float(scratch + 4 * c);
      for (int w = 1; w < 4; ++w) x = Mode::join(x, load_float(scratch + 4 * (w * C::BLOCK_N + c)));
      to[c] = x;
    }
  }
  /// One value a warp, in shared memory.
  VG_DEVICE static void fold_warp(float x, uint32 words) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = Mode::join(x, exchanged(x, lanes));
    if (threadIdx.x % 32 == 0) store_float(words + threadIdx.x / 32 % 4 * 4, x);
  }
  /// The same, joined to that of the tiles before.
  VG_DEVICE static void begin_warp(uint32 words) {
    if (threadIdx.x % 32 == 0) store_float(words + threadIdx.x / 32 % 4 * 4, Mode::identity());
  }
  VG_DEVICE static void keep_warp(float x, uint32 words) {
    const uint32 own = words + threadIdx.x / 32 % 4 * 4;
    fold_warp(threadIdx.x % 32 == 0 ? Mode::join(x, load_float(own)) : x, words);
  }
  VG_DEVICE static float folded(uint32 words) {
    float x = load_float(words);
    for (int w = 1; w < 4; ++w) x = Mode::join(x, load_float(words + 4 * w));
    return x;
  }
  /// By one thread, between two fences, once all partials of the piece are written: is this the last piece of its group?
  VG_DEVICE static bool arrive(const Reduction& r, const Parameters& p, const TilePiece& t) {
    const Group g = group(p, t);
    return count_up(r.counters + g.group, g.arrivals - 1) == static_cast<uint32>(g.arrivals - 1);
  }
  VG_DEVICE static void write(const Reduction& r, float count, int batch, int row, int col, float x) {
    r.out[(BATCHES ? 0 : batch * r.batch_stride) + (ROWS ? 0 : row * r.row_stride) + (COLS ? 0 : col * r.col_stride)] =
        Mode::finish(x, count);
  }
  /// `count` partials in order, `step` apart. Loads go eight at a time: one by one each waits for the one before.
  VG_DEVICE static float joined(const float* from, int step, int count) {
    float x = Mode::identity();
#pragma unroll 1
    for (int first = 0; first < count; first += 8) {
      float next[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        next[i] = load_l2(from + static_cast<int64>(first + i) * step, first + i < count, Mode::identity());
#pragma unroll
      for (int i = 0; i < 8; ++i) x = Mode::join(x, next[i]);
    }
    return x;
  }
  VG_DEVICE static float count_of(const Reduction& r, const Parameters& p, const TilePiece& t) {
    if constexpr (Mode::COUNTS && ROWS && C::GROUPS > 0 && !C::DEPTH_GROUPS) {
      const GroupRows<C> rows(t);
      const int all = BATCHES ? rows.first(p.groups) - rows.first(0) : rows.first(t.batch + 1) - rows.first(t.batch);
      return static_cast<float>(all) * (COLS ? static_cast<float>(p.n) : 1.0f);
    }
    return r.count;
  }
  /// By the warpgroup of the last piece.
  VG_DEVICE static void finish(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 words) {
    const Group g = group(p, t);
    const float* from = r.partials + g.first * LENGTH;
    const float count = count_of(r, p, t);
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if constexpr (ROWS && COLS) {
      float x = joined(from + thread, 128, (g.arrivals - thread + 127) / 128);
      fold_warp(x, words);
      consumer_sync(t.consumer);
      if (thread == 0) write(r, count, t.batch, 0, 0, folded(words));
    } else {
#pragma unroll 1
      for (int e = thread; e < LENGTH; e += 128) {
        const float x = joined(from + e, LENGTH, g.arrivals);
        const int at = ROWS ? t.col + e : place_of(t, e);
        if (at < (ROWS ? p.n : t.end)) write(r, count, t.batch, at, at, x);
      }
    }
  }
  /// By a warpgroup of each block: what no piece writes, since a group has no row.
  VG_DEVICE static void clear_empty(const Reduction& r, const Parameters& p, const GroupRows<C>& rows) {
    if constexpr (!ROWS) return;
    const int cols = COLS ? 1 : p.n, groups = BATCHES ? 1 : p.groups;
    for (int g = static_cast<int>(blockIdx.x); g < groups; g += static_cast<int>(gridDim.x)) {
      if (rows.tiles(BATCHES ? p.groups : g + 1) != (BATCHES ? 0 : rows.tiles(g))) continue;
      for (int c = static_cast<int>(threadIdx.x) % 128; c < cols; c += 128) write(r, 0.0f, g, 0, c, Mode::identity());
    }
  }
  /// All of the output where D has no element, by block 0.
  VG_DEVICE static void clear(const Reduction& r, const Parameters& p, [[maybe_unused]] const TilePiece& t) {
    if constexpr (C::GROUPS > 0 && !C::DEPTH_GROUPS) {
      clear_empty(r, p, GroupRows<C>(t));
      return;
    }
    static_assert(ROWS || COLS);
    const int all = ROWS && COLS ? 1 : ROWS ? p.n : p.m, batches = BATCHES ? 1 : p.batches;
#pragma unroll 1
    for (int b = 0; b < batches; ++b) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x) % 128; i < all; i += 128) write(r, r.count, b, i, i, Mode::identity());
    }
  }
};

}  // namespace vg
