#pragma once
#include "narrow.cuh"

namespace vg {

// Blocks of a row or a column that become narrow elements and a scale.

/// Two values of two lanes become one: of the lane without that bit of its number the first of both, of the other the second.
VG_DEVICE float larger_of_halves(float first, float second, int bit) {
  const bool is_second = (threadIdx.x & static_cast<unsigned>(bit)) != 0;
  return larger(is_second ? second : first, __shfl_xor_sync(0xffffffffu, is_second ? first : second, bit));
}

/// Scales of neighbouring blocks, of which there are `left`. Where they lie in atoms EACH of them are one piece, if the first
/// atom is aligned. BRANCHES: around stores, which takes fewer registers than a predicate for each.
template <bool INTERLEAVED, int EACH, bool BRANCHES = true>
VG_DEVICE void store_scales(char* row, int64 stride, const uint32 (&stored)[EACH], uint32 first, int left) {
  const bool whole = INTERLEAVED && EACH > 1 && left >= EACH && reinterpret_cast<uint64>(row) % EACH == 0;
  char* const to = row + (int64{first / 4} * 512 + first % 4);
  const auto place = [&](int e) {
    const uint32 block = first + e;
    return row + (INTERLEAVED ? int64{block / 4} * 512 + block % 4 : block * stride);
  };
  if constexpr (BRANCHES) {
    if (whole) {
      if constexpr (EACH == 2)
        store_u16(to, static_cast<uint16>(stored[0] | stored[1] << 8));
      else if constexpr (EACH == 4)
        store_u32(to, stored[0] | stored[1] << 8 | stored[2] << 16 | stored[3] << 24);
      return;
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (e < left) store_u8(place(e), stored[e]);
  } else {
    if constexpr (INTERLEAVED && EACH == 2) store_u16_where(whole, to, stored[0] | stored[1] << 8);
    if constexpr (INTERLEAVED && EACH == 4)
      store_u32_where(whole, to, stored[0] | stored[1] << 8 | stored[2] << 16 | stored[3] << 24);
#pragma unroll
    for (int e = 0; e < EACH; ++e) store_u8_where(e < left && !whole, place(e), stored[e]);
  }
}

/// work(count) where `unit` of UNITS is the last of `count` that come at once: of GROUP, or of four or two of the rest.
template <int UNITS, int GROUP, class Work>
VG_DEVICE void end_of_group(int unit, const Work& work) {
  const auto end = [&](auto count) {
    if (unit % count == count - 1) work(count);
  };
  if (UNITS % GROUP == 0 || unit / GROUP * GROUP + GROUP <= UNITS)
    end(Constant<GROUP>{});
  else if (GROUP > 4 && unit / 4 * 4 + 4 <= UNITS)
    end(Constant<4>{});
  else
    end(Constant<2>{});
}

/// Where this warp's part of a quantiser's shared memory begins: it may store elements through it. With quantisers by columns it
/// is the part that they have.
template <int GROUP, bool COLUMNS>
VG_DEVICE uint32 own_words() {
  return threadIdx.x / 32 % 4 * ((COLUMNS ? 512 : 256) * GROUP);
}

/// Of rows that are not those of groups (GroupRows).
struct NoGroupRows {
  VG_DEVICE int first(int) const { return 0; }
  VG_DEVICE int shift(int) const { return 0; }
};

/// One quantised output, by blocks along N. Units come in pairs, which are one block of 32 or two of 16 in each row; of the first
/// UNITS of a tile GROUP of them come at once, since they need not wait for each other's lanes, and of others four where there
/// are as many. Of every PART columns of the product it has one. BY_GROUP: rows of each group begin an atom of their own.
template <class Elements, class Stored, int BLOCK, bool INTERLEAVED, int PART, int UNITS, int GROUP, int HELD, bool COLUMNS_TOO,
          bool THROUGH, bool BY_GROUP = false>
struct Quantiser {
  float held[HELD][8];  // the units of a group
  NarrowStore<Elements, THROUGH> out;
  char* scale;  // of this lane's row, from the first block of the row on
  float most;   // of all magnitudes so far; for an amax beside it, which sets it to 0

  template <int CONSUMERS>
  VG_DEVICE static void pad(const Aux& scales, const Parameters& p, const TilePiece& t) {
    if (INTERLEAVED) pad_scales<CONSUMERS>(scales, p.batches, p.m, p.n / PART / BLOCK, t.consumer);
  }

  /// GATHERS: and zeros for the rows of groups that have no token.
  template <int CONSUMERS, bool GATHERS, class Rows>
  VG_DEVICE static void pad_groups(const Aux& scales, const Parameters& p, const TilePiece& t, const Rows& rows) {
    const int columns = p.n / PART / BLOCK;
    each_group<CONSUMERS>(p.groups, t.consumer, rows, [&](int g, int first, int end, int worker, int workers) {
      char* const atoms = atoms_from(scales, first + rows.shift(g), columns);
      pad_atoms(atoms, end - first, columns, worker, workers);
      if constexpr (GATHERS) {
#pragma unroll 1
        for (int row = first + 128 * worker + static_cast<int>(threadIdx.x % 128); row < end; row += 128 * workers) {
          const int token = p.indices[row * p.index_stride];
          if (token >= 0 && token < p.tokens) continue;
#pragma unroll 1
          for (int c = 0; c < columns; ++c)
            store_u8(atoms + place_of_scales<true>({}, row - first, c / 4 * 4, 0, 0, columns) + c % 4, 0);
        }
      }
    });
  }

  template <class Rows = NoGroupRows>
  VG_DEVICE void unit(const float (&v)[8], const Aux& data, const Aux& scales, const Parameters& p, const Position& at,
                      const Rows& rows = {}) {
    if (at.unit == 0 && !ANEW) {
      out.begin(data, at, at.col - 2 * (at.place.lane() % 4), p.n / PART);
      begin_scales(scales, p, at, rows);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) held[at.unit % HELD][i] = v[i];
  }
  /// After the unit `at`, where a group may end.
  template <class Rows = NoGroupRows>
  VG_DEVICE void end_units(const Aux& data, const Aux& scales, const Parameters& p, const TilePiece& t, const Position& at,
                           uint32 words, const Rows& rows = {}) {
    end_of_group<UNITS, GROUP>(at.unit, [&](auto count) { several<count>(data, scales, p, t, at, words, rows); });
  }

 private:
  /// Where registers are few, places are found anew for each group of a row and not kept for the next.
  static constexpr bool ANEW = PART > 1 && GROUP == 2;

  template <class Rows>
  VG_DEVICE void begin_scales(const Aux& scales, const Parameters& p, const Position& at, const Rows& rows) {
    // Lanes with an even number find scales of the upper row, the others of the lower one.
    int row = at.row + at.down * (at.place.lane() % 2);
    asm volatile("" : "+r"(row));
    scale = static_cast<char*>(const_cast<void*>(scales.address)) +
            place_of_scales<INTERLEAVED>(scales, BY_GROUP ? row + rows.shift(at.batch) : row, 0, BY_GROUP ? 0 : at.batch, p.m,
                                         static_cast<int>(static_cast<uint32>(p.n) / (PART * BLOCK)));
  }
  /// COUNT units, of which the last is `at`. A lane finds COUNT * 8 / BLOCK scales.
  template <int COUNT, class Rows>
  VG_DEVICE void several(const Aux& data, const Aux& scales, const Parameters& p, const TilePiece& t, const Position& at,
                         uint32 words, const Rows& rows) {
    constexpr int BLOCKS = COUNT * 16 / BLOCK, EACH = BLOCKS == 1 ? 1 : BLOCKS / 2;  // of a row, of a lane
    const int quad = at.place.lane() % 4, col = at.col - 2 * quad, first_held = (at.unit - COUNT + 1) % HELD;
    const auto value = [&](int u, int i) { return held[first_held + u][i]; };
    float own[BLOCKS];  // of the row of this lane
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      float row[2];
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const int i = 2 * down, u = b * BLOCK / 16;
        row[down] =
            larger(larger(fabsf(value(u, i)), fabsf(value(u, i + 1))), larger(fabsf(value(u, i + 4)), fabsf(value(u, i + 5))));
        if (BLOCK == 32)
          row[down] = larger(row[down], larger(larger(fabsf(value(u + 1, i)), fabsf(value(u + 1, i + 1))),
                                               larger(fabsf(value(u + 1, i + 4)), fabsf(value(u + 1, i + 5)))));
      }
      own[b] = larger_of_halves(row[0], row[1], 1);
    }
    // Lanes 0 and 1 have the first half of the blocks.
    uint32 stored[EACH];
    float factor[EACH];
    const int blocks = static_cast<int>(static_cast<uint32>(p.n) / (PART * BLOCK));
    const int first = static_cast<int>(static_cast<uint32>(col - 16 * (COUNT - 1)) / BLOCK +
                                       (BLOCKS == 1 ? 0 : EACH * (at.place.thread % 4 / 2)));
    const int left = at.row + at.down * (quad % 2) < at.end && (BLOCKS > 1 || quad < 2) ? blocks - first : 0;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const float largest = BLOCKS == 1 ? larger(own[0], __shfl_xor_sync(0xffffffffu, own[0], 2))
                                        : larger_of_halves(own[e], own[BLOCKS - EACH + e], 2);
      stored[e] = Stored::template of<Elements>(largest);
      factor[e] = Stored::factor(stored[e]);
      most = larger(most, e < left ? largest : 0.0f);
    }
    if (ANEW) begin_scales(scales, p, at, rows);
    store_scales<INTERLEAVED, EACH, !THROUGH>(scale, scales.col_stride, stored, static_cast<uint32>(first), left);
    uint32 packed[COUNT][2];
#pragma unroll
    for (int down = 0; down < 2; ++down) {
#pragma unroll
      for (int u = 0; u < COUNT; ++u) {
        const int b = u * 16 / BLOCK, i = 2 * down;
        const float f = __shfl_sync(0xffffffffu, factor[b % EACH], down + b / EACH * 2, 4);
        packed[u][down] = Elements::pack_times(value(u, i), value(u, i + 1), value(u, i + 4), value(u, i + 5), f);
      }
    }
    const int first_col = col - 16 * (COUNT - 1);
    if (ANEW) out.begin(data, at, first_col, p.n / PART);
    out.store(data, t, at, ANEW ? 0 : 16 * (at.unit - COUNT + 1), first_col, p.n / PART, words + own_words<GROUP, COLUMNS_TOO>(),
              packed);
  }
};

