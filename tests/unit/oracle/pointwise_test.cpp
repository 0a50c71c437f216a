#include "oracle/pointwise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

using namespace oracle;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");
const double kDenormal = std::ldexp(1.0, -149);

Bound run(Pointwise mode, std::vector<double> operands, const Attributes& attributes = {}) {
  std::vector<Bound> bounds;
  for (double v : operands) bounds.push_back(Bound::exact(v));
  return pointwise_fp32(mode, attributes, bounds, {});
}

/// Exactly this number, sign of zero included; NaN is nothing but NaN.
::testing::AssertionResult is(const Bound& got, double want) {
  const bool ok = std::isnan(want) ? !got.number && got.nan
                                   : got.is_exact() && got.number && got.lo == want && std::signbit(got.lo) == std::signbit(want);
  return ok ? ::testing::AssertionSuccess()
            : ::testing::AssertionFailure() << "[" << got.lo << ", " << got.hi << "] number " << got.number << " nan " << got.nan
                                            << ", wanted " << want;
}

/// Holds this number, is no wider than `ulps` of it on either side.
::testing::AssertionResult near(const Bound& got, double want, double ulps = 5) {
  const double e = ulps * ulp32(want);
  const bool ok = got.number && !got.nan && got.lo <= want && got.hi >= want && got.lo >= want - e && got.hi <= want + e;
  return ok ? ::testing::AssertionSuccess()
            : ::testing::AssertionFailure() << "[" << got.lo << ", " << got.hi << "] nan " << got.nan << ", wanted about "
                                            << want;
}

/// A zero of either sign.
::testing::AssertionResult is_zero(const Bound& got) {
  const bool ok = got.number && !got.nan && got.lo == 0 && got.hi == 0;
  return ok ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "[" << got.lo << ", " << got.hi << "]";
}

struct Row {
  Pointwise mode;
  std::vector<double> operands;
  double want;
};

using P = Pointwise;

TEST(OraclePointwise, ArithmeticIsIeee) {
  const std::vector<Row> rows = {{P::identity, {-0.0}, -0.0},
                                 {P::identity, {kDenormal}, kDenormal},
                                 {P::identity, {kNan}, kNan},
                                 {P::add, {1, 2}, 3},
                                 {P::add, {-0.0, 0.0}, 0.0},
                                 {P::add, {-0.0, -0.0}, -0.0},
                                 {P::add, {kInf, -kInf}, kNan},
                                 {P::add, {16777216, 1}, 16777216},  // halfway, to even
                                 {P::add, {16777218, 1}, 16777220},  // halfway, to even upwards
                                 {P::add, {3.4028234663852886e38, 3.4028234663852886e38}, kInf},
                                 {P::sub, {3, 3}, 0.0},
                                 {P::sub, {-0.0, 0.0}, -0.0},
                                 {P::sub, {1, 4}, -3},
                                 {P::sub, {kInf, kInf}, kNan},
                                 {P::mul, {-3, 0.0}, -0.0},
                                 {P::mul, {kInf, 0.0}, kNan},
                                 {P::mul, {kDenormal, 0.5}, 0.0},
                                 {P::mul, {kDenormal, 1.5}, 2 * kDenormal},
                                 {P::div, {1, -0.0}, -kInf},
                                 {P::div, {0.0, 0.0}, kNan},
                                 {P::div, {1, 3}, static_cast<double>(1.0f / 3.0f)},
                                 {P::div, {6, -2}, -3},
                                 {P::add_square, {1, 3}, 10},
                                 {P::add_square, {-kInf, kInf}, kNan},
                                 {P::add_square, {0.0, -2}, 4},
                                 {P::abs, {-0.0}, 0.0},
                                 {P::abs, {-kInf}, kInf},
                                 {P::abs, {-2.5}, 2.5},
                                 {P::abs, {kNan}, kNan},
                                 {P::neg, {0.0}, -0.0},
                                 {P::neg, {kInf}, -kInf},
                                 {P::neg, {kDenormal}, -kDenormal},
                                 {P::ceil, {-0.5}, -0.0},
                                 {P::ceil, {0.5}, 1},
                                 {P::ceil, {kDenormal}, 1},
                                 {P::ceil, {-kInf}, -kInf},
                                 {P::floor, {-0.5}, -1},
                                 {P::floor, {-0.0}, -0.0},
                                 {P::floor, {2.5}, 2},
                                 {P::floor, {-kDenormal}, -1},
                                 {P::sqrt, {-0.0}, -0.0},
                                 {P::sqrt, {4}, 2},
                                 {P::sqrt, {-1}, kNan},
                                 {P::sqrt, {2}, static_cast<double>(std::sqrt(2.0f))},
                                 {P::reciprocal, {-0.0}, -kInf},
                                 {P::reciprocal, {4}, 0.25},
                                 {P::reciprocal, {-kInf}, -0.0},
                                 {P::reciprocal, {kDenormal}, kInf},
                                 {P::mod, {7, 3}, 1},
                                 {P::mod, {-7, 3}, -1},
                                 {P::mod, {7, -3}, 1},
                                 {P::mod, {1, 0.0}, kNan},
                                 {P::mod, {kInf, 1}, kNan},
                                 {P::mod, {5, kInf}, 5},
                                 {P::mod, {-0.0, 3}, -0.0},
                                 {P::mod, {1e30, 7}, std::fmod(1e30, 7)}};
  for (const Row& r : rows) EXPECT_TRUE(is(run(r.mode, r.operands), fl32(r.want))) << name_of(r.mode) << " " << r.operands[0];
}

