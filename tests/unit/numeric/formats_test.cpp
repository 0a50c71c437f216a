#include "numeric/formats.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "numeric/convert.hpp"
#include "oracle/formats.hpp"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace verglas::numeric {
namespace {

constexpr std::array kAll{DataType::fp32,     DataType::fp16,     DataType::bf16,     DataType::fp8_e4m3,
                          DataType::fp8_e5m2, DataType::fp8_e8m0, DataType::fp4_e2m1, DataType::int8,
                          DataType::uint8,    DataType::int32,    DataType::int64,    DataType::boolean};

std::uint64_t stored(DataType t, float v) {
  std::uint64_t b = 0;
  from_float(v, &b, t);
  return b;
}

/// fp32 bit patterns spread over the whole range, both signs, every exponent, and all low bits in turn.
std::vector<float> spread() {
  std::vector<float> values;
  for (std::uint64_t u = 0; u < std::uint64_t{1} << 32; u += 31'469) values.push_back(from_bits(static_cast<std::uint32_t>(u)));
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
    for (const std::uint32_t low : {0U, 1U, 0x3FFFFFU, 0x400000U, 0x400001U, 0x7FFFFFU})
      for (const std::uint32_t sign : {0U, 0x80000000U}) values.push_back(from_bits(sign | exponent << 23 | low));
  return values;
}

TEST(Formats, EncodeAsTheOracleOverTheWholeRange) {
  const std::vector<float> values = spread();
  for (const DataType t : kAll) {
    const auto format = static_cast<oracle::Format>(t);
    for (const float v : values) {
      if (std::isnan(v) && t != DataType::fp4_e2m1 && !is_integer(t))
        ASSERT_TRUE(std::isnan(round_to(v, t))) << name_of(t);
      else
        ASSERT_EQ(stored(t, v), oracle::encode(format, static_cast<double>(v))) << name_of(t) << ' ' << v;
    }
  }
}

TEST(Formats, NanKeepsItsSignAndIsQuiet) {
  for (const std::uint32_t low : {1U, 0x1000U, 0x400000U, 0x7FFFFFU})
    for (const std::uint32_t sign : {0U, 1U}) {
      const float nan = from_bits(sign << 31 | 0x7F800000U | low);
      for (const DataType t : {DataType::fp16, DataType::bf16}) {
        const std::uint64_t b = stored(t, nan);
        const std::uint64_t quiet = t == DataType::fp16 ? 0x7E00 : 0x7FC0;
        EXPECT_EQ(b & quiet, quiet) << name_of(t) << ' ' << std::hex << b;
        EXPECT_EQ(b >> 15, sign) << name_of(t);
        EXPECT_EQ(bits(round_to(nan, t)) >> 31, sign);
      }
      EXPECT_EQ(stored(DataType::fp8_e4m3, nan), sign << 7 | 0x7FU);
      EXPECT_EQ(stored(DataType::fp8_e5m2, nan), sign << 7 | 0x7FU);
    }
}

// The processor's fp16 conversion and vectors against single elements, to the last bit of a NaN.
TEST(Formats, RunsHaveTheBitsOfSingleElements) {
  const std::vector<float> values = spread();
  const auto n = static_cast<std::int64_t>(values.size());
  for (const DataType t : kAll) {
    const auto size = static_cast<std::size_t>(bytes_of(t));
    std::vector<std::uint64_t> memory(values.size() + 1);
    auto* bytes = reinterpret_cast<unsigned char*>(memory.data());
    store_f32(values.data(), t, bytes, 1, n);
    std::vector<float> back(values.size()), rounded = values;
    load_f32(bytes, t, 1, n, back.data());
    round_f32(rounded.data(), t, n);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint64_t b = 0;
      std::memcpy(&b, bytes + i * size, size);
      ASSERT_EQ(b, stored(t, values[i])) << name_of(t) << ' ' << std::hex << bits(values[i]);
      ASSERT_EQ(bits(back[i]), bits(to_float(&b, t))) << name_of(t) << ' ' << std::hex << b;
      ASSERT_EQ(bits(rounded[i]), bits(back[i])) << name_of(t) << ' ' << std::hex << b;
    }
  }
}

TEST(Formats, EveryPatternReadsTheSameAloneAndInARun) {
  for (const DataType t : {DataType::fp16, DataType::bf16}) {
    std::vector<std::uint16_t> patterns(65536 + 5);  // a tail that fills no vector
    for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
    std::vector<float> run(patterns.size());
    load_f32(patterns.data(), t, 1, static_cast<std::int64_t>(patterns.size()), run.data());
    for (std::size_t i = 0; i < patterns.size(); ++i) ASSERT_EQ(bits(run[i]), bits(to_float(&patterns[i], t))) << i;
  }
}

// Types without a direct road to int32 lanes go through fp32; those with one lose nothing.
TEST(Formats, IntegerLanesAgreeWithTheirDefinition) {
  const std::vector<float> values = spread();
  const auto n = static_cast<std::int64_t>(values.size());
  for (const DataType t : kAll) {
    std::vector<std::uint64_t> memory(values.size() + 1), again(values.size() + 1);
    store_f32(values.data(), t, memory.data(), 1, n);
    const auto size = static_cast<std::size_t>(bytes_of(t));
    std::vector<std::int32_t> lanes(values.size());
    load_i32(memory.data(), t, 1, n, lanes.data());
    store_i32(lanes.data(), t, again.data(), 1, n);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint64_t b = 0, a = 0;
      std::memcpy(&b, reinterpret_cast<char*>(memory.data()) + i * size, size);
      std::memcpy(&a, reinterpret_cast<char*>(again.data()) + i * size, size);
      const double v = oracle::decode(static_cast<oracle::Format>(t), t == DataType::fp4_e2m1 ? b & 0xF : b);
      const double lane = oracle::round_to(oracle::Format::int32, v);
      ASSERT_EQ(lanes[i], lane) << name_of(t) << ' ' << v;
      const double stored_lane = is_integer(t) ? lane : static_cast<double>(static_cast<float>(lanes[i]));
      ASSERT_EQ(a, oracle::encode(static_cast<oracle::Format>(t), stored_lane)) << name_of(t) << ' ' << lane;
    }
  }
}

