#pragma once
#include "quantise.cuh"
#include "runs.cuh"

namespace vg {

/// 32 rows by 64 columns of a result whose columns come in heads of HEAD, of which the last 64 are rotated: what a warp
/// quantises. They are read from a staged chunk of 64 by 64 in bf16, in which a thread finds any columns, and so pairs of
/// neighbours as well as eight results in a run: of four rows, 8 apart, and of each block of 32 columns those from 8 quad on.
template <int HEAD>
class RopeBlock {
  float z_[2][4][8];
  int batch_, row_, col_;  // of z_[0][0][0]
  int rows_;               // that there are from here on

  /// Of two neighbouring blocks.
  struct Factors {
    float first, second;
  };

 public:
  /// What a thread reads of a chunk: of each row 8 pairs of neighbours where it is rotated, else 8 columns of each half.
  struct Words {
    Piece<16> of[4][2];
  };
  VG_DEVICE static bool is_rotated(int col) { return col % HEAD == HEAD - 64; }
  VG_DEVICE static void fetch(Words& y, uint32 chunk, int col) {
    const int first = 32 * (warp() % 2) + lane() / 4, byte = is_rotated(col) ? 32 * quad() : 16 * quad();
    // Lines 8 apart are exchanged alike.
    const uint32 from[2] = {chunk + swizzled(128, first, byte), chunk + swizzled(128, first, byte + (is_rotated(col) ? 16 : 64))};
#pragma unroll
    for (int i = 0; i < 8; ++i) load_shared(from[i % 2] + 1024 * (i / 2), y.of[i / 2][i % 2]);
  }
  /// Has the tables' lines of a tile come closer, for nobody waits for these loads.
  template <int ROWS>
  VG_DEVICE static void warm(const Aux& cos, const Aux& sin, const Parameters& p, const TilePiece& t) {
    const int row = static_cast<int>(threadIdx.x) % 128;
    const bool in = row < ROWS && t.row + row < p.m;
    load_half(address_of(cos, 2 * (t.batch * cos.batch_stride + (t.row + row) * cos.row_stride)), in);
    load_half(address_of(sin, 2 * (t.batch * sin.batch_stride + (t.row + row) * sin.row_stride)), in);
  }

