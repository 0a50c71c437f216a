#pragma once
#include "either.cuh"
#include "load.cuh"
#include "scales.cuh"

namespace vg {

template <class X, class Y>
constexpr bool SAME = false;
template <class X>
constexpr bool SAME<X, X> = true;

/// How matrices in narrow types, with scales of blocks or without, become bf16 on their way into a product. A piece is 16 bytes
/// of a line, which `decode` turns into chunks of eight bf16; exact before the scale, and rounded once with it.
///
/// Where consumers hold A in registers, K has an order of its own, the same for A and B: chunk c of a piece is `pair` c of each
/// of its four words. Thread q of four then reads word q of a piece of A, and holds what wgmma asks of it.
struct Fp4Pieces {
  static constexpr int ELEMENTS = 32;
  /// Nibbles i and i + 4 of a word.
  VG_DEVICE static uint32 pair(uint32 word, int i) { return multiply_bf16(tiny(word, i), 0x7e807e80u); }
  /// The same times 2^-126. As below: the nibble's sign on top, and exponent and mantissa where those of a bf16 end.
  VG_DEVICE static uint32 tiny(uint32 word, int i) {
    const uint32 w = i < 2 ? word : word >> 8;
    return (i % 2 == 0 ? (w & 0x000f000fu) * 4160u : (w & 0x00f000f0u) * 260u) & 0x81c081c0u;
  }
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
/// The same as fp16, beside what is.
struct Fp4HalfPieces {
  static constexpr int ELEMENTS = 32;
  VG_DEVICE static void decode(const Piece<16>& piece, int chunk, uint32 (&out)[4]) {
    const uint32 w = piece.v[chunk], even = w & 0x0f0f0f0fu, odd = w >> 4 & 0x0f0f0f0fu;
    constexpr uint32 SELECT[4] = {0xc480, 0xd591, 0xe6a2, 0xf7b3};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32 n = permute_bytes(even, odd, SELECT[i]);
      // The sign, and exponent and mantissa of an fp16 times 2^-14, subnormals among them.
      out[i] = multiply_fp16((n << 12 & 0x80008000u) | (n << 9 & 0x0e000e00u), 0x74007400u);
    }
  }
};
template <bool IS_E4M3>
struct Fp8Pieces {
  static constexpr int ELEMENTS = 16;
  VG_DEVICE static void decode(const Piece<16>& piece, int chunk, uint32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32 two = piece.v[2 * chunk + i / 2] >> i % 2 * 16;
      const uint32 half = IS_E4M3 ? halves_of_e4m3(two) : halves_of_e5m2(two);
      out[i] = pack_bf16(f16_to_float(static_cast<uint16>(half)), f16_to_float(static_cast<uint16>(half >> 16)));
    }
  }
};

/// The scale of a block as a bf16, twice. With `at_once`, one multiplication of what Fp4Pieces has as `tiny` gives the element
/// times its scale, exactly, but for 2^SHORT, which is left for the sums; where no bit of LARGE is set in the scale.
struct E8m0Scale {
  VG_DEVICE static uint32 multiply(uint32 a, uint32 b) { return multiply_bf16(a, b); }
  static constexpr int SHORT = 0;
  static constexpr uint32 LARGE = 0x80;                                                // 2 and more, and NaN
  VG_DEVICE static uint32 at_once(uint32 b) { return b * 0x00800080u + 0x3f003f00u; }  // 2^(b - 127) 2^126
  VG_DEVICE static void both_at_once(uint32 bytes, uint32& low, uint32& high) {
    low = at_once(bytes & 0xffu);
    high = at_once(bytes >> 8);
  }
  VG_DEVICE static uint32 twice(uint32 b) { return (b << 7 | (b == 0 || b == 255 ? 0x40u : 0u)) * 0x10001u; }
  /// Of the low two bytes.
  VG_DEVICE static void both(uint32 bytes, uint32& low, uint32& high) {
    low = twice(bytes & 0xffu);
    high = twice(bytes >> 8 & 0xffu);
  }
};
struct E4m3HalfScale {  // as an fp16
  VG_DEVICE static uint32 multiply(uint32 a, uint32 b) { return multiply_fp16(a, b); }
  VG_DEVICE static uint32 twice(uint32 b) { return halves_of_e4m3((b & 0x7fu) * 0x101u); }
};
struct E4m3Scale {  // its sign has no meaning
  VG_DEVICE static uint32 multiply(uint32 a, uint32 b) { return multiply_bf16(a, b); }
  VG_DEVICE static uint32 twice(uint32 b) {
    const float f = e4m3_to_float(b & 0x7fu);
    return pack_bf16(f, f);
  }
  VG_DEVICE static void both(uint32 bytes, uint32& low, uint32& high, float times = 1.0f) {
    const uint32 halves = halves_of_e4m3(bytes & 0x7f7fu);
    const float x = f16_to_float(static_cast<uint16>(halves)) * times,
                y = f16_to_float(static_cast<uint16>(halves >> 16)) * times;
    low = pack_bf16(x, x);
    high = pack_bf16(y, y);
  }
  static constexpr int SHORT = 8;  // 448 times 2^118 is a bf16, and times 2^119 is none
  static constexpr uint32 LARGE = 0;
  VG_DEVICE static uint32 at_once(uint32 b) {
    const float f = e4m3_to_float(b & 0x7fu) * 0x1p118f;
    return pack_bf16(f, f);
  }
  VG_DEVICE static void both_at_once(uint32 bytes, uint32& low, uint32& high) { both(bytes, low, high, 0x1p118f); }
};

