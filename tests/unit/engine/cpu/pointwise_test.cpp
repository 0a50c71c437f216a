#include "engine/cpu/pointwise.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <vector>

// Accuracy of the vectorised functions against libm in double, over all magnitudes of fp32.
namespace verglas::engine::cpu {
namespace {

/// Every 4,099th bit pattern: about a million values of every exponent and sign, NaN and infinities included.
std::vector<float> sweep() {
  std::vector<float> v;
  for (std::uint64_t u = 0; u < (std::uint64_t{1} << 32); u += 4099)
    v.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(u)));
  v.insert(v.end(),
           {0.0F, -0.0F, INFINITY, -INFINITY, std::nanf(""), 1e-9F, -1e-9F, 1e-45F, 88.7F, 89.0F, -87.3F, -103.0F, -104.0F});
  return v;
}

/// Units in the last place of fp32 between got and the exact value.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  const auto rounded = static_cast<float>(want);
  if (std::isinf(rounded) || std::isinf(got)) return rounded == got ? 0 : 1e9;
  const int exponent = std::max(std::ilogb(want == 0 ? 1e-45 : want), -126);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, exponent - 23);
}

struct Case {
  PointwiseMode mode;
  double limit;
  std::function<double(double)> exact;
};

TEST(PointwiseF32, StaysWithinItsUnitsOverAllMagnitudes) {
  using enum PointwiseMode;
  const auto sig = [](double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); };
  const std::vector<Case> cases = {
      {exp, 1, [](double x) { return std::exp(x); }},
      {log, 1, [](double x) { return std::log(x); }},
      {erf, 1, [](double x) { return std::erf(x); }},
      {tanh, 1, [](double x) { return std::tanh(x); }},
      {sigmoid, 3, sig},
      {softplus, 1, [](double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))) + (x != x ? x : 0); }},
      {elu, 1, [](double x) { return x > 0 ? x : std::expm1(x); }},
      {gelu, 1, [](double x) { return std::isinf(x) && x < 0 ? -0.0 : 0.5 * x * std::erfc(-x * 0.70710678118654752440); }},
      {swish, 3, [&](double x) { return std::isinf(x) && x < 0 ? -0.0 : x * sig(x); }},
      {gelu_approx_tanh, 1,
       [&](double x) { return std::isinf(x) && x < 0 ? -0.0 : x * sig(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x)); }},
      {rsqrt, 1, [](double x) { return 1 / std::sqrt(x); }},
  };
  const std::vector<float> x = sweep();
  std::vector<float> got(x.size());
  for (const Case& c : cases) {
    pointwise_f32(c.mode, {}, x.data(), nullptr, nullptr, got.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    float at = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (const double u = ulps(got[i], c.exact(x[i])); u > worst) {
        worst = u;
        at = x[i];
      }
    EXPECT_LE(worst, c.limit) << name_of(c.mode) << " at " << at;
  }
}

TEST(PointwiseF32, SwishOfAnotherBetaKeepsItsUnit) {
  std::vector<float> x = sweep();
  std::vector<float> got(x.size());
  pointwise_f32(PointwiseMode::swish, {.beta = 1.5F}, x.data(), nullptr, nullptr, got.data(),
                static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double want = std::isinf(v) && v < 0 ? -0.0 : v / (1 + std::exp(-1.5 * v));
    ASSERT_LE(ulps(got[i], want), 1.0) << v;
  }
}

TEST(PointwiseF32, MinusInfinityGivesMinusZeroNotNan) {
  const float x = -INFINITY;
  for (const PointwiseMode m : {PointwiseMode::swish, PointwiseMode::gelu, PointwiseMode::gelu_approx_tanh}) {
    float y = 1;
    pointwise_f32(m, {}, &x, nullptr, nullptr, &y, 1);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(y), 0x80000000U) << name_of(m);
  }
}

TEST(PointwiseF32, DoesNotDependOnWhereARowStarts) {
  std::vector<float> x(67), all(67), one(67);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.173F - 5.0F;
  for (int m = 0; m < kPointwiseModeCount; ++m) {
    const auto mode = static_cast<PointwiseMode>(m);
    if (arity_of(mode) != 1 || mode == PointwiseMode::gen_index) continue;
    pointwise_f32(mode, {.negative_slope = 0.1F}, x.data(), nullptr, nullptr, all.data(), 67);
    for (std::size_t i = 0; i < x.size(); ++i) {
      pointwise_f32(mode, {.negative_slope = 0.1F}, &x[i], nullptr, nullptr, &one[i], 1);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(one[i]), std::bit_cast<std::uint32_t>(all[i])) << name_of(mode) << ' ' << x[i];
    }
  }
}

}  // namespace
}  // namespace verglas::engine::cpu