/// The same by blocks along M: 16 rows are those of a warp, 32 those of two. What each thread finds largest in its two rows goes
/// to shared memory, so that a thread reads all rows of a few columns, and their factors come back the same way: both take less
/// than lanes that exchange halves. The scales have a row for each column of the product. ANEW: addresses are formed for each
/// group of units; kept beside the products they would take registers. BY_GROUP: the blocks of each group begin an atom of their
/// own.
template <class Elements, class Stored, int BLOCK, bool INTERLEAVED, int UNITS, int GROUP, int HELD, bool ANEW, bool THROUGH,
          bool BY_GROUP = false>
struct ColumnQuantiser {
  float held[HELD][8];
  NarrowStore<Elements, THROUGH> out;

  template <int CONSUMERS>
  VG_DEVICE static void pad(const Aux& scales, const Parameters& p, const TilePiece& t) {
    if (INTERLEAVED) pad_scales<CONSUMERS>(scales, p.batches, p.n, p.m / BLOCK, t.consumer);
  }
  template <int CONSUMERS, bool, class Rows>
  VG_DEVICE static void pad_groups(const Aux& scales, const Parameters& p, const TilePiece& t, const Rows& rows) {
    each_group<CONSUMERS>(p.groups, t.consumer, rows, [&](int, int first, int end, int worker, int workers) {
      pad_atoms(atoms_of_group(scales, first, p.n), p.n, (end - first) / BLOCK, worker, workers);
    });
  }

