#include "engine/sm90/exchange.hpp"

#include <gtest/gtest.h>

#include "chain/analyse.hpp"
#include "engine/sm90/generate.hpp"
#include "engine/sm90/problem.hpp"
#include "verglas/verglas.hpp"

namespace verglas::sm90 {
namespace {

constexpr std::int64_t kL = 3, kM = 24, kN = 80, kK = 40;

/// Two products with one A, a bias along N, a scale along M, an index, a second output, and reductions of both kinds.
chain::FusionChain rich_chain() {
  Graph g({.io_data_type = DataType::bf16});
  const Tensor a = g.tensor({.name = "a", .dim = {kL, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {kL, kK, kN}, .stride = {kK * kN, 1, kK}});
  const Tensor b2 = g.tensor({.name = "b2", .dim = {kL, kK, kN}, .stride = {kK * kN, 1, kK}});
  const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}});
  const Tensor scale = g.tensor({.name = "scale", .dim = {1, kM, 1}, .stride = {kM, 1, 1}});
  Tensor h = g.mul(g.add(g.matmul(a, b), bias), scale);
  h.set_output(true).set_name("h");
  const Tensor row = g.pointwise(PointwiseMode::gen_index, {h}, {.axis = 1});
  Tensor y = g.add(g.mul(g.matmul(a, b2), h), row);
  y.set_output(true).set_name("y");
  g.reduction(y, ReductionMode::amax).set_dim({kL, 1, kN}).set_output(true).set_data_type(DataType::fp32);
  g.reduction(y, ReductionMode::add).set_dim({1, kM, 1}).set_output(true).set_data_type(DataType::fp32);
  g.validate();
  auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return *std::move(chain);
}

TEST(Sm90Exchange, TwiceIsTheChainItself) {
  const chain::FusionChain c = rich_chain();
  EXPECT_NE(print(exchanged(c)), print(c));
  EXPECT_EQ(print(exchanged(exchanged(c))), print(c));
}

TEST(Sm90Exchange, TurnsEveryRoleAndStep) {
  const chain::FusionChain c = rich_chain(), x = exchanged(c);
  EXPECT_EQ(x.declared, (std::array<std::int64_t, 4>{kL, kN, kM, kK}));
  ASSERT_EQ(x.gemms.size(), 2U);
  const ProductRoles before = product_roles(c), after = product_roles(x);
  EXPECT_EQ(after.a_count, 2);
  EXPECT_EQ(after.b_count, 1);
  EXPECT_EQ(after.a, before.b);
  EXPECT_EQ(after.b[0], before.a[0]);
  EXPECT_EQ(after.d, before.d);
  for (std::size_t g = 0; g < 2; ++g) {
    const auto role = [](const chain::FusionChain& of, int input) { return of.inputs[static_cast<std::size_t>(input)].role; };
    EXPECT_EQ(role(x, x.gemms[g].a), role(c, c.gemms[g].b));
    EXPECT_EQ(role(x, x.gemms[g].b), role(c, c.gemms[g].a));
  }
  for (std::size_t i = 0; i < c.values.size(); ++i) {
    EXPECT_EQ(x.values[i].varies[1], c.values[i].varies[2]);
    EXPECT_EQ(x.values[i].varies[2], c.values[i].varies[1]);
  }
  for (std::size_t i = 0; i < c.steps.size(); ++i)
    if (c.steps[i].mode == PointwiseMode::gen_index) {
      EXPECT_EQ(c.steps[i].parameters.axis, 1);
      EXPECT_EQ(x.steps[i].parameters.axis, 2);
    }
  EXPECT_EQ(x.reductions[0].reduces, (std::array{false, false, true}));
  EXPECT_EQ(x.reductions[1].reduces, (std::array{true, true, false}));
  EXPECT_TRUE(epilogue_of(x).has_value());
}

TEST(Sm90Exchange, TurnsTheViewsOfACall) {
  const chain::FusionChain c = rich_chain(), x = exchanged(c);
  recipe::Binding from, to;
  const auto views = declared_views(c), turned = declared_views(x);
  std::copy(views.begin(), views.end(), from.role);
  std::copy(c.declared.begin(), c.declared.end(), from.live + 1);
  from.live[0] = 1;
  exchange(x, from, to);
  EXPECT_EQ(to.live[2], kN);
  EXPECT_EQ(to.live[3], kM);
  EXPECT_EQ(to.live[4], kK);
  for (std::size_t i = 0; i < turned.size(); ++i)
    for (int axis = 0; axis < 3; ++axis) {
      EXPECT_EQ(to.role[i].extent[axis], turned[i].extent[axis]) << i << ' ' << axis;
      EXPECT_EQ(to.role[i].stride[axis], turned[i].stride[axis]) << i << ' ' << axis;
    }
}

}  // namespace
}  // namespace verglas::sm90
