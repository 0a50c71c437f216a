#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/parallel_for.hpp"
#include "support/combine_problem.hpp"

// COMBINE on the CPU engine against loops over rows. Small integers make every sum exact, so that comparisons are of bits.
namespace {

using namespace support::combine;
/// One product, stored, by every plan and with one thread to eight: the wanted bits each time, whatever was there.
void expect_combined(Problem p) {
  if (p.index.empty()) p.route();
  Built b(p);
  const Tensor w = declare(b.g, {p.experts, p.k, p.n}, p.type);
  b.product(w).set_output(true);
  Data d(p);
  // What nobody reads is poison.
  if (p.type == DataType::fp32)
    for (std::int64_t r = 0; r < p.rows; ++r)
      for (std::int64_t k = 0; k < p.k && !p.is_routed(r); ++k)
        numeric::from_float(std::numeric_limits<float>::quiet_NaN(), d.token.stored.data() + (r * p.k + k) * 4, p.type);
  Bytes offsets = stored(p.bounds, p.offset);
  const std::vector<float> want = d.want(p);
  const PlanList plans = b.g.plans();
  ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const CompiledPlan plan = plans.compile(i);
    for (int threads = 1; threads <= 8; ++threads) {
      set_thread_count(threads);
      std::vector<float> y(want.size(), kPoison);
      const std::vector<void*> call = {d.token.stored.data(), d.weight.stored.data(), offsets.data(), p.index.data(),
                                       p.slot.data(),         d.score.stored.data(),  y.data()};
      ASSERT_TRUE(plan.execute(call).ok());
      ASSERT_EQ(y, want) << plan.name() << ' ' << threads;
      for (std::size_t e = 0; e < y.size(); ++e) ASSERT_FALSE(y[e] == 0 && std::signbit(y[e])) << e;
      EXPECT_NO_THROW(plan.check());
    }
  }
}

TEST(Combine, AddsScoreTimesProductForEveryTopKAndType) {
  for (std::int64_t top_k = 1; top_k <= 8; ++top_k)
    for (const DataType t : {DataType::fp32, DataType::bf16, DataType::fp16, DataType::fp8_e4m3, DataType::int8}) {
      SCOPED_TRACE(std::string(name_of(t)) + " " + std::to_string(top_k));
      expect_combined({.top_k = top_k, .type = t});
    }
}

TEST(Combine, TakesOffsetsAndScoresOfEveryKind) {
  for (const DataType wide : {DataType::int32, DataType::int64})
    for (const DataType score : {DataType::fp32, DataType::bf16, DataType::fp16}) {
      expect_combined({.score = score, .offset = wide});
      expect_combined({.score = score, .offset = wide, .offsets = MoeOffsets::end, .bounds = {5, 5, 17, 33}});
    }
}

TEST(Combine, RowsThatNoGroupOwnsAddNothing) {
  expect_combined({.bounds = {40, 40, 40, 40}});
  expect_combined({.bounds = {7, 12, 12, 12}});
  expect_combined({.offsets = MoeOffsets::end, .bounds = {0, 0, 0}});
  expect_combined({.rows = 0, .bounds = {0, 0}});
  expect_combined({.experts = 1, .bounds = {0}});
  expect_combined({.tokens = 0});
  expect_combined({.k = 0});
}

// More rows of one token than products are kept at once, and more tokens than a tile has.
TEST(Combine, ManyRowsOfOneTokenAndManyTokens) {
  Problem one{.tokens = 3, .rows = 9000, .k = 3, .n = 5, .bounds = {0, 100, 4000, 8000}};
  one.index.assign(9000, 1);
  one.slot.assign(9000, 1);
  expect_combined(one);
  expect_combined({.tokens = 4100, .rows = 9001, .k = 3, .n = 5, .top_k = 3, .bounds = {0, 17, 3000, 3000}});
  expect_combined({.tokens = 130, .rows = 300, .experts = 5, .k = 40, .n = 700, .bounds = {0, 17, 100, 170, 250}});
}

