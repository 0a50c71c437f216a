#pragma once
#include "decode.cuh"

namespace vg {

// Few rows beside a matrix of fp4, which is A then (CARRIED): little is multiplied, and what counts are instructions for each of
// its elements. A stage is 256 elements of k: a line of 128 bytes of each row of A, as the copy engine brings it; then the scales
// of each row; then B, four k-blocks of 64.
//
// K has an order of its own in a stage, the same for A and B. Of the four threads that hold a row thread q reads elements 64q to
// 64q + 63, eight words: it needs few loads, and few scales. Pair i of a word are its nibbles i and i + 4. In k-block i of B
// chunk t of a line, eight values, has of each q the two that pair i of word t of thread q meets.

/// Where things lie in a stage.
template <int ROWS>
struct CarriedStage {
  static constexpr int SCALES = ROWS * 128, SCALE_BYTES = 16, B = SCALES + ROWS * SCALE_BYTES;
};

/// The scales of A, by a thread a row: one word for each four.
template <class Way>
class RowScales {
  static constexpr int WORDS = 64 / Way::BLOCK;
  static_assert(Way::BLOCK == 16 || Way::BLOCK == 32);

 public:
  VG_DEVICE explicit RowScales(const Aux& scales) : scales_(scales) {
    const uint64 rows = Way::INTERLEAVED ? 0 : static_cast<uint64>(scales.row_stride | scales.batch_stride);
    is_wide_ = (Way::INTERLEAVED || scales.col_stride == 1) && (reinterpret_cast<uint64>(scales.address) | rows) % 4 == 0;
    to_next_ = Way::INTERLEAVED ? 512 : 4 * scales.col_stride;
  }
  /// A tile: a row, and the first element of k.
  VG_DEVICE void begin(int row, int rows, int k, int k_extent, int batch) {
    const int blocks = (k_extent + Way::BLOCK - 1) / Way::BLOCK, first = k / Way::BLOCK;
    left_ = blocks - first;
    from_ =
        static_cast<const char*>(scales_.address) + place_of_scales<Way::INTERLEAVED>(scales_, row, first, batch, rows, blocks);
  }
  /// Asks for those of the next stage; zeros behind the last, whatever lies there.
  VG_DEVICE void fetch(uint32 to) {
    constexpr int STEP = Way::INTERLEAVED ? 512 : 4;
    if (is_wide_ && left_ >= 4 * WORDS) {
#pragma unroll
      for (int w = 0; w < WORDS; ++w) copy_async_4(to + 4 * w, from_ + w * STEP, 4);
    } else {
      const int64 step = Way::INTERLEAVED ? 1 : scales_.col_stride;
#pragma unroll 1
      for (int w = 0; w < WORDS; ++w)
        store_shared(to + 4 * w, Piece<4>{load_bytes<4>(from_ + w * to_next_, step, left_ - 4 * w)});
    }
    from_ += WORDS * to_next_;
    left_ -= 4 * WORDS;
  }

