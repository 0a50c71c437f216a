#pragma once
#include "quantise.cuh"
#include "runs.cuh"

namespace vg {

/// 32 rows by 32 columns of a result whose columns come in heads of HEAD, of which the last 64 are rotated: what a warp
/// quantises. They are read from a staged chunk of 64 by 64 in bf16, in which a thread finds any columns, and so pairs of
/// neighbours as well as eight results in a run: of four rows, 8 apart, columns 8 quad to 8 quad + 7.
template <int HEAD>
class RopeBlock {
  float z_[4][8];
  int batch_, row_, col_;  // of z_[0][0]
  int rows_;               // that there are from here on

 public:
  VG_DEVICE RopeBlock(uint32 chunk, const Aux& cos, const Aux& sin, const Parameters& p, int batch, int row, int col)
      : batch_(batch), row_(row + 32 * (warp() / 2) + lane() / 4), col_(col + 32 * (warp() % 2) + 8 * quad()), rows_(p.m - row_) {
    // Lines 8 apart are exchanged alike.
    const int first = 32 * (warp() / 2) + lane() / 4;
    if (col % HEAD != HEAD - 64) {
      const uint32 from = chunk + swizzled(128, first, 64 * (warp() % 2) + 16 * quad());
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Piece<16> y;
        load_shared(from + 1024 * k, y);
#pragma unroll
        for (int e = 0; e < 8; ++e) z_[k][e] = half_of(y.v[e / 2], e % 2);
      }
      return;
    }
    const uint32 from[2] = {chunk + swizzled(128, first, 32 * quad()), chunk + swizzled(128, first, 32 * quad() + 16)};
    const char *const of_cos = line_of(cos), *const of_sin = line_of(sin);
    const int64 cos_step = here(16 * cos.row_stride), sin_step = here(16 * sin.row_stride);
    uint32 c[4][4], s[4][4];
    // Lines 8 apart are aligned alike. One branch for all of them: behind one of its own each load would be waited for.
    if (__all_sync(0xffffffffu, (reinterpret_cast<uint64>(of_cos) | reinterpret_cast<uint64>(of_sin)) % 16 == 0)) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        load_words(c[k][0], c[k][1], c[k][2], c[k][3], of_cos + k * cos_step, 8 * k < rows_);
        load_words(s[k][0], s[k][1], s[k][2], s[k][3], of_sin + k * sin_step, 8 * k < rows_);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        c[i / 4][i % 4] = load_pair_of(of_cos + i / 4 * cos_step + 4 * (i % 4), 8 * (i / 4) < rows_);
        s[i / 4][i % 4] = load_pair_of(of_sin + i / 4 * sin_step + 4 * (i % 4), 8 * (i / 4) < rows_);
      }
    }
    const bool is_second = warp() % 2 != 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Piece<16> pairs[2];  // columns 16 quad and on: one pair of neighbours a word
      load_shared(from[0] + 1024 * k, pairs[0]);
      load_shared(from[1] + 1024 * k, pairs[1]);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float even = half_of(pairs[e / 4].v[e % 4], 0), odd = half_of(pairs[e / 4].v[e % 4], 1);
        // Each operation is rounded, as on the host.
        z_[k][e] = __fadd_rn(__fmul_rn(is_second ? odd : even, half_of(c[k][e / 2], e % 2)),
                             __fmul_rn(is_second ? even : -odd, half_of(s[k][e / 2], e % 2)));
      }
    }
  }

  /// Stores the scales of blocks along N; answers the factor of row `quad` of this thread's four.
  template <class Elements, class Stored, bool INTERLEAVED>
  VG_DEVICE float scale_along_n(const Aux& scales, const Parameters& p) const {
    float most[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float pairs[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) pairs[e] = larger(fabsf(z_[k][2 * e]), fabsf(z_[k][2 * e + 1]));
      most[k] = larger(larger(pairs[0], pairs[1]), larger(pairs[2], pairs[3]));
    }
    const float largest = larger_of_halves(larger_of_halves(most[0], most[1], 1), larger_of_halves(most[2], most[3], 1), 2);
    const uint32 stored = Stored::template of<Elements>(largest);
    const int block = col_ / 32;
    if (8 * quad() < rows_)
      store_u8(address_of(scales, place_of_scales<INTERLEAVED>(scales, row_ + 8 * quad(), INTERLEAVED ? block / 4 * 4 : block,
                                                               batch_, p.m, p.n / 32) +
                                      (INTERLEAVED ? block % 4 : 0)),
               stored);
    return Stored::factor(stored);
  }

  /// The same along M; of one of this thread's columns.
  template <class Elements, class Stored, bool INTERLEAVED>
  VG_DEVICE float scale_along_m(const Aux& scales, const Parameters& p) const {
    float most[8];
#pragma unroll
    for (int e = 0; e < 8; ++e)
      most[e] = larger(larger(fabsf(z_[0][e]), fabsf(z_[1][e])), larger(fabsf(z_[2][e]), fabsf(z_[3][e])));
    // Lanes of eight rows halve their eight columns until each has one.
#pragma unroll
    for (int e = 0; e < 4; ++e) most[e] = larger_of_halves(most[e], most[e + 4], 16);
    most[0] = larger_of_halves(most[0], most[2], 8);
    most[1] = larger_of_halves(most[1], most[3], 8);
    const uint32 stored = Stored::template of<Elements>(larger_of_halves(most[0], most[1], 4));
    const int own = lane() / 16 * 4 + lane() / 8 % 2 * 2 + lane() / 4 % 2, block = row_ / 32;
    if (rows_ > 0)
      store_u8(address_of(scales, place_of_scales<INTERLEAVED>(scales, col_ + own, INTERLEAVED ? block / 4 * 4 : block, batch_,
                                                               p.n, p.m / 32) +
                                      (INTERLEAVED ? block % 4 : 0)),
               stored);
    return Stored::factor(stored);
  }

  template <class Elements>
  VG_DEVICE void store_along_n(const Aux& data, float factor) const {
    float factors[4][8];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      factors[i / 8][i % 8] = i % 8 == 0 ? __shfl_sync(0xffffffffu, factor, lane() / 4 * 4 + i / 8) : factors[i / 8][0];
    store<Elements>(data, factors);
  }
  template <class Elements>
  VG_DEVICE void store_along_m(const Aux& data, float factor) const {
    float factors[4][8];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      factors[i / 8][i % 8] =
          i < 8 ? __shfl_sync(0xffffffffu, factor, quad() + i / 4 * 16 + i / 2 % 2 * 8 + i % 2 * 4) : factors[0][i % 8];
    store<Elements>(data, factors);
  }

 private:
  VG_DEVICE static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  VG_DEVICE static int warp() { return static_cast<int>(threadIdx.x) / 32 % 4; }
  VG_DEVICE static int quad() { return static_cast<int>(threadIdx.x) % 4; }
  VG_DEVICE static float half_of(uint32 pair, int which) { return __uint_as_float(which ? pair & 0xffff0000u : pair << 16); }
  VG_DEVICE static char* address_of(const Aux& a, int64 at) { return static_cast<char*>(const_cast<void*>(a.address)) + at; }

  /// What is formed here and not ahead of all tiles, where it would take registers from the products.
  VG_DEVICE static int64 here(int64 x) {
    asm volatile("" : "+l"(x));
    return x;
  }
  /// Of a table, from the column of the first result on.
  VG_DEVICE const char* line_of(const Aux& table) const {
    return address_of(table, 2 * (batch_ * table.batch_stride + row_ * table.row_stride + 32 * (warp() % 2) + 8 * quad()));
  }
  VG_DEVICE static uint32 load_pair_of(const char* from, bool in) { return load_half(from, in) | load_half(from + 2, in) << 16; }

  template <class Elements>
  VG_DEVICE void store(const Aux& data, const float (&factors)[4][8]) const {
    char* const to = address_of(data, batch_ * data.batch_stride + row_ * data.row_stride + col_ * data.col_stride);
    const int64 step = here(8 * data.row_stride);
    uint32 words[4][2];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float(&z)[8] = z_[k];
      const float(&f)[8] = factors[k];
      words[k][0] = Elements::pack(z[0] * f[0], z[1] * f[1], z[2] * f[2], z[3] * f[3]);
      words[k][1] = Elements::pack(z[4] * f[4], z[5] * f[5], z[6] * f[6], z[7] * f[7]);
    }
    // Again one branch for all.
    if (__all_sync(0xffffffffu, data.col_stride == 1 && reinterpret_cast<uint64>(to) % 8 == 0 && rows_ > 24)) {
#pragma unroll
      for (int k = 0; k < 4; ++k) store_u64(to + k * step, words[k][0], words[k][1]);
      return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll 1
      for (int e = 0; e < 8 && 8 * k < rows_; ++e)
        store_u8(to + k * step + e * data.col_stride, (e < 4 ? words[k][0] : words[k][1]) >> 8 * (e % 4));
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
      : p_(p), slots_(smem + L::STAGING + consumer * L::STAGING_OF_CONSUMER), consumer_(consumer) {}

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
        stage<Bf16, false>({slots_ + (i * CHUNKS + u / 4) * C::RUN_BYTES, 128, 16 * (u % 4)}, x);
      }
    }
    consumer_sync(consumer_);
#pragma unroll 1
    for (int g = 0; g < CHUNKS * L::M_BLOCKS; ++g) {
      const int row = piece.row + g / CHUNKS * 64, col = piece.col + g % CHUNKS * 64;
      if (row < p_.m && col < p_.n) epilogue.chunk(slots_ + g * C::RUN_BYTES, piece.batch, row, col);
    }
    epilogue.end();
  }

 private:
  const Parameters& p_;
  uint32 slots_;
  int consumer_;
};

template <class C, class Epilogue>
struct DrainOf<C, Epilogue, Drains::rotated> {
  using Type = RopeDrain<C, Epilogue>;
};

}  // namespace vg
