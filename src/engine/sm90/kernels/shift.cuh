#pragma once
#include "load.cuh"

namespace vg {

/// A loader of lines that begin anywhere, as rows of an odd number of elements do. Each of the eight threads of a line of 128
/// bytes loads the aligned 16 bytes in which its piece begins, gets the rest from its neighbour, and shifts. What lies behind the
/// last thread's is a ninth load, one thread's for each line of a group. Bytes beside a line are loaded where other lines of the
/// operand lie there, and single elements elsewhere; and where elements do not follow each other.
template <class C, int LINES, bool K_MAJOR>
class ShiftLoader {
  static constexpr int BYTES = C::INPUT_BYTES, DEPTH = 16 / BYTES, COUNT = (LINES * 8 + 127) / 128;
  static constexpr int DEEP = COUNT < 4 ? COUNT : 4, GROUPS = (COUNT + DEEP - 1) / DEEP;
  using Element = Piece<BYTES>;

 public:
  /// The first loads of a tile.
  VG_DEVICE void begin(const Source& first) { load_group(0, first, is_inside(first)); }
  /// The stage of `now`; meanwhile the first loads of `next`.
  VG_DEVICE void write(uint32 to, const Source& now, const Source& next, const NoPrologue&) {
    const bool inside = is_inside(now), next_inside = is_inside(next);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      const bool is_last = group + 1 == GROUPS;
      const Source ahead{now.view,
                         now.mn,
                         is_last ? next.k : now.k,
                         now.batch,
                         is_last ? next.mn_extent : now.mn_extent,
                         is_last ? next.k_extent : now.k_extent};
      finish_group(group, now, to);
      load_group(is_last ? 0 : group + 1, ahead, is_last ? next_inside : inside);
    }
  }

 private:
  VG_DEVICE static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  VG_DEVICE static int thread() { return static_cast<int>(threadIdx.x) % 128; }  // of its warpgroup
  /// The line of a lane's piece number i of a group, and of its ninth load.
  VG_DEVICE static int line_of(int group, int i) { return 16 * (group * DEEP + i) + thread() / 8; }
  VG_DEVICE static int ninth_of(int group) { return 16 * (group * DEEP + lane() / 4) + thread() / 32 * 4 + lane() % 4; }

  /// Where a line lies in memory: its first element in the stage, and how far it reaches from there on both sides.
  struct Line {
    int outer, inner;
    VG_DEVICE Line(const Source& s, int line)
        : outer(K_MAJOR ? s.mn + line : s.k + line % 64), inner(K_MAJOR ? s.k : s.mn + line / 64 * 64) {}
    VG_DEVICE static int outer_extent(const Source& s) { return K_MAJOR ? s.mn_extent : s.k_extent; }
    VG_DEVICE static int inner_extent(const Source& s) { return K_MAJOR ? s.k_extent : s.mn_extent; }
    /// Bytes before it in its first aligned 16.
    VG_DEVICE uint32 shift(const Source& s) const {
      if (s.view.inner_stride != 1) return 0;
      const auto low = [](auto x) { return static_cast<uint32>(x); };
      return (low(reinterpret_cast<uint64>(s.view.address)) +
              low(BYTES) * (low(s.batch) * low(s.view.batch_stride) + low(outer) * low(s.view.outer_stride) + low(inner))) %
             16;
    }
  };

  /// The 16 bytes number `chunk` of a line, and how they are to be had.
  struct Chunk {
    const Element* row;
    int first, extent;  // elements along the line: the first in it, and those of the line
    bool any, whole;    // is there one, and may all be loaded at once?
    VG_DEVICE Chunk(const Source& s, int line, int chunk, bool wanted) : extent(Line::inner_extent(s)) {
      const Line l(s, line);
      const int before = static_cast<int>(l.shift(s)), rows = Line::outer_extent(s);
      first = l.inner + (16 * chunk - before) / BYTES;
      row = static_cast<const Element*>(s.view.address) + s.batch * s.view.batch_stride + l.outer * s.view.outer_stride;
      any = wanted && line < LINES && l.outer < rows && first < extent && first > -DEPTH;
      const bool has_lines = s.view.outer_stride >= DEPTH && extent >= DEPTH;
      whole = s.view.inner_stride == 1 && (first >= 0 || (has_lines && l.outer > 0)) &&
              (first + DEPTH <= extent || (has_lines && l.outer + 1 < rows));
    }
  };
  /// Element by element.
  VG_DEVICE static Piece<16> elements_of(const Chunk& c, int64 stride) {
    uint64 low = 0, high = 0;
#pragma unroll 4
    for (int e = DEPTH - 1; e >= 0; --e) {
      Element x;
      load_global(x, c.row + (c.first + e) * stride, c.first + e >= 0 && c.first + e < c.extent);
      high = high << 8 * BYTES | low >> (64 - 8 * BYTES);
      low = low << 8 * BYTES | x.v;
    }
    return {static_cast<uint32>(low), static_cast<uint32>(low >> 32), static_cast<uint32>(high), static_cast<uint32>(high >> 32)};
  }

