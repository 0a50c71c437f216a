#pragma once
#include "scales.cuh"
#include "staging.cuh"

namespace vg {

// Elements of a few bits and scales of their blocks, as numeric/quantise.hpp has them, step by step; and how they are stored.

/// The scale of a block whose largest magnitude is given, as stored, and the factor of its elements. Neither divides: a division
/// that is rounded as IEEE has it takes as long as all the rest.
struct E8m0Stored {
  static constexpr bool IS_POWER = true;  // the factor is: its upper half is all of it, but for the bits of NaN
  /// largest <= LARGEST * 2^k is what largest / LARGEST <= 2^k says once rounded, but for the number behind the equal one where
  /// the quotient is subnormal; so k follows from the bits, as those of LARGEST end in zeros.
  template <class Elements>
  VG_DEVICE static uint32 of(float largest) {
    constexpr uint32 EXPONENT = Elements::LARGEST_BITS >> 23, MANTISSA = Elements::LARGEST_BITS & 0x7fffffu;
    constexpr uint32 LOWEST = (EXPONENT - 127) << 23 | MANTISSA;  // LARGEST * 2^-127
    const uint32 u = __float_as_uint(largest), up = (u + (0x7fffffu - MANTISSA)) >> 23;
    return u > 0x7f800000u ? 255u : u == 0x7f800000u ? 254u : u <= LOWEST + 1 ? 0u : up - (EXPONENT - 127);
  }
  VG_DEVICE static float factor(uint32 b) {
    return __uint_as_float(b < 254 ? (254 - b) << 23 : b == 254 ? 0x400000u : 0x7fffffffu);
  }
};
struct E4m3Stored {
  static constexpr bool IS_POWER = false;
  /// The quotient is corrected once, which rounds it; above the largest scale it does not matter, so that no step is infinite.
  template <class Elements>
  VG_DEVICE static uint32 of(float largest) {
    constexpr float LARGEST = Elements::LARGEST, INVERSE = 1.0f / LARGEST;
    const float x = smaller(largest, 1e30f), quotient = x * INVERSE;
    return pack_e4m3(multiply_add(multiply_add(-LARGEST, quotient, x), INVERSE, quotient), 0.0f) & 0xffu;
  }
  VG_DEVICE static float factor(uint32 b) {
    const float d = e4m3_to_float(b), r = reciprocal(d);
    return d == 0.0f ? 0.0f : multiply_add(multiply_add(-d, r, 1.0f), r, r);
  }
};
/// Four elements of a row as their bits, which take half as many in fp4.
struct E4m3Elements {
  static constexpr float LARGEST = 448.0f;
  static constexpr uint32 LARGEST_BITS = 0x43e00000u;
  static constexpr int BITS = 8;
  VG_DEVICE static uint32 pack(float a, float b, float c, float d) { return pack_e4m3(a, b) | uint32{pack_e4m3(c, d)} << 16; }
  /// The same of products with one factor.
  VG_DEVICE static uint32 pack_times(float a, float b, float c, float d, float f) { return pack(a * f, b * f, c * f, d * f); }
};
struct E5m2Elements {
  static constexpr float LARGEST = 57344.0f;
  static constexpr uint32 LARGEST_BITS = 0x47600000u;
  static constexpr int BITS = 8;
  VG_DEVICE static uint32 pack(float a, float b, float c, float d) { return pack_e5m2(a, b) | uint32{pack_e5m2(c, d)} << 16; }
  VG_DEVICE static uint32 pack_times(float a, float b, float c, float d, float f) { return pack(a * f, b * f, c * f, d * f); }
};
struct E2m1Elements {
  static constexpr float LARGEST = 6.0f;
  static constexpr uint32 LARGEST_BITS = 0x40c00000u;
  static constexpr int BITS = 4;
  /// The code of |x| is 4 s(x / 2) + 2 s(x / 2 - 1) + s(x / 2 - 2), where s saturates at 0 and 1, rounded to nearest even: one of
  /// the three is no integer, and none of them is rounded before. They are added to 2^23 times `unit`, whose last place is one
  /// unit. Sums and products only: integers would wait for another.
  VG_DEVICE static float add_code(float from, float unit, float a) {
    const float first = multiply_add(saturated(a, 0.5f, 0.0f), 4.0f * unit, from);
    return multiply_add(saturated(a, 0.5f, -2.0f), unit, multiply_add(saturated(a, 0.5f, -1.0f), 2.0f * unit, first));
  }
  /// Codes of magnitudes: each next one is added to the last as it is in smaller units.
  VG_DEVICE static uint32 codes(float a, float b, float c, float d) {
    constexpr float TOP = 8388608.0f;
    float all = add_code(4096.0f * TOP, 4096.0f, d);
    all = add_code(all - 3840.0f * TOP, 256.0f, c);
    all = add_code(all - 240.0f * TOP, 16.0f, b);
    return __float_as_uint(add_code(all - 15.0f * TOP, 1.0f, a));
  }
  VG_DEVICE static uint32 signs(float a, float b, float c, float d) {
    return shifted_in(shifted_in(shifted_in(__float_as_uint(d) >> 28, c), b), a) & 0x8888u;  // of each its sign and three bits
  }
  /// In the low 16 bits; others are not looked at. NaN is 6.
  VG_DEVICE static uint32 pack(float a, float b, float c, float d) {
    return codes(fminf(fabsf(a), 6.0f), fminf(fabsf(b), 6.0f), fminf(fabsf(c), 6.0f), fminf(fabsf(d), 6.0f)) | signs(a, b, c, d);
  }
  /// The same of products with the factor of a block: NaN is among them where it is the factor, and all of them are NaN then.
  VG_DEVICE static uint32 pack_times(float a, float b, float c, float d, float f) {
    const uint32 word = codes(fabsf(a) * f, fabsf(b) * f, fabsf(c) * f, fabsf(d) * f) | signs(a, b, c, d);
    return f == f ? word : 0x7777u;
  }
  /// Four bits more on the right: those at the top of x.
  VG_DEVICE static uint32 shifted_in(uint32 word, float x) { return __funnelshift_l(__float_as_uint(x), word, 4); }
};

/// The same, brought to less than the largest number of the type: to the one that has these bits, of whose significand three
/// count.
template <class Elements, uint32 BITS>
struct UpTo : Elements {
  static constexpr uint32 LARGEST_BITS = BITS;
  static constexpr float LARGEST = __builtin_bit_cast(float, BITS);
};

/// Stores pairs of units: 64 rows by 32 columns, of which four neighbouring lanes have two rows. In each row a thread has two and
/// two neighbours of each unit; with the others of its quad it exchanges them, so that each has eight in a run.
template <class Elements, bool THROUGH>
struct NarrowStore {
  static constexpr int BITS = Elements::BITS, PIECE = BITS;  // bytes of eight elements
  char* to;  // the upper row, from the first column of the tile on that this lane stores
  int left;  // columns that there are from here on
  int down;  // to the lower row
  bool has_upper, has_lower, in_pieces;

