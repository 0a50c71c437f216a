#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <vector>

#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// Reductions on a real device: exact on small integers, the same bits in every run, whatever the outputs held before; on two
// streams at once; and replayed from a graph beside the stream it was captured from.
namespace {

using namespace support;
using namespace verglas;

constexpr Device kGpu{DeviceType::cuda, 0};

/// bf16 integers from -2 to 2 and their product in double.
struct Numbers {
  std::int64_t m, n, k;
  std::vector<std::uint16_t> a, b;
  std::vector<double> c;
  Numbers(std::int64_t rows, std::int64_t cols, std::int64_t depth, std::uint64_t seed) : m(rows), n(cols), k(depth) {
    Random random(seed);
    std::vector<double> fa(static_cast<std::size_t>(m * k)), fb(static_cast<std::size_t>(n * k));
    const auto fill = [&](std::vector<double>& f, std::vector<std::uint16_t>& bits) {
      for (double& v : f) {
        v = static_cast<double>(random.between(-2, 2));
        const auto single = static_cast<float>(v);
        std::uint32_t word = 0;
        std::memcpy(&word, &single, 4);
        bits.push_back(static_cast<std::uint16_t>(word >> 16));
      }
    };
    fill(fa, a);
    fill(fb, b);
    c.assign(static_cast<std::size_t>(m * n), 0.0);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t x = 0; x < k; ++x)
          c[static_cast<std::size_t>(i * n + j)] +=
              fa[static_cast<std::size_t>(i * k + x)] * fb[static_cast<std::size_t>(j * k + x)];
  }
};

constexpr std::array<std::string_view, 4> kReductions = {"row sums", "column maxima", "largest magnitude", "norm"};

/// c = a · bᵀ in fp32, its row sums, column maxima, largest magnitude and norm, or one of these alone.
Graph graph_of(const Numbers& x, bool is_dense = true, std::optional<std::size_t> only = {}) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {x.m, x.k}, .stride = {x.k, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {x.k, x.n}, .stride = {1, x.k}});
  Tensor c = g.matmul(a, b).set_data_type(DataType::fp32);
  if (is_dense) c.set_output(true);
  auto reduce = [&, which = std::size_t{0}](ReductionMode mode, std::vector<std::int64_t> dim) mutable {
    if (only.value_or(which) != which++) return;
    g.reduction(c, mode).set_dim(std::move(dim)).set_output(true).set_data_type(DataType::fp32);
  };
  reduce(ReductionMode::add, {x.m, 1});
  reduce(ReductionMode::max, {1, x.n});
  reduce(ReductionMode::amax, {1, 1});
  reduce(ReductionMode::norm2, {1, 1});
  return g;
}

struct OnDevice {
  std::deque<DeviceBuffer> memory;
  std::vector<TensorView> views;
  OnDevice(const cuda::DriverTable& driver, const Numbers& x) {
    const auto add = [&](DataType t, std::initializer_list<std::int64_t> dim, const void* from) {
      std::int64_t count = bytes_of(t);
      for (const std::int64_t d : dim) count *= d;
      memory.emplace_back(driver, static_cast<std::size_t>(count), 0xFF);
      if (from) memory.back().upload(from);
      views.push_back(TensorView::dense(memory.back().data(), t, dim, kGpu));
    };
    add(DataType::bf16, {x.m, x.k}, x.a.data());
    add(DataType::bf16, {x.n, x.k}, x.b.data());
    views.back() = TensorView::strided(memory.back().data(), DataType::bf16, {x.k, x.n}, {1, x.k}, kGpu);
    add(DataType::fp32, {x.m, x.n}, nullptr);
    add(DataType::fp32, {x.m, 1}, nullptr);
    add(DataType::fp32, {1, x.n}, nullptr);
    add(DataType::fp32, {1, 1}, nullptr);
    add(DataType::fp32, {1, 1}, nullptr);
  }
  std::vector<float> output(std::size_t i) const {
    const auto bytes = memory[i].download();
    std::vector<float> out(bytes.size() / 4);
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  void expect_right(const Numbers& x, const std::string& where, bool is_dense = true,
                    std::optional<std::size_t> only = {}) const {
    const auto has = [&](std::size_t which) { return only.value_or(which) == which; };
    const auto c = output(2), rows = output(3), cols = output(4);
    double largest = 0, squares = 0;
    int wrong = 0;
    std::vector<double> sum(static_cast<std::size_t>(x.m)), most(static_cast<std::size_t>(x.n), -1e30);
    for (std::size_t i = 0; i < sum.size(); ++i)
      for (std::size_t j = 0; j < most.size(); ++j) {
        const double v = x.c[i * most.size() + j];
        wrong += is_dense && c[i * most.size() + j] != v ? 1 : 0;
        sum[i] += v;
        most[j] = std::max(most[j], v);
        largest = std::max(largest, std::fabs(v));
        squares += v * v;
      }
    EXPECT_EQ(wrong, 0) << where;
    for (std::size_t i = 0; has(0) && i < sum.size(); ++i) ASSERT_EQ(rows[i], sum[i]) << where << " row " << i;
    for (std::size_t j = 0; has(1) && j < most.size(); ++j) ASSERT_EQ(cols[j], most[j]) << where << " column " << j;
    if (has(2)) {
      EXPECT_EQ(output(5)[0], largest) << where;
    }
    if (has(3)) {
      EXPECT_NEAR(output(6)[0], std::sqrt(squares), 1e-5 * std::sqrt(squares)) << where;
    }
    for (const DeviceBuffer& b : memory) EXPECT_EQ(b.touched_guard_bytes(), 0) << where;
  }
};

class Sm90ReductionsOnGpu : public support::GpuTest {};

TEST_F(Sm90ReductionsOnGpu, AreExactOnEveryTileAndShape) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 8},
                                {64, 64, 64},
                                {200, 333, 72},
                                {129, 520, 40},
                                {700, 900, 64},
                                {70, 2500, 24},
                                {2500, 70, 24}}) {
    const Numbers x(m, n, k, static_cast<std::uint64_t>(m));
    const PlanList plans = graph_of(x).plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
    ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
    for (const CompiledPlan& plan : support::compile_each_tile_once(plans)) {
      OnDevice d(*driver_, x);
      for (int run = 0; run < 3; ++run) plan.run(d.views);
      ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
      d.expect_right(x, plan.name());
    }
  }
}

