#pragma once
#include "epilogue.cuh"
#include "group_scheduler.cuh"
#include "pointwise.cuh"

namespace vg {

VG_DEVICE Target target_of(const Aux& x) { return {const_cast<void*>(x.address), x.batch_stride, x.row_stride, x.col_stride}; }

/// A reduction of one call. Partial results go to memory, one a piece; the piece that arrives last at its group's counter joins
/// them in order of rank and writes the result: every run gives the same bits. A piece arrives when its drain begins, and nobody
/// has a fence: a partial result that is not there yet is zero, and who joins it waits for it, leaves zero behind, and the
/// counter wraps to zero, so that no launch has to clear anything. Nobody who has arrived waits for another.
struct Reduction {
  uint32* partials;  // [group][rank][element], kept()
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
  static constexpr bool BY_BITS = false;    // what is joined is not negative, and the largest has the largest bits
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
  static constexpr bool BY_BITS = true;
  VG_DEVICE static float identity() { return 0.0f; }
  VG_DEVICE static float element(float x) { return fabsf(x); }
};

/// A partial result as it lies in memory: not zero. All ones, a NaN that no operation makes, become another one.
VG_DEVICE uint32 kept(float x) {
  const uint32 bits = ~__float_as_uint(x);
  return bits == 0 ? 1 : bits;
}

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

/// Over n, or over both: two running rows a thread, of COUNT units from that at `at` on. Columns beyond the last of D hold the
/// identity.
template <class Mode, int COUNT>
VG_DEVICE void absorb_rows(float (&rows)[2], const float (&v)[4][8], const Parameters& p, const Position& at) {
  float x[COUNT][8];
#pragma unroll
  for (int i = 0; i < 8 * COUNT; ++i) x[i / 8][i % 8] = Mode::element(v[(at.unit + i / 8) % 4][i % 8]);
  if (at.col - at.place.lane() % 4 * 2 + 16 * COUNT > p.n) {  // the same for all lanes
#pragma unroll
    for (int i = 0; i < 8 * COUNT; ++i) x[i / 8][i % 8] = masked<Mode>(x[i / 8][i % 8], at.col + 8 * (i / 4) + i % 2, p.n);
  }
#pragma unroll
  for (const auto& u : x) {
    rows[0] = Mode::join(rows[0], Mode::join(Mode::join(u[0], u[1]), Mode::join(u[4], u[5])));
    rows[1] = Mode::join(rows[1], Mode::join(Mode::join(u[2], u[3]), Mode::join(u[6], u[7])));
  }
}
/// Over both: what a thread has of a row block joins the one running value, of rows that lie in D.
template <class C, class Mode>
VG_DEVICE void join_rows(float& all, const float (&rows)[2], const Parameters& p, const TilePiece& t, int block) {
  const int lane = t.lane(), warp = t.warp();
  const int in_piece = 64 * block + 16 * warp + lane / 4, end = C::GROUPS > 0 ? t.end : p.m;
#pragma unroll
  for (int i = 0; i < 2; ++i) all = Mode::join(all, masked<Mode>(rows[i], place_of(t, in_piece + 8 * i), end));
}
/// Over m: the rows of a warp in four columns a unit, of COUNT that are folded at once, from number `first` on. With WHOLE they
/// wait for those of the other row blocks. Rows beyond the last of D hold the identity.
template <class Mode, bool WHOLE, int COUNT>
VG_DEVICE void absorb_columns(float (&columns)[COUNT], const float (&v)[8], const Position& at, int first) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // columns 0, 1, 8, 9 of the lane's
    const int j = i % 2 + i / 2 * 4;
    const float x =
        Mode::join(element_below<Mode>(v[j], at.row, at.end), element_below<Mode>(v[j + 2], at.row + at.down, at.end));
    float& to = columns[first + i];
    to = WHOLE && at.block > 0 ? Mode::join(to, x) : x;
  }
}
/// Of a unit that is not drained: nothing of the one before is kept for it.
template <class Mode, bool WHOLE, int COUNT>
VG_DEVICE void pass_columns(float (&columns)[COUNT], int block, int unit) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (!WHOLE || block == 0) columns[4 * unit % COUNT + i] = Mode::identity();
}
/// Lanes that hold parts of the same COUNT columns exchange halves: each is left with half of them.
template <class Mode, int COUNT, int LANES>
VG_DEVICE void halve(float (&c)[COUNT < 2 ? 1 : COUNT / 2], const float (&from)[COUNT], int& column, uint32 thread) {
  if constexpr (COUNT == 1) {
    c[0] = Mode::join(from[0], exchanged(from[0], LANES));
  } else {
    constexpr int LEFT = COUNT / 2;
    const bool high = thread & LANES;
#pragma unroll
    for (int i = 0; i < LEFT; ++i)
      c[i] = Mode::join(high ? from[i + LEFT] : from[i], exchanged(high ? from[i] : from[i + LEFT], LANES));
    if (high) column += LEFT / 4 * 16 + LEFT / 2 % 2 * 8 + LEFT % 2;  // the first of the upper half
  }
}
/// The columns of some units into shared memory, as four rows, one a warp. UNITS: 1, 2, 4 or 8, the first is number `unit`.
template <class Mode, int BLOCK_N, int UNITS, int FIRST = 0, int ALL>
VG_DEVICE void fold_columns(uint32 scratch, const float (&columns)[ALL], int block, int unit, uint32 thread) {
  const int lane = static_cast<int>(thread % 32), warp = static_cast<int>(thread / 32);
  constexpr int COUNT = 4 * UNITS, LEFT = UNITS < 4 ? 1 : UNITS / 2;
  float all[COUNT], half[COUNT / 2], quarter[COUNT / 4], c[LEFT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) all[i] = columns[4 * FIRST + i];
  int column = lane % 4 * 2;
  halve<Mode, COUNT, 16>(half, all, column, thread);
  halve<Mode, COUNT / 2, 8>(quarter, half, column, thread);
  halve<Mode, COUNT / 4, 4>(c, quarter, column, thread);
  if (UNITS == 1 && lane & 4) return;  // the last exchange made twins
#pragma unroll
  for (int i = 0; i < LEFT; ++i) {
    const uint32 to = scratch + 4 * (warp * BLOCK_N + 16 * unit + column + i / 2 * 8 + i % 2);
    store_float(to, block == 0 ? c[i] : Mode::join(load_float(to), c[i]));
  }
}

