#include "numeric/convert.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "oracle/formats.hpp"

namespace verglas::numeric {
namespace {

constexpr std::array kFloats{DataType::fp16,     DataType::bf16,     DataType::fp8_e4m3,
                             DataType::fp8_e5m2, DataType::fp8_e8m0, DataType::fp4_e2m1};
constexpr std::array kInts{DataType::int8, DataType::uint8, DataType::int32, DataType::boolean};

oracle::Format format(DataType t) { return static_cast<oracle::Format>(t); }

std::uint64_t slot_bits(DataType t, float v) {
  std::uint64_t b = 0;
  from_float(v, &b, t);
  return b;
}

/// Same number, or both NaN; −0 and +0 differ.
bool same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); }

TEST(Convert, FormatNumbersEqualThoseOfTheOracle) {
  for (int i = 0; i < kDataTypeCount; ++i)
    EXPECT_EQ(oracle::bits_of(static_cast<oracle::Format>(i)), bits_of(static_cast<DataType>(i))
                                                                   ? bits_of(static_cast<DataType>(i))
                                                                   : oracle::bits_of(static_cast<oracle::Format>(i)));
}

TEST(Convert, DecodesEveryBitPattern) {
  for (const DataType t : kFloats) {
    const std::uint32_t count = 1U << bits_of(t);
    for (std::uint32_t b = 0; b < count; ++b)
      ASSERT_TRUE(same(to_float(&b, t), oracle::decode(format(t), b))) << name_of(t) << ' ' << b;
  }
  for (const DataType t : {DataType::int8, DataType::uint8, DataType::boolean})
    for (std::uint32_t b = 0; b < 256; ++b)
      ASSERT_EQ(to_float(&b, t), t == DataType::boolean ? float(b != 0) : static_cast<float>(oracle::decode(format(t), b)));
}

TEST(Convert, EncodesWhatItDecodes) {
  for (const DataType t : kFloats) {
    const std::uint32_t count = 1U << bits_of(t);
    for (std::uint32_t b = 0; b < count; ++b) {
      const float v = to_float(&b, t);
      if (std::isnan(v))
        ASSERT_TRUE(std::isnan(round_to(v, t)));
      else if (std::isinf(v) && t == DataType::fp8_e5m2)
        ASSERT_EQ(std::fabs(round_to(v, t)), 57344.0F);  // saturates, on purpose
      else
        ASSERT_EQ(slot_bits(t, v), b) << name_of(t);
    }
  }
}

/// Every value of the format, every midpoint between neighbours, and the fp32 values on both sides of each.
TEST(Convert, RoundsToNearestEvenAroundEveryMidpoint) {
  for (const DataType t : kFloats) {
    const std::uint32_t count = 1U << bits_of(t);
    for (std::uint32_t b = 0; b < count; ++b) {
      const float v = to_float(&b, t);
      if (!std::isfinite(v)) continue;
      const std::uint32_t next = b + 1;
      const float w = to_float(&next, t);
      const float middle =
          std::isfinite(w) ? static_cast<float>((static_cast<double>(v) + static_cast<double>(w)) / 2) : v * 1.03125F;
      for (const float m : {v, middle})
        for (const float x : {m, std::nextafter(m, INFINITY), std::nextafter(m, -INFINITY)}) {
          if (t == DataType::fp8_e8m0) {  // a scale is never below what it scales: the next power of two, not the nearest
            const int up = std::ilogb(x) + (std::ldexp(1.0, std::ilogb(x)) < x ? 1 : 0);
            ASSERT_EQ(round_to(x, t), std::ldexp(1.0F, std::clamp(up, -127, 127))) << x;
            continue;
          }
          ASSERT_EQ(slot_bits(t, x), oracle::encode(format(t), x)) << name_of(t) << ' ' << x << ' ' << b;
        }
    }
  }
}