  template <class Rows = NoGroupRows>
  VG_DEVICE void unit(const float (&v)[8], const Aux& data, const Aux&, const Parameters& p, const Position& at,
                      const Rows& = {}) {
    if (at.unit == 0) out.begin(data, at, at.col - 2 * (at.place.lane() % 4), p.n);
#pragma unroll
    for (int i = 0; i < 8; ++i) held[at.unit % HELD][i] = v[i];
  }
  template <class Rows = NoGroupRows>
  VG_DEVICE void end_units(const Aux& data, const Aux& scales, const Parameters& p, const TilePiece& t, const Position& at,
                           uint32 words, const Rows& rows = {}) {
    end_of_group<UNITS, GROUP>(at.unit, [&](auto count) { several<count>(data, scales, p, t, at, words, rows); });
  }

 private:
  /// COUNT units, of which the last is `at`. A unit's columns are four pieces, of one lane of four each: its 2 quad, 2 quad +
  /// 1, and the same 8 further right. `words` has lines of all pieces for each of a warp's 8 pairs of rows, where pieces of every
  /// second line are exchanged by fours, and behind those of all warps the factors of two; blocks of 16 need none.
  template <int COUNT, class Rows>
  VG_DEVICE void several(const Aux& data, const Aux& scales, const Parameters& p, const TilePiece& t, const Position& at,
                         uint32 words, const Rows& rows) {
    constexpr uint32 LINE = 64 * COUNT, WARP = 512 * (THROUGH ? GROUP : COUNT);  // bytes
    // A lane finds the scales of so many neighbouring columns of a piece, or lanes from LANES on those of others once more.
    constexpr int OWN = BLOCK == 16 ? COUNT / 2 : COUNT < 4 ? 1 : COUNT / 4, LANES = 16 * COUNT / (BLOCK / 16) / OWN;
    uint32 thread = at.place.thread;
    if constexpr (ANEW) asm volatile("" : "+r"(thread));
    const uint32 lane = thread % 32, warp = thread / 32, quad = lane % 4;
    const int first_held = (at.unit - COUNT + 1) % HELD;
    const auto value = [&](int u, int i) { return held[first_held + u][i]; };
    const auto most = [&](int u, int i) { return __float_as_uint(larger(fabsf(value(u, i)), fabsf(value(u, i + 2)))); };
    const auto piece_of = [&](uint32 line, uint32 piece) { return LINE * line + 16 * (piece ^ 4 * (line % 2)); };
    const uint32 of_warp = words + WARP * warp;
    if constexpr (THROUGH) __syncwarp();  // what was stored through it has been read
#pragma unroll
    for (int u = 0; u < COUNT; ++u)
      store_shared(of_warp + piece_of(lane / 4, 4 * static_cast<uint32>(u) + quad),
                   Piece<16>{most(u, 0), most(u, 1), most(u, 4), most(u, 5)});
    meet(t.consumer);
    const uint32 first = lane % LANES * OWN + (BLOCK == 16 ? 0 : warp % 2 * 8 * COUNT);  // of all columns, in order of pieces
    float largest[OWN] = {};
#pragma unroll
    for (uint32 line = 0; line < BLOCK / 2; ++line) {
      const uint32 from = (BLOCK == 16 ? of_warp : words + WARP * (warp / 2 * 2 + (line < 8 ? 0 : 1))) +
                          piece_of(line % 8, first / 4) + first % 4 * 4;
      Piece<4 * OWN> some;
      load_shared(from, some);
#pragma unroll
      for (int e = 0; e < OWN; ++e) largest[e] = larger(largest[e], __uint_as_float(__builtin_bit_cast(Words<OWN>, some).v[e]));
    }
    const int col = at.col - 2 * static_cast<int>(quad) - 16 * (COUNT - 1);
    const int begin = BY_GROUP ? rows.first(at.batch) : 0, end = BY_GROUP ? rows.first(at.batch + 1) : p.m;
    const uint32 blocks = static_cast<uint32>(end - begin) / BLOCK, atoms = (blocks + 3) / 4;
    const uint32 block = static_cast<uint32>(at.row - begin - static_cast<int>(lane / 4)) / BLOCK;
    char* const scale = (BY_GROUP ? atoms_of_group(scales, begin, p.n) : static_cast<char*>(const_cast<void*>(scales.address))) +
                        (INTERLEAVED ? block % 4 : 0) +
                        place_of_scales<INTERLEAVED>(scales, 0, static_cast<int>(INTERLEAVED ? block / 4 * 4 : block),
                                                     BY_GROUP ? 0 : at.batch, p.n, static_cast<int>(blocks));
    Words<OWN> factor;
#pragma unroll
    for (int e = 0; e < OWN; ++e) {
      const uint32 stored = Stored::template of<Elements>(largest[e]);
      factor.v[e] = __float_as_uint(Stored::factor(stored));
      const uint32 x = first + e;  // four columns a piece, four pieces a unit
      const uint32 c = static_cast<uint32>(col) + (x / 16 * 16 + x / 4 % 4 * 2 + x / 2 % 2 * 8 + x % 2);  // row of the scales
      const int64 place =
          INTERLEAVED ? int64{c / 128 * atoms} * 512 + (c % 32 * 16 + c / 32 % 4 * 4) : int64{c} * scales.row_stride;
      store_u8_where(lane < LANES && out.has_rows(at) && static_cast<int>(c) < p.n, scale + place, stored);
    }
    if constexpr (BLOCK == 16) __syncwarp();  // all have read what the factors take the place of
    const uint32 factors_at = BLOCK == 16 ? of_warp : words + 4 * WARP + LINE * (warp / 2);
    store_shared(factors_at + 4 * first, __builtin_bit_cast(Piece<4 * OWN>, factor));
    meet(t.consumer);
    uint32 packed[COUNT][2];
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
      Piece<16> f;
      load_shared(factors_at + 16 * (4 * static_cast<uint32>(u) + quad), f);
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const int i = 2 * down;
        packed[u][down] = Elements::pack(value(u, i) * __uint_as_float(f.v[0]), value(u, i + 1) * __uint_as_float(f.v[1]),
                                         value(u, i + 4) * __uint_as_float(f.v[2]), value(u, i + 5) * __uint_as_float(f.v[3]));
      }
    }
    if constexpr (BLOCK == 16 && !THROUGH) __syncwarp();  // before the next units come
    out.store(data, t, at, 16 * (at.unit - COUNT + 1), col, p.n, of_warp, packed);
  }
  /// Of a group from row `first` on.
  VG_DEVICE static char* atoms_of_group(const Aux& scales, int first, int columns) {
    return static_cast<char*>(const_cast<void*>(scales.address)) + int64{first / (4 * BLOCK)} * ((columns + 127) / 128) * 512;
  }
  template <int COUNT>
  struct Words {
    uint32 v[COUNT];
  };
  /// Those whose rows make a block have written.
  VG_DEVICE static void meet(int consumer) {
    if constexpr (BLOCK == 16) {
      __syncwarp();
    } else {
      half_consumer_sync(consumer);
    }
  }
};