  VG_DEVICE bool has_rows(const Position&) const { return has_upper; }
  /// Of the thread's rows; `col` is the first column of the part of the tile, `n` how many there are.
  VG_DEVICE void begin(const Aux& data, const Position& at, int col, int n) {
    int row = at.row;
    asm volatile("" : "+r"(row));  // addresses are formed here and not for the whole tile ahead
    col += 8 * (static_cast<int>(threadIdx.x) % 4);
    to = static_cast<char*>(const_cast<void*>(data.address)) +
         (at.batch * data.batch_stride + row * data.row_stride + col * data.col_stride) * BITS / 8;
    left = n - col;
    down = at.down;
    has_upper = row < at.end;
    has_lower = row + at.down < at.end;
    // Rows 8 apart are aligned alike; those that have places of their own need not be.
    in_pieces = data.col_stride == 1 &&
                (reinterpret_cast<uint64>(to) | static_cast<uint64>(at.down * data.row_stride * BITS / 8)) % PIECE == 0;
  }

  /// COUNT units from column `at` of the tile on: of each, elements of the upper and of the lower row.
  template <int COUNT>
  VG_DEVICE void store(const Aux& data, const TilePiece&, const Position&, int at, int, int, uint32,
                       const uint32 (&packed)[COUNT][2]) const {
    uint32 words[COUNT / 2][2][BITS / 4];
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) exchange(packed[2 * i], packed[2 * i + 1], words[i]);
    // One branch for all of them: behind one of its own each would wait for lanes alone.
    if (in_pieces && left - at >= 16 * COUNT - 24) {
      char* const piece = to + at * BITS / 8;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (!(row == 0 ? has_upper : has_lower)) continue;
        char* const line = piece + row * down * data.row_stride * BITS / 8;
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
          if constexpr (BITS == 8) {
            store_u64(line + 32 * i, words[i][row][0], words[i][row][1]);
          } else {
            store_u32(line + 16 * i, words[i][row][0]);
          }
        }
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < COUNT / 2; ++i) {
      uint32 pair[2][BITS / 4];
#pragma unroll
      for (int word = 0; word < BITS / 2; ++word) {
        uint32& x = pair[word % 2][word / 2] = words[0][word % 2][word / 2];
#pragma unroll
        for (int j = 1; j < COUNT / 2; ++j)
          if (i == j) x = words[j][word % 2][word / 2];
      }
      store_bytes(data, at + 32 * i, pair);
    }
  }

 private:
  VG_DEVICE void store_bytes(const Aux& data, int at, const uint32 (&words)[2][BITS / 4]) const {
    const int count = left - at;
    char* const row = to + at * data.col_stride * BITS / 8;
#pragma unroll 1
    for (int i = 0; i < 2 * BITS; ++i) {
      const int byte = i % BITS;
      uint32 word = i < BITS ? words[0][0] : words[1][0];
      if (BITS == 8 && byte >= 4) word = i < BITS ? words[0][BITS / 4 - 1] : words[1][BITS / 4 - 1];
      if ((i < BITS ? has_upper : has_lower) && byte * 8 / BITS < count)
        store_u8(row + i / BITS * down * data.row_stride * BITS / 8 + byte * data.col_stride, word >> 8 * (byte % 4));
    }
  }

  /// Lanes 0 and 1 keep what lanes 0 and 1 want, 2 and 3 the others; then neighbours exchange. Selectors count bytes of two
  /// words.
  VG_DEVICE static void exchange(const uint32 (&first)[2], const uint32 (&second)[2], uint32 (&words)[2][BITS / 4]) {
    const uint32 lane = threadIdx.x % 4;
    const bool is_right = lane >= 2, is_odd = lane % 2 != 0;
    if constexpr (BITS == 8) {
      const uint32 mine_of = is_odd ? 0x7632u : 0x5410u;
      const uint32 low_of = (is_odd ? 0x1054u : 0x5410u) ^ (is_right ? 0x2222u : 0u);
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const uint32 kept = is_right ? second[down] : first[down];
        const uint32 got = __shfl_xor_sync(0xffffffffu, is_right ? first[down] : second[down], 2);
        const uint32 mine = __byte_perm(kept, got, mine_of);
        const uint32 other = __shfl_xor_sync(0xffffffffu, __byte_perm(kept, got, mine_of ^ 0x2222u), 1);
        words[down][0] = __byte_perm(mine, other, low_of);
        words[down][1] = __byte_perm(mine, other, low_of ^ 0x2222u);
      }
    } else {
      // Both rows at once: two bytes of each unit.
      const uint32 upper = __byte_perm(first[0], second[0], 0x5410), lower = __byte_perm(first[1], second[1], 0x5410);
      const uint32 kept_of = is_right ? 0x7632u : 0x5410u, mine_of = is_odd ? 0x7531u : 0x6420u;
      const uint32 row_of = (is_odd ? 0x2604u : 0x6240u) ^ (is_right ? 0x2222u : 0u);
      const uint32 kept = __byte_perm(upper, lower, kept_of);
      const uint32 got = __shfl_xor_sync(0xffffffffu, __byte_perm(upper, lower, kept_of ^ 0x2222u), 2);
      const uint32 mine = __byte_perm(kept, got, mine_of);
      const uint32 other = __shfl_xor_sync(0xffffffffu, __byte_perm(kept, got, mine_of ^ 0x1111u), 1);
      words[0][0] = __byte_perm(mine, other, row_of);
      words[1][0] = __byte_perm(mine, other, row_of ^ 0x1111u);
    }
  }
};

