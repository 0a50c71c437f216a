#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

// Which tiles a block computes: by turns where all are whole, by a counter where some end early. Every element is computed once
// and right, with several tiles a block; calls beside each other have counters of their own.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kGroups = 40, kRows = 5120, kK = 320, kN = 328;  ///< K: more k-blocks than stages of tall tiles

/// bf16 of a small integer.
std::uint16_t half_of(int v) {
  const auto f = static_cast<float>(v);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &f, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}
int drawn(std::int64_t i) { return static_cast<int>(i * 7919 % 13 % 3) - 1; }

class Sm90GroupedTurns : public support::GpuTest {
 protected:
  /// Operands of a grouping, and what comes of it.
  struct Calls {
    support::DeviceBuffer x, w, o, y;
    std::vector<float> want;
    std::vector<TensorView> views;

    Calls(const cuda::DriverTable& driver, const std::vector<std::int32_t>& first)
        : x(driver, kRows * kK * 2, 0),
          w(driver, kGroups * kN * kK * 2, 0),
          o(driver, kGroups * 4, 0),
          y(driver, kRows * kN * 4, 0xEE) {
      std::vector<int> ix(kRows * kK), iw(kGroups * kN * kK);
      std::vector<std::uint16_t> hx(ix.size()), hw(iw.size());
      for (std::size_t i = 0; i < hx.size(); ++i) hx[i] = half_of(ix[i] = drawn(static_cast<std::int64_t>(i)));
      for (std::size_t i = 0; i < hw.size(); ++i) hw[i] = half_of(iw[i] = drawn(static_cast<std::int64_t>(3 * i + 1)));
      x.upload(hx.data());
      w.upload(hw.data());
      o.upload(first.data());
      want.resize(kRows * kN);
      for (std::int64_t g = 0; g < kGroups; ++g) {
        const auto at = static_cast<std::size_t>(g);
        for (std::int64_t r = first[at]; r < (g + 1 < kGroups ? first[at + 1] : kRows); ++r)
          for (std::int64_t n = 0; n < kN; ++n) {
            int sum = 0;
            for (std::int64_t k = 0; k < kK; ++k)
              sum += ix[static_cast<std::size_t>(r * kK + k)] * iw[static_cast<std::size_t>((g * kN + n) * kK + k)];
            want[static_cast<std::size_t>(r * kN + n)] = static_cast<float>(sum);
          }
      }
      views = {TensorView::dense(x.data(), DataType::bf16, {1, kRows, kK}, kGpu),
               TensorView::strided(w.data(), DataType::bf16, {kGroups, kK, kN}, {kK * kN, 1, kK}, kGpu),
               TensorView::dense(o.data(), DataType::int32, {kGroups}, kGpu),
               TensorView::dense(y.data(), DataType::fp32, {1, kRows, kN}, kGpu)};
    }
    void expect_right(const std::string& where) {
      const std::vector<std::uint8_t> got = y.download();
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << where;
      y.fill(0xEE);
    }
  };

  static PlanList plans() {
    Graph g({.io_data_type = DataType::bf16});
    const Tensor x = g.tensor({.name = "x", .dim = {1, kRows, kK}, .stride = {kRows * kK, kK, 1}});
    const Tensor w = g.tensor({.name = "w", .dim = {kGroups, kK, kN}, .stride = {kK * kN, 1, kK}});
    const Tensor o = g.tensor({.name = "o", .dim = {kGroups}, .stride = {1}, .data_type = DataType::int32});
    g.moe_grouped_matmul(x, w, o).set_output(true).set_data_type(DataType::fp32);
    return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  }
  /// Long ones among short and empty ones, at any row; or whole tiles alone.
  static std::vector<std::int32_t> firsts(bool whole) {
    std::vector<std::int32_t> first;
    std::int32_t row = 0;
    for (std::int64_t g = 0; g < kGroups; ++g) {
      first.push_back(row);
      const std::int64_t uneven = g == 5 ? 1900 : g == 30 ? 1010 : g * 37 % 71, full = g % 4 == 3 ? 0 : g % 4 * 64 + 128;
      row += static_cast<std::int32_t>(whole ? full : uneven);
      if (whole) row = row / 128 * 128;
    }
    return first;
  }
};

TEST_F(Sm90GroupedTurns, EveryTileIsComputedOnce) {
  const PlanList all = plans();
  ASSERT_GT(all.size(), 0U) << all.unsupported_text();
  std::vector<CompiledPlan> compiled(all.size());
  {
    std::vector<std::jthread> compilers;
    for (std::size_t i = 0; i < compiled.size(); ++i) compilers.emplace_back([&, i] { compiled[i] = all.compile(i); });
  }
  Calls uneven(*driver_, firsts(false)), whole(*driver_, firsts(true));
  for (const CompiledPlan& plan : compiled)
    for (int run = 0; run < 6; ++run) {
      Calls& calls = run % 3 == 2 ? whole : uneven;
      plan.run(calls.views, {});
      calls.expect_right(plan.name() + " run " + std::to_string(run));
      if (HasFailure()) return;
    }
}