TEST(OraclePointwise, MaxAndMinPropagateNan) {
  for (P mode : {P::max, P::min}) {
    EXPECT_TRUE(is(run(mode, {kNan, 1}), kNan));
    EXPECT_TRUE(is(run(mode, {1, kNan}), kNan));
    EXPECT_TRUE(is_zero(run(mode, {-0.0, 0.0})));
  }
  EXPECT_TRUE(is(run(P::max, {-3, 2}), 2));
  EXPECT_TRUE(is(run(P::max, {-3, -kInf}), -3));
  EXPECT_TRUE(is(run(P::min, {-3, 2}), -3));
  EXPECT_TRUE(is(run(P::min, {kInf, 2}), 2));
  EXPECT_TRUE(is(run(P::max, {-3, 0.0}), 0.0));
}

TEST(OraclePointwise, PowerIsThatOfC) {
  EXPECT_TRUE(near(run(P::pow, {2, 0.5}), std::sqrt(2.0)));
  EXPECT_TRUE(near(run(P::pow, {-2, 3}), -8));
  EXPECT_TRUE(is(run(P::pow, {-2, 0.5}), kNan));
  EXPECT_TRUE(is(run(P::pow, {kNan, 0.0}), 1));
  EXPECT_TRUE(is(run(P::pow, {1, kNan}), 1));
  EXPECT_TRUE(is(run(P::pow, {kNan, 1}), kNan));
  EXPECT_TRUE(is(run(P::pow, {2, kNan}), kNan));
  EXPECT_TRUE(is(run(P::pow, {-0.0, -1}), -kInf));
  EXPECT_TRUE(is(run(P::pow, {0.5, kInf}), 0.0));
  EXPECT_TRUE(is(run(P::pow, {-kInf, 3}), -kInf));
}

TEST(OraclePointwise, TranscendentalsWithinFourUnits) {
  const std::vector<Row> rows = {{P::rsqrt, {4}, 0.5},
                                 {P::rsqrt, {2}, 0.70710678118654752},
                                 {P::exp, {1}, 2.718281828459045},
                                 {P::exp, {-1}, 0.36787944117144233},
                                 {P::log, {2}, 0.6931471805599453},
                                 {P::log, {0.5}, -0.6931471805599453},
                                 {P::sin, {1}, 0.8414709848078965},
                                 {P::cos, {1}, 0.5403023058681398},
                                 {P::tan, {1}, 1.5574077246549023},
                                 {P::erf, {1}, 0.8427007929497149},
                                 {P::elu, {-1}, -0.6321205588285577},
                                 {P::gelu, {1}, 0.8413447460685429},
                                 {P::gelu_approx_tanh, {1}, 0.8411919906082768},
                                 {P::sigmoid, {1}, 0.7310585786300049},
                                 {P::sigmoid, {-1}, 0.2689414213699951},
                                 {P::swish, {1}, 0.7310585786300049},
                                 {P::swish, {-1}, -0.2689414213699951},
                                 {P::softplus, {1}, 1.3132616875182228},
                                 {P::softplus, {0.0}, 0.6931471805599453},
                                 {P::tanh, {1}, 0.7615941559557649},
                                 {P::tanh, {1e-9}, 1e-9},
                                 {P::elu, {-1e-9}, -1e-9},
                                 {P::sin, {1e-9}, 1e-9},
                                 {P::tanh, {kDenormal * 1000}, kDenormal * 1000}};
  for (const Row& r : rows)
    EXPECT_TRUE(near(run(r.mode, {fl32(r.operands[0])}), r.want, 12)) << name_of(r.mode) << " " << r.operands[0];
  // Where terms cancel the limit is absolute, from what cancels: ½x(1 + erf) at −3 has the true value −0.00404969.
  EXPECT_TRUE(run(P::gelu, {-3}).contains(fl32(-0.004049694095)));
  EXPECT_LT(run(P::gelu, {-3}).hi - run(P::gelu, {-3}).lo, 2e-6);
  EXPECT_FALSE(run(P::exp, {1}).contains(2.7182)) << "a wrong digit is noticed";
}