// The largest tiles take one reduction.
TEST_F(Sm90ReductionsOnGpu, AreExactAloneOnTheLargestTiles) {
  int seen = 0;
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{200, 340, 72}, {700, 900, 64}}) {
    const Numbers x(m, n, k, static_cast<std::uint64_t>(n));
    for (std::size_t which = 0; which < kReductions.size(); ++which) {
      const PlanList plans = graph_of(x, true, which).plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
      for (std::size_t i = 0; i < plans.size(); ++i) {
        const auto width = plans.knobs(i).at("TILE_N");
        if (plans.knobs(i).at("PROGRAMMATIC") != 0 || (width != 192 && width != 176)) continue;
        const CompiledPlan plan = plans.compile(i);
        OnDevice d(*driver_, x);
        const std::vector<TensorView> views = {d.views[0], d.views[1], d.views[2], d.views[3 + which]};
        for (int run = 0; run < 3; ++run) plan.run(views);
        ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
        d.expect_right(x, plan.name() + std::string(kReductions[which]), true, which);
        ++seen;
      }
    }
  }
  EXPECT_EQ(seen, 16) << "two tiles, four reductions, two shapes";
}

TEST_F(Sm90ReductionsOnGpu, AreExactWithoutADenseOutput) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 8}, {200, 333, 72}, {700, 900, 64}, {40, 40, 0}}) {
    const Numbers x(m, n, k, static_cast<std::uint64_t>(n));
    const PlanList plans = graph_of(x, false).plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
    ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
    for (const CompiledPlan& plan : support::compile_each_tile_once(plans)) {
      OnDevice d(*driver_, x);
      d.views.erase(d.views.begin() + 2);
      for (int run = 0; run < 2; ++run) plan.run(d.views);
      ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
      d.expect_right(x, plan.name(), false);
    }
  }
}

// What lies in memory where a partial result is not yet there is a NaN of which no other NaN may be taken.
TEST_F(Sm90ReductionsOnGpu, NansArriveAsNumbersDo) {
  Numbers x(300, 400, 64, 7);
  constexpr std::size_t kRow = 150;
  x.a[kRow * 64 + 5] = 0xFFFF;
  const CompiledPlan plan = graph_of(x).compile({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  OnDevice d(*driver_, x);
  for (int run = 0; run < 3; ++run) plan.run(d.views);
  ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  const auto rows = d.output(3), columns = d.output(4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < columns.size(); ++j) sum += x.c[i * columns.size() + j];
    if (i == kRow)
      EXPECT_TRUE(std::isnan(rows[i]));
    else
      ASSERT_EQ(rows[i], sum) << "row " << i;
  }
  for (const float v : columns) ASSERT_TRUE(std::isnan(v));
  EXPECT_TRUE(std::isnan(d.output(5)[0]));
  EXPECT_TRUE(std::isnan(d.output(6)[0]));
}

// Calls whose partial results lie elsewhere in the same memory, in turn.
TEST_F(Sm90ReductionsOnGpu, LeaveNothingBehindForOtherExtents) {
  std::deque<Numbers> numbers;
  std::deque<OnDevice> calls;
  for (const auto& [m, n] : {std::array<std::int64_t, 2>{700, 900}, {200, 332}, {65, 900}, {700, 40}}) {
    numbers.emplace_back(m, n, 64, static_cast<std::uint64_t>(m + n));
    calls.emplace_back(*driver_, numbers.back());
  }
  const PlanList plans = graph_of(numbers[0]).plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  for (std::size_t i = 0; i < plans.size(); i += 3) {
    const CompiledPlan plan = plans.compile(i);
    for (int round = 0; round < 3; ++round)
      for (OnDevice& d : calls) plan.run(d.views);
    ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
    for (std::size_t c = 0; c < calls.size(); ++c) calls[c].expect_right(numbers[c], plan.name());
  }
}

TEST_F(Sm90ReductionsOnGpu, GiveTheSameBitsInEveryRun) {
  const Numbers x(700, 900, 64, 5);
  const CompiledPlan plan = graph_of(x).compile({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  OnDevice d(*driver_, x);
  plan.run(d.views);
  ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  const float norm = d.output(6)[0];
  for (int run = 0; run < 100; ++run) {
    plan.run(d.views);
    ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
    ASSERT_EQ(d.output(6)[0], norm) << "run " << run;
  }
}

TEST_F(Sm90ReductionsOnGpu, RunOnTwoStreamsAndInAReplayAtOnce) {
  const Numbers x(700, 900, 64, 6);
  const CompiledPlan plan = graph_of(x).compile({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  OnDevice first(*driver_, x), second(*driver_, x), replayed(*driver_, x);
  run_on_two_streams_and_in_a_replay(plan, first.views, second.views, replayed.views);
  first.expect_right(x, "first stream");
  second.expect_right(x, "second stream");
  replayed.expect_right(x, "replay");
}

}  // namespace
