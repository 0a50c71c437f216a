#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "recipe/recipe.hpp"
#include "support/allocations.hpp"
#include "verglas/verglas.hpp"

// Defects that were mended in the library that this one answers, each as a test of the rule that keeps it out, which was seen red
// without it. docs/field-cases.md has every row, and where those stand that are not here.
namespace {

using namespace verglas;

constexpr float kPoison = -77.0F;

/// y (2, 4, 6) = a (2, 4, 8) · b (2, 8, 6) + bias (1, 1, 6); s and t: sum and largest of y over its rows.
struct Sample {
  Graph g{{.io_data_type = DataType::fp32}};
  std::vector<float> memory = std::vector<float>(2048, kPoison);
  std::vector<TensorView> views;
  enum { kA, kB, kBias, kY, kS, kT };
  CompiledPlan plan;

  Sample() {
    const Tensor a = g.tensor({.name = "a", .dim = {2, 4, 8}, .stride = {32, 8, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {2, 8, 6}, .stride = {48, 6, 1}});
    const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, 6}, .stride = {6, 6, 1}});
    Tensor y = g.add(g.matmul(a, b), bias);
    y.set_name("y").set_output(true);
    g.reduction(y, ReductionMode::add).set_name("s").set_dim({2, 1, 6}).set_output(true);
    g.reduction(y, ReductionMode::max).set_name("t").set_dim({2, 1, 6}).set_output(true);
    float* const p = memory.data();
    std::fill(p, p + 256, 1.0F);
    views = {TensorView::dense(p, DataType::fp32, {2, 4, 8}),        TensorView::dense(p + 64, DataType::fp32, {2, 8, 6}),
             TensorView::dense(p + 192, DataType::fp32, {1, 1, 6}),  TensorView::dense(p + 512, DataType::fp32, {2, 4, 6}),
             TensorView::dense(p + 1024, DataType::fp32, {2, 1, 6}), TensorView::dense(p + 1536, DataType::fp32, {2, 1, 6})};
    plan = g.compile();
  }

  /// The rule that refuses, "" when served. What is refused writes nothing, and its reason is the check that stopped it.
  std::string rule() {
    const std::vector<float> before = memory;
    const Status s = plan.execute(views);
    if (s.ok()) return {};
    EXPECT_EQ(std::memcmp(memory.data(), before.data(), 4 * memory.size()), 0) << "a refused call wrote";
    const Error e = plan.explain(s, views);
    EXPECT_EQ(std::string(e.rule()), info_of(plan.recipe().checks[static_cast<std::size_t>(s.check)].rule).id);
    EXPECT_FALSE(e.operand().empty() || e.got().empty() || e.want().empty()) << e.what();
    return std::string(e.rule());
  }
};

std::string rule_after(const std::function<void(std::vector<TensorView>&)>& change) {
  Sample s;
  change(s.views);
  return s.rule();
}

using Views = std::vector<TensorView>;

/// d (m, n) = a (m, k) · b (k, n), in plain loops.
std::vector<float> product(const float* a, const float* b, int m, int n, int k) {
  std::vector<float> d(static_cast<std::size_t>(m * n), 0.0F);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      for (int x = 0; x < k; ++x) d[static_cast<std::size_t>(i * n + j)] += a[i * k + x] * b[x * n + j];
  return d;
}

std::vector<float> counted(int n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = static_cast<float>((i * 7 + i / 3) % 11 - 5);
  return v;
}

TEST(UpstreamDefects, Row01_TheTableDoesNotChange) {
  Sample s;
  const std::vector<recipe::Check> before = s.plan.recipe().checks;
  EXPECT_EQ(s.rule(), "");
  s.views[Sample::kA].dtype = DataType::bf16;
  EXPECT_EQ(s.rule(), "call.dtype");
  const std::vector<recipe::Check>& after = s.plan.recipe().checks;
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i)
    EXPECT_TRUE(after[i].rule == before[i].rule && after[i].kind == before[i].kind && after[i].role == before[i].role) << i;
}

TEST(UpstreamDefects, Row02_Row17_WhatRefusesIsWhatIsNamed) {
  EXPECT_EQ(rule_after([](Views&) {}), "");
  EXPECT_EQ(rule_after([](Views& v) { v.pop_back(); }), "call.operand_count");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kA].data = nullptr; }), "call.null");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kT].read_only = true; }), "call.read_only");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kB].device = {DeviceType::cuda, 0}; }), "call.operand_device");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kA].stride[1] = -8; }), "call.stride");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kA].stride[0] = std::int64_t{1} << 62; }), "call.overflow");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kB].extent[1] = 7; }), "call.extent");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kY].extent[2] = 5; }), "call.output_extent");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kA].observed_bytes = 255; }), "call.span");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kBias].extent[2] = 5; }), "call.aux_extent");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kY].data = v[Sample::kA].data; }), "call.overlap");
}