 private:
  Aux scales_;
  bool is_wide_;
  int64 to_next_;
  const char* from_;
  int left_;
};

/// What a thread of those that bring B has of it in a stage: of LINES lines, eight of k of each of the four quarters. A warp
/// reads whole lines of memory. As it is stored:
template <int LINES>
class PlainRows {
 public:
  using Part = Piece<16>;
  VG_DEVICE explicit PlainRows(const View& view) : view_(view) {
    const uint64 strides = static_cast<uint64>(view.outer_stride | view.batch_stride);
    is_wide_ = view.inner_stride == 1 && (reinterpret_cast<uint64>(view.address) | 2 * strides) % 16 == 0;
  }
  /// Lines, and the first of k that is this thread's.
  VG_DEVICE void begin(const int (&rows)[LINES], int, int k, int k_extent, int batch) {
    base_ = static_cast<const char*>(view_.address) + 2 * batch * view_.batch_stride;
    k_ = k, k_extent_ = k_extent;
#pragma unroll
    for (int i = 0; i < LINES; ++i) from_[i] = base_ + 2 * (rows[i] * view_.outer_stride + k);
  }
  /// True where K is whole pieces of a line of memory.
  VG_DEVICE bool is_whole() const { return is_wide_ && k_extent_ % 8 == 0; }
  /// Asks for the next stage, where it is; zeros behind the last of k.
  VG_DEVICE void load(Part (&part)[LINES][4]) {
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        uint32(&v)[4] = part[i][q].v;
        load_words(v[0], v[1], v[2], v[3], from_[i] + 128 * q, k_ + 64 * q < k_extent_);
      }
      from_[i] += 512;
    }
    k_ += 256;
  }
  /// One line of the stage from k on, by single elements.
  VG_DEVICE void load_line(int row, int k, Part (&part)[4]) const {
    const char* from = base_ + 2 * (row * view_.outer_stride + k * view_.inner_stride);
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
      for (int e = 64 * q; e < 64 * q + 8; e += 2)
        part[q].v[e / 2 % 4] = load_half(from + 2 * e * view_.inner_stride, k + e < k_extent_) |
                               load_half(from + 2 * (e + 1) * view_.inner_stride, k + e + 1 < k_extent_) << 16;
  }
  VG_DEVICE static uint32 pair(const Part& x, int i) {
    return __byte_perm(x.v[i / 2], x.v[2 + i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
  }

 private:
  const View& view_;
  bool is_wide_;
  const char *base_, *from_[LINES];
  int k_, k_extent_;
};
/// Of fp4 with scales too: words, and the bytes of their scales.
template <class Way, int LINES>
class Fp4Rows {
 public:
  struct Part {
    uint32 word, scale;
  };
  VG_DEVICE Fp4Rows(const View& view, const Aux& scales) : view_(view), scales_(scales) {
    const uint64 strides = static_cast<uint64>(view.outer_stride | view.batch_stride);
    is_wide_ = (reinterpret_cast<uint64>(view.address) | strides / 2) % 4 == 0;
  }
  VG_DEVICE void begin(const int (&rows)[LINES], int extent, int k, int k_extent, int batch) {
#pragma unroll
    for (int i = 0; i < LINES; ++i) rows_[i] = rows[i];
    k_ = k, k_extent_ = k_extent, extent_ = extent, batch_ = batch;
  }
  VG_DEVICE bool is_whole() const { return is_wide_ && k_extent_ % 8 == 0; }
  VG_DEVICE void load(Part (&part)[LINES][4]) {
#pragma unroll
    for (int i = 0; i < LINES; ++i) load<true>(rows_[i], k_, part[i]);
    k_ += 256;
  }
  VG_DEVICE void load_line(int row, int k, Part (&part)[4]) const { load<false>(row, k, part); }
  VG_DEVICE static uint32 pair(const Part& x, int i) {
    const uint32 two = Fp4Pieces::pair(x.word, i);
    return Way::BLOCK != 0 ? multiply_bf16(two, Way::Scale::twice(x.scale)) : two;
  }

 private:
  template <bool WHOLE>
  VG_DEVICE void load(int row, int k, Part (&part)[4]) const {
    const char* from = static_cast<const char*>(view_.address) + (batch_ * view_.batch_stride + row * view_.outer_stride + k) / 2;
    [[maybe_unused]] const int blocks = Way::BLOCK == 0 ? 0 : (k_extent_ + Way::BLOCK - 1) / (Way::BLOCK == 0 ? 1 : Way::BLOCK);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int left = k_extent_ - k - 64 * q;
      part[q].word = WHOLE ? load_word(from + 32 * q, left > 0) : load_bytes<4>(from + 32 * q, 1, (left + 1) / 2);
      if constexpr (Way::BLOCK != 0) {
        const int block = (k + 64 * q) / Way::BLOCK, first = block / 4 * 4, batch = batch_ * Way::scale_step(0);
        const int64 place = place_of_scales<Way::INTERLEAVED>(scales_, row, first, batch, extent_, blocks) +
                            (block - first) * (Way::INTERLEAVED ? 1 : scales_.col_stride);
        part[q].scale = load_byte(static_cast<const char*>(scales_.address) + place, left > 0);
      }
    }
  }
  const View& view_;
  Aux scales_;
  bool is_wide_;
  int rows_[LINES], extent_ = 0, k_ = 0, k_extent_ = 0, batch_ = 0;
};