// Gradients: depths that differ, none among them, and are all alike in turn.
TEST_F(Sm90GroupedTurns, EveryTileOfAGradientIsComputedOnce) {
  constexpr std::int64_t kM = 264;
  Graph g({.io_data_type = DataType::bf16});
  const Tensor x = g.tensor({.name = "x", .dim = {1, kRows, kM}, .stride = {kRows * kM, kM, 1}});
  const Tensor d = g.tensor({.name = "d", .dim = {1, kRows, kN}, .stride = {kRows * kN, kN, 1}});
  const Tensor o = g.tensor({.name = "o", .dim = {kGroups}, .stride = {1}, .data_type = DataType::int32});
  g.moe_grouped_matmul_bwd(x, d, o).set_output(true).set_data_type(DataType::fp32);
  const PlanList all = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GT(all.size(), 0U) << all.unsupported_text();
  std::vector<CompiledPlan> compiled(all.size());
  {
    std::vector<std::jthread> compilers;
    for (std::size_t i = 0; i < compiled.size(); ++i) compilers.emplace_back([&, i] { compiled[i] = all.compile(i); });
  }
  std::vector<int> ix(kRows * kM), id(kRows * kN);
  std::vector<std::uint16_t> hx, hd;
  for (std::size_t i = 0; i < ix.size(); ++i) hx.push_back(half_of(ix[i] = drawn(static_cast<std::int64_t>(i))));
  for (std::size_t i = 0; i < id.size(); ++i) hd.push_back(half_of(id[i] = drawn(static_cast<std::int64_t>(3 * i + 1))));
  support::DeviceBuffer vx(*driver_, hx.size() * 2, 0), vd(*driver_, hd.size() * 2, 0), vo(*driver_, kGroups * 4, 0),
      vw(*driver_, kGroups * kM * kN * 4, 0xEE);
  vx.upload(hx.data());
  vd.upload(hd.data());
  for (const bool alike : {false, true}) {
    std::vector<std::int32_t> first = firsts(false);
    for (std::size_t i = 0; alike && i < first.size(); ++i) first[i] = static_cast<std::int32_t>(128 * i);
    vo.upload(first.data());
    std::vector<float> want(kGroups * kM * kN);
    for (std::size_t e = 0; e < kGroups; ++e)
      for (auto r = static_cast<std::size_t>(first[e]); r < (e + 1 < kGroups ? static_cast<std::size_t>(first[e + 1]) : kRows);
           ++r)
        for (std::size_t m = 0; m < kM; ++m)
          if (const int factor = ix[r * kM + m]; factor != 0)
            for (std::size_t n = 0; n < kN; ++n) want[(e * kM + m) * kN + n] += static_cast<float>(factor * id[r * kN + n]);
    for (const CompiledPlan& plan : compiled)
      for (int run = 0; run < 3; ++run) {
        vw.fill(0xEE);
        ASSERT_TRUE(plan.execute(std::vector<void*>{vx.data(), vd.data(), vo.data(), vw.data()}).ok());
        const std::vector<std::uint8_t> got = vw.download();
        ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << plan.name() << " alike " << alike << " run " << run;
      }
  }
}

// Of little depth: more of them than a block finds at its start, on every tile; depths that end inside a k-step.
TEST_F(Sm90GroupedTurns, EveryShortTileIsComputedOnce) {
  constexpr std::int64_t kMany = 1000, kExperts = 3, kWide = 4616;  // 33 tiles of 128 columns and more, 132 blocks
  for (const std::int64_t depth : {16, 64, 152}) {
    std::vector<std::int32_t> ends;
    for (std::int64_t g = 0, row = 0; g < kMany; ++g)
      ends.push_back(static_cast<std::int32_t>(row += g == 17 ? 140 : g == 400 ? 0 : 1 + g * 37 % 3));
    const std::int64_t rows = ends.back();
    Graph g({.io_data_type = DataType::bf16});
    const Tensor x = g.tensor({.name = "x", .dim = {1, rows, depth}, .stride = {rows * depth, depth, 1}});
    const Tensor w = g.tensor({.name = "w", .dim = {kExperts, depth, kWide}, .stride = {depth * kWide, 1, depth}});
    const Tensor o = g.tensor({.name = "o", .dim = {kMany}, .stride = {1}, .data_type = DataType::int32});
    g.moe_grouped_matmul(x, w, o, {.offsets = MoeOffsets::end}).set_output(true).set_data_type(DataType::bf16);
    const PlanList all = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
    ASSERT_GT(all.size(), 0U) << all.unsupported_text();
    const std::vector<CompiledPlan> compiled = support::compile_each_tile_once(all, all.size());
    std::vector<int> ix(static_cast<std::size_t>(rows * depth)), iw(static_cast<std::size_t>(kExperts * kWide * depth));
    std::vector<std::uint16_t> hx, hw, want(static_cast<std::size_t>(rows * kWide));
    for (std::size_t i = 0; i < ix.size(); ++i) hx.push_back(half_of(ix[i] = drawn(static_cast<std::int64_t>(i))));
    for (std::size_t i = 0; i < iw.size(); ++i) hw.push_back(half_of(iw[i] = drawn(static_cast<std::int64_t>(3 * i + i / 7))));
    for (std::int64_t e = 0, r = 0; e < kMany; ++e)
      for (; r < ends[static_cast<std::size_t>(e)]; ++r)
        for (std::int64_t n = 0; n < kWide; ++n) {
          int sum = 0;
          const int *token = &ix[static_cast<std::size_t>(r * depth)],
                    *weight = &iw[static_cast<std::size_t>((e % kExperts * kWide + n) * depth)];
          for (std::int64_t k = 0; k < depth; ++k) sum += token[k] * weight[k];
          want[static_cast<std::size_t>(r * kWide + n)] = half_of(sum);  // below 256: exact
        }
    support::DeviceBuffer vx(*driver_, hx.size() * 2, 0), vw(*driver_, hw.size() * 2, 0), vo(*driver_, kMany * 4, 0),
        vy(*driver_, want.size() * 2, 0);
    vx.upload(hx.data());
    vw.upload(hw.data());
    vo.upload(ends.data());
    for (const CompiledPlan& plan : compiled) {
      vy.fill(0xEE);
      ASSERT_TRUE(plan.execute(std::vector<void*>{vx.data(), vw.data(), vo.data(), vy.data()}).ok());
      const std::vector<std::uint8_t> got = vy.download();
      ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << plan.name() << " depth " << depth;
    }
  }
}