/// Up to N bytes, `step` apart; the others zero.
template <int N>
VG_DEVICE uint32 load_bytes(const char* from, int64 step, int count) {
  uint32 word = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) word |= load_byte(from + i * step, i < count) << 8 * i;
  return word;
}

/// Bytes that go through a prologue, which is the Way then; zeros behind the last of k, whatever the steps make of 0.
struct BytePieces {
  static constexpr int ELEMENTS = 16;
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

/// Of an A that consumers hold: where piece `part` of a line lies in a stage. Eight lines side by side, so that four threads a
/// line read a word each without conflicts; turned by the part, so that the pieces of two or four lines are stored without.
template <int LINES, int A_LINE>
VG_DEVICE uint32 held_place(int line, int part) {
  return static_cast<uint32>((part * LINES + (line ^ part * (8 / A_LINE))) * 16);
}
/// Of the scales of a line in a stage, that of word q of a piece.
template <class Way>
VG_DEVICE int scale_of_word(int part, int q) {
  constexpr int ELEMENTS = Way::Pieces::ELEMENTS, BLOCK = Way::BLOCK;
  if constexpr (BLOCK < ELEMENTS) {
    return part * (ELEMENTS / BLOCK) + q * (ELEMENTS / 4) / BLOCK;
  } else {
    return part / (BLOCK / ELEMENTS);
  }
}

/// What a thread of a consumer reads of a row block of 64 rows of such an A, and turns into wgmma's fragments of half a k-block.
template <class C, class Way>
class HeldPart {
  using Pieces = typename Way::Pieces;
  static constexpr int LINES = C::BLOCK_M, A_LINE = C::A_DECODED, PAIRS = Pieces::ELEMENTS / 8,
                       SCALES = Way::BLOCK == 0 ? 0 : 64 / (Way::BLOCK == 0 ? 1 : Way::BLOCK);

 public:
  VG_DEVICE explicit HeldPart(int row_block) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int line = 64 * row_block + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int part = 0; part < A_LINE; ++part) words_at_[part] = held_place<LINES, A_LINE>(line, part) + lane % 4 * 4;
    scales_at_ = static_cast<uint32>(LINES * A_LINE * 16 + line * 4);
#pragma unroll
    for (uint32& at : words_at_) asm volatile("" : "+r"(at));  // kept, and not formed anew for each k-block
    asm volatile("" : "+r"(scales_at_));
  }
  /// Of row block `more` from the first on.
  VG_DEVICE void load(uint32 stage, int more) {
#pragma unroll
    for (int part = 0; part < A_LINE; ++part) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Piece<4> word;
        load_shared(stage + words_at_[part] + static_cast<uint32>(64 * more + 8 * r) * 16, word);
        word_[r][part] = word.v;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if constexpr (Way::BLOCK != 0) {
        Piece<4> scales;
        load_shared(stage + scales_at_ + static_cast<uint32>(64 * more + 8 * r) * 4, scales);
        scale_[0][r] = scales.v;
      }
  }
  /// What a thread multiplies by in k-block `block`, half by half.
  VG_DEVICE void decode_scales(int block) {
    if constexpr (Way::BLOCK != 0) {
      static_assert(2 * Way::BLOCK >= Pieces::ELEMENTS && Way::BLOCK >= 16);
      const int q = static_cast<int>(threadIdx.x) % 4, first = SCALES % 4 == 0 ? 0 : block * SCALES % 4;
      const int low = first + scale_of_word<Way>(0, q), high = first + scale_of_word<Way>(A_LINE / 2, q);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        Way::Scale::both(permute_bytes(scale_[0][r], 0, static_cast<uint32>(high << 4 | low)), scale_[0][r], scale_[1][r]);
    }
  }
  VG_DEVICE void decode(int half, uint32 (&out)[8]) const {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int part = (4 * half + t) / PAIRS, i = (4 * half + t) % PAIRS;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32& to = out[2 * t + r];
        to = Pieces::pair(word_[r][part], i);
        if constexpr (Way::BLOCK != 0) to = multiply_bf16(to, scale_[half][r]);
      }
    }
  }

 private:
  uint32 words_at_[A_LINE], scales_at_;
  uint32 word_[2][A_LINE], scale_[2][2];
};

