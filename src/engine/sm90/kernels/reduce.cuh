#pragma once
#include "epilogue.cuh"
#include "pointwise.cuh"

namespace vg {

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

// What a mode does; NaN goes through all of them.
struct Add {
  VG_DEVICE static float identity() { return 0.0f; }
  VG_DEVICE static float element(float x) { return x; }
  VG_DEVICE static float join(float a, float b) { return a + b; }
  VG_DEVICE static float finish(float v, float) { return v; }
};
struct Avg : Add {
  VG_DEVICE static float finish(float v, float count) { return count > 0.0f ? v / count : v; }
};
struct Norm1 : Add {
  VG_DEVICE static float element(float x) { return fabsf(x); }
};
struct Norm2 : Add {
  VG_DEVICE static float element(float x) { return x * x; }
  VG_DEVICE static float finish(float v, float) { return sqrtf(v); }
};
struct Mul : Add {
  VG_DEVICE static float identity() { return 1.0f; }
  VG_DEVICE static float join(float a, float b) { return a * b; }
};
struct MulNoZeros : Mul {
  VG_DEVICE static float element(float x) { return x == 0.0f ? 1.0f : x; }
};
struct Max : Add {
  VG_DEVICE static float identity() { return __uint_as_float(0xff800000u); }
  VG_DEVICE static float join(float a, float b) { return max_nan(a, b); }
};
struct Min : Add {
  VG_DEVICE static float identity() { return __uint_as_float(0x7f800000u); }
  VG_DEVICE static float join(float a, float b) { return min_nan(a, b); }
};
struct Amax : Max {
  VG_DEVICE static float identity() { return 0.0f; }
  VG_DEVICE static float element(float x) { return fabsf(x); }
};

VG_DEVICE float exchanged(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }

/// A value of a unit, or the identity where it lies outside D.
template <class Mode>
VG_DEVICE float inside(float x, int i, const Parameters& p, const Position& at) {
  const bool in = at.row + 8 * (i / 2 % 2) < p.m && at.col + 8 * (i / 4) + i % 2 < p.n;
  return in ? Mode::element(x) : Mode::identity();
}

/// Over n: two running rows a thread.
template <class Mode>
VG_DEVICE void absorb_rows(float (&rows)[2], const float (&v)[8], const Parameters& p, const Position& at) {
#pragma unroll
  for (int i = 0; i < 8; ++i) rows[i / 2 % 2] = Mode::join(rows[i / 2 % 2], inside<Mode>(v[i], i, p, at));
}
/// Over both: one running value a thread.
template <class Mode>
VG_DEVICE void absorb_all(float& all, const float (&v)[8], const Parameters& p, const Position& at) {
#pragma unroll
  for (int i = 0; i < 8; ++i) all = Mode::join(all, inside<Mode>(v[i], i, p, at));
}
/// Over m: 64 rows of 16 columns become 4 rows in shared memory, one a warp. Each exchange halves the columns a lane holds.
template <class Mode, int BLOCK_N>
VG_DEVICE void absorb_columns(uint32 scratch, const float (&v)[8], const Parameters& p, const Position& at) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  float c[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // columns 0, 1, 8, 9 of the lane's
    const int x = i % 2 + i / 2 * 4;
    c[i] = Mode::join(inside<Mode>(v[x], x, p, at), inside<Mode>(v[x + 2], x + 2, p, at));
  }
  const bool high = lane & 16, odd = lane & 8;
  const float first = Mode::join(high ? c[2] : c[0], exchanged(high ? c[0] : c[2], 16));
  const float second = Mode::join(high ? c[3] : c[1], exchanged(high ? c[1] : c[3], 16));
  float x = Mode::join(odd ? second : first, exchanged(odd ? first : second, 8));
  x = Mode::join(x, exchanged(x, 4));
  if (lane & 4) return;
  const uint32 to = scratch + 4 * (warp * BLOCK_N + 16 * at.unit + lane % 4 * 2 + (odd ? 1 : 0) + (high ? 8 : 0));
  if (at.block != 0) x = Mode::join(load_float(to), x);
  store_float(to, x);
}