/// The same through shared memory of this warp's own, `words`: a lane stores 16 bytes of one row, of columns from `col` on, of
/// which there are `n`. A lane's bytes of a unit, or of two in fp4, are a word there, and those of four lanes side by side are a
/// piece, in another order.
template <class Elements>
struct NarrowStore<Elements, true> {
  static constexpr int BITS = Elements::BITS, ELEMENTS = 128 / BITS;  // of a piece

  VG_DEVICE void begin(const Aux&, const Position&, int, int) {}
  VG_DEVICE bool has_rows(const Position& at) const { return at.row < at.end; }

  template <int COUNT>
  VG_DEVICE void store(const Aux& data, const TilePiece& t, const Position& at, int, int col, int n, uint32 words,
                       const uint32 (&packed)[COUNT][2]) const {
    // Bytes of a line, and lines at once. Pieces are exchanged as in a chunk (staging.cuh).
    constexpr uint32 WIDTH = COUNT * 2 * BITS, PIECES = WIDTH / 16, LINES = PIECES == 1 ? 16 : 32 / PIECES;
    uint32 thread = threadIdx.x % 128;
    asm volatile("" : "+r"(thread));  // addresses are formed here and not for the whole tile ahead
    const uint32 lane = thread % 32;
    __syncwarp();                            // what was here before has been read
    constexpr int STEP = BITS == 8 ? 1 : 2;  // units of a piece
    const auto word = [&](int piece, int down) {
      return BITS == 8 ? packed[STEP * piece][down]
                       : __byte_perm(packed[STEP * piece][down], packed[STEP * piece + STEP - 1][down], 0x5410);
    };
    if constexpr (PIECES == 1) {
      store_two_matrices(words + lane % 16 * 16, word(0, 0), word(0, 1));
    } else {
      const uint32 line = words + lane % 16 * WIDTH, exchanged = 16 * (lane / 16 ^ turned<WIDTH>(lane % 16));
#pragma unroll
      for (uint32 i = 0; i < PIECES; i += 2)
        store_matrices<false>(line + (exchanged ^ 16 * i), word(i, 0), word(i, 1), word(i + 1, 0), word(i + 1, 1));
    }
    __syncwarp();
    const uint32 first = PIECES == 1 ? lane % 16 : lane / PIECES, piece = lane % PIECES;
    const int first_col = col + static_cast<int>(piece) * ELEMENTS, left = n - first_col;
    char* const origin = static_cast<char*>(const_cast<void*>(data.address)) + at.batch * data.batch_stride * BITS / 8;
    const int64 pitch = data.row_stride * BITS / 8;
    const uint32 from = words + first * WIDTH, exchanged = 16 * (piece ^ turned<WIDTH>(first));
    const auto read = [&](uint32 line, uint32(&out)[4]) {  // behind the first one
      Piece<16> x;
      load_shared(from + line * WIDTH + (exchanged ^ 16 * turned<WIDTH>(line)), x);
      in_order(x, out);
    };
    const int own = 64 * at.block + static_cast<int>(thread / 32 * 16 + first);
    const bool in_pieces = data.col_stride == 1 && ((reinterpret_cast<uint64>(origin) | static_cast<uint64>(pitch)) & 15) == 0;
    if (in_pieces && left >= ELEMENTS) {
      uint32 out[16 / LINES][4];
#pragma unroll
      for (uint32 line = 0; line < 16; line += LINES) read(line, out[line / LINES]);
      char* const begin = origin + static_cast<uint32>(first_col) / (8 / BITS);
      char* to = begin + place_of(t, own) * pitch;
#pragma unroll
      for (uint32 line = 0; line < 16; line += LINES) {
        const int row = place_of(t, own + static_cast<int>(line));
        if (t.places != 0) to = begin + row * pitch;
        if (row < at.end && (PIECES > 1 || lane < 16)) store_u128(to, out[line / LINES]);
        to += LINES * pitch;
      }
      return;
    }
#pragma unroll 1
    for (uint32 line = 0; line < 16; line += LINES) {
      const int row = place_of(t, own + static_cast<int>(line));
      if (row >= at.end || (PIECES == 1 && lane >= 16)) continue;
      uint32 out[4];
      read(line, out);
      char* const to = origin + row * pitch + first_col * data.col_stride * BITS / 8;
#pragma unroll 1
      for (int i = 0; i < 16 && i * 8 / BITS < left; ++i)
        store_u8(to + i * data.col_stride, (i < 8 ? (i < 4 ? out[0] : out[1]) : i < 12 ? out[2] : out[3]) >> i % 4 * 8);
    }
  }