  VG_DEVICE RopeBlock(const Words& y, const Aux& cos, const Aux& sin, const Parameters& p, int batch, int row, int col)
      : batch_(batch), row_(row + 32 * (warp() % 2) + lane() / 4), col_(col + 8 * quad()), rows_(p.m - row_) {
    if (!is_rotated(col)) {
#pragma unroll
      for (int i = 0; i < 64; ++i) z_[i / 8 % 2][i / 16][i % 8] = half_of(y.of[i / 16][i / 8 % 2].v[i % 8 / 2], i % 2);
      return;
    }
    const char *const of_cos = line_of(cos), *const of_sin = line_of(sin);
    const int64 cos_step = here(16 * cos.row_stride), sin_step = here(16 * sin.row_stride);
    uint32 c[8][4], s[8][4];  // of each row both halves
    // Lines 8 apart are aligned alike. One branch for all of them: behind one of its own each load would be waited for.
    if (__all_sync(0xffffffffu, (reinterpret_cast<uint64>(of_cos) | reinterpret_cast<uint64>(of_sin)) % 16 == 0)) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int k = i / 2, half = i % 2;
        load_words(c[i][0], c[i][1], c[i][2], c[i][3], of_cos + k * cos_step + 64 * half, 8 * k < rows_);
        load_words(s[i][0], s[i][1], s[i][2], s[i][3], of_sin + k * sin_step + 64 * half, 8 * k < rows_);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) c[i / 4][i % 4] = s[i / 4][i % 4] = 0;
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        const int k = i / 2, half = i % 2;
        uint32 of_c[4], of_s[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          of_c[e] = load_pair_of(of_cos + k * cos_step + 64 * half + 4 * e, 8 * k < rows_);
          of_s[e] = load_pair_of(of_sin + k * sin_step + 64 * half + 4 * e, 8 * k < rows_);
        }
#pragma unroll
        for (int j = 0; j < 32; ++j)
          if (i == j / 4) c[j / 4][j % 4] = of_c[j % 4], s[j / 4][j % 4] = of_s[j % 4];
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float even = half_of(y.of[k][e / 4].v[e % 4], 0), odd = half_of(y.of[k][e / 4].v[e % 4], 1);
        const auto part = [&](const uint32(&t)[8][4], int half) { return half_of(t[2 * k + half][e / 2], e % 2); };
        // Each operation is rounded, as on the host.
        z_[0][k][e] = __fadd_rn(__fmul_rn(even, part(c, 0)), __fmul_rn(-odd, part(s, 0)));
        z_[1][k][e] = __fadd_rn(__fmul_rn(odd, part(c, 1)), __fmul_rn(even, part(s, 1)));
      }
    }
  }

  /// Stores the scales of blocks along N; answers the factors of row `quad` of this thread's four.
  template <class Elements, class Stored, bool INTERLEAVED>
  VG_DEVICE Factors scale_along_n(const Aux& scales, const Parameters& p) const {
    uint32 stored[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float(&z)[8] = z_[half][k];
        float pairs[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) pairs[e] = larger(fabsf(z[2 * e]), fabsf(z[2 * e + 1]));
        most[k] = larger(larger(pairs[0], pairs[1]), larger(pairs[2], pairs[3]));
      }
      const float largest = larger_of_halves(larger_of_halves(most[0], most[1], 1), larger_of_halves(most[2], most[3], 1), 2);
      stored[half] = Stored::template of<Elements>(largest);
    }
    const int block = (col_ - 8 * quad()) / 32;
    char* const to = address_of(scales, place_of_scales<INTERLEAVED>(scales, row_ + 8 * quad(),
                                                                     INTERLEAVED ? block / 4 * 4 : block, batch_, p.m, p.n / 32) +
                                            (INTERLEAVED ? block % 4 : 0));
    if (8 * quad() < rows_) store_pair_of(to, INTERLEAVED ? 1 : scales.col_stride, stored);
    return {Stored::factor(stored[0]), Stored::factor(stored[1])};
  }

  /// The same along M; of two neighbours of this thread's columns.
  template <class Elements, class Stored, bool INTERLEAVED>
  VG_DEVICE Factors scale_along_m(const Aux& scales, const Parameters& p) const {
    float most[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float(&z)[4][8] = z_[i / 8];
      most[i] = larger(larger(fabsf(z[0][i % 8]), fabsf(z[1][i % 8])), larger(fabsf(z[2][i % 8]), fabsf(z[3][i % 8])));
    }
    // Lanes of eight rows halve their sixteen columns until each has two.
#pragma unroll
    for (int i = 0; i < 8; ++i) most[i] = larger_of_halves(most[i], most[i + 8], 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) most[i] = larger_of_halves(most[i], most[i + 4], 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) most[i] = larger_of_halves(most[i], most[i + 2], 4);
    const uint32 stored[2] = {Stored::template of<Elements>(most[0]), Stored::template of<Elements>(most[1])};
    const int own = col_ + lane() / 16 * 32 + lane() / 8 % 2 * 4 + lane() / 4 % 2 * 2, block = row_ / 32;
    char* const to =
        address_of(scales, place_of_scales<INTERLEAVED>(scales, own, INTERLEAVED ? block / 4 * 4 : block, batch_, p.n, p.m / 32) +
                               (INTERLEAVED ? block % 4 : 0));
    if (rows_ > 0) store_pair_of(to, INTERLEAVED ? 16 : scales.row_stride, stored);  // neighbours lie in one atom
    return {Stored::factor(stored[0]), Stored::factor(stored[1])};
  }

  template <class Elements, class Stored>
  VG_DEVICE void store_along_n(const Aux& data, const Factors& own) const {
    Factors f[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) f[k] = from_lane<Stored>(own, lane() / 4 * 4 + k);
    store<Elements>(data, [&](int half, int k, int) { return half == 0 ? f[k].first : f[k].second; });
  }
  template <class Elements, class Stored>
  VG_DEVICE void store_along_m(const Aux& data, const Factors& own) const {
    Factors f[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] = from_lane<Stored>(own, quad() + i / 4 * 16 + i / 2 % 2 * 8 + i % 2 * 4);
    store<Elements>(data, [&](int half, int, int e) {
      const Factors& two = f[4 * half + e / 2];
      return e % 2 == 0 ? two.first : two.second;
    });
  }

 private:
  VG_DEVICE static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  VG_DEVICE static int warp() { return static_cast<int>(threadIdx.x) / 32 % 4; }
  VG_DEVICE static int quad() { return static_cast<int>(threadIdx.x) % 4; }
  VG_DEVICE static float half_of(uint32 pair, int which) { return __uint_as_float(which ? pair & 0xffff0000u : pair << 16); }
  VG_DEVICE static char* address_of(const Aux& a, int64 at) { return static_cast<char*>(const_cast<void*>(a.address)) + at; }

  /// Powers of two are their upper halves, and NaN stays NaN: two travel as one word.
  template <class Stored>
  VG_DEVICE static Factors from_lane(const Factors& own, int lane) {
    if constexpr (Stored::IS_POWER) {
      const uint32 both =
          __shfl_sync(0xffffffffu, __byte_perm(__float_as_uint(own.first), __float_as_uint(own.second), 0x7632), lane);
      return {half_of(both, 0), half_of(both, 1)};
    }
    return {__shfl_sync(0xffffffffu, own.first, lane), __shfl_sync(0xffffffffu, own.second, lane)};
  }
  VG_DEVICE static void store_pair_of(char* to, int64 step, const uint32 (&stored)[2]) {
    if (step == 1 && reinterpret_cast<uint64>(to) % 2 == 0) {
      store_u16(to, static_cast<uint16>(stored[0] | stored[1] << 8));
      return;
    }
    store_u8(to, stored[0]);
    store_u8(to + step, stored[1]);
  }
  /// What is formed here and not ahead of all tiles, where it would take registers from the products.
  VG_DEVICE static int64 here(int64 x) {
    asm volatile("" : "+l"(x));
    return x;
  }
  /// Of a table, from the column of the first result on.
  VG_DEVICE const char* line_of(const Aux& table) const {
    return address_of(table, 2 * (batch_ * table.batch_stride + row_ * table.row_stride + 8 * quad()));
  }
  VG_DEVICE static uint32 load_pair_of(const char* from, bool in) { return load_half(from, in) | load_half(from + 2, in) << 16; }

  template <class Elements, class Factor>
  VG_DEVICE void store(const Aux& data, Factor factor) const {
    char* const to = address_of(data, batch_ * data.batch_stride + row_ * data.row_stride + col_ * data.col_stride);
    const int64 step = here(8 * data.row_stride);
    uint32 words[4][2][2];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int k = i / 4, half = i / 2 % 2, e = i % 2 * 4;
      const float(&z)[8] = z_[half][k];
      words[k][half][i % 2] = Elements::pack(z[e] * factor(half, k, e), z[e + 1] * factor(half, k, e + 1),
                                             z[e + 2] * factor(half, k, e + 2), z[e + 3] * factor(half, k, e + 3));
    }
    // Again one branch for all.
    if (__all_sync(0xffffffffu, data.col_stride == 1 && reinterpret_cast<uint64>(to) % 8 == 0 && rows_ > 24)) {
#pragma unroll
      for (int i = 0; i < 8; ++i) store_u64(to + i / 2 * step + 32 * (i % 2), words[i / 2][i % 2][0], words[i / 2][i % 2][1]);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      uint32 word = words[0][0][0];
#pragma unroll
      for (int j = 1; j < 16; ++j)
        if (i == j) word = words[j / 4][j / 2 % 2][j % 2];
#pragma unroll 1
      for (int e = 0; e < 4 && 8 * (i / 4) < rows_; ++e)
        store_u8(to + i / 4 * step + (32 * (i / 2 % 2) + i % 2 * 4 + e) * data.col_stride, word >> 8 * e);
    }
  }
};

