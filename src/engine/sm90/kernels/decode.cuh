#pragma once
#include "load.cuh"
#include "scales.cuh"

namespace vg {

/// How matrices in narrow types, with scales of blocks or without, become bf16 on their way into a product. A piece is 16 bytes
/// of a line, which `decode` turns into chunks of eight bf16; exact before the scale, and rounded once with it.
struct Fp4Pieces {
  static constexpr int ELEMENTS = 32, PER_BYTE = 2;
  /// Eight nibbles in order of k, each with its sign on top.
  VG_DEVICE static void decode(const Piece<16>& piece, int chunk, uint32 (&out)[4]) {
    const uint32 w = piece.v[chunk], even = w & 0x0f0f0f0fu, odd = w >> 4 & 0x0f0f0f0fu;
    // Byte i of both, each in a half of its own: the selector's high bit makes bytes of the sign, which is none.
    constexpr uint32 SELECT[4] = {0xc480, 0xd591, 0xe6a2, 0xf7b3};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      //   s e e m . . . . . . . . . . . .       n << 12: the sign
      //   . . . . . . . s e e m . . . . .       n << 6: exponent and mantissa of a bf16 times 2^-126, subnormals among them
      const uint32 tiny = permute_bytes(even, odd, SELECT[i]) * 4160u & 0x81c081c0u;
      out[i] = multiply_bf16(tiny, 0x7e807e80u);
    }
  }
};
template <bool IS_E4M3>
struct Fp8Pieces {
  static constexpr int ELEMENTS = 16, PER_BYTE = 1;
  VG_DEVICE static void decode(const Piece<16>& piece, int chunk, uint32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32 two = piece.v[2 * chunk + i / 2] >> i % 2 * 16;
      const uint32 half = IS_E4M3 ? halves_of_e4m3(two) : halves_of_e5m2(two);
      out[i] = pack_bf16(f16_to_float(static_cast<uint16>(half)), f16_to_float(static_cast<uint16>(half >> 16)));
    }
  }
};

/// The scale of a block as a bf16, twice.
struct E8m0Scale {
  VG_DEVICE static uint32 twice(uint32 b) { return (b << 7 | (b == 0 || b == 255 ? 0x40u : 0u)) * 0x10001u; }
};
struct E4m3Scale {  // its sign has no meaning
  VG_DEVICE static uint32 twice(uint32 b) {
    const float f = e4m3_to_float(b & 0x7fu);
    return pack_bf16(f, f);
  }
};

/// Bytes that go through a prologue, which is the Way then; zeros behind the last of k, whatever the steps make of 0.
struct BytePieces {
  static constexpr int ELEMENTS = 16, PER_BYTE = 1;
  template <class Way>
  VG_DEVICE static void convert(const Way& way, const Piece<16>& piece, int chunk, int left, uint32 (&out)[4]) {
    float f[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float value = way(Way::Stored::value(piece.v[2 * chunk + e / 4] >> 8 * (e % 4) & 0xffu));
      f[e] = e < left ? value : 0.0f;
    }
    const Piece<16> all = packed<typename Way::Stage, 8>(f);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = all.v[i];
  }
};

/// One matrix's part of a stage by the 128 threads of the producer warpgroup: copied without registers into slots of shared
/// memory some k-blocks ahead, and turned into 16-bit values there. A thread reads what it copied, and nobody waits for anybody.
///   Way    Pieces, Scale, BLOCK elements of k that share a scale (0: there are none), INTERLEAVED, CONVERTS
///   a slot: pieces of 16 bytes, then for each the aligned four scales that hold its own
///   STRIDE producers take turns, each with slots of its own
template <class Way, int LINES, int STRIDE>
class Decoder {
  using Pieces = typename Way::Pieces;
  static constexpr int BLOCK_K = 64, A_LINE = BLOCK_K / Pieces::ELEMENTS, ALL = LINES * A_LINE, COUNT = (ALL + 127) / 128,
                       CHUNKS = Pieces::ELEMENTS / 8, STEP = 128 / A_LINE,          // lines from a thread's piece to its next
      SCALES = Way::BLOCK == 0 ? 0 : BLOCK_K / (Way::BLOCK == 0 ? 1 : Way::BLOCK);  // of a line in a stage

 public:
  static constexpr int SLOT_BYTES = COUNT * 128 * 20;