// The order of a sum is that of slots, and of rows where one slot has several.
TEST(Combine, SumsRunBySlotAndThenByRow) {
  Problem p{.tokens = 1, .rows = 4, .experts = 1, .k = 1, .n = 1, .top_k = 3, .bounds = {0}};
  p.index.assign(4, 0);
  for (const bool is_one_slot : {false, true}) {
    p.slot = is_one_slot ? Ints{1, 1, 1, 1} : Ints{2, 1, 0, 1};
    Built b(p);
    b.product(declare(b.g, {1, 1, 1}, DataType::fp32)).set_output(true);
    // By slots: row 2, rows 1 and 3, row 0.
    std::vector<float> x = {1, -0x1p60F, 0x1p60F, 0x1p-3F}, w = {1}, scores = {1, 1, 1}, y = {kPoison};
    Ints o = {0};
    ASSERT_TRUE(
        b.g.compile()
            .execute(std::vector<void*>{x.data(), w.data(), o.data(), p.index.data(), p.slot.data(), scores.data(), y.data()})
            .ok());
    EXPECT_EQ(y[0], is_one_slot ? 0x1p-3F : 1.125F);
  }
}

TEST(Combine, DataThatDoNotFitAreSkippedAndTold) {
  struct Wild {
    int row;
    std::int32_t index, slot;
    const char* named;
  };
  for (const Wild& wild : {Wild{6, 11, 0, "token_index"}, Wild{6, -2, 0, "token_index"}, Wild{6, 1 << 30, 7, "token_index"},
                           Wild{6, 3, 2, "token_ks"}, Wild{6, 3, -1, "token_ks"}, Wild{6, 10, 1 << 30, "token_ks"}}) {
    Problem p;
    p.route();
    p.index[static_cast<std::size_t>(wild.row)] = wild.index;
    p.slot[static_cast<std::size_t>(wild.row)] = wild.slot;
    Built b(p);
    b.product(declare(b.g, {p.experts, p.k, p.n}, p.type)).set_output(true);
    Data d(p);
    Bytes offsets = stored(p.bounds, p.offset);
    const std::vector<float> want = d.want(p);
    std::vector<float> y(want.size(), kPoison);
    const CompiledPlan plan = b.g.compile();
    const std::vector<void*> call = {d.token.stored.data(), d.weight.stored.data(), offsets.data(), p.index.data(),
                                     p.slot.data(),         d.score.stored.data(),  y.data()};
    ASSERT_TRUE(plan.execute(call).ok());
    EXPECT_EQ(y, want);
    EXPECT_FALSE(plan.execute(call).ok());
    try {
      plan.check();
      ADD_FAILURE() << wild.named;
    } catch (const Error& e) {
      EXPECT_EQ(e.rule(), "call.data");
      EXPECT_NE(std::string(e.what()).find(wild.named), std::string::npos) << e.what();
    }
    EXPECT_NO_THROW(plan.check());
  }
}

TEST(Combine, WeightsByAddressOfWhichOneIsNull) {
  Problem p;
  p.route();
  Built b(p);
  Tensor w = declare(b.g, {p.experts, p.k, p.n}, p.type);
  w.set_by_pointers(true);
  b.product(w).set_output(true);
  Data d(p);
  Bytes offsets = stored(p.bounds, p.offset);
  const CompiledPlan plan = b.g.compile();
  for (const std::int64_t missing : {-1, 2}) {
    std::vector<void*> table;
    for (std::int64_t e = 0; e < p.experts; ++e)
      table.push_back(e == missing ? nullptr : d.weight.stored.data() + e * p.k * p.n * bytes_of(p.type));
    Problem owned = p;
    for (std::int64_t r = 0; r < p.rows; ++r)
      if (missing >= 0 && p.group_of(r) % p.experts == missing) owned.index[static_cast<std::size_t>(r)] = -1;
    const std::vector<float> want = d.want(owned);
    std::vector<float> y(want.size(), kPoison);
    ASSERT_TRUE(plan.execute(std::vector<void*>{d.token.stored.data(), table.data(), offsets.data(), p.index.data(),
                                                p.slot.data(), d.score.stored.data(), y.data()})
                    .ok());
    EXPECT_EQ(y, want);
    if (missing < 0)
      EXPECT_NO_THROW(plan.check());
    else
      EXPECT_THROW(plan.check(), Error);
  }
}