TEST(UpstreamDefects, Row03_Row04_Row05_SquaresAndEncodingsThatCoincide) {
  for (const int d : {1, 2, 8, 128}) {
    const std::vector<float> x = counted(d * d), w = counted(d * d + 3);
    const auto run = [&](bool with_itself, const std::function<void(Views&)>& change) {
      Graph g({.io_data_type = DataType::fp32});
      const Tensor a = g.tensor({.name = "a", .dim = {1, d, d}, .stride = {d * d, d, 1}});
      const Tensor b = with_itself ? a : g.tensor({.name = "b", .dim = {1, d, d}, .stride = {d * d, d, 1}});
      g.matmul(a, b).set_output(true).set_name("d");
      std::vector<float> y(static_cast<std::size_t>(d * d), kPoison);
      Views v = {TensorView::dense(const_cast<float*>(x.data()), DataType::fp32, {1, d, d})};
      if (!with_itself) v.push_back(TensorView::dense(const_cast<float*>(w.data()), DataType::fp32, {1, d, d}));
      v.push_back(TensorView::dense(y.data(), DataType::fp32, {1, d, d}));
      change(v);
      g.compile().run(v);
      return y;
    };
    const std::vector<float> want = product(x.data(), w.data(), d, d, d);
    EXPECT_EQ(run(false, [](Views&) {}), want);
    EXPECT_EQ(run(false,
                  [&](Views& v) {  // the same memory, its axes listed as (b, N, K)
                    v[1].order = AxisOrder::kernel;
                    v[1].stride = {d * d, 1, d};
                  }),
              want);
    EXPECT_EQ(run(false,
                  [](Views& v) {
                    for (TensorView& x : v) x = TensorView::address(x.data);
                  }),
              want);
    EXPECT_EQ(run(true, [](Views&) {}), product(x.data(), x.data(), d, d, d));
  }
}

TEST(UpstreamDefects, Row06_OneBufferInBothRolesOfTwoProducts) {
  constexpr int d = 8;
  std::vector<float> x = counted(d * d), w = counted(d * d + 5), y(d * d, kPoison);
  w.resize(d * d);
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {d, d}, .stride = {d, 1}}),
               b = g.tensor({.name = "b", .dim = {d, d}, .stride = {1, d}});
  g.pointwise(PointwiseMode::sub, {g.matmul(a, b), g.matmul(b, a)}).set_output(true).set_name("y");
  g.compile().run(std::vector<TensorView>{TensorView::dense(x.data(), DataType::fp32, {d, d}),
                                          TensorView::strided(w.data(), DataType::fp32, {d, d}, {1, d}),
                                          TensorView::dense(y.data(), DataType::fp32, {d, d})});
  std::vector<float> t(d * d);
  for (std::size_t i = 0; i < d; ++i)
    for (std::size_t j = 0; j < d; ++j) t[i * d + j] = w[j * d + i];
  const std::vector<float> ab = product(x.data(), t.data(), d, d, d), ba = product(t.data(), x.data(), d, d, d);
  for (std::size_t i = 0; i < d * d; ++i) EXPECT_EQ(y[i], ab[i] - ba[i]) << i;
}

TEST(UpstreamDefects, Row07_NothingIsSeededBeforeTheLastCheckAndWidthIsARule) {
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kS].dtype = DataType::fp16; }), "call.dtype");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kY].stride = {6, 6, 1}; }), "call.output_alias");
}

TEST(UpstreamDefects, Row08_TheFirstReductionIsUntouchedWhereTheSecondIsRefused) {
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kT].extent[2] = 7; }), "call.output_extent");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kT].stride[2] = 0; }), "call.output_alias");
}

TEST(UpstreamDefects, Row09_AnOutputWhoseElementsMeet) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {2, 1}, .stride = {1, 1}}),
               b = g.tensor({.name = "b", .dim = {1, 2}, .stride = {2, 1}});
  g.matmul(a, b).set_output(true).set_name("y");
  const CompiledPlan plan = g.compile();
  std::vector<float> m(64, 2.0F);
  const auto code = [&](std::initializer_list<std::int64_t> strides) {
    return plan
        .execute(std::vector<TensorView>{TensorView::dense(m.data(), DataType::fp32, {2, 1}),
                                         TensorView::dense(m.data() + 8, DataType::fp32, {1, 2}),
                                         TensorView::strided(m.data() + 16, DataType::fp32, {2, 2}, strides)})
        .code;
  };
  EXPECT_EQ(code({2, 2}), ErrorCode::invalid_call);
  EXPECT_EQ(code({1, 1}), ErrorCode::invalid_call);
  std::fill(m.begin() + 16, m.end(), kPoison);
  EXPECT_EQ(code({3, 2}), ErrorCode::ok);
  EXPECT_EQ(m[17], kPoison);  // the gaps stay
  EXPECT_EQ(m[20], kPoison);
  EXPECT_EQ(m[21], 4.0F);
}