  /// Of a matrix, for the whole launch.
  VG_DEVICE void open(uint32 slots, const View& view, const Aux& scales) {
    view_ = &view;
    scales_ = scales;
    slots_ = slots + thread() * 16;
    scale_slots_ = slots + COUNT * 2048 + thread() * 4;
    const auto bytes = [](int64 elements) { return static_cast<uint64>(elements) / Pieces::PER_BYTE; };
    is_wide_ = view.inner_stride == 1 &&
               (reinterpret_cast<uint64>(view.address) | bytes(view.outer_stride) | bytes(view.batch_stride)) % 16 == 0;
    const uint64 rows = Way::INTERLEAVED ? 0 : static_cast<uint64>(scales.row_stride | scales.batch_stride);
    has_wide_scales_ = (Way::INTERLEAVED || scales.col_stride == 1) && (reinterpret_cast<uint64>(scales.address) | rows) % 4 == 0;
  }

  /// A tile: the first element of k to be fetched, and the number of its k-block; `scale_batch` may differ from `batch`.
  VG_DEVICE void begin(int mn, int k, int block, int batch, int scale_batch, int mn_extent, int k_extent) {
    const int line = thread() / A_LINE, at = k + thread() % A_LINE * Pieces::ELEMENTS;
    rows_ = mn_extent - mn - line;
    left_ = (k_extent - at) / Pieces::PER_BYTE;
    const int64 element = batch * view_->batch_stride + (mn + line) * view_->outer_stride + at * view_->inner_stride;
    from_ = static_cast<const char*>(view_->address) + element / Pieces::PER_BYTE;
    if constexpr (Way::BLOCK != 0) {
      block_ = block;
      const int blocks = (k_extent + Way::BLOCK - 1) / Way::BLOCK, first = block * SCALES / 4 * 4;
      scales_left_ = blocks - first;
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        scale_[i] = static_cast<const char*>(scales_.address) +
                    place_of_scales<Way::INTERLEAVED>(scales_, mn + line + i * STEP, first, scale_batch, mn_extent, blocks);
    }
  }