TEST(OraclePointwise, TranscendentalsOfSpecials) {
  for (P mode : {P::exp, P::log, P::sin, P::cos, P::tan, P::erf, P::relu, P::leaky_relu, P::elu, P::gelu, P::gelu_approx_tanh,
                 P::sigmoid, P::swish, P::softplus, P::tanh, P::rsqrt, P::sqrt, P::ceil, P::reciprocal})
    EXPECT_TRUE(is(run(mode, {kNan}), kNan)) << name_of(mode);
  const std::vector<Row> rows = {{P::exp, {-kInf}, 0.0},      {P::exp, {kInf}, kInf},
                                 {P::exp, {0.0}, 1},          {P::exp, {1000}, kInf},
                                 {P::log, {0.0}, -kInf},      {P::log, {-0.0}, -kInf},
                                 {P::log, {-1}, kNan},        {P::log, {kInf}, kInf},
                                 {P::rsqrt, {0.0}, kInf},     {P::rsqrt, {-0.0}, -kInf},
                                 {P::rsqrt, {kInf}, 0.0},     {P::rsqrt, {-1}, kNan},
                                 {P::sin, {-0.0}, -0.0},      {P::cos, {0.0}, 1},
                                 {P::sin, {kInf}, kNan},      {P::cos, {-kInf}, kNan},
                                 {P::tan, {kInf}, kNan},      {P::tan, {-0.0}, -0.0},
                                 {P::erf, {kInf}, 1},         {P::erf, {-kInf}, -1},
                                 {P::erf, {-0.0}, -0.0},      {P::tanh, {kInf}, 1},
                                 {P::tanh, {-kInf}, -1},      {P::tanh, {-0.0}, -0.0},
                                 {P::sigmoid, {kInf}, 1},     {P::sigmoid, {-kInf}, 0.0},
                                 {P::sigmoid, {0.0}, 0.5},    {P::swish, {kInf}, kInf},
                                 {P::swish, {-kInf}, -0.0},   {P::swish, {0.0}, 0.0},
                                 {P::softplus, {kInf}, kInf}, {P::softplus, {-kInf}, 0.0},
                                 {P::gelu, {kInf}, kInf},     {P::gelu_approx_tanh, {kInf}, kInf},
                                 {P::elu, {-kInf}, -1},       {P::elu, {kInf}, kInf}};
  for (const Row& r : rows) EXPECT_TRUE(is(run(r.mode, r.operands), r.want)) << name_of(r.mode) << " " << r.operands[0];
  EXPECT_TRUE(is_zero(run(P::gelu, {-kInf})));
  EXPECT_TRUE(is_zero(run(P::gelu_approx_tanh, {-kInf})));
}

TEST(OraclePointwise, ReluClipsSlopesAndPropagates) {
  Attributes clips;
  clips.relu_lower = -1;
  clips.relu_upper = 6;
  Attributes slope;
  slope.slope = 0.25;
  Attributes both = slope;
  both.relu_lower = -1;
  both.relu_upper = 6;
  EXPECT_TRUE(is(run(P::relu, {3}), 3));
  EXPECT_TRUE(is(run(P::relu, {-3}), 0.0) || is_zero(run(P::relu, {-3})));
  EXPECT_TRUE(is(run(P::relu, {kInf}), kInf)) << "no upper clip unless given";
  EXPECT_TRUE(is(run(P::relu, {kNan}, both), kNan));
  EXPECT_TRUE(is(run(P::relu, {-3}, clips), -1));
  EXPECT_TRUE(is(run(P::relu, {-0.5}, clips), -0.5));
  EXPECT_TRUE(is(run(P::relu, {9}, clips), 6));
  EXPECT_TRUE(is(run(P::relu, {-2}, slope), -0.5));
  EXPECT_TRUE(is(run(P::relu, {-8}, both), -1));
  EXPECT_TRUE(is(run(P::relu, {-2}, both), -0.5));
  EXPECT_TRUE(is(run(P::relu, {-kInf}, slope), -kInf));
  EXPECT_TRUE(is(run(P::leaky_relu, {-2}, slope), -0.5));
  EXPECT_TRUE(is(run(P::leaky_relu, {2}, slope), 2));
}

