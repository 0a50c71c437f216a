#pragma once
#include "elements.cuh"
#include "layout.cuh"

namespace vg {

/// Two bytes of a word become two 16-bit values, exactly. `Casts<Stored, Stage>` asks `select` once a thread for its half of the
/// words, 0 or 1.
///
/// Of bf16, seven bits lie behind the leading one: 0x4300 | low seven bits is 128 + those, and with the sign's bit alone it is
/// 128, or 256 for a negative byte, which is what they are too many.
template <class Stored, class Stage>
struct Casts;
template <uint32 LOW, uint32 HIGH>
VG_DEVICE uint32 bytes_between(uint32 half) {  // numbers of permute_bytes: byte 2 half at LOW, the next at HIGH, 4 elsewhere
  uint32 numbers = 0;
#pragma unroll
  for (uint32 i = 0; i < 4; ++i) numbers |= (i == LOW ? 2 * half : i == HIGH ? 2 * half + 1 : 4) << 4 * i;
  return numbers;
}
template <>
struct Casts<I8, Bf16> {
  VG_DEVICE static uint32 select(uint32 half) { return bytes_between<0, 2>(half); }
  VG_DEVICE static uint32 pair(uint32 word, uint32 selected) {
    const uint32 both = permute_bytes(word, 0x43434343u, selected);
    return subtract_bf16(both & 0xff7fff7fu, both & 0xff80ff80u);
  }
};
template <>
struct Casts<U8, Bf16> {
  VG_DEVICE static uint32 select(uint32 half) { return bytes_between<0, 2>(half); }
  /// Its bits are those of the byte times 2^-133: times 2^126, times 2^7.
  VG_DEVICE static uint32 pair(uint32 word, uint32 selected) {
    return multiply_bf16(multiply_bf16(permute_bytes(word, 0, selected), 0x7e807e80u), 0x43004300u);
  }
};
template <>
struct Casts<I8, F16> {
  VG_DEVICE static uint32 select(uint32 half) { return bytes_between<0, 2>(half); }
  /// 0x6400 | byte is 1024 + byte.
  VG_DEVICE static uint32 pair(uint32 word, uint32 selected) {
    return subtract_fp16(permute_bytes(word, 0x64646464u, selected) ^ 0x00800080u, 0x64806480u);
  }
};
template <>
struct Casts<U8, F16> {
  VG_DEVICE static uint32 select(uint32 half) { return bytes_between<0, 2>(half); }
  VG_DEVICE static uint32 pair(uint32 word, uint32 selected) {
    return subtract_fp16(permute_bytes(word, 0x64646464u, selected), 0x64006400u);
  }
};
template <>
struct Casts<E4m3, F16> {
  VG_DEVICE static uint32 select(uint32 half) { return 16 * half; }
  VG_DEVICE static uint32 pair(uint32 word, uint32 selected) { return halves_of_e4m3(word >> selected); }
};
template <>
struct Casts<E5m2, F16> {
  VG_DEVICE static uint32 select(uint32 half) { return bytes_between<1, 3>(half); }
  VG_DEVICE static uint32 pair(uint32 word, uint32 selected) { return permute_bytes(word, 0, selected); }
};
template <class Stored>
struct Casts<Stored, Bf16> {  // fp8, which is exact in bf16 as in fp16
  using Halves = Casts<Stored, F16>;
  VG_DEVICE static uint32 select(uint32 half) { return Halves::select(half); }
  VG_DEVICE static uint32 pair(uint32 word, uint32 selected) {
    const uint32 halves = Halves::pair(word, selected);
    return pack_bf16(f16_to_float(static_cast<uint16>(halves)), f16_to_float(static_cast<uint16>(halves >> 16)));
  }
};

/// What a thread of a consumer reads of an A in bytes, and turns into wgmma's fragments. A stage holds it as the copy engine left
/// it: lines of 64 bytes, swizzled by two bits. In each eight of k thread q of four holds two: half q % 2 of word q / 2, so each
/// word is read by two threads.
template <class C, class Way>
class CastPart {
  using Cast = Casts<typename Way::Stored, typename Way::Stage>;

 public:
  VG_DEVICE explicit CastPart(int row_block) {
    const uint32 lane = threadIdx.x % 32;
    const uint32 line = static_cast<uint32>(64 * row_block) + threadIdx.x / 32 % 4 * 16 + lane / 4;
    at_ = line * 64 + lane % 4 / 2 * 4;
    turned_ = line / 2 % 4 * 16;
    select_ = Cast::select(lane % 2);
    asm volatile("" : "+r"(at_), "+r"(turned_), "+r"(select_));  // kept, and not formed anew for each k-block
  }
  /// Of k-steps 2 half and 2 half + 1, of row block `more` from the first on.
  VG_DEVICE void load(uint32 stage, int more, int half) {
    const uint32 from = stage + at_ + static_cast<uint32>(more * 4096);
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Piece<4> word;
        load_shared(from + (static_cast<uint32>(32 * half + 16 * step) ^ turned_) + static_cast<uint32>(i % 2 * 512 + i / 2 * 8),
                    word);
        word_[half][4 * step + i] = word.v;
      }
  }
  VG_DEVICE void cast(int half, uint32 (&out)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = Cast::pair(word_[half][i], select_);
  }

 private:
  uint32 at_, turned_, select_;
  uint32 word_[2][8];
};

}  // namespace vg