/// One matrix's part of a stage by the 128 threads of the producer warpgroup: copied without registers into slots of shared
/// memory some k-blocks ahead, and turned into 16-bit values there. A thread reads what it copied, and nobody waits for anybody.
///   Way    Pieces, Scale, BLOCK elements of k that share a scale (0: there are none), INTERLEAVED, CONVERTS, scale_step of a
///          matrix: 0 where its scales serve all batches
///   a slot: pieces of 16 bytes, then for each the aligned four scales that hold its own
///   STRIDE producers take turns, each with slots of its own
///   Held   Pieces of the A that consumers hold in registers, whose order of K this matrix takes; or void
///   RAW    this is that A: slots are stages, laid out for consumers (HeldPart), and nothing is decoded here
///   AIMED  matrix and scales lie where `aim` says, tile by tile
template <class Way, int LINES, int STRIDE, class Held = void, bool RAW = false, bool AIMED = false>
class Decoder {
  using Pieces = typename Way::Pieces;
  static constexpr int BLOCK_K = 64, A_LINE = BLOCK_K / Pieces::ELEMENTS, ALL = LINES * A_LINE, COUNT = (ALL + 127) / 128,
                       CHUNKS = Pieces::ELEMENTS / 8, STEP = 128 / A_LINE,          // lines from a thread's piece to its next
      SCALES = Way::BLOCK == 0 ? 0 : BLOCK_K / (Way::BLOCK == 0 ? 1 : Way::BLOCK);  // of a line in a stage
  static constexpr int TO_NEXT = RAW ? STEP * 16 : 2048, TO_NEXT_SCALES = RAW ? STEP * 4 : 512;  // in a slot, likewise
  // Where tiles begin with an atom of scales, or scales lie in rows, one address gives those of all of a thread's lines.
  static constexpr bool BEGINS_WITH_ATOM = RAW && LINES % 128 == 0 && STEP % 32 == 0;
  static constexpr int POINTERS = Way::INTERLEAVED && !BEGINS_WITH_ATOM ? COUNT : 1;
  VG_DEVICE const char* scales_of(int i) const {
    if constexpr (POINTERS == COUNT) return scale_[i];
    if constexpr (Way::INTERLEAVED) return scale_[0] + STEP * i / 128 * to_next_rows_ + STEP * i % 128 / 32 * 4;
    return scale_[0] + i * to_next_rows_;
  }
  VG_DEVICE static int64 bytes_of(int64 elements) { return elements * 16 / Pieces::ELEMENTS; }

 public:
  static constexpr int SLOT_BYTES = COUNT * 128 * 20;