#if defined(__SSE__)
// A program may have switched subnormals off (a library built with -ffast-math does it on loading).
TEST(Formats, DoNotDependOnFlushedSubnormals) {
  const std::vector<float> values = spread();
  std::vector<float> back(values.size()), flushed_back(values.size());
  const auto n = static_cast<std::int64_t>(values.size());
  for (const DataType t : kAll) {
    std::vector<std::uint64_t> memory(values.size() + 1), flushed(values.size() + 1);
    std::vector<std::uint64_t> alone(values.size()), flushed_alone(values.size());
    const auto convert = [&](std::vector<std::uint64_t>& run, std::vector<float>& read, std::vector<std::uint64_t>& single) {
      store_f32(values.data(), t, run.data(), 1, n);
      load_f32(run.data(), t, 1, n, read.data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        from_float(values[i], &single[i], t);
        const float v = to_float(&single[i], t);
        single[i] |= std::uint64_t{bits(v)} << 32;
      }
    };
    convert(memory, back, alone);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040U);  // FTZ, DAZ
    convert(flushed, flushed_back, flushed_alone);
    _mm_setcsr(before);
    EXPECT_TRUE(memory == flushed) << name_of(t);
    EXPECT_TRUE(std::memcmp(back.data(), flushed_back.data(), back.size() * sizeof(float)) == 0) << name_of(t);
    EXPECT_TRUE(alone == flushed_alone) << name_of(t);
  }
}
#endif

TEST(Formats, OnlyWideIntegersDoNotFitAFloat) {
  for (const DataType t : kAll) EXPECT_EQ(exact_in_float(t), t != DataType::int32 && t != DataType::int64) << name_of(t);
}

}  // namespace
}  // namespace verglas::numeric