 private:
  template <uint32 WIDTH>
  VG_DEVICE static constexpr uint32 turned(uint32 line) {
    return WIDTH == 128 ? line % 8 : WIDTH == 64 ? line / 2 % 4 : WIDTH == 32 ? line / 4 % 2 : 0;
  }
  /// Word q of a piece has elements 2q, 2q + 1, 2q + 8, 2q + 9 of a unit; in fp4 those of the next unit behind them.
  VG_DEVICE static void in_order(const Piece<16>& x, uint32 (&out)[4]) {
    if constexpr (BITS == 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = __byte_perm(x.v[i % 2 * 2], x.v[i % 2 * 2 + 1], i < 2 ? 0x5410 : 0x7632);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32 low = __byte_perm(x.v[0], x.v[1], half == 0 ? 0x5140 : 0x7362);
        const uint32 high = __byte_perm(x.v[2], x.v[3], half == 0 ? 0x5140 : 0x7362);
        out[2 * half] = __byte_perm(low, high, 0x5410);
        out[2 * half + 1] = __byte_perm(low, high, 0x7632);
      }
    }
  }
};

/// Zeros for the padding of atoms of one batch of scales, by worker number `first` of `step`: each the 128 threads of a consumer.
VG_DEVICE void pad_atoms(char* scales, int rows, int columns, int first, int step) {
  const int padded = (columns + 3) / 4 * 4, below = (rows + 127) / 128 * 128 - rows, thread = static_cast<int>(threadIdx.x) % 128;
  if (padded == columns && below == 0) return;
  const auto clear = [&](int r, int c) {
    store_u8(scales + place_of_scales<true>({}, r, c / 4 * 4, 0, rows, columns) + c % 4, 0);
  };
#pragma unroll 1
  for (int r = 128 * first + thread; r < rows; r += 128 * step)
#pragma unroll 1
    for (int c = columns; c < padded; ++c) clear(r, c);
#pragma unroll 1
  for (int c = thread < below ? first : padded; c < padded; c += step) clear(rows + thread, c);
}