  /// Of a matrix, for the whole launch.
  VG_DEVICE void open(uint32 slots, const View& view, const Aux& scales) {
    view_ = &view;
    if constexpr (RAW) {
      slots_ = slots + held_place<LINES, A_LINE>(thread() / A_LINE, thread() % A_LINE);
      scale_slots_ = slots + ALL * 16 + thread() / A_LINE * 4;
    } else {
      slots_ = slots + thread() * 16;
      scale_slots_ = slots + COUNT * 2048 + thread() * 4;
    }
    if constexpr (!AIMED) look(view.address, view.batch_stride, scales);
  }
  VG_DEVICE void aim(const void* address, const Aux& scales) {
    address_ = address;
    look(address, 0, scales);
  }
  VG_DEVICE void look(const void* address, int64 batch_stride, const Aux& scales) {
    scales_ = scales;
    const auto bytes = [](int64 elements) { return static_cast<uint64>(bytes_of(elements)); };
    is_wide_ = view_->inner_stride == 1 &&
               (reinterpret_cast<uint64>(address) | bytes(view_->outer_stride) | bytes(batch_stride)) % 16 == 0;
    const uint64 rows = Way::INTERLEAVED ? 0 : static_cast<uint64>(scales.row_stride | scales.batch_stride);
    has_wide_scales_ = (Way::INTERLEAVED || scales.col_stride == 1) && (reinterpret_cast<uint64>(scales.address) | rows) % 4 == 0;
  }

  /// A tile: the first element of k to be fetched, and the number of its k-block; `scale_batch` may differ from `batch`, and
  /// scales lie `shift` rows further.
  VG_DEVICE void begin(int mn, int k, int block, int batch, int scale_batch, int mn_extent, int k_extent, int shift = 0) {
    const int line = thread() / A_LINE, at = k + thread() % A_LINE * Pieces::ELEMENTS;
    rows_ = mn_extent - mn - line;
    left_ = static_cast<int>(bytes_of(k_extent - at));
    const int64 element = batch * view_->batch_stride + (mn + line) * view_->outer_stride + at * view_->inner_stride;
    from_ = static_cast<const char*>(AIMED ? address_ : view_->address) + bytes_of(element);
    if constexpr (Way::BLOCK != 0) {
      block_ = block;
      const int blocks = (k_extent + Way::BLOCK - 1) / Way::BLOCK, first = block * SCALES / 4 * 4;
      scales_left_ = blocks - first;
#pragma unroll
      for (int i = 0; i < POINTERS; ++i)
        scale_[i] =
            static_cast<const char*>(scales_.address) +
            place_of_scales<Way::INTERLEAVED>(scales_, mn + shift + line + i * STEP, first, scale_batch, mn_extent, blocks);
      if constexpr (POINTERS < COUNT)
        to_next_rows_ = Way::INTERLEAVED ? (blocks + 3) / 4 * int64{512} : STEP * scales_.row_stride;
    }
  }

  /// Asks for the next k-block of the tile. `at`: bytes from the first slot to this one.
  VG_DEVICE void fetch(uint32 at) {
    const uint32 to = slots_ + at, to_scales = scale_slots_ + at;
    const int bytes = left_ < 0    ? 0
                      : left_ < 16 ? left_
                                   : 16,
              scales = scales_left_ < 0   ? 0
                       : scales_left_ < 4 ? scales_left_
                                          : 4;
    const int64 step = bytes_of(STEP * view_->outer_stride);
    if (is_wide_) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        if (is_mine(i)) copy_async_16(to + i * TO_NEXT, from_ + i * step, i * STEP < rows_ ? bytes : 0);
    } else {
#pragma unroll 1
      for (int i = 0; i < COUNT; ++i)
        if (is_mine(i)) copy_bytes(to + i * TO_NEXT, from_ + i * step, i * STEP < rows_ ? bytes : 0);
    }
    from_ += bytes_of(STRIDE * BLOCK_K * view_->inner_stride);
    left_ -= static_cast<int>(bytes_of(STRIDE * BLOCK_K));
    if constexpr (Way::BLOCK != 0) {
      // Words to that of the next k-block; those of a k-block may be half a word.
      const int words = (block_ + STRIDE) * SCALES / 4 - block_ * SCALES / 4;
      const int64 ahead = words * (Way::INTERLEAVED ? 512 : 4 * scales_.col_stride);
      if (has_wide_scales_) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
          if (takes_scales(i)) copy_async_4(to_scales + i * TO_NEXT_SCALES, scales_of(i), i * STEP < rows_ ? scales : 0);
      } else {
        const int64 scale_step = Way::INTERLEAVED ? 1 : scales_.col_stride;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
          if (takes_scales(i))
            store_shared(to_scales + i * TO_NEXT_SCALES,
                         Piece<4>{load_bytes<4>(scales_of(i), scale_step, i * STEP < rows_ ? scales : 0)});
      }
#pragma unroll
      for (int i = 0; i < POINTERS; ++i) scale_[i] += ahead;
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
      if constexpr (SAME<Held, void>) {
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
            for (uint32& pair : out) pair = Way::Scale::multiply(pair, twice);
          }
          const int column = part * CHUNKS + chunk;
          store_shared(stage + static_cast<uint32>(line * 128 + (column ^ line % 8) * 16),
                       Piece<16>{out[0], out[1], out[2], out[3]});
        }
      } else {
        uint32 twice[4];
#pragma unroll
        for (int q = 0; q < 4; ++q)
          if constexpr (Way::BLOCK != 0)
            twice[q] = Way::Scale::twice(scales.v >> 8 * (first + scale_of_word<Way>(part, q)) & 0xffu);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
          uint32 out[4];
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            out[q] = Pieces::pair(piece.v[q], chunk);
            if constexpr (Way::BLOCK != 0) out[q] = multiply_bf16(out[q], twice[q]);
          }
          store_shared(stage + static_cast<uint32>(line * 128 + ((part * CHUNKS + chunk) ^ line % 8) * 16),
                       Piece<16>{out[0], out[1], out[2], out[3]});
        }
      }
    }
  }

 private:
  VG_DEVICE static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  VG_DEVICE static bool is_mine(int i) { return ALL % 128 == 0 || thread() + 128 * i < ALL; }
  VG_DEVICE static bool takes_scales(int i) { return is_mine(i) && (!RAW || thread() % A_LINE == 0); }

  VG_DEVICE void copy_bytes(uint32 to, const char* from, int left) const {
    Piece<16> piece;
    const int64 step = Pieces::ELEMENTS == 32 ? 1 : view_->inner_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) piece.v[i] = load_bytes<4>(from + 4 * i * step, step, left - 4 * i);
    store_shared(to, piece);
  }

  const View* view_;
  const void* address_;
  Aux scales_;
  uint32 slots_, scale_slots_;
  bool is_wide_, has_wide_scales_;
  // Of what is fetched next.
  const char* from_;
  int rows_, left_, scales_left_, block_;
  const char* scale_[POINTERS];
  int64 to_next_rows_;
};