TEST(OraclePointwise, ComparisonsAreTrueComparisons) {
  struct Case {
    P mode;
    double x, y, want;
  };
  const Case cases[] = {{P::cmp_eq, kInf, kInf, 1},   {P::cmp_eq, kNan, kNan, 0},    {P::cmp_eq, -0.0, 0.0, 1},
                        {P::cmp_neq, kNan, 1, 1},     {P::cmp_neq, 2, 2, 0},         {P::cmp_gt, 2, 1, 1},
                        {P::cmp_gt, 2, 2, 0},         {P::cmp_gt, 1.25, 1, 1},       {P::cmp_ge, 2, 2, 1},
                        {P::cmp_ge, kNan, 2, 0},      {P::cmp_lt, kNan, 2, 0},       {P::cmp_lt, 1, 2, 1},
                        {P::cmp_le, 2, 2, 1},         {P::cmp_le, 3, 2, 0},          {P::cmp_lt, -kInf, kInf, 1},
                        {P::cmp_le, 2, kNan, 0},      {P::logical_and, 2, -1, 1},    {P::logical_and, 2, -0.0, 0},
                        {P::logical_and, kNan, 1, 1}, {P::logical_or, 0.0, -0.0, 0}, {P::logical_or, 0.0, kDenormal, 1}};
  for (const Case& c : cases) EXPECT_TRUE(is(run(c.mode, {c.x, c.y}), c.want)) << name_of(c.mode) << " " << c.x << " " << c.y;
  EXPECT_TRUE(is(run(P::logical_not, {-0.0}), 1));
  EXPECT_TRUE(is(run(P::logical_not, {kNan}), 0));
}

TEST(OraclePointwise, SelectLeaksNothingOfTheOtherSide) {
  EXPECT_TRUE(is(run(P::binary_select, {1, kNan, 2}), 1));
  EXPECT_TRUE(is(run(P::binary_select, {kInf, 5, 0.0}), 5));
  EXPECT_TRUE(is(run(P::binary_select, {7, 5, -0.0}), 5));
  EXPECT_TRUE(is(run(P::binary_select, {7, 5, kNan}), 7));
}

TEST(OraclePointwise, BackwardModes) {
  Attributes slope, clips;
  slope.slope = 0.25;
  clips.relu_lower = 1;
  clips.relu_upper = 6;
  EXPECT_TRUE(is(run(P::relu_backward, {5, 2}), 5));
  EXPECT_TRUE(is_zero(run(P::relu_backward, {5, 0.0}))) << "strict";
  EXPECT_TRUE(is(run(P::relu_backward, {5, kInf}), 5));
  EXPECT_TRUE(is_zero(run(P::relu_backward, {5, 6}, clips)));
  EXPECT_TRUE(is_zero(run(P::relu_backward, {5, 1}, clips)));
  EXPECT_TRUE(is(run(P::relu_backward, {5, 1.5}, clips), 5));
  EXPECT_TRUE(is(run(P::relu_backward, {8, -1}, slope), 2));
  EXPECT_TRUE(is(run(P::leaky_relu_backward, {8, -1}, slope), 2));
  EXPECT_TRUE(is(run(P::leaky_relu_backward, {8, 1}, slope), 8));
  // Derivatives at 1, by hand to 12 digits, loss 2; at 0 exact.
  EXPECT_TRUE(near(run(P::sigmoid_backward, {2, 1}), 2 * 0.196611933241, 25));
  EXPECT_TRUE(near(run(P::tanh_backward, {2, 1}), 2 * 0.419974341614, 50));
  EXPECT_TRUE(near(run(P::elu_backward, {2, -1}), 2 * 0.367879441171, 20));
  EXPECT_TRUE(near(run(P::gelu_backward, {2, 1}), 2 * 1.083315470588, 20));
  EXPECT_TRUE(near(run(P::gelu_approx_tanh_backward, {2, 1}), 2 * 1.082964083866, 60));
  EXPECT_TRUE(near(run(P::softplus_backward, {2, 1}), 2 * 0.731058578630, 20));
  EXPECT_TRUE(near(run(P::swish_backward, {2, 1}), 2 * 0.927670511872, 20));
  EXPECT_TRUE(is(run(P::sigmoid_backward, {2, 0.0}), 0.5));
  EXPECT_TRUE(is(run(P::tanh_backward, {2, 0.0}), 2));
  EXPECT_TRUE(is(run(P::gelu_backward, {2, 0.0}), 1));
  EXPECT_TRUE(is(run(P::elu_backward, {2, 3}), 2) || near(run(P::elu_backward, {2, 3}), 2, 12));
}