// Rows behind it are tokens: a residual, a bias, two products that meet, reductions, and blocks along M.
TEST(Combine, AnEpilogueComputesEveryToken) {
  Problem p{.tokens = 64, .rows = 90, .n = 32};
  p.route();
  for (std::size_t r = 0; r < p.index.size(); ++r)
    if (p.index[r] == 5) p.index[r] = -1;  // a token without rows
  Built b(p);
  const Tensor residual = declare(b.g, {1, p.tokens, p.n}, DataType::fp32), bias = declare(b.g, {1, 1, p.n}, DataType::fp32);
  const Tensor w0 = declare(b.g, {p.experts, p.k, p.n}, p.type), w1 = declare(b.g, {p.experts, p.k, p.n}, p.type);
  const auto fp32 = [](Tensor t) { return t.set_data_type(DataType::fp32); };
  Tensor y =
      fp32(b.g.add(fp32(b.g.add(fp32(b.g.pointwise(PointwiseMode::max, {b.product(w0), b.product(w1)})), bias)), residual));
  y.set_output(true);
  b.g.reduction(y, ReductionMode::avg).set_dim({1, 1, p.n}).set_output(true).set_data_type(DataType::fp32);
  b.g.reduction(y, ReductionMode::max).set_dim({1, p.tokens, 1}).set_output(true).set_data_type(DataType::fp32);
  const auto [data, scale] = b.g.block_scale_quantize(y, 32, 1);
  Tensor(data).set_output(true).set_data_type(DataType::fp8_e4m3);
  Tensor(scale).set_output(true).set_data_type(DataType::fp8_e8m0);
  Data d(p), other(p);
  std::reverse(other.weight.value.begin(), other.weight.value.end());
  for (std::size_t i = 0; i < other.weight.value.size(); ++i)
    numeric::from_float(other.weight.value[i], other.weight.stored.data() + i * 4, p.type);
  const std::vector<float> one = d.want(p), two = other.want(p);
  Numbers vr(p.tokens * p.n, DataType::fp32, 5), vb(p.n, DataType::fp32, 6);
  Bytes offsets = stored(p.bounds, p.offset);
  const auto count = static_cast<std::size_t>(p.tokens * p.n);
  std::vector<float> vy(count, kPoison), mean(static_cast<std::size_t>(p.n), kPoison),
      most(static_cast<std::size_t>(p.tokens), kPoison);
  std::vector<std::uint8_t> q(count, 0xFF), sf(static_cast<std::size_t>(p.tokens / 32 * p.n), 0xFF);
  const CompiledPlan plan = b.g.compile();
  std::vector<TensorView> views;
  for (const OperandInfo& info : plan.operands()) {
    void* at = nullptr;
    const auto is = [&](const Tensor& t) { return info.uid == t.uid(); };
    if (is(b.x)) at = d.token.stored.data();
    if (is(w0)) at = d.weight.stored.data();
    if (is(w1)) at = other.weight.stored.data();
    if (is(b.o)) at = offsets.data();
    if (is(b.i)) at = p.index.data();
    if (is(b.s)) at = p.slot.data();
    if (is(b.c)) at = d.score.stored.data();
    if (is(residual)) at = vr.stored.data();
    if (is(bias)) at = vb.stored.data();
    if (is(y)) at = vy.data();
    if (is(data)) at = q.data();
    if (is(scale)) at = sf.data();
    if (info.is_output && at == nullptr) at = info.dim[1] == 1 ? static_cast<void*>(mean.data()) : most.data();
    views.push_back(TensorView::address(at));
  }
  ASSERT_TRUE(plan.execute(views).ok());
  std::vector<double> sums(static_cast<std::size_t>(p.n), 0);
  for (std::size_t t = 0; t < static_cast<std::size_t>(p.tokens); ++t) {
    float largest = -std::numeric_limits<float>::infinity();
    for (std::size_t n = 0; n < static_cast<std::size_t>(p.n); ++n) {
      const std::size_t at = t * static_cast<std::size_t>(p.n) + n;
      const float want = std::max(one[at], two[at]) + vb.value[n] + vr.value[at];
      ASSERT_EQ(vy[at], want) << t;
      sums[n] += want;
      largest = std::max(largest, want);
      const float found =
          numeric::to_float(&q[at], DataType::fp8_e4m3) * std::ldexp(1.0F, sf[t / 32 * static_cast<std::size_t>(p.n) + n] - 127);
      EXPECT_NEAR(found, want, std::fabs(want) / 16 + 0.5F) << t;
    }
    EXPECT_EQ(most[t], largest);
  }
  for (std::size_t n = 0; n < sums.size(); ++n) EXPECT_EQ(mean[n], static_cast<float>(sums[n] / double(p.tokens)));
}

}  // namespace
