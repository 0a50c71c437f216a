#pragma once
#include "pointwise.cuh"
#include "together.cuh"

namespace vg {

/// COMBINE: a row of a result is the sum of the products of a token's rows, each times its score. First tiles of groups of rows
/// go to memory as they are, in fp32, and each row joins the list of its token's slot; when all have, pieces of the result are
/// summed from there, slot by slot and, where a slot has several rows, row by row, and drained as those of a matrix. C: of the
/// products; `typename C::Results`, which knows no groups: of what is drained.
template <class C, class Epilogue>
class Combiner {
  using L = Layout<C>;
  using R = typename C::Results;
  using Sums = float[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2];
  static constexpr int ROWS = 64 * L::M_BLOCKS, SHARES = C::PINGPONG ? 1 : C::CONSUMERS, UNITS = C::BLOCK_N / 16;

 public:
  VG_DEVICE Combiner(const Parameters& p, uint8* memory, uint32 smem, int consumer)
      : p_(p),
        table_(memory),
        consumer_(consumer),
        word_(smem + L::PLACES + consumer * L::PLACES_BYTES),
        pitch_(p.tiles_n * C::BLOCK_N),
        products_(static_cast<float*>(p.products)),
        next_(reinterpret_cast<uint32*>(products_ + int64{C::GEMMS} * p.tokens * pitch_)),
        heads_(words_of_rows(p)),
        read_(heads_ + int64{p.m} * p.top_k) {}

  /// A piece of a tile of products to memory, columns in an order of its own: the four of a thread lie side by side. With the
  /// first column of tiles its rows are listed.
  template <class Accumulator>
  VG_DEVICE void keep(const Accumulator (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2], const TilePiece& piece) const {
#pragma unroll
    for (int g = 0; g < C::GEMMS; ++g) {
#pragma unroll
      for (int i = 0; i < 2 * L::M_BLOCKS; ++i) {
        if (L::ENDS_EARLY && i / 2 >= piece.blocks) continue;
        const int row = piece.row + row_of(piece, i);
        float* const to = products_ + (int64{g} * p_.tokens + row) * pitch_ + piece.col + piece.lane() % 4 * 4;
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
          const auto& x = acc[g][i / 2];
          const int e = 8 * u + i % 2 * 2;
          const auto bits = [&x](int j) { return __float_as_uint(static_cast<float>(x[j])); };
          store_u128_where(row < piece.end, to + 16 * u, {bits(e), bits(e + 1), bits(e + 4), bits(e + 5)});
        }
      }
    }
    if (piece.n != 0) return;
    const int i = static_cast<int>(piece.thread), row = piece.row + i;
    if (i < ROWS && row < piece.end) {
      const int64 place = place_of_token<C>(p_, row, true);
      if (place != NO_PLACE) next_[row] = atomicExch(heads_ + place, static_cast<uint32>(row) + 1);
    }
    consumer_sync(consumer_);
  }

  /// When all blocks have kept their tiles: each consumer sums and drains pieces of the result.
  template <class DrainOfResults>
  VG_DEVICE void sum(DrainOfResults& drain, Epilogue& epilogue, const TilePiece& whole) const {
    if (p_.tiles == 0) return;
    wait_for_all_blocks<C>(p_, consumer_);
    const uint32 all = p_.tiles * SHARES, pieces_m = all / static_cast<uint32>(p_.tiles_n);
#pragma unroll 1
    for (uint32 t = blockIdx.x + static_cast<uint32>(consumer_) * gridDim.x; t < all; t += C::CONSUMERS * gridDim.x) {
      const int n = static_cast<int>(t / pieces_m), m = static_cast<int>(t - static_cast<uint32>(n) * pieces_m);
      TilePiece piece = whole;
      piece.batch = piece.d_batch = 0;
      piece.m = m;
      piece.n = n;
      piece.row = m * ROWS;
      piece.col = n * C::BLOCK_N;
      piece.end = p_.m;
      piece.blocks = L::M_BLOCKS;
      piece.places = 0;
      asm volatile("" : "+r"(piece.thread));
      if constexpr (R::LOADS_TILE) drain.load_ahead(epilogue, piece);
      Sums acc;
#pragma unroll
      for (int i = 0; i < L::M_BLOCKS; ++i) sum_block(acc, epilogue, piece, i);
      leave(piece);
      epilogue.load_ahead(piece);
      drain(acc, epilogue, piece);
    }
  }

 private:
  /// The i-th row of a thread in its piece.
  VG_DEVICE static int row_of(const TilePiece& piece, int i) {
    return 64 * (i / 2) + 16 * piece.warp() + piece.lane() / 4 + 8 * (i % 2);
  }
  VG_DEVICE uint32 next_of(uint32 row) const { return load_l2(next_ + row - 1, row != 0, 0); }

