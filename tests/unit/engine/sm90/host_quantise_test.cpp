// What the kernels' quantiser makes of single numbers, compiled for the host: the codes and scales of src/numeric.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>

#include "numeric/quantise.hpp"
#include "quantise.cuh"

namespace {

using namespace vg;

/// Numbers of every octave, of every code and around its ends; of NaN the positive quiet ones, as arithmetic on a
/// device makes them.
template <class Body>
void each_number(const Body& body) {
  for (uint32 u = 0; u < 0xff800000U; u += u % 3 == 0 ? 4099 : 4111) {
    const bool is_signaling = u > 0x7f800000U && u < 0x7fc00000U;
    if (!is_signaling) body(__uint_as_float(u));
  }
  for (int code = 0; code < 16; ++code)
    for (const float step : {0.0F, 0.25F, 0.5F, 1.0F})
      for (int nudge = -2; nudge <= 2; ++nudge) {
        const float x = verglas::numeric::e2m1_to_float(static_cast<uint8>(code)) + step;
        body(__uint_as_float(__float_as_uint(x) + static_cast<uint32>(x == 0.0F ? 0 : nudge)));
      }
}

TEST(HostQuantiser, CodesFp4AsTheCpuEngine) {
  int wrong = 0;
  // In each of the four places, beside codes of every kind.
  float last[3] = {};
  each_number([&](float x) {
    const float in[] = {x, last[0], last[1], last[2]};
    uint32 codes = 0;
    for (int i = 0; i < 4; ++i) codes |= uint32{verglas::numeric::float_to_e2m1(in[i])} << 4 * i;
    wrong += (E2m1Elements::pack(in[0], in[1], in[2], in[3]) & 0xffffU) != codes ? 1 : 0;
    last[2] = last[1], last[1] = last[0], last[0] = x;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(E2m1Elements::pack(1.0F, -6.0F, 0.5F, -0.5F) & 0xffffU, 0x91f2U);
}

TEST(HostQuantiser, CodesProductsAsTheCpuEngine) {
  int wrong = 0;
  float last[3] = {};
  each_number([&](float x) {
    // NaN is a block's factor too, in which all are NaN.
    for (const float f : {1.0F, 0.0F, 0.37F, std::ldexp(1.0F, -100), std::ldexp(1.0F, 60), std::nanf("")}) {
      if (x != x && f == f) continue;
      const float in[] = {x, last[0], last[1], last[2]};
      uint32 codes = 0;
      for (int i = 0; i < 4; ++i) codes |= uint32{f == f ? verglas::numeric::float_to_e2m1(in[i] * f) : 7U} << 4 * i;
      // An infinite number has a factor that is not 0.
      if (std::any_of(in, in + 4, [&](float v) { return std::isinf(v) && f == 0.0F; })) continue;
      wrong += (E2m1Elements::pack_times(in[0], in[1], in[2], in[3], f) & 0xffffU) != codes ? 1 : 0;
    }
    if (x == x) last[2] = last[1], last[1] = last[0], last[0] = x;
  });
  EXPECT_EQ(wrong, 0);
}

/// Largest magnitudes of blocks: those above, and around each product of the largest element and a scale or a tie of scales.
template <class Elements, class Body>
void each_largest(const Body& body) {
  each_number([&](float x) { body(std::fabs(x)); });
  for (int power = -150; power <= 127; ++power)
    for (int sixteenth = 16; sixteenth < 32; ++sixteenth) {
      const float x = std::ldexp(Elements::LARGEST * static_cast<float>(sixteenth), power - 4);
      if (!std::isfinite(x)) continue;
      for (int nudge = -3; nudge <= 3; ++nudge) {
        const std::int64_t u = std::int64_t{__float_as_uint(x)} + nudge;
        if (u >= 0 && u < 0x7f800000) body(__uint_as_float(static_cast<uint32>(u)));
      }
    }
}

template <class Elements>
int wrong_scales(float vmax) {
  using enum verglas::DataType;
  int wrong = 0;
  each_largest<Elements>([&](float largest) {
    const auto differs = [](float x, float y) {
      return !(std::isnan(x) && std::isnan(y)) && __float_as_uint(x) != __float_as_uint(y);
    };
    const auto power = verglas::numeric::block_scale_of(largest, vmax, fp8_e8m0);
    const auto small = verglas::numeric::block_scale_of(largest, vmax, fp8_e4m3);
    wrong += E8m0Stored::of<Elements>(largest) != power.stored || differs(E8m0Stored::factor(power.stored), power.inverse);
    wrong += E4m3Stored::of<Elements>(largest) != small.stored || differs(E4m3Stored::factor(small.stored), small.inverse);
  });
  return wrong;
}

TEST(HostQuantiser, FindsScalesAndFactorsAsTheCpuEngine) {
  EXPECT_EQ(wrong_scales<E4m3Elements>(448), 0);
  EXPECT_EQ(wrong_scales<E5m2Elements>(57344), 0);
  EXPECT_EQ(wrong_scales<E2m1Elements>(6), 0);
  EXPECT_EQ((wrong_scales<UpTo<E5m2Elements, 0x43000000U>>(128)), 0);
  EXPECT_EQ((wrong_scales<UpTo<E4m3Elements, 0x40000000U>>(2)), 0);
  EXPECT_EQ((wrong_scales<UpTo<E2m1Elements, 0x40700000U>>(3.75F)), 0);
}

/// Nobody looks at what is stored: only at where.
void may_touch_all_of(const char* first, std::size_t bytes) {
  first_byte = first, end_byte = first + bytes, other_first_byte = other_end_byte = nullptr, faults = 0;
}

TEST(HostQuantiser, StoresScalesInAtomsAtAnyAddress) {
  alignas(16) static std::array<char, 2048> memory;
  may_touch_all_of(memory.data(), memory.size());
  constexpr uint32 SCALES[4] = {1, 2, 3, 4}, TWO[2] = {5, 6};
  for (std::size_t shift = 0; shift < 4; ++shift) {
    char* const row = memory.data() + shift;
    memory.fill(0);
    store_scales<true, 4>(row, 0, SCALES, 4, 4);
    store_scales<true, 2>(row, 0, TWO, 10, 2);
    EXPECT_EQ(faults, 0) << shift;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(row[512 + i], 1 + i) << shift;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(row[1024 + 2 + i], 5 + i) << shift;
  }
}

TEST(HostQuantiser, StoresScalesBeyond32Bits) {
  constexpr uint32 BLOCK = 0x4000004;  // of a row of 2^31 columns
  constexpr std::size_t AT = BLOCK / 4 * std::size_t{512};
  void* const memory = mmap(nullptr, AT + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  char* const row = static_cast<char*>(memory);
  may_touch_all_of(row, AT + 4096);
  constexpr uint32 SCALES[2] = {1, 2};
  store_scales<true, 2>(row, 0, SCALES, BLOCK, 2);
  store_scales<true, 2>(row, 0, SCALES, BLOCK + 2, 1);
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(row[AT], 1);
  EXPECT_EQ(row[AT + 1], 2);
  EXPECT_EQ(row[AT + 2], 1);
  munmap(memory, AT + 4096);
}

/// Two rows of a thread, the second `down` rows from the first, of 32 columns and a gap.
template <class Elements>
int misplaced_rows(int pitch, int row, int down) {
  alignas(16) static std::array<char, 8192> memory;
  may_touch_all_of(memory.data(), memory.size());
  const Aux data{memory.data(), 0, pitch, 1};
  Position at{};
  at.row = row, at.down = down, at.end = 64;
  NarrowStore<Elements, false> out;
  out.begin(data, at, 0, 32);
  constexpr uint32 WORDS[2][2] = {{0x01010101, 0x01010101}, {0x01010101, 0x01010101}};
  out.template store<2>(data, TilePiece{}, at, 0, 0, 32, 0, WORDS);
  return faults;
}

// Where rows have places of their own, as those that are scattered do, both are not aligned alike.
TEST(HostQuantiser, StoresEachRowOfAThreadAsItIsAligned) {
  threadIdx.x = 0;
  constexpr int NOWHERE = NO_PLACE;
  for (const int pitch : {32, 34, 36, 40, 44})
    for (const int row : {0, 1, 4, 9, NOWHERE})
      for (const int second : {0, 3, 5, 8, 17, NOWHERE}) {
        EXPECT_EQ(misplaced_rows<E4m3Elements>(pitch, row, second - row), 0) << pitch << ' ' << row << ' ' << second;
        EXPECT_EQ(misplaced_rows<E2m1Elements>(pitch, row, second - row), 0) << pitch << ' ' << row << ' ' << second;
      }
}

}  // namespace
