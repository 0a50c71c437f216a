#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "verglas/verglas.hpp"

// The whole road, thin: a graph is described, planned, compiled and called on the CPU.
namespace verglas {
namespace {

std::vector<float> ints(std::size_t n, int seed) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>((static_cast<int>(i) * 7 + seed * 3) % 7 - 3);
  return v;
}

TEST(Road, MatmulBiasReluWithRowSumIsExactOnIntegers) {
  constexpr std::int64_t kM = 5, kN = 700, kK = 33;
  Graph g({.name = "t", .io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}});
  Tensor y = g.relu(g.add(g.matmul(a, b), bias));
  y.set_name("y").set_output(true);
  Tensor s = g.reduction(y, ReductionMode::add);
  s.set_name("s").set_output(true).set_dim({1, kM, 1});
  const CompiledPlan plan = g.compile();
  ASSERT_EQ(plan.operands().size(), 5U);

  const auto va = ints(kM * kK, 1), vb = ints(kK * kN, 2), vc = ints(kN, 3);
  std::vector<float> vy(kM * kN, std::nanf("")), vs(kM, std::nanf(""));
  const auto in = [](const std::vector<float>& v) { return const_cast<float*>(v.data()); };
  std::vector<TensorView> buffers = {
      TensorView::dense(in(va), DataType::fp32, {1, kM, kK}),
      TensorView::strided(in(vb), DataType::fp32, {1, kK, kN}, {kK * kN, 1, kK}), TensorView::dense(in(vc), DataType::fp32, {kN}),
      TensorView::dense(vy.data(), DataType::fp32, {1, kM, kN}), TensorView::dense(vs.data(), DataType::fp32, {1, kM, 1})};
  plan.run(buffers);
  for (std::int64_t m = 0; m < kM; ++m) {
    float sum = 0;
    for (std::int64_t n = 0; n < kN; ++n) {
      float c = vc[static_cast<std::size_t>(n)];
      for (std::int64_t k = 0; k < kK; ++k)
        c += va[static_cast<std::size_t>(m * kK + k)] * vb[static_cast<std::size_t>(n * kK + k)];
      c = std::max(c, 0.0F);
      sum += c;
      ASSERT_EQ(vy[static_cast<std::size_t>(m * kN + n)], c) << m << ' ' << n;
    }
    ASSERT_EQ(vs[static_cast<std::size_t>(m)], sum);
  }

  buffers[1].extent[1] = kK - 1;
  const Status refused = plan.execute(buffers);
  EXPECT_EQ(refused.code, ErrorCode::invalid_call);
  EXPECT_STREQ(plan.explain(refused, buffers).what(),
               "invalid_call [call.extent] b 'b': got K = 32 from shape (1, 32, 700), wanted 33 as in shape (1, 33, 700)");
}

TEST(Road, EveryPlanOfTheListGivesTheSameIntegers) {
  Graph g({.name = "t", .io_data_type = DataType::bf16});
  const Tensor a = g.tensor({.name = "a", .dim = {40, 50}, .stride = {50, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {50, 60}, .stride = {60, 1}});
  g.matmul(a, b).set_output(true).set_data_type(DataType::fp32);
  const PlanList plans = g.plans();
  ASSERT_GE(plans.size(), 1U);
  const auto bf16 = [](const std::vector<float>& v) {
    std::vector<std::uint16_t> h(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) h[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v[i]) >> 16);
    return h;
  };
  auto va = bf16(ints(2000, 5));
  auto vb = bf16(ints(3000, 6));
  std::vector<std::vector<float>> results;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    results.emplace_back(2400, -1.0F);
    const std::vector<void*> addresses = {va.data(), vb.data(), results.back().data()};
    EXPECT_TRUE(plans.compile(i).execute(addresses).ok());
    EXPECT_EQ(results.back(), results.front()) << plans.name(i);
  }
}

TEST(Road, APlanThatNobodyHasCompiledRefusesCalls) {
  const CompiledPlan none;
  EXPECT_FALSE(none.valid());
  const std::string why = "invalid_graph [plan.stage] a plan was used that nobody has compiled";
  const std::vector<TensorView> buffers;
  const Status status = none.execute(buffers);
  EXPECT_EQ(status.code, ErrorCode::invalid_call);
  EXPECT_EQ(none.execute(std::vector<void*>{nullptr}).code, ErrorCode::invalid_call);
  EXPECT_EQ(none.explain(status, buffers).what(), why);
  EXPECT_THAT([&] { none.run(buffers); }, testing::ThrowsMessage<Error>(why));
  EXPECT_THAT([&] { none.bind(buffers); }, testing::ThrowsMessage<Error>(why));
  EXPECT_THAT([&] { none.check(); }, testing::ThrowsMessage<Error>(why));
  EXPECT_THAT([&] { describe(none); }, testing::ThrowsMessage<Error>(why));
  EXPECT_THAT([&] { summary_of(none); }, testing::ThrowsMessage<Error>(why));
  EXPECT_EQ(describe(PlanList()), "no chain → no plan: no engine was asked\nplans 0\ndeclines 0\n");
  EXPECT_TRUE(none.operands().empty() && none.knobs().empty() && none.name().empty() && none.engine().empty());
  EXPECT_EQ(none.operand_index("a"), -1);
  EXPECT_EQ(none.operand_index(1), -1);
  EXPECT_EQ(none.workspace().bytes, 0U);
  EXPECT_THROW(PlanList().compile(), Error);
  EXPECT_THROW(PlanList().compile(0), Error);
}

TEST(Road, AViewHasOneStrideForEachOfEightExtentsAtMost) {
  float x = 0;
  const auto of = [&](auto&&... lists) { return TensorView::strided(&x, DataType::fp32, lists...); };
  using List = std::initializer_list<std::int64_t>;
  EXPECT_EQ(of(List{2, 3}, List{3, 1}).stride[0], 3);
  EXPECT_THAT([&] { of(List{2, 3}, List{3}); },
              testing::ThrowsMessage<Error>("invalid_call [call.rank] view: got 1 strides for 2 extents, wanted one for each"));
  EXPECT_THAT([&] { of(List{2, 3}, List{6, 3, 1}); }, testing::Throws<Error>());
  EXPECT_EQ(TensorView::dense(&x, DataType::fp32, {1, 1, 1, 1, 1, 1, 2, 3}).rank, 8);
  EXPECT_THAT([&] { TensorView::dense(&x, DataType::fp32, {1, 1, 1, 1, 1, 1, 1, 2, 3}); },
              testing::ThrowsMessage<Error>("invalid_call [call.rank] view: got 9 extents, wanted at most 8"));
  // Strides that do not fit are no small ones that do.
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(TensorView::dense(&x, DataType::fp32, {2, huge, huge}).stride[0], std::numeric_limits<std::int64_t>::max());
}

TEST(Road, AGraphThatWasMovedFromIsTheSameGraph) {
  Graph graph({.io_data_type = DataType::fp32});
  const Tensor a = graph.tensor({.name = "a", .dim = {2, 3}, .stride = {3, 1}});
  Graph other = std::move(graph);
  graph.matmul(a, graph.tensor({.name = "b", .dim = {3, 4}, .stride = {4, 1}}));  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(other.tensor_count(), 3U);
  other.validate();
}

}  // namespace
}  // namespace verglas