/// The first LEFT units of these, behind FIRST of them.
template <class Mode, int BLOCK_N, int LEFT, int FIRST = 0, int ALL>
VG_DEVICE void fold_some_columns(uint32 scratch, const float (&columns)[ALL], int block, int unit, uint32 thread) {
  constexpr int UNITS = LEFT >= 8 ? 8 : LEFT >= 4 ? 4 : LEFT >= 2 ? 2 : 1;
  fold_columns<Mode, BLOCK_N, UNITS, FIRST>(scratch, columns, block, unit + FIRST, thread);
  if constexpr (LEFT > UNITS)
    fold_some_columns<Mode, BLOCK_N, LEFT - UNITS, FIRST + UNITS>(scratch, columns, block, unit, thread);
}

/// How many units of a flavor's column reductions are folded at once.
template <class C>
struct Folds {
  static constexpr int M_BLOCKS = Layout<C>::M_BLOCKS;
  // Of one reduction of columns behind a plain drain: all of two row blocks, or where registers are few two units, so that lanes
  // wait less for each other.
  static constexpr bool PLAIN = C::RUN_BYTES == 0 && C::QUANTISED_COLUMNS == 0 && C::GEMMS == 1 && C::COLUMN_REDUCTIONS == 1;
  static constexpr bool WHOLE = PLAIN && M_BLOCKS == 2 && C::BLOCK_N <= 128;
  static constexpr bool BEHIND = WHOLE || (PLAIN && M_BLOCKS * C::BLOCK_N > 256);
  // Others by themselves, or those of a chunk.
  static constexpr bool SINGLE = !BEHIND && C::GEMMS * M_BLOCKS * C::BLOCK_N > 256;
  static constexpr int UNITS = WHOLE ? C::BLOCK_N / 16 : BEHIND ? 2 : SINGLE ? 1 : 8 / C::Output::BYTES;
  /// Units behind which a drain calls end_units.
  static constexpr int STEP = C::QUANTISED_COLUMNS > 0 ? C::QUANTISED_COLUMNS / 16 : BEHIND ? UNITS : 0;

  /// Where unit number `unit` has its place among those that are folded with it; `col` is its first in the chunk.
  VG_DEVICE static int first_of(int unit, int col) { return 4 * (BEHIND ? unit % UNITS : SINGLE ? 0 : col / 16); }
  /// Behind unit number `unit`, drained or not, where it is the last of UNITS, or of the tile; with WHOLE of its last row block.
  template <class Mode>
  VG_DEVICE static void fold_behind(uint32 scratch, const float (&columns)[4 * UNITS], int block, int unit, uint32 thread) {
    constexpr int REST = C::BLOCK_N / 16 % UNITS;
    if (WHOLE && block != M_BLOCKS - 1) return;
    if (unit % UNITS == UNITS - 1)
      fold_some_columns<Mode, C::BLOCK_N, UNITS>(scratch, columns, WHOLE ? 0 : block, unit / UNITS * UNITS, thread);
    else if (REST != 0 && unit == C::BLOCK_N / 16 - 1)
      fold_some_columns<Mode, C::BLOCK_N, REST == 0 ? 1 : REST>(scratch, columns, WHOLE ? 0 : block, unit / UNITS * UNITS,
                                                                thread);
  }
};