TEST_F(Sm90GroupedTurns, EveryShortTileOfAGradientIsComputedOnce) {
  constexpr std::int64_t kMany = 1000, kM = 8, kWide = 4616;
  std::vector<std::int32_t> ends;
  for (std::int64_t g = 0, row = 0; g < kMany; ++g)
    ends.push_back(static_cast<std::int32_t>(row += g == 17 ? 90 : g % 50 == 3 ? 0 : 1 + g * 37 % 3));
  const std::int64_t rows = ends.back();
  Graph g({.io_data_type = DataType::bf16});
  const Tensor x = g.tensor({.name = "x", .dim = {1, rows, kM}, .stride = {rows * kM, kM, 1}});
  const Tensor d = g.tensor({.name = "d", .dim = {1, rows, kWide}, .stride = {rows * kWide, kWide, 1}});
  const Tensor o = g.tensor({.name = "o", .dim = {kMany}, .stride = {1}, .data_type = DataType::int32});
  g.moe_grouped_matmul_bwd(x, d, o, {.offsets = MoeOffsets::end}).set_output(true).set_data_type(DataType::bf16);
  const PlanList all = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GT(all.size(), 0U) << all.unsupported_text();
  const std::vector<CompiledPlan> compiled = support::compile_each_tile_once(all, all.size());
  std::vector<int> ix(static_cast<std::size_t>(rows * kM)), id(static_cast<std::size_t>(rows * kWide));
  std::vector<std::uint16_t> hx, hd, want(static_cast<std::size_t>(kMany * kM * kWide));
  for (std::size_t i = 0; i < ix.size(); ++i) hx.push_back(half_of(ix[i] = drawn(static_cast<std::int64_t>(i))));
  for (std::size_t i = 0; i < id.size(); ++i) hd.push_back(half_of(id[i] = drawn(static_cast<std::int64_t>(3 * i + i / 7))));
  for (std::int64_t e = 0; e < kMany; ++e)
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kWide; ++n) {
        int sum = 0;
        for (std::int64_t r = e == 0 ? 0 : ends[static_cast<std::size_t>(e - 1)]; r < ends[static_cast<std::size_t>(e)]; ++r)
          sum += ix[static_cast<std::size_t>(r * kM + m)] * id[static_cast<std::size_t>(r * kWide + n)];
        want[static_cast<std::size_t>((e * kM + m) * kWide + n)] = half_of(sum);
      }
  support::DeviceBuffer vx(*driver_, hx.size() * 2, 0), vd(*driver_, hd.size() * 2, 0), vo(*driver_, kMany * 4, 0),
      vw(*driver_, want.size() * 2, 0);
  vx.upload(hx.data());
  vd.upload(hd.data());
  vo.upload(ends.data());
  for (const CompiledPlan& plan : compiled) {
    vw.fill(0xEE);
    ASSERT_TRUE(plan.execute(std::vector<void*>{vx.data(), vd.data(), vo.data(), vw.data()}).ok());
    const std::vector<std::uint8_t> got = vw.download();
    ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << plan.name();
  }
}

TEST_F(Sm90GroupedTurns, OnTwoStreamsAndInAReplayAtOnce) {
  const CompiledPlan plan = plans().compile();
  Calls first(*driver_, firsts(false)), second(*driver_, firsts(false)), replayed(*driver_, firsts(false));
  run_on_two_streams_and_in_a_replay(plan, first.views, second.views, replayed.views);
  first.expect_right("first stream");
  second.expect_right("second stream");
  replayed.expect_right("replay");
}

}  // namespace
}  // namespace verglas