/// Drains tiles that are rotated and quantised: all of the tile is staged in bf16, chunks of 64 rows by 64 columns, and then read
/// chunk by chunk by a code that is there once. RUN_SLOTS chunks of RUN_BYTES.
template <class C, class Epilogue>
class RopeDrain {
  using L = Layout<C>;
  static constexpr int CHUNKS = C::BLOCK_N / 64;
  static_assert(!C::ROTATES || (C::RUN_BYTES == 8192 && C::RUN_SLOTS == CHUNKS * L::M_BLOCKS && C::BLOCK_N % 64 == 0));

 public:
  VG_DEVICE RopeDrain(const Parameters& p, uint32 smem, int consumer)
      : p_(p), slots_(smem + L::STAGING + consumer * L::STAGING_OF_CONSUMER), consumer_(consumer), first_(warp_index() / 2 % 2) {}

  VG_DEVICE void load_ahead(const Epilogue&, const TilePiece&) {}
  VG_DEVICE void finish() {}

  /// `piece`: this consumer's part of the tile.
  template <class Accumulator>
  VG_DEVICE void operator()(Accumulator (&acc)[1][L::M_BLOCKS][C::BLOCK_N / 2], Epilogue& epilogue, const TilePiece& piece) {
    epilogue.begin(piece);
    consumer_sync(consumer_);
#pragma unroll
    for (int i = 0; i < L::M_BLOCKS; ++i) {
#pragma unroll
      for (int u = 0; u < C::BLOCK_N / 16; ++u) {
        // As in Drain, the branch also keeps ptxas from hoisting one unit into another.
        if (piece.col + 16 * u >= p_.n) continue;
        float x[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          x[e] = acc[0][i][8 * u + e];
          asm volatile("" : "+f"(x[e]));
        }
        stage<Bf16, false>({slots_ + (i * CHUNKS + u / 4) * C::RUN_BYTES, 128, 16 * (u % 4), piece.thread}, x);
      }
    }
    consumer_sync(consumer_);
    // Two warps take a chunk, the others the next one. While a chunk is quantised the one behind it is read.
    using Block = typename Epilogue::Rope;
    typename Block::Words words;
    constexpr int COUNT = CHUNKS * L::M_BLOCKS;
    if (first_ < COUNT) Block::fetch(words, slots_ + first_ * C::RUN_BYTES, piece.col + first_ % CHUNKS * 64);
#pragma unroll 1
    for (int g = first_; g < COUNT; g += 2) {
      const int row = piece.row + g / CHUNKS * 64, col = piece.col + g % CHUNKS * 64, next = g + 2 < COUNT ? g + 2 : g;
      const auto fetch_next = [&] { Block::fetch(words, slots_ + next * C::RUN_BYTES, piece.col + next % CHUNKS * 64); };
      if (row < p_.m && col < p_.n) {
        epilogue.chunk(words, piece.batch, row, col, fetch_next);
      } else {
        fetch_next();
      }
    }
    epilogue.end();
  }

 private:
  const Parameters& p_;
  uint32 slots_;
  int consumer_, first_;  // chunk of this warp
};

template <class C, class Epilogue>
struct DrainOf<C, Epilogue, Drains::rotated> {
  using Type = RopeDrain<C, Epilogue>;
};

}  // namespace vg