/// Where a thread of those that bring B stores chunks of its lines: eight threads have a line, and each a chunk of each k-block.
template <int COLUMNS, int ROWS>
struct SpreadPlace {
  static constexpr int LINES = COLUMNS / 16;  // of a thread, 16 apart
  int line, word;
  VG_DEVICE SpreadPlace() : line(static_cast<int>(threadIdx.x) % 128 / 8), word(static_cast<int>(threadIdx.x) % 8) {}
  template <class Rows>
  VG_DEVICE void store_line(uint32 stage, int i, const typename Rows::Part (&part)[4]) const {
    const uint32 to = stage + static_cast<uint32>(CarriedStage<ROWS>::B + (line + 16 * i) * 128 + (word ^ line % 8) * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      store_shared(to + static_cast<uint32>(j * COLUMNS * 128),
                   Piece<16>{Rows::pair(part[0], j), Rows::pair(part[1], j), Rows::pair(part[2], j), Rows::pair(part[3], j)});
  }
};

/// What a thread of a consumer holds of two rows: its part of a stage.
template <class Way, int ROWS>
class CarriedPart {
  using Stage = CarriedStage<ROWS>;
  using Scale = typename Way::Scale;
  static constexpr int SCALES = 64 / Way::BLOCK;  // of a row

 public:
  VG_DEVICE explicit CarriedPart(int row_block) {
    const int lane = static_cast<int>(threadIdx.x) % 32, q = lane % 4;
    const int line = 64 * row_block + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    words_at_ = line * 128 + ((2 * q) ^ line % 8) * 16;
    scales_at_ = Stage::SCALES + line * Stage::SCALE_BYTES + q * SCALES;
  }
  VG_DEVICE void load(uint32 stage) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      load_shared(stage + words_at_ + static_cast<uint32>(1024 * r), word_[r][0]);
      load_shared((stage + words_at_ + static_cast<uint32>(1024 * r)) ^ 16u, word_[r][1]);
      load_shared(stage + scales_at_ + static_cast<uint32>(8 * Stage::SCALE_BYTES * r), stored_[r]);
    }
  }
  VG_DEVICE void decode_scales() {
    const uint32 large = (stored_[0].v | stored_[1].v) & Scale::LARGE * 0x01010101u;
    is_large_ = Scale::LARGE != 0 && __any_sync(0xffffffffu, large != 0);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < SCALES; i += 2)
        Scale::both_at_once(static_cast<uint32>(stored_[r].v) >> 8 * i & 0xffffu, scale_[i][r], scale_[i + 1][r]);
  }
  /// The k-steps of k-block j.
  VG_DEVICE void decode(int j, uint32 (&out)[16]) const {
#pragma unroll
    for (int t = 0; t < 8; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32 scale = is_large_ ? 0x7e807e80u : scale_[t / (8 / SCALES)][r];
        out[2 * t + r] = multiply_bf16(Fp4Pieces::tiny(word_[r][t / 4].v[t % 4], j), scale);
      }
    if (!is_large_) return;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      out[i] = multiply_bf16(out[i], Scale::twice(static_cast<uint32>(stored_[i % 2].v) >> 8 * (i / 2 / (8 / SCALES)) & 0xffu));
  }

 private:
  uint32 words_at_, scales_at_;
  Piece<16> word_[2][2];
  Piece<SCALES> stored_[2];
  uint32 scale_[SCALES][2];
  bool is_large_;
};

}  // namespace vg
