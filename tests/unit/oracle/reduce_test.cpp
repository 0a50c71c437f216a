#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "oracle/nodes.hpp"
#include "oracle/sum.hpp"

namespace {

using namespace oracle;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

Result row(const std::vector<double>& values) {
  Result r;
  r.dims = {1, 1, static_cast<std::int64_t>(values.size())};
  for (double v : values) r.elements.push_back(Bound::exact(v));
  return r;
}

Bound all(Reduction mode, const std::vector<double>& values, Format compute = Format::fp32) {
  return reduced(row(values), mode, {false, false, false}, compute).elements.at(0);
}

void expect_exact(const Bound& got, double want) {
  EXPECT_TRUE(got.number && !got.nan && got.lo == want && got.hi == want)
      << "[" << got.lo << ", " << got.hi << "] wanted " << want;
}

TEST(OracleReduction, EveryModeOnSmallIntegers) {
  const std::vector<double> v{3, -4, 0, 2};
  expect_exact(all(Reduction::add, v), 1);
  expect_exact(all(Reduction::norm1, v), 9);
  expect_exact(all(Reduction::amax, v), 4);
  expect_exact(all(Reduction::max, v), 3);
  expect_exact(all(Reduction::min, v), -4);
  expect_exact(all(Reduction::avg, v), 0.25);
  expect_exact(all(Reduction::mul, v), 0);
  expect_exact(all(Reduction::mul_no_zeros, v), -24);
  expect_exact(all(Reduction::norm2, {3, -4}), 5);
  EXPECT_TRUE(all(Reduction::norm2, {1, 1}).contains(static_cast<double>(std::sqrt(2.0f))));
  EXPECT_FALSE(all(Reduction::avg, {1, 1, 2}).contains(1.0));
  EXPECT_TRUE(all(Reduction::avg, {1, 1, 2}).contains(fl32(4.0 / 3)));
}

TEST(OracleReduction, TheEmptySetIsTheIdentity) {
  for (Format compute : {Format::fp32, Format::int32}) {
    expect_exact(all(Reduction::add, {}, compute), 0);
    expect_exact(all(Reduction::norm1, {}, compute), 0);
    expect_exact(all(Reduction::amax, {}, compute), 0);
  }
  expect_exact(all(Reduction::max, {}), -kInf);
  expect_exact(all(Reduction::min, {}), kInf);
  expect_exact(all(Reduction::max, {}, Format::int32), -2147483648.0);
  expect_exact(all(Reduction::min, {}, Format::int32), 2147483647.0);
  expect_exact(all(Reduction::avg, {}), 0);
  expect_exact(all(Reduction::mul, {}), 1);
  expect_exact(all(Reduction::mul_no_zeros, {}), 1);
  expect_exact(all(Reduction::mul_no_zeros, {0, -0.0}), 1);
  expect_exact(all(Reduction::norm2, {}), 0);
}

TEST(OracleReduction, NanWinsEverywhere) {
  for (int m = 0; m < kReductionCount; ++m) {
    const Bound r = all(static_cast<Reduction>(m), {1, kNan, 2});
    EXPECT_FALSE(r.number) << name_of(static_cast<Reduction>(m));
    EXPECT_TRUE(r.nan);
  }
  EXPECT_FALSE(all(Reduction::add, {kInf, -kInf}).number);
  expect_exact(all(Reduction::amax, {1, -kInf}), kInf);
  expect_exact(all(Reduction::norm2, {1, -kInf}), kInf);
  EXPECT_TRUE(all(Reduction::mul, {kInf, 0}).nan);
}

TEST(OracleReduction, KeepsTheAxesThatAreFull) {
  Result x;
  x.dims = {1, 2, 3};
  for (double v : {1, 2, 3, 4, 5, 6}) x.elements.push_back(Bound::exact(v));
  const Result columns = reduced(x, Reduction::add, {true, false, true}, Format::fp32);
  EXPECT_EQ(columns.dims, (std::vector<std::int64_t>{1, 1, 3}));
  expect_exact(columns.elements[2], 9);
  const Result rows = reduced(x, Reduction::max, {true, true, false}, Format::fp32);
  EXPECT_EQ(rows.dims, (std::vector<std::int64_t>{1, 2, 1}));
  expect_exact(rows.elements[1], 6);
}

TEST(OracleReduction, AverageCountsLiveElements) {
  Result x;
  x.dims = {1, 4, 0};
  const Result empty = reduced(x, Reduction::avg, {true, true, false}, Format::fp32);
  ASSERT_EQ(empty.elements.size(), 4u);
  expect_exact(empty.elements[3], 0);
}

TEST(OracleReduction, ProductsAreExactWhileTheirOddPartsFit) {
  expect_exact(all(Reduction::mul, {4096, 4095, 3, 0.5}), 4096.0 * 4095 * 3 / 2);
  const Bound wide = all(Reduction::mul, {4095, 4095, 4095});
  EXPECT_LT(wide.lo, wide.hi);
  EXPECT_TRUE(wide.contains(fl32(fl32(4095.0 * 4095) * 4095)));
  EXPECT_TRUE(all(Reduction::mul, {1e30, 1e30, 1e-30, 1e-30}).contains(kInf)) << "some order overflows";
  EXPECT_TRUE(all(Reduction::mul, {1e30, 1e30, 1e-30, 1e-30}).contains(0));
}

TEST(OracleReduction, Int32Wraps) {
  expect_exact(all(Reduction::add, {2147483647, 1}, Format::int32), -2147483648.0);
  expect_exact(all(Reduction::max, {-7, -9}, Format::int32), -7);
  expect_exact(all(Reduction::amax, {-7, 2}, Format::int32), 7);
  EXPECT_THROW(all(Reduction::mul, {1, 2}, Format::int32), std::invalid_argument);
}

TEST(OracleReduction, ABoundedSumHoldsEveryOrder) {
  // 1 + 2^-12 steps: forwards, backwards and pairwise sums in fp32 all lie inside, a sum that lost a term does not.
  std::vector<double> v;
  for (int i = 0; i < 300; ++i) v.push_back(fl32(std::ldexp(1.0 + i * 0.37, i % 7 - 3)));
  const Bound r = all(Reduction::add, v);
  float forwards = 0, backwards = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    forwards += static_cast<float>(v[i]);
    backwards += static_cast<float>(v[v.size() - 1 - i]);
  }
  EXPECT_TRUE(r.contains(static_cast<double>(forwards)));
  EXPECT_TRUE(r.contains(static_cast<double>(backwards)));
  EXPECT_LT(r.lo, r.hi);
  EXPECT_FALSE(r.contains(static_cast<double>(forwards) - v.back()));
}

}  // namespace