  /// Number DEEP of a group is its ninth load.
  VG_DEVICE static Chunk chunk_of(int group, int i, const Source& s) {
    if (i < DEEP) return Chunk(s, line_of(group, i), lane() % 8, true);
    const int line = ninth_of(group);
    return Chunk(s, line, 8, lane() < 4 * DEEP && Line(s, line).shift(s) != 0);
  }
  /// May all that a stage loads be loaded at once, whatever the line?
  VG_DEVICE static bool is_inside(const Source& s) {
    constexpr int LOADED = 16 * GROUPS * DEEP;  // lines
    const bool has_lines = s.view.outer_stride >= DEPTH && Line::inner_extent(s) >= DEPTH;
    const int first = K_MAJOR ? s.k : s.mn, last = K_MAJOR ? s.k + 128 / BYTES : s.mn + LINES;
    return s.view.inner_stride == 1 && (first >= DEPTH || (has_lines && (K_MAJOR ? s.mn : s.k) > 0)) &&
           last + DEPTH <= Line::inner_extent(s) && (K_MAJOR ? s.mn + LOADED : s.k + 64) <= Line::outer_extent(s);
  }
  VG_DEVICE static const char* start_of(const Source& s, int line) {
    const Line l(s, line);
    return reinterpret_cast<const char*>(static_cast<const Element*>(s.view.address) + s.batch * s.view.batch_stride +
                                         l.outer * s.view.outer_stride + l.inner);
  }
  VG_DEVICE void load_inside(int group, const Source& s) {
    const int64 step = 16 * s.view.outer_stride * BYTES;
    const char* line = start_of(s, line_of(group, 0));
    shifts_ = 0;
    const auto load = [&](int i, const char* at, int chunk, bool wanted) {
      const uint32 q = static_cast<uint32>(reinterpret_cast<uint64>(at)) % 16;
      load_global(raw_[i], at - q + 16 * chunk, wanted);
      shifts_ |= q << 4 * i;
    };
#pragma unroll
    for (int i = 0; i < DEEP; ++i, line += step) load(i, line, lane() % 8, true);
    load(DEEP, start_of(s, ninth_of(group)), 8, lane() < 4 * DEEP);
  }
  VG_DEVICE void load_group(int group, const Source& s, bool inside) {
    if (inside) {
      load_inside(group, s);
      return;
    }
    bool slow = false;
    shifts_ = Line(s, ninth_of(group)).shift(s) << 4 * DEEP;
#pragma unroll
    for (int i = 0; i < DEEP; ++i) shifts_ |= Line(s, line_of(group, i)).shift(s) << 4 * i;
#pragma unroll
    for (int i = 0; i <= DEEP; ++i) {
      const Chunk c = chunk_of(group, i, s);
      load_global(raw_[i], c.row + c.first, c.any && c.whole);
      slow = slow || (c.any && !c.whole);
    }
    if (!slow) return;
#pragma unroll 1
    for (int i = 0; i <= DEEP; ++i) {
      const Chunk c = chunk_of(group, i, s);
      if (!c.any || c.whole) continue;
      const Piece<16> x = elements_of(c, s.view.inner_stride);
#pragma unroll
      for (int to = 0; to <= DEEP; ++to) {
        if (to == i) raw_[to] = x;
      }
    }
  }

  /// Bytes behind the end of a line are another's.
  VG_DEVICE static void cut(Piece<16>& x, const Source& s, int line, int chunk, uint32 q) {
    const int left = (Line::inner_extent(s) - Line(s, line).inner) * BYTES - (16 * chunk - static_cast<int>(q));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int bytes = left - 4 * j;
      x.v[j] = bytes >= 4 ? x.v[j] : bytes <= 0 ? 0 : x.v[j] & ((1u << 8 * bytes) - 1);
    }
  }
  /// Words turned, so that word 0 is the one in which the piece begins.
  VG_DEVICE static void turn_words(Piece<16>& x, uint32 q) {
    const bool one = q & 4, two = q & 8;
    const Piece<16> y{one ? x.v[1] : x.v[0], one ? x.v[2] : x.v[1], one ? x.v[3] : x.v[2], one ? x.v[0] : x.v[3]};
    x = {two ? y.v[2] : y.v[0], two ? y.v[3] : y.v[1], two ? y.v[0] : y.v[2], two ? y.v[1] : y.v[3]};
  }

  VG_DEVICE void finish_group(int group, const Source& s, uint32 to) {
    const int column = lane() % 8;
    const bool is_end = (Line::inner_extent(s) - (K_MAJOR ? s.k : s.mn + (LINES - 1) / 64 * 64)) * BYTES < 144;
    Piece<16> ninths = raw_[DEEP];
    if (is_end) cut(ninths, s, ninth_of(group), 8, shifts_ >> 4 * DEEP);
    turn_words(ninths, shifts_ >> 4 * DEEP);
#pragma unroll
    for (int i = 0; i < DEEP; ++i) {
      const int line = line_of(group, i);
      const uint32 q = shifts_ >> 4 * i & 15;
      Piece<16> own = raw_[i];
      if (is_end) cut(own, s, line, column, q);
      turn_words(own, q);
      uint32 word[5];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32 next = __shfl_down_sync(0xffffffffu, own.v[j], 1),
                     ninth = __shfl_sync(0xffffffffu, ninths.v[j], 4 * i + lane() / 8), behind = column == 7 ? ninth : next;
        word[j] = j + static_cast<int>(q / 4) < 4 ? own.v[j] : behind;
        if (j == 0) word[4] = behind;
      }
      Piece<16> out;
#pragma unroll
      for (int j = 0; j < 4; ++j) out.v[j] = __funnelshift_r(word[j], word[j + 1], 8 * (q % 4));
      if (line < LINES) store_piece<BYTES == 4>(to, line, column, out);
    }
  }

  Piece<16> raw_[DEEP + 1];
  uint32 shifts_ = 0;  // four bits for each
};

}  // namespace vg