TEST(OraclePointwise, IntervalsCoverEveryPointInside) {
  // Slices of each unary mode: the value at inner points must lie in what the interval answers.
  const double ends[] = {-30, -6, -2.5, -1.4, -0.8, -0.1, 0, 0.3, 1.2, 3, 9, 40};
  for (int m = 0; m < kPointwiseCount; ++m) {
    const P mode = static_cast<P>(m);
    if (mode == P::gen_index) continue;
    for (std::size_t i = 0; i + 1 < std::size(ends); ++i)
      for (std::size_t j = i + 1; j < std::size(ends); ++j)
        for (double other : {-2.0, 0.0, 3.0}) {
          const Bound x = Bound::range(fl32(ends[i]), fl32(ends[j]));
          std::vector<Bound> wide{Bound::exact(other), x, Bound::exact(1)};
          if (arity_of(mode) == 1) wide = {x};
          const Bound all = pointwise_fp32(mode, {}, wide, {});
          for (int step = 0; step <= 16; ++step) {
            const double p = fl32(x.lo + (x.hi - x.lo) * step / 16);
            std::vector<Bound> one = wide;
            one[arity_of(mode) == 1 ? 0 : 1] = Bound::exact(p);
            const Bound got = pointwise_fp32(mode, {}, one, {});
            const double e = 1e-12 * (std::isfinite(got.lo) ? std::fabs(got.lo) : 0);  // the turning points are rounded
            ASSERT_TRUE((!got.number || (all.number && got.lo >= all.lo - e && got.hi <= all.hi + e)) && (all.nan || !got.nan))
                << name_of(mode) << " of " << other << " at " << p << " in [" << x.lo << ", " << x.hi << "]: [" << got.lo << ", "
                << got.hi << "] outside [" << all.lo << ", " << all.hi << "]";
          }
        }
  }
}

TEST(OraclePointwise, IntegersWrapAndDivideTowardsZero) {
  const auto int32 = [](P mode, std::vector<double> operands, Attributes attributes = {}) {
    std::vector<Bound> bounds;
    for (double v : operands) bounds.push_back(Bound::exact(v));
    const Bound r = pointwise_int32(mode, attributes, bounds);
    EXPECT_TRUE(r.is_exact());
    return r.lo;
  };
  EXPECT_EQ(int32(P::add, {2147483647, 1}), -2147483648.0);
  EXPECT_EQ(int32(P::sub, {-2147483648.0, 1}), 2147483647);
  EXPECT_EQ(int32(P::mul, {65536, 65536}), 0);
  EXPECT_EQ(int32(P::mul, {-2147483648.0, -2147483648.0}), 0);
  EXPECT_EQ(int32(P::div, {-7, 2}), -3);
  EXPECT_EQ(int32(P::div, {7, 0}), 0);
  EXPECT_EQ(int32(P::div, {-2147483648.0, -1}), -2147483648.0);
  EXPECT_EQ(int32(P::mod, {-7, 2}), -1);
  EXPECT_EQ(int32(P::mod, {7, 0}), 0);
  EXPECT_EQ(int32(P::neg, {-2147483648.0}), -2147483648.0);
  EXPECT_EQ(int32(P::abs, {-5}), 5);
  EXPECT_EQ(int32(P::add_square, {1, -3}), 10);
  EXPECT_EQ(int32(P::relu, {-5}), 0);
  EXPECT_EQ(int32(P::max, {-5, 3}), 3);
  EXPECT_EQ(int32(P::cmp_lt, {-5, 3}), 1);
  EXPECT_EQ(int32(P::binary_select, {4, 5, 0}), 5);
  EXPECT_TRUE(defined_in_int32(P::add));
  EXPECT_FALSE(defined_in_int32(P::exp));
  EXPECT_THROW(int32(P::exp, {1}), std::invalid_argument);
}

}  // namespace
