// The edges that docs/numerics.md gives for each pointwise mode, one value at a time.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "engine/cpu/pointwise.hpp"

namespace verglas::engine::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();

struct Edge {
  PointwiseMode mode;
  float x, y, want;
  PointwiseParameters parameters = {};
  float z = 0;
};

TEST(PointwiseF32, HasTheEdgesOfTheDocumentation) {
  using enum PointwiseMode;
  const Edge edges[] = {
      {max, kNan, 1, kNan},
      {max, 1, kNan, kNan},
      {max, 0.0F, -0.0F, -0.0F},
      {max, -0.0F, 0.0F, 0.0F},
      {min, kNan, 1, kNan},
      {min, 0.0F, -0.0F, -0.0F},
      {pow, kNan, 0, 1},
      {pow, 1, kNan, 1},
      {mod, -7, 3, -1},
      {mod, 7, -3, 1},
      {mod, 7, 0, kNan},
      {mod, kInf, 3, kNan},
      {mod, 7, kInf, 7},
      {abs, -0.0F, 0, 0.0F},
      {neg, 0.0F, 0, -0.0F},
      {ceil, -0.5F, 0, -0.0F},
      {floor, -0.0F, 0, -0.0F},
      {sqrt, -0.0F, 0, -0.0F},
      {sqrt, -1, 0, kNan},
      {rsqrt, 0.0F, 0, kInf},
      {rsqrt, -0.0F, 0, -kInf},
      {rsqrt, kInf, 0, 0.0F},
      {rsqrt, -1, 0, kNan},
      {reciprocal, -0.0F, 0, -kInf},
      {exp, -kInf, 0, 0.0F},
      {exp, kInf, 0, kInf},
      {log, -0.0F, 0, -kInf},
      {log, -1, 0, kNan},
      {log, kInf, 0, kInf},
      {sin, kInf, 0, kNan},
      {cos, -kInf, 0, kNan},
      {tan, kInf, 0, kNan},
      {erf, -kInf, 0, -1},
      {relu, kNan, 0, kNan},
      {relu, kInf, 0, kInf},
      {relu, 5, 0, 2, {.upper_clip = 2}},
      {relu, -3, 0, -1, {.lower_clip = -1}},
      {relu, -3, 0, -1.5F, {.negative_slope = 0.5F}},
      {relu, -3, 0, -1, {.lower_clip = -1, .negative_slope = 0.5F}},
      {relu, -kInf, 0, kNan, {.negative_slope = 0.0F}},
      {leaky_relu, kNan, 0, kNan, {.negative_slope = 0.5F}},
      {leaky_relu, -kInf, 0, kNan, {.negative_slope = 0.0F}},
      {elu, -0.0F, 0, -0.0F},
      {elu, -kInf, 0, -2, {.alpha = 2}},
      {elu, -1e-9F, 0, -1e-9F},
      {gelu, -kInf, 0, -0.0F},
      {gelu, kInf, 0, kInf},
      {gelu_approx_tanh, -kInf, 0, -0.0F},
      {sigmoid, -kInf, 0, 0.0F},
      {sigmoid, kInf, 0, 1},
      {swish, -kInf, 0, -0.0F},
      {softplus, -kInf, 0, 0.0F},
      {softplus, kInf, 0, kInf},
      {tanh, 1e-9F, 0, 1e-9F},
      {tanh, -0.0F, 0, -0.0F},
      {tanh, -kInf, 0, -1},
      {cmp_eq, kInf, kInf, 1},
      {cmp_eq, kNan, kNan, 0},
      {cmp_neq, kNan, kNan, 1},
      {cmp_lt, kNan, 1, 0},
      {cmp_ge, kNan, 1, 0},
      {logical_and, kNan, 1, 1},
      {logical_or, -0.0F, 0, 0},
      {logical_not, kNan, 0, 0},
      {binary_select, 5, kNan, 5, {}, 1},
      {binary_select, kInf, 6, 6, {}, -0.0F},
      {binary_select, 5, 6, 5, {}, kNan},
      {relu_bwd, 3, kNan, kNan},
      {relu_bwd, 3, 0, 0},
      {relu_bwd, 3, 0, 1.5F, {.negative_slope = 0.5F}},
      {relu_bwd, 3, 2, 0, {.upper_clip = 2, .negative_slope = 0.5F}},
      {relu_bwd, 3, 1, 3, {.upper_clip = 2}},
      {leaky_relu_bwd, 3, kNan, kNan, {.negative_slope = 0.5F}},
      {leaky_relu_bwd, 3, 0, 1.5F, {.negative_slope = 0.5F}},
      {sigmoid_bwd, 4, 0, 1},
      {tanh_bwd, 4, 0, 4},
      {elu_bwd, 3, 0, 6, {.alpha = 2}},
      {gelu_bwd, 4, 0, 2},
      {gelu_bwd, 4, kInf, 4},
      {gelu_bwd, kInf, -kInf, kNan},  // an infinite loss, a factor too small for fp32
      {gelu_approx_tanh_bwd, 4, 0, 2},
      {softplus_bwd, 4, 0, 2},
      {swish_bwd, 4, 0, 2},
      {sigmoid_bwd, kInf, -kInf, kNan},
  };
  for (const Edge& e : edges) {
    float got = 77;
    pointwise_f32(e.mode, e.parameters, &e.x, &e.y, &e.z, &got, 1);
    const bool same =
        std::isnan(e.want) ? std::isnan(got) : std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(e.want);
    EXPECT_TRUE(same) << name_of(e.mode) << " of " << e.x << ", " << e.y << " is " << got << ", documented " << e.want;
  }
}

TEST(PointwiseI32, HasTheEdgesOfTheDocumentation) {
  using enum PointwiseMode;
  struct IntegerEdge {
    PointwiseMode mode;
    std::int32_t x, y, want;
  };
  const IntegerEdge edges[] = {
      {add, 2147483647, 1, kLowest},
      {sub, kLowest, 1, 2147483647},
      {mul, 65536, 65536, 0},
      {add_square, 1, 65536, 1},
      {div, -7, 2, -3},
      {div, 7, 0, 0},
      {div, kLowest, -1, kLowest},
      {mod, -7, 2, -1},
      {mod, 7, 0, 0},
      {mod, kLowest, -1, 0},
      {abs, kLowest, 0, kLowest},
      {neg, kLowest, 0, kLowest},
      {relu, -5, 0, 0},
  };
  for (const IntegerEdge& e : edges) {
    std::int32_t got = 77;
    pointwise_i32(e.mode, {}, &e.x, &e.y, nullptr, &got, 1);
    EXPECT_EQ(got, e.want) << name_of(e.mode) << " of " << e.x << ", " << e.y;
  }
}

}  // namespace
}  // namespace verglas::engine::cpu