/// The group of a piece, its rank in it, and how many arrive there.
struct Group {
  int group, rank, arrivals;
};
template <class C, bool ROWS, bool COLS, bool BATCHES>
VG_DEVICE Group group_of(const Parameters& p, const TilePiece& t) {
  constexpr int SHARES = C::PINGPONG ? 1 : C::CONSUMERS;
  const int pieces_m = (p.m + C::BLOCK_M - 1) / C::BLOCK_M * SHARES, pieces_n = (p.n + C::BLOCK_N - 1) / C::BLOCK_N;
  Group g{0, 0, 1};
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
  return g;
}

/// Everything of one reduction between the last unit of a piece and its result. ROWS, COLS, BATCHES: it reduces over m, n, l.
template <class C, class Mode, bool ROWS, bool COLS, bool BATCHES>
struct Reducer {
  static constexpr int LENGTH = ROWS ? (COLS ? 1 : C::BLOCK_N) : C::BLOCK_M / (C::PINGPONG ? 1 : C::CONSUMERS);

  VG_DEVICE static float* partial(const Reduction& r, const Group& g) {
    return r.partials + (static_cast<int64>(g.group) * g.arrivals + g.rank) * LENGTH;
  }

  /// The rows of one block of 64 to memory.
  VG_DEVICE static void store_rows(const Reduction& r, const Parameters& p, const TilePiece& t, int block,
                                   const float (&rows)[2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    float* to = partial(r, group_of<C, ROWS, COLS, BATCHES>(p, t)) + 64 * block + 16 * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x = Mode::join(rows[i], exchanged(rows[i], 1));
      x = Mode::join(x, exchanged(x, 2));
      if (lane % 4 == 0) to[8 * i] = x;
    }
  }
  /// The four rows in shared memory to one in memory.
  VG_DEVICE static void store_columns(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 scratch) {
    float* to = partial(r, group_of<C, ROWS, COLS, BATCHES>(p, t));
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
  VG_DEVICE static float folded(uint32 words) {
    float x = load_float(words);
    for (int w = 1; w < 4; ++w) x = Mode::join(x, load_float(words + 4 * w));
    return x;
  }
  /// By one thread, once all partials of the piece are written: is this the last piece of its group?
  VG_DEVICE static bool arrive(const Reduction& r, const Parameters& p, const TilePiece& t) {
    const Group g = group_of<C, ROWS, COLS, BATCHES>(p, t);
    fence_gpu();
    const bool last = count_up(r.counters + g.group, g.arrivals - 1) == static_cast<uint32>(g.arrivals - 1);
    fence_gpu();
    return last;
  }
  VG_DEVICE static void write(const Reduction& r, int batch, int row, int col, float x) {
    r.out[(BATCHES ? 0 : batch * r.batch_stride) + (ROWS ? 0 : row * r.row_stride) + (COLS ? 0 : col * r.col_stride)] =
        Mode::finish(x, r.count);
  }
  /// By the warpgroup of the last piece.
  VG_DEVICE static void finish(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 words) {
    const Group g = group_of<C, ROWS, COLS, BATCHES>(p, t);
    const float* from = r.partials + static_cast<int64>(g.group) * g.arrivals * LENGTH;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if constexpr (ROWS && COLS) {
      float x = Mode::identity();
      for (int i = thread; i < g.arrivals; i += 128) x = Mode::join(x, load_l2(from + i));
      fold_warp(x, words);
      consumer_sync(t.consumer);
      if (thread == 0) write(r, t.batch, 0, 0, folded(words));
    } else {
      for (int e = thread; e < LENGTH; e += 128) {
        float x = Mode::identity();
        for (int i = 0; i < g.arrivals; ++i) x = Mode::join(x, load_l2(from + static_cast<int64>(i) * LENGTH + e));
        const int at = (ROWS ? t.col : t.row) + e;
        if (at < (ROWS ? p.n : p.m)) write(r, t.batch, at, at, x);
      }
    }
  }
  /// All of the output where D has no element.
  VG_DEVICE static void clear(const Reduction& r, const Parameters& p) {
    const int rows = ROWS ? 1 : p.m, cols = COLS ? 1 : p.n, batches = BATCHES ? 1 : p.batches;
    const int64 all = static_cast<int64>(batches) * rows * cols;
    for (int64 i = threadIdx.x % 128; i < all; i += 128)
      write(r, static_cast<int>(i / cols / rows), static_cast<int>(i / cols % rows), static_cast<int>(i % cols),
            Mode::identity());
  }
};

}  // namespace vg