TEST(UpstreamDefects, Row10_RankComesBeforeAnyAxis) {
  for (const int i : {Sample::kA, Sample::kB, Sample::kY, Sample::kS, Sample::kT})
    for (const int rank : {0, 1, 4, 8, 9, 100, -2})
      EXPECT_EQ(rule_after([&](Views& v) { v[static_cast<std::size_t>(i)].rank = static_cast<std::int8_t>(rank); }), "call.rank")
          << i;
}

TEST(UpstreamDefects, Row12_AnAuxOfLowerRankIsTheSame) {
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kBias] = TensorView::dense(v[Sample::kBias].data, DataType::fp32, {6}); }), "");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kBias] = TensorView::dense(v[Sample::kBias].data, DataType::fp32, {1, 6}); }),
            "");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kBias] = TensorView::dense(v[Sample::kBias].data, DataType::fp32, {4}); }),
            "call.aux_extent");
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kBias] = TensorView::dense(v[Sample::kBias].data, DataType::fp32, {}); }),
            "call.aux_extent");
}

TEST(UpstreamDefects, Row13_TheBatchOfEachOperandIsChecked) {
  EXPECT_EQ(rule_after([](Views& v) { v[Sample::kB].extent[0] = 1; }), "call.batch");
}

TEST(UpstreamDefects, Row15_TheIdentityOfAnInt32MaxIsInt32) {
  Graph g({.io_data_type = DataType::int8, .intermediate_data_type = DataType::int32, .compute_data_type = DataType::int32});
  const Tensor a = g.tensor({.name = "a", .dim = {2, 4}, .stride = {4, 1}}),
               b = g.tensor({.name = "b", .dim = {4, 2}, .stride = {2, 1}});
  const Tensor low = g.tensor({.name = "low", .dim = {1, 1}, .stride = {1, 1}, .data_type = DataType::int32});
  g.reduction(g.add(g.matmul(a, b), low), ReductionMode::max)
      .set_dim({1, 1})
      .set_output(true)
      .set_data_type(DataType::int32)
      .set_name("most");
  std::vector<std::int8_t> x(8, 1), w(8, 1);
  std::int32_t lowest = -2147483640, most = 5;
  g.compile().run(std::vector<TensorView>{
      TensorView::dense(x.data(), DataType::int8, {2, 4}), TensorView::dense(w.data(), DataType::int8, {4, 2}),
      TensorView::dense(&lowest, DataType::int32, {1, 1}), TensorView::dense(&most, DataType::int32, {1, 1})});
  EXPECT_EQ(most, -2147483636);
}

TEST(UpstreamDefects, Row18_Row24_WhatCannotRunIsDeclinedByRuleBeforeItCompiles) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {4, 4}, .stride = {4, 1}, .data_type = DataType::fp4_e2m1});
  g.matmul(a, a).set_output(true);
  std::string rule;
  try {
    const PlanList plans = g.plans();
    EXPECT_EQ(plans.size(), 0U);
    ASSERT_FALSE(plans.declines().empty());
    for (const DeclineRecord& d : plans.declines()) EXPECT_FALSE(d.engine.empty() || d.rule.empty() || d.text.empty());
    EXPECT_NE(plans.unsupported_text().find(plans.declines()[0].rule), std::string::npos);
    EXPECT_THROW(plans.compile(), Error);
  } catch (const Error& e) {
    FAIL() << e.what();
  }
}

TEST(UpstreamDefects, Row19_TheBatchOfAReductionOfTwoProductsIsThatOfTheOperands) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {3, 2, 2}, .stride = {4, 2, 1}}),
               b = g.tensor({.name = "b", .dim = {3, 2, 2}, .stride = {4, 2, 1}});
  g.reduction(g.add(g.matmul(a, b), g.matmul(b, a)), ReductionMode::add).set_dim({1, 1, 1}).set_output(true).set_name("s");
  std::vector<float> ones(32, 1.0F);
  float sum = kPoison;
  g.compile().run(std::vector<TensorView>{TensorView::dense(ones.data(), DataType::fp32, {3, 2, 2}),
                                          TensorView::dense(ones.data() + 12, DataType::fp32, {3, 2, 2}),
                                          TensorView::dense(&sum, DataType::fp32, {1, 1, 1})});
  EXPECT_EQ(sum, 3 * 4 * 2 * 2.0F);
}

TEST(UpstreamDefects, Row23_ACallThatIsCheckedAllocatesNothing) {
  class Idle final : public recipe::Launcher {
    Status launch(const recipe::Binding&, const recipe::Call&) const noexcept override { return {}; }
    Error failure(Status) const override { return {ErrorCode::internal, "internal", "never fails"}; }
  };
  Sample s;
  const Idle idle;
  const long before = support::allocations_of_this_thread();
  const Status served = recipe::execute(s.plan.recipe(), idle, {s.views, {}, {}});
  s.views[Sample::kA].extent[2] = 3;
  const Status refused = recipe::execute(s.plan.recipe(), idle, {s.views, {}, {}});
  EXPECT_EQ(support::allocations_of_this_thread(), before);
  EXPECT_TRUE(served.ok());
  EXPECT_EQ(refused.code, ErrorCode::invalid_call);
}

}  // namespace