VG_DEVICE char* atoms_from(const Aux& scales, int64 row, int columns) {
  return static_cast<char*>(const_cast<void*>(scales.address)) + row / 128 * ((columns + 3) / 4) * 512;
}

/// Of all scales, by the consumers of all blocks.
template <int CONSUMERS>
VG_DEVICE void pad_scales(const Aux& scales, int batches, int rows, int columns, int consumer) {
  const int worker = static_cast<int>(blockIdx.x) * CONSUMERS + consumer, workers = static_cast<int>(gridDim.x) * CONSUMERS;
  const int64 padded = (int64{rows} + 127) / 128 * 128;
#pragma unroll 1
  for (int batch = 0; batch < batches; ++batch)
    pad_atoms(atoms_from(scales, batch * padded, columns), rows, columns, worker, workers);
}

/// work(group, first row, end, number of a worker, workers) for each group that has tiles. Several consumers share a group where
/// there are more of them.
template <int CONSUMERS, class Rows, class Work>
VG_DEVICE void each_group(int groups, int consumer, const Rows& rows, const Work& work) {
  const int worker = static_cast<int>(blockIdx.x) * CONSUMERS + consumer, workers = static_cast<int>(gridDim.x) * CONSUMERS;
  const int each = workers > groups ? workers / groups : 1;
#pragma unroll 1
  for (int g = worker / each; g < groups; g += workers / each)
    if (rows.tiles(g) != rows.tiles(g + 1)) work(g, rows.first(g), rows.first(g + 1), worker % each, each);
}

}  // namespace vg
