#include "oracle/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "oracle/memory.hpp"

namespace {

using namespace oracle;

Result two_by_two(Bound a, Bound b, Bound c, Bound d) { return {{1, 2, 2}, {a, b, c, d}, false}; }

TEST(OracleCompare, NamesTheFirstWrongElement) {
  const Result want = two_by_two(Bound::exact(1), Bound::exact(2), Bound::exact(3), Bound::range(4, 4.5));
  float buffer[8] = {1, 2, 0, 3, 4.25f, 0, 0, 0};  // row stride 3
  Memory memory{buffer, {2, 2}, {3, 1}, false, false};
  EXPECT_TRUE(compare("y", Format::fp32, memory, want).ok()) << compare("y", Format::fp32, memory, want).text();
  buffer[4] = 4.6f;
  const Comparison c = compare("y", Format::fp32, memory, want);
  EXPECT_FALSE(c.ok());
  EXPECT_EQ(c.first, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(c.wrong, 1);
  EXPECT_EQ(c.exact, 3);
  EXPECT_NE(c.text().find("y: 1 of 4 elements wrong, first at (1, 1): got 4.5999999"), std::string::npos) << c.text();
}

TEST(OracleCompare, NoticesAnyOneBit) {
  // A reference that is broken on purpose, element by element and by the least step, is found each time.
  const Result want = two_by_two(Bound::exact(1), Bound::exact(-2), Bound::exact(0), Bound::only_nan());
  float buffer[4] = {1, -2, 0, std::nanf("")};
  const Memory memory{buffer, {1, 2, 2}, {4, 2, 1}, false, false};
  ASSERT_TRUE(compare("y", Format::fp32, memory, want).ok());
  for (float& v : buffer) {
    const float kept = v;
    v = std::isnan(v) ? 0.0f : std::nextafter(v, 10.0f);
    EXPECT_FALSE(compare("y", Format::fp32, memory, want).ok());
    v = kept;
  }
  buffer[2] = -0.0f;
  EXPECT_FALSE(compare("y", Format::fp32, memory, want).ok());
  EXPECT_TRUE(compare("y", Format::fp32, memory, want, {.zero_sign = false}).ok());
}

TEST(OracleCompare, ExtentsThatDoNotFitAreAFailure) {
  const Result want = two_by_two(Bound::exact(1), Bound::exact(1), Bound::exact(1), Bound::exact(1));
  const float buffer[4] = {1, 1, 1, 1};
  EXPECT_FALSE(compare("y", Format::fp32, {buffer, {4}, {1}, false, false}, want).ok());
}

TEST(OracleCompare, RoundsBothEndsToTheOutputFormat) {
  const Result want{{1}, {Bound::range(2048.5, 2049.5)}, false};
  std::uint16_t bits = 0x6800;  // 2048 in fp16
  const Memory memory{&bits, {1}, {1}, false, false};
  EXPECT_TRUE(compare("y", Format::fp16, memory, want).ok());
  bits = 0x6801;
  EXPECT_TRUE(compare("y", Format::fp16, memory, want).ok());
  bits = 0x6802;
  EXPECT_FALSE(compare("y", Format::fp16, memory, want).ok());
}

TEST(OracleGuards, SeesWritesBetweenAndAroundElements) {
  std::vector<std::byte> before(32, std::byte{0xA5});
  std::vector<std::byte> after = before;
  const std::vector<std::int64_t> dims{2, 2}, strides{3, 1};
  for (std::size_t i : {4u, 5u, 8u, 10u, 11u, 12u, 13u}) after[i] = std::byte{0};  // elements at 4, 6, 10, 12 of two bytes
  after[8] = std::byte{0xA5};
  EXPECT_EQ(first_stray_write(before, after, 4, Format::fp16, dims, strides), -1);
  after[8] = std::byte{0};  // the gap
  EXPECT_EQ(first_stray_write(before, after, 4, Format::fp16, dims, strides), 8);
  after[8] = before[8];
  after[14] = std::byte{0};  // behind the last
  EXPECT_EQ(first_stray_write(before, after, 4, Format::fp16, dims, strides), 14);
  after[14] = before[14];
  after[3] = std::byte{0};
  EXPECT_EQ(first_stray_write(before, after, 4, Format::fp16, dims, strides), 3);
}

}  // namespace