TEST(Convert, SpecialsFollowTheTables) {
  const float inf = INFINITY;
  const float nan = std::nanf("");
  EXPECT_EQ(slot_bits(DataType::fp16, 65519.9F), 0x7BFFU);
  EXPECT_EQ(slot_bits(DataType::fp16, 65520.0F), 0x7C00U);
  EXPECT_EQ(slot_bits(DataType::bf16, std::numeric_limits<float>::max()), 0x7F80U);
  for (const float v : {449.0F, 464.0F, 465.0F, 480.0F, 1000.0F, inf}) {
    EXPECT_EQ(slot_bits(DataType::fp8_e4m3, v), 0x7EU) << v;
    EXPECT_EQ(slot_bits(DataType::fp8_e4m3, -v), 0xFEU) << v;
  }
  for (const float v : {57344.0F, 61439.0F, 61440.0F, 61441.0F, inf}) EXPECT_EQ(slot_bits(DataType::fp8_e5m2, v), 0x7BU) << v;
  for (const DataType t : {DataType::fp16, DataType::bf16, DataType::fp8_e4m3, DataType::fp8_e5m2, DataType::fp8_e8m0})
    EXPECT_TRUE(std::isnan(round_to(nan, t))) << name_of(t);
  EXPECT_EQ(round_to(nan, DataType::fp4_e2m1), 6.0F);
  const std::array ties{0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const std::array even{0.0F, 1.0F, 1.0F, 2.0F, 2.0F, 4.0F, 4.0F};
  for (std::size_t i = 0; i < ties.size(); ++i) {
    EXPECT_EQ(round_to(ties[i], DataType::fp4_e2m1), even[i]);
    EXPECT_EQ(round_to(-ties[i], DataType::fp4_e2m1), -even[i]);
  }
  EXPECT_EQ(slot_bits(DataType::fp4_e2m1, -0.25F), 8U);
  for (const float v : {6.5F, 7.0F, 1e30F, inf}) EXPECT_EQ(round_to(v, DataType::fp4_e2m1), 6.0F);
  EXPECT_EQ(slot_bits(DataType::fp8_e8m0, 0.0F), 0U);
  EXPECT_EQ(slot_bits(DataType::fp8_e8m0, inf), 254U);
  EXPECT_EQ(slot_bits(DataType::fp8_e8m0, 1.0001F), 128U);
}

TEST(Convert, IntegersRoundToEvenAndSaturate) {
  for (const DataType t : kInts)
    for (const float v : {0.0F,          -0.0F,          0.5F,   1.5F,   2.5F,     -0.5F,     -1.5F,        126.5F,
                          127.5F,        128.0F,         254.5F, 255.5F, 300.0F,   -128.5F,   -129.0F,      2147483520.0F,
                          2147483648.0F, -2147483648.0F, 1e20F,  -1e20F, INFINITY, -INFINITY, std::nanf("")})
      EXPECT_EQ(round_to(v, t), static_cast<float>(oracle::round_to(format(t), v))) << name_of(t) << ' ' << v;
  std::int64_t wide = 0;
  from_float(9.3e18F, &wide, DataType::int64);
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::max());
}

TEST(Convert, RunsAgreeWithSingleElementsAtEveryStrideAndOffset) {
  std::vector<float> values;
  for (int i = -40; i < 40; ++i) values.push_back(static_cast<float>(i) * 1.37F + (i % 7 == 0 ? 1e5F : 0));
  values.insert(values.end(), {INFINITY, -INFINITY, std::nanf(""), -0.0F, 1e-40F, 5e-8F, 65519.0F});
  for (int k = 1; k < kDataTypeCount; ++k) {
    const auto t = static_cast<DataType>(k);
    if (t == DataType::tf32) continue;
    const auto size = static_cast<std::int64_t>(bytes_of(t));
    for (const std::int64_t stride : {1, 2, 3})
      for (const std::int64_t offset : {0, 1}) {  // an odd byte: rows of a packed record
        const auto n = static_cast<std::int64_t>(values.size());
        std::vector<char> memory(static_cast<std::size_t>(n * stride * size + 16), 0x55);
        store_f32(values.data(), t, memory.data() + offset, stride, n);
        std::vector<float> back(values.size());
        load_f32(memory.data() + offset, t, stride, n, back.data());
        std::vector<float> rounded = values;
        round_f32(rounded.data(), t, n);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_TRUE(same(back[i], round_to(values[i], t))) << name_of(t) << ' ' << values[i];
          ASSERT_TRUE(same(rounded[i], back[i])) << name_of(t) << ' ' << values[i];
          for (std::int64_t gap = size; gap < stride * size && static_cast<std::int64_t>(i) < n - 1; ++gap)
            ASSERT_EQ(memory[static_cast<std::size_t>(offset + static_cast<std::int64_t>(i) * stride * size + gap)], 0x55);
        }
      }
  }
}

TEST(Convert, IntegerLanesKeepEveryBit) {
  const std::vector<std::int32_t> v = {0, 1, -1, 127, 128, 300, -300, 16777217, INT32_MAX, INT32_MIN};
  const auto n = static_cast<std::int64_t>(v.size());
  for (const DataType t : {DataType::int32, DataType::int64}) {
    std::vector<char> memory(v.size() * 8);
    std::vector<std::int32_t> back(v.size());
    store_i32(v.data(), t, memory.data(), 1, n);
    load_i32(memory.data(), t, 1, n, back.data());
    EXPECT_EQ(back, v);
  }
  std::vector<std::int8_t> narrow(v.size());
  store_i32(v.data(), DataType::int8, narrow.data(), 1, n);
  EXPECT_EQ(narrow, (std::vector<std::int8_t>{0, 1, -1, 127, 127, 127, -128, 127, 127, -128}));
  const std::vector<float> f = {2.5F, 3.5F, 1e10F, -1e10F, std::nanf("")};
  std::vector<std::int32_t> back(f.size());
  load_i32(f.data(), DataType::fp32, 1, 5, back.data());
  EXPECT_EQ(back, (std::vector<std::int32_t>{2, 4, INT32_MAX, INT32_MIN, 0}));
}

TEST(Convert, PackedFp4KeepsTheOtherHalf) {
  std::uint8_t run[2] = {0, 0};
  for (int i = 0; i < 4; ++i) fp4_from_float(static_cast<float>(i) - 1.0F, run, i);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(fp4_to_float(run, i), static_cast<float>(i) - 1.0F);
  EXPECT_EQ(run[0], 0x0A);  // element 0 = −1 in the low half, element 1 = 0 in the high half
}

}  // namespace
}  // namespace verglas::numeric
