#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "oracle/pointwise.hpp"

// The documented formulas, written as an engine would in plain fp32, must lie inside the limits, everywhere; and a formula with
// one term wrong must not.

namespace {

using namespace oracle;
using P = Pointwise;

float sigmoidf(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float tanh_inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }

struct Formula {
  P mode;
  std::function<float(float)> f;  // of x; backward modes with loss 1
};

std::vector<Formula> formulas() {
  const float root_half = 0.70710678118654752f;
  return {
      {P::exp, [](float x) { return std::exp(x); }},
      {P::log, [](float x) { return std::log(x); }},
      {P::sin, [](float x) { return std::sin(x); }},
      {P::cos, [](float x) { return std::cos(x); }},
      {P::tan, [](float x) { return std::tan(x); }},
      {P::erf, [](float x) { return std::erf(x); }},
      {P::tanh, [](float x) { return std::tanh(x); }},
      {P::rsqrt, [](float x) { return 1.0f / std::sqrt(x); }},
      {P::elu, [](float x) { return x > 0 ? x : std::expm1(x); }},
      {P::gelu, [=](float x) { return 0.5f * x * (1.0f + std::erf(x * root_half)); }},
      {P::gelu_approx_tanh, [](float x) { return 0.5f * x * (1.0f + std::tanh(tanh_inner(x))); }},
      {P::sigmoid, sigmoidf},
      {P::swish, [](float x) { return x * sigmoidf(x); }},
      {P::softplus, [](float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }},
      {P::sigmoid_backward, [](float x) { return sigmoidf(x) * (1.0f - sigmoidf(x)); }},
      {P::tanh_backward, [](float x) { return 1.0f - std::tanh(x) * std::tanh(x); }},
      {P::elu_backward, [](float x) { return x > 0 ? 1.0f : std::exp(x); }},
      {P::gelu_backward,
       [=](float x) { return 0.5f * (1.0f + std::erf(x * root_half)) + x * std::exp(-0.5f * x * x) * 0.3989422804014327f; }},
      {P::gelu_approx_tanh_backward,
       [](float x) {
         const float t = std::tanh(tanh_inner(x));
         return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 0.134145f * x * x);
       }},
      {P::softplus_backward, sigmoidf},
      {P::swish_backward,
       [](float x) {
         const float s = sigmoidf(x);
         return s + x * s * (1.0f - s);
       }},
  };
}

Bound limit(P mode, float x) {
  const Bound one[] = {Bound::exact(x)};
  const Bound two[] = {Bound::exact(1), Bound::exact(x)};
  return arity_of(mode) == 1 ? pointwise_fp32(mode, {}, one, {}) : pointwise_fp32(mode, {}, two, {});
}

TEST(OracleFormula, PlainFp32LiesInsideTheLimits) {
  for (const Formula& formula : formulas())
    for (float x = -110; x < 110; x += 0.00917f) {
      const float got = formula.f(x);
      const Bound b = limit(formula.mode, x);
      ASSERT_TRUE(b.contains(static_cast<double>(got)))
          << name_of(formula.mode) << " of " << x << ": got " << got << ", limits " << b.lo << " " << b.hi;
    }
}

TEST(OracleFormula, TinyAndHugeArguments) {
  for (const Formula& formula : formulas())
    for (int e = -149; e < 128; ++e)
      for (float sign : {1.0f, -1.0f}) {
        const float x = sign * std::ldexp(1.1f, e);
        const float got = formula.f(x);
        const Bound b = limit(formula.mode, x);
        // inf · 0 of the plain formula is not what is wanted at the far left; neither is the overflow of x³.
        if (std::isnan(got) && !b.nan && std::fabs(x) > 1e9f) continue;
        ASSERT_TRUE(b.contains(static_cast<double>(got)))
            << name_of(formula.mode) << " of " << x << ": got " << got << ", limits " << b.lo << " " << b.hi;
      }
}

TEST(OracleFormula, AWrongTermIsNoticed) {
  int noticed = 0;
  for (const Formula& formula : formulas()) {
    bool seen = false;
    for (float x : {-2.3f, -0.7f, 0.4f, 1.1f, 2.2f}) {
      const float got = formula.f(x) * 1.00001f;
      seen = seen || !limit(formula.mode, x).contains(static_cast<double>(got));
    }
    EXPECT_TRUE(seen) << name_of(formula.mode);
    noticed += seen ? 1 : 0;
  }
  EXPECT_EQ(noticed, static_cast<int>(formulas().size()));
  // The two forms of gelu differ by 5e-4 at most: neither passes for the other.
  EXPECT_FALSE(limit(P::gelu, 2.0f).contains(fl32(0.5 * 2 * (1 + std::tanh(0.7978845608028654 * (2 + 0.044715 * 8))))));
}

}  // namespace