/// All matrices of a side.
template <class C, class Way, int LINES, int MATRICES, class Held, bool AIMED>
class Decoders {
  using Of = Decoder<Way, LINES, C::DECODERS, Held, false, AIMED>;

 public:
  VG_DEVICE Decoders(uint32 slots, const Way& way, const View* views) : way_(way) {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i)
      of_[i].open(slots + i * C::SLOTS * Of::SLOT_BYTES, views[i], AIMED ? Aux{} : way.scales(i));
  }
  /// Before each tile, where matrices lie at addresses of their own.
  template <class Weights>
  VG_DEVICE void aim(const Weights& weights, int expert) {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i) of_[i].aim(weights.view(i).address, way_.scales(i, expert));
  }
  VG_DEVICE void begin(int mn, int k, int block, int batch, int mn_extent, int k_extent, int shift) {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i)
      of_[i].begin(mn, k, block, AIMED ? 0 : batch, batch * Way::scale_step(i), mn_extent, k_extent, shift);
  }
  VG_DEVICE void fetch(int slot) {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i) of_[i].fetch(slot * Of::SLOT_BYTES);
  }
  VG_DEVICE void decode(uint32 stage, int slot, int block, int left) const {
#pragma unroll
    for (int i = 0; i < MATRICES; ++i) of_[i].decode(stage + i * LINES * 128, slot, block, left, way_);
  }

 private:
  const Way& way_;
  Of of_[MATRICES];
};
/// Of a side that is not decoded.
template <class Way>
struct NoDecoders {
  VG_DEVICE NoDecoders(uint32, const Way&, const View*) {}
  VG_DEVICE void begin(int, int, int, int, int, int, int) {}
  VG_DEVICE void fetch(int) {}
  VG_DEVICE void decode(uint32, int, int, int) const {}
};
template <bool DECODED, class C, class Way, int LINES, int MATRICES, class Held = void, bool AIMED = false>
using DecodersOf = Either<DECODED, Decoders<C, Way, LINES, MATRICES, Held, AIMED>, NoDecoders<Way>>;
/// The order of K of a B: that of an A in registers.
template <bool HELD, class Way>
struct HeldOf {
  using Type = void;
};
template <class Way>
struct HeldOf<true, Way> {
  using Type = typename Way::Pieces;
};

}  // namespace vg