/// What GroupTable holds, by the scratch memory of a consumer.
template <class C>
struct GroupRows {
  using L = Layout<C>;
  uint32 table;
  VG_DEVICE explicit GroupRows(const TilePiece& t)
      : table(t.scratch - t.consumer * L::SCRATCH_BYTES + (L::BEGIN_TABLE - L::SCRATCH)) {}
  VG_DEVICE int first(int g) const { return __float_as_int(load_float(table + 4 * g)); }
  VG_DEVICE int tiles(int g) const { return __float_as_int(load_float(table + 4 * (C::GROUPS + 1 + g))); }
  VG_DEVICE int shift(int g) const {
    return __float_as_int(load_float(table + 4 * (2 * (C::GROUPS + 1) + L::THREADS / 32 + (C::CLAIMS ? 6 : 0) + g)));
  }
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

  VG_DEVICE static uint32* partial(const Reduction& r, const Group& g) { return r.partials + (g.first + g.rank) * LENGTH; }

  /// The rows of one block of 64 to memory.
  VG_DEVICE static void store_rows(const Reduction& r, const Parameters& p, const TilePiece& t, int block,
                                   const float (&rows)[2]) {
    const int lane = t.lane(), warp = t.warp();
    uint32* to = partial(r, group(p, t)) + 64 * block + 16 * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x = Mode::join(rows[i], exchanged(rows[i], 1));
      x = Mode::join(x, exchanged(x, 2));
      if (lane % 4 == 0) store_l2(to + 8 * i, kept(x));
    }
  }
  /// The four rows in shared memory to one in memory.
  VG_DEVICE static void store_columns(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 scratch) {
    uint32* to = partial(r, group(p, t));
#pragma unroll 1
    for (int c = static_cast<int>(t.thread); c < C::BLOCK_N; c += 128) {
      float x = load_float(scratch + 4 * c);
      for (int w = 1; w < 4; ++w) x = Mode::join(x, load_float(scratch + 4 * (w * C::BLOCK_N + c)));
      store_l2(to + c, kept(x));
    }
  }
  /// The words of all warps, by one thread.
  VG_DEVICE static void store_folded(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 words) {
    store_l2(partial(r, group(p, t)), kept(folded(words)));
  }
  /// One value a warp, in shared memory.
  VG_DEVICE static void fold_warp(float x, uint32 words) {
    if constexpr (Mode::BY_BITS) {
      x = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(x)));
    } else {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) x = Mode::join(x, exchanged(x, lanes));
    }
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
  /// When the piece will soon be written and waits for no other before. One thread knows how many arrived before it, once memory
  /// has said it.
  VG_DEVICE static uint32 arrive(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 words) {
    const Group g = group(p, t);
    const auto others = static_cast<uint32>(g.arrivals - 1);
    if (threadIdx.x % 128 == 0) store_float(words + 24, __uint_as_float(others));
    return count_up(r.counters + g.group, others, threadIdx.x % 128 == 0);
  }
  /// By that thread: to the others, whether this is the last piece of its group.
  VG_DEVICE static void tell(uint32 before, uint32 words) {
    store_float(words + 16, before == __float_as_uint(load_float(words + 24)) ? 1.0f : 0.0f);
  }
  VG_DEVICE static void write(const Reduction& r, float count, int batch, int row, int col, float x) {
    r.out[(BATCHES ? 0 : batch * r.batch_stride) + (ROWS ? 0 : row * r.row_stride) + (COLS ? 0 : col * r.col_stride)] =
        Mode::finish(x, count);
  }
  /// Is it so for any thread of the warpgroup? Of what comes from shared memory ptxas knows that all threads have the same: by a
  /// vote or a loop of each thread's own it would lose that they go together, in the whole kernel.
  VG_DEVICE static bool any(bool x, int consumer, uint32 word) {
    consumer_sync(consumer);
    if (threadIdx.x % 128 == 0) store_float(word, 0.0f);
    consumer_sync(consumer);
    if (x) store_float(word, 1.0f);
    consumer_sync(consumer);
    return load_float(word) != 0.0f;
  }
  /// WIDTH elements of `count` partials, `step` apart, joined in order once all of them are there; zeros stay behind. `most` is
  /// as many as any thread has. Loads go AT_ONCE: one by one each waits for the one before.
  template <int WIDTH>
  VG_DEVICE static void take(float (&x)[WIDTH], uint32* from, int step, int count, int most, int consumer, uint32 words) {
    static_assert(WIDTH == 1 || WIDTH == 4);
    constexpr int AT_ONCE = C::GROUPS > 0 || C::REDUCTIONS > 2 ? 4 : 8;  // else the kernel is long enough
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (float& e : x) e = Mode::identity();
#pragma unroll 1
      for (int first = 0; first < most; first += AT_ONCE) {
        uint32 next[AT_ONCE][WIDTH];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          const uint32* at = from + static_cast<int64>(first + i) * step;
          const bool in = first + i < count;
#pragma unroll
          for (uint32& e : next[i]) e = kept(Mode::identity());
          if constexpr (WIDTH == 1)
            next[i][0] = load_l2(at, in, next[i][0]);
          else
            load_l2(at, in, next[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
          for (int e = 0; e < WIDTH; ++e) {
            missing = missing || next[i][e] == 0;
            x[e] = Mode::join(x[e], __uint_as_float(~next[i][e]));
          }
        }
      }
    } while (any(missing, consumer, words + 20));
#pragma unroll 1
    for (int i = 0; i < most; ++i) {
      if (i >= count) continue;
      if constexpr (WIDTH == 1)
        store_l2(from + static_cast<int64>(i) * step, 0);
      else
        store_l2_of_4(from + static_cast<int64>(i) * step, 0);
    }
  }
  VG_DEVICE static int sum_of_consumer(int x, int consumer, uint32 words) {
    const int sum = sum_of_warp(x);
    if (threadIdx.x % 32 == 0) store_float(words + threadIdx.x / 32 % 4 * 4, __int_as_float(sum));
    consumer_sync(consumer);
    int all = 0;
    for (int w = 0; w < 4; ++w) all += __float_as_int(load_float(words + 4 * w));
    consumer_sync(consumer);
    return all;
  }
  VG_DEVICE static float count_of(const Reduction& r, const Parameters& p, const TilePiece& t, [[maybe_unused]] uint32 words) {
    if constexpr (Mode::COUNTS && ROWS && C::GROUPS > 0 && !C::DEPTH_GROUPS) {
      const GroupRows<C> rows(t);
      const int first = rows.first(BATCHES ? 0 : t.batch), end = rows.first(BATCHES ? p.groups : t.batch + 1);
      int all = end - first;
      if constexpr (C::GATHERS || C::SCATTERS) {  // of those the ones with a token
        int own = 0;
#pragma unroll 4
        for (int row = first + static_cast<int>(t.thread); row < end; row += 128)
          own += place_of_token<C>(p, row, false) != NO_PLACE ? 1 : 0;
        all = sum_of_consumer(own, t.consumer, words);
      }
      return static_cast<float>(all) * (COLS ? static_cast<float>(p.n) : 1.0f);
    }
    return r.count;
  }
  /// By the warpgroup of the last piece.
  VG_DEVICE static void finish(const Reduction& r, const Parameters& p, const TilePiece& t, uint32 words) {
    const Group g = group(p, t);
    uint32* from = r.partials + g.first * LENGTH;
    const float count = count_of(r, p, t, words);
    const int thread = static_cast<int>(t.thread);
    if constexpr (ROWS && COLS) {
      float x[1];
      take(x, from + thread, 128, (g.arrivals - thread + 127) / 128, (g.arrivals + 127) / 128, t.consumer, words);
      fold_warp(x[0], words);
      consumer_sync(t.consumer);
      if (thread == 0) write(r, count, t.batch, 0, 0, folded(words));
    } else {
      // A warp has 32 elements, eight lanes four each, and of the partials eight lanes a quarter.
      const int each = (g.arrivals + 3) / 4, part = thread / 8 % 4;
#pragma unroll 1
      for (int first = 0; first < LENGTH; first += 128) {
        const int quad = first + thread / 32 * 32 + thread % 8 * 4, own = quad < LENGTH ? g.arrivals - part * each : 0;
        float x[4];
        take(x, from + int64{part} * each * LENGTH + quad, LENGTH, own < each ? own : each, each, t.consumer, words);
#pragma unroll
        for (int lanes = 8; lanes < 32; lanes *= 2) {
#pragma unroll
          for (float& e : x) e = Mode::join(e, exchanged(e, lanes));
        }
        if (quad < LENGTH) {  // else it has no place either
          const int e = quad + part, at = ROWS ? t.col + e : place_of(t, e);
          const float own_x = part < 2 ? (part == 0 ? x[0] : x[1]) : part == 2 ? x[2] : x[3];
          if (at < (ROWS ? p.n : t.end)) write(r, count, t.batch, at, at, own_x);
        }
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