  /// The rows of a thread in a block of 64, two: their loads go together.
  VG_DEVICE void sum_block(Sums& acc, const Epilogue& epilogue, const TilePiece& piece, int block) const {
#pragma unroll
    for (int g = 0; g < C::GEMMS; ++g) {
#pragma unroll
      for (float& x : acc[g][block]) x = 0.0f;
    }
    const int token = piece.row + 64 * block + row_of(piece, 0);
    const auto head_of = [&](int i, int slot) {
      return load_l2(heads_ + int64{token + 8 * i} * p_.top_k + slot, token + 8 * i < p_.m && slot < p_.top_k, 0);
    };
    // Rows are numbered from 1, and looked up a slot or two before they are added.
    uint32 head[2], ahead[2], next[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) head[i] = head_of(i, 0), ahead[i] = head_of(i, 1), next[i] = next_of(head[i]);
#pragma unroll 1
    for (int slot = 0; slot < p_.top_k; ++slot) {
      const uint32 first[2] = {head[0], head[1]};
      const bool is_alone[2] = {next[0] == 0, next[1] == 0};
      float score[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        score[i] = first[i] != 0 ? epilogue.score(token + 8 * i, slot) : 0.0f;
        head[i] = ahead[i];
        next[i] = next_of(head[i]);
        ahead[i] = head_of(i, slot + 2);
      }
      // Where a place has several they come by number, one after the other.
      const auto after = [&](int i, uint32 row) {
        return is_alone[i] ? (row == 0 ? first[i] : 0) : following(first[i], int64{token + 8 * i} * p_.top_k + slot, row);
      };
      uint32 row[2] = {after(0, 0), after(1, 0)};
#pragma unroll 1
      do {
        add(acc, block, row, score, piece);
#pragma unroll
        for (int i = 0; i < 2; ++i) row[i] = row[i] != 0 ? after(i, row[i]) : 0;
      } while (row[0] != 0 || row[1] != 0);
    }
  }
  /// Of a row that is 0 nothing is read, and zeros are added, which change no sum that began at +0.
  VG_DEVICE void add(Sums& acc, int block, const uint32 (&row)[2], const float (&score)[2], const TilePiece& piece) const {
    constexpr int MOST = C::GEMMS * L::M_BLOCKS * UNITS > 8 ? 4 : 8;  // as many as there are registers for
    constexpr int AT_ONCE = UNITS % MOST == 0 ? MOST : UNITS % 4 == 0 ? 4 : 1;
#pragma unroll
    for (int g = 0; g < C::GEMMS; ++g) {
      const float* from[2];
      float times[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        from[i] = products_ + (int64{g} * p_.tokens + row[i] - 1) * pitch_ + piece.col + piece.lane() % 4 * 4;
        times[i] = row[i] != 0 ? score[i] : 0.0f;
      }
#pragma unroll
      for (int first = 0; first < UNITS; first += AT_ONCE) {
        uint32 x[AT_ONCE][2][4];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (uint32& e : x[u][i]) e = 0;
            load_l2(reinterpret_cast<const uint32*>(from[i] + 16 * (first + u)), row[i] != 0, x[u][i]);
          }
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            float& to = acc[g][block][8 * (first + u) + e];
            to = fmaf(times[e / 2 % 2], __uint_as_float(x[u][e / 2 % 2][e / 4 * 2 + e % 2]), to);
          }
        }
      }
    }
  }
  /// Of a list the row behind `row`, by number; 0: none. A long list would be walked too often: then all rows are looked at.
  VG_DEVICE uint32 following(uint32 head, int64 place, uint32 row) const {
    constexpr int SHORT = 16;
    uint32 least = 0;
    int steps = 0;
#pragma unroll 1
    for (uint32 r = head; r != 0; r = next_of(r)) {
      if (r > row && (least == 0 || r < least)) least = r;
      if (++steps == SHORT) break;
    }
    if (steps < SHORT) return least;
#pragma unroll 1
    for (int r = static_cast<int>(row); r < p_.tokens; ++r)
      if (place_of_token<C>(p_, r, false) == place && table_.is_multiplied(p_, r)) return static_cast<uint32>(r) + 1;
    return 0;
  }

  /// Lists are read once for each column of pieces; who is last leaves nothing in them.
  VG_DEVICE void leave(const TilePiece& piece) const {
    const auto others = static_cast<uint32>(p_.tiles_n - 1);
    consumer_sync(consumer_);
    if (piece.thread == 0) store_float(word_, count_up(read_ + piece.m, others) == others ? 1.0f : 0.0f);
    consumer_sync(consumer_);
    if (load_float(word_) == 0.0f) return;
    const int64 first = int64{piece.row} * p_.top_k, end = int64{p_.m} * p_.top_k;
    for (int64 i = first + piece.thread; i < first + int64{ROWS} * p_.top_k && i < end; i += 128) store_l2(heads_ + i, 0);
  }

  const Parameters& p_;
  GroupTable<C> table_;
  int consumer_;
  uint32 word_;
  int pitch_;                      // of products, in elements
  float* products_;                // of each matrix (row, column)
  uint32 *next_, *heads_, *read_;  // of rows; of (token, slot); of pieces of rows
};

/// Of other products.
struct NoCombiner {
  VG_DEVICE NoCombiner(const Parameters&, uint8*, uint32, int) {}
};

}  // namespace vg