  /// Asks for the next k-block of the tile.
  VG_DEVICE void fetch(int slot) {
    const uint32 to = slots_ + slot * SLOT_BYTES, to_scales = scale_slots_ + slot * SLOT_BYTES;
    const int bytes = left_ < 0    ? 0
                      : left_ < 16 ? left_
                                   : 16,
              scales = scales_left_ < 0   ? 0
                       : scales_left_ < 4 ? scales_left_
                                          : 4;
    const int64 step = STEP * view_->outer_stride / Pieces::PER_BYTE;
    if (is_wide_) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        if (is_mine(i)) copy_async_16(to + i * 2048, from_ + i * step, i * STEP < rows_ ? bytes : 0);
    } else {
#pragma unroll 1
      for (int i = 0; i < COUNT; ++i)
        if (is_mine(i)) copy_bytes(to + i * 2048, from_ + i * step, i * STEP < rows_ ? bytes : 0);
    }
    from_ += STRIDE * BLOCK_K * view_->inner_stride / Pieces::PER_BYTE;
    left_ -= STRIDE * BLOCK_K / Pieces::PER_BYTE;
    if constexpr (Way::BLOCK != 0) {
      // Words to that of the next k-block; those of a k-block may be half a word.
      const int words = (block_ + STRIDE) * SCALES / 4 - block_ * SCALES / 4;
      const int64 ahead = words * (Way::INTERLEAVED ? 512 : 4 * scales_.col_stride);
      if (has_wide_scales_) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
          if (is_mine(i)) copy_async_4(to_scales + i * 512, scale_[i], i * STEP < rows_ ? scales : 0);
      } else {
        const int64 scale_step = Way::INTERLEAVED ? 1 : scales_.col_stride;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
          if (is_mine(i))
            store_shared(to_scales + i * 512, Piece<4>{load_bytes<4>(scale_[i], scale_step, i * STEP < rows_ ? scales : 0)});
      }
#pragma unroll
      for (int i = 0; i < COUNT; ++i) scale_[i] += ahead;
      scales_left_ -= 4 * words;
      block_ += STRIDE;
    }
  }

  /// The k-block of a slot, of which `block` is the number and `left` the elements of k from its first on.
  VG_DEVICE void decode(uint32 stage, int slot, int block, int left, const Way& way) const {
#pragma unroll 2
    for (int i = 0; i < COUNT; ++i) {
      if (!is_mine(i)) break;
      const int line = thread() / A_LINE + i * STEP, part = thread() % A_LINE;
      Piece<16> piece;
      Piece<4> scales;
      load_shared(slots_ + slot * SLOT_BYTES + i * 2048, piece);
      if constexpr (Way::BLOCK != 0) load_shared(scale_slots_ + slot * SLOT_BYTES + i * 512, scales);
      const int first = SCALES % 4 == 0 ? 0 : block * SCALES % 4;  // in the word
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        uint32 out[4];
        if constexpr (Way::CONVERTS) {
          Pieces::convert(way, piece, chunk, left - part * Pieces::ELEMENTS - chunk * 8, out);
        } else {
          Pieces::decode(piece, chunk, out);
        }
        if constexpr (Way::BLOCK != 0) {
          const int scale =
              first + (Way::BLOCK < Pieces::ELEMENTS ? part * (Pieces::ELEMENTS / Way::BLOCK) + chunk * 8 / Way::BLOCK
                                                     : part / (Way::BLOCK / Pieces::ELEMENTS));
          const uint32 twice = Way::Scale::twice(scales.v >> 8 * scale & 0xffu);
#pragma unroll
          for (uint32& pair : out) pair = multiply_bf16(pair, twice);
        }
        const int column = part * CHUNKS + chunk;
        store_shared(stage + static_cast<uint32>(line * 128 + (column ^ line % 8) * 16),
                     Piece<16>{out[0], out[1], out[2], out[3]});
      }
    }
  }

 private:
  VG_DEVICE static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  VG_DEVICE static bool is_mine(int i) { return ALL % 128 == 0 || thread() + 128 * i < ALL; }

  /// Up to N bytes, `step` apart; the others zero.
  template <int N>
  VG_DEVICE static uint32 load_bytes(const char* from, int64 step, int count) {
    uint32 word = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) word |= load_byte(from + i * step, i < count) << 8 * i;
    return word;
  }
  VG_DEVICE void copy_bytes(uint32 to, const char* from, int left) const {
    const int64 step = Pieces::PER_BYTE == 2 ? 1 : view_->inner_stride;
    Piece<16> piece;
#pragma unroll
    for (int i = 0; i < 4; ++i) piece.v[i] = load_bytes<4>(from + 4 * i * step, step, left - 4 * i);
    store_shared(to, piece);
  }

  const View* view_;
  Aux scales_;
  uint32 slots_, scale_slots_;
  bool is_wide_, has_wide_scales_;
  // Of what is fetched next.
  const char* from_;
  int rows_, left_, scales_left_, block_;
  const char* scale_[Way::BLOCK == 0 ? 1 : COUNT];
};

/// All matrices of a side.
template <class C, class Way, int LINES, int MATRICES>
class Decoders {
 public:
  VG_DEVICE Decoders(uint32 slots, const Way& way, const View* views, const int* steps) : way_(way), steps_(steps) {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i)
      of_[i].open(slots + i * C::SLOTS * Decoder<Way, LINES, C::PRODUCERS>::SLOT_BYTES, views[i], way.scales(i));
  }
  VG_DEVICE void begin(int mn, int k, int block, int batch, int mn_extent, int k_extent) {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i) of_[i].begin(mn, k, block, batch, batch * steps_[i], mn_extent, k_extent);
  }
  VG_DEVICE void fetch(int slot) {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i) of_[i].fetch(slot);
  }
  VG_DEVICE void decode(uint32 stage, int slot, int block, int left) const {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i) of_[i].decode(stage + i * LINES * 128, slot, block, left, way_);
  }

 private:
  const Way& way_;
  const int* steps_;  ///< 0: one matrix for all batches
  Decoder<Way, LINES, C::PRODUCERS> of_[MATRICES];
};
/// Of a side that is not decoded.
template <class Way>
struct NoDecoders {
  VG_DEVICE NoDecoders(uint32, const Way&, const View*, const int*) {}
  VG_DEVICE void begin(int, int, int, int, int, int) {}
  VG_DEVICE void fetch(int) {}
  VG_DEVICE void decode(uint32, int, int, int) const {}
};
template <bool DECODED, class C, class Way, int LINES, int MATRICES>
struct DecodersOf {
  using Type = NoDecoders<Way>;
};
template <class C, class Way, int LINES, int MATRICES>
struct DecodersOf<true, C, Way, LINES, MATRICES> {
  using Type = Decoders<C, Way, LINES, MATRICES>;
};

}  // namespace vg
