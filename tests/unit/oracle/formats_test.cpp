#include "oracle/formats.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "oracle/pointwise.hpp"
#include "verglas/dtype.hpp"

namespace {

using namespace oracle;

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(OracleFormats, NumbersEqualThoseOfTheLibrary) {
  for (int i = 0; i < verglas::kDataTypeCount; ++i)
    EXPECT_EQ(name_of(static_cast<Format>(i)), verglas::name_of(static_cast<verglas::DataType>(i)));
}

TEST(OracleFormats, EveryPatternSurvivesARoundTrip) {
  for (Format f :
       {Format::fp16, Format::bf16, Format::e4m3, Format::e5m2, Format::e8m0, Format::e2m1, Format::int8, Format::uint8})
    for (std::uint64_t bits = 0; bits < 1ull << bits_of(f); ++bits) {
      const double v = decode(f, bits);
      if (std::isnan(v)) {
        EXPECT_TRUE(std::isnan(decode(f, encode(f, v))));
      } else if (!(f == Format::e5m2 && std::isinf(v))) {
        ASSERT_EQ(encode(f, v), bits) << name_of(f) << " " << bits;
      }
    }
}

TEST(OracleFormats, HalfwayPointsGoToEven) {
  for (Format f : {Format::fp16, Format::bf16, Format::e4m3, Format::e5m2, Format::e2m1})
    for (std::uint64_t bits = 0; bits + 1 < 1ull << (bits_of(f) - 1); ++bits) {
      const double low = decode(f, bits), high = decode(f, bits + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = (low + high) / 2;
      ASSERT_EQ(encode(f, middle), bits + bits % 2) << name_of(f) << " " << bits;
      ASSERT_EQ(encode(f, std::nextafter(middle, 0)), bits) << name_of(f);
      ASSERT_EQ(encode(f, std::nextafter(middle, kInf)), bits + 1) << name_of(f);
    }
}

TEST(OracleFormats, KnownPatterns) {
  EXPECT_EQ(decode(Format::fp16, 0x3C00), 1);
  EXPECT_EQ(decode(Format::fp16, 0x7BFF), 65504);
  EXPECT_EQ(decode(Format::fp16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(decode(Format::bf16, 0x4049), 3.140625);
  EXPECT_EQ(decode(Format::e4m3, 0x7E), 448);
  EXPECT_TRUE(std::isnan(decode(Format::e4m3, 0xFF)));
  EXPECT_EQ(decode(Format::e5m2, 0x7B), 57344);
  EXPECT_EQ(decode(Format::e8m0, 0), std::ldexp(1.0, -127));
  EXPECT_EQ(decode(Format::e2m1, 0xF), -6);
  EXPECT_EQ(encode(Format::fp16, 65520), 0x7C00u);
  EXPECT_EQ(encode(Format::fp16, 65519.99), 0x7BFFu);
  EXPECT_EQ(encode(Format::e4m3, 1e9), 0x7Eu);
  EXPECT_EQ(encode(Format::e5m2, -kInf), 0xFBu);
  EXPECT_EQ(encode(Format::e2m1, std::nan("")), 7u);
  EXPECT_EQ(round_to(Format::int8, 2.5), 2);
  EXPECT_EQ(round_to(Format::int8, 3.5), 4);
  EXPECT_EQ(round_to(Format::int8, -1e9), -128);
  EXPECT_EQ(round_to(Format::uint8, 200.0), 200);
  EXPECT_EQ(round_to(Format::uint8, -3), 0);
  EXPECT_EQ(round_to(Format::int32, std::nan("")), 0);
  EXPECT_EQ(round_to(Format::int32, kInf), 2147483647);
  EXPECT_EQ(round_to(Format::tf32, 1 + std::ldexp(1.0, -11)), 1);
  EXPECT_EQ(encode(Format::int32, -1), 0xFFFFFFFFu);
}

TEST(OracleFormats, RoundingSurvivesTheOptimizer) {
  const Bound wide[] = {Bound::range(0.7, 141)};
  const Bound r = pointwise_fp32(Pointwise::exp, {}, wide, {});
  EXPECT_EQ(r.lo, fl32(r.lo));
  EXPECT_EQ(r.hi, kInf);
}

TEST(OracleFormats, Fp32IsTheMachines) {
  for (double v : {1.0, -0.0, 3.14159265358979, 1e-45, 7e-46, 1e-38, 3.4028235677973366e38, 1e300, -2.5e-40}) {
    const float f = static_cast<float>(v);
    std::uint32_t bits;
    std::memcpy(&bits, &f, 4);
    EXPECT_EQ(encode(Format::fp32, v), bits) << v;
    EXPECT_EQ(decode(Format::fp32, bits), static_cast<double>(f));
  }
}

}  // namespace
