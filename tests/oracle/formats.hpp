#pragma once
#include <cstdint>
#include <string>

// The number formats as the reference reads and writes them: decoded to double, rounded from double, by their definitions only.

namespace oracle {

/// Numbers equal those of the library's enum, so that a test may cast; a test asserts that they still do.
enum class Format : std::uint8_t {
  not_set = 0,
  fp32 = 1,
  tf32 = 2,
  fp16 = 3,
  bf16 = 4,
  e4m3 = 5,
  e5m2 = 6,
  e8m0 = 7,
  e2m1 = 8,
  int8 = 9,
  uint8 = 10,
  int32 = 11,
  int64 = 12,
  boolean = 13,
};

std::string name_of(Format format);
/// Bits in memory; 4 for e2m1, 32 for tf32 (which is never stored), 0 for not_set.
int bits_of(Format format);
bool is_integer(Format format);

/// The number that a bit pattern stands for. int64 beyond 2^53 loses its low bits.
double decode(Format format, std::uint64_t bits);

/// The number that storing `v` leaves: nearest even, but e8m0 rounds up to the next power of two (v <= 0 is its smallest,
/// 2^-127). fp16, bf16, fp32 overflow to infinity; fp8, fp4, e8m0 and integers saturate. NaN stays NaN where there is one,
/// becomes +6 in e2m1, 0 in integers, 1 in boolean.
double round_to(Format format, double v);

/// Bit pattern of round_to(format, v). NaN: quiet, positive, no payload (e4m3 0x7F, e5m2 0x7F, e8m0 0xFF).
std::uint64_t encode(Format format, double v);

}  // namespace oracle
