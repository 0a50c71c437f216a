#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/cpu/pointwise.hpp"
#include "verglas/verglas.hpp"

// Edges that generated chains have found.
namespace verglas {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float one(PointwiseMode mode, float x, float y = 0) {
  float out = -7;
  engine::cpu::pointwise_f32(mode, {}, &x, &y, nullptr, &out, 1);
  return out;
}

/// y = f(x · 1 + 0) for a product of one element whose epilogue is `epilogue`.
template <class F>
float through(F&& epilogue, float x, DataType io = DataType::fp32) {
  Graph g({.io_data_type = io});
  const Tensor a = g.tensor({.dim = {1, 1}, .stride = {1, 1}, .data_type = DataType::fp32});
  const Tensor b = g.tensor({.dim = {1, 1}, .stride = {1, 1}, .data_type = DataType::fp32});
  epilogue(g, a, b).set_output(true).set_data_type(DataType::fp32);
  float w = 1, y = -7;
  const std::vector<void*> addresses{&x, &w, &y};
  EXPECT_TRUE(g.compile().execute(addresses).ok());
  return y;
}

TEST(CpuEdges, ConstantOfInt32IsThatInteger) {
  const auto minus_one = [](Graph& g, const Tensor& a, const Tensor& b) {
    return g.pointwise(PointwiseMode::sub, {g.matmul(a, b), g.scalar(-1, DataType::int32)});
  };
  EXPECT_EQ(through(minus_one, 5), 6);
}

TEST(CpuEdges, ConstantBeforeAProductIsRoundedToItsType) {
  const auto tenth = [](Graph& g, const Tensor& a, const Tensor& b) {
    Tensor t = g.tensor({.dim = {1}, .stride = {1}, .data_type = DataType::fp16});
    t.set_value(0.1);
    Tensor scaled = g.mul(a, t);
    return g.matmul(scaled, b);
  };
  EXPECT_EQ(through(tenth, 1), 0x1.998p-4F);
}

TEST(CpuEdges, AScalarOfTheGraphBeforeAProductLeavesItsRank) {
  const auto twice = [](Graph& g, const Tensor& a, const Tensor& b) { return g.matmul(g.mul(a, g.scalar(2)), b); };
  EXPECT_EQ(through(twice, 3), 6);
}

TEST(CpuEdges, ConstantBeyondInt32SaturatesBeforeAProduct) {
  const auto product = [](double constant) {
    Graph g({.io_data_type = DataType::int32, .intermediate_data_type = DataType::int8, .compute_data_type = DataType::int32});
    const Tensor a = g.tensor({.dim = {1, 2}, .stride = {2, 1}, .data_type = DataType::int8});
    const Tensor b = g.tensor({.dim = {2, 1}, .stride = {1, 1}, .data_type = DataType::int8});
    g.matmul(g.pointwise(PointwiseMode::min, {a, g.scalar(constant)}), b).set_output(true);
    std::int8_t va[] = {5, -7}, vb[] = {1, 10};
    std::int32_t y = 0;
    EXPECT_TRUE(g.compile().execute(std::vector<void*>{va, vb, &y}).ok());
    return y;
  };
  EXPECT_EQ(product(1e20), 5 - 70);
  EXPECT_EQ(product(-1e20), -128 - 1280);
  EXPECT_EQ(product(2147483647), 5 - 70);
  EXPECT_EQ(product(0.5), 0 - 70);
}

TEST(CpuEdges, IndexAlongAnAxisOfExtentOneIsZero) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.dim = {2, 1, 1}, .stride = {1, 1, 1}});
  const Tensor b = g.tensor({.dim = {2, 1, 3}, .stride = {3, 3, 1}});
  const Tensor bias = g.tensor({.dim = {1, 1, 3}, .stride = {3, 3, 1}});
  const Tensor batch = g.pointwise(PointwiseMode::gen_index, {bias}, {.axis = 0});
  const Tensor column = g.pointwise(PointwiseMode::gen_index, {bias}, {.axis = 2});
  g.add(g.add(g.matmul(a, b), batch), column).set_output(true);
  std::vector<float> va{0, 0}, vb(6, 0), vc(3, 0), y(6, -7);
  const std::vector<void*> addresses{va.data(), vb.data(), vc.data(), y.data()};
  const CompiledPlan plan = g.compile();
  ASSERT_EQ(plan.operands().size(), 4U);
  ASSERT_TRUE(plan.execute(addresses).ok());
  EXPECT_EQ(y, (std::vector<float>{0, 1, 2, 0, 1, 2}));
}

TEST(CpuEdges, NegativeZeroKeepsItsSign) {
  for (const PointwiseMode mode : {PointwiseMode::elu, PointwiseMode::tanh}) EXPECT_TRUE(std::signbit(one(mode, -0.0F)));
}

TEST(CpuEdges, AnInfiniteLossWhereTheSlopeIsNothingIsNaN) {
  using enum PointwiseMode;
  for (const PointwiseMode mode : {sigmoid_bwd, tanh_bwd}) {
    EXPECT_TRUE(std::isnan(one(mode, kInf, kInf)));
    EXPECT_EQ(one(mode, kInf, 1.0F), kInf);
  }
  for (const PointwiseMode mode : {elu_bwd, gelu_bwd, gelu_approx_tanh_bwd, softplus_bwd, swish_bwd}) {
    EXPECT_TRUE(std::isnan(one(mode, kInf, -kInf))) << name_of(mode);
    EXPECT_EQ(one(mode, kInf, 1.0F), kInf) << name_of(mode);
    EXPECT_EQ(std::fabs(one(mode, 3.0F, -3e38F)), 0.0F) << name_of(mode);
  }
}

}  // namespace
}  // namespace verglas