/// Elements that are rounded as they are, without a scale.
template <class Elements, int PART, int UNITS, int GROUP, int HELD>
struct Rounder {
  float held[HELD][8];
  NarrowStore<Elements, false> out;

  VG_DEVICE void unit(const float (&v)[8], const Aux& data, const Aux&, const Parameters& p, const Position& at) {
    if (at.unit == 0) out.begin(data, at, at.col - 2 * (at.place.lane() % 4), p.n / PART);
#pragma unroll
    for (int i = 0; i < 8; ++i) held[at.unit % HELD][i] = v[i];
  }
  VG_DEVICE void end_units(const Aux& data, const Aux&, const Parameters&, const TilePiece& t, const Position& at, uint32) {
    end_of_group<UNITS, GROUP>(at.unit, [&](auto count) {
      constexpr int COUNT = count;
      uint32 packed[COUNT][2];
#pragma unroll
      for (int u = 0; u < COUNT; ++u) {
        const auto number = [&](int i) {  // NaN, whatever its sign, is 6
          const float x = held[(at.unit - COUNT + 1) % HELD + u][i];
          return x == x ? x : Elements::LARGEST;
        };
        packed[u][0] = Elements::pack(number(0), number(1), number(4), number(5));
        packed[u][1] = Elements::pack(number(2), number(3), number(6), number(7));
      }
      out.store(data, t, at, 16 * (at.unit - COUNT + 1), 0, 0, 0, packed);
    });
  }
};

}  // namespace vg
