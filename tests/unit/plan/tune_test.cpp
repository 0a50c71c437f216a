#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "chain/analyse.hpp"
#include "graph/ir.hpp"
#include "plan/tune.hpp"
#include "plan/tuning_record.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/recording_driver.hpp"
#include "support/temp_folder.hpp"
#include "verglas/explain.hpp"
#include "verglas/verglas.hpp"

// Measuring plans and choosing by it, on a driver and a library in memory, with a clock that says what the test wants.

namespace verglas::plan {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

/// Answers what it is told for each plan, by its name; counts how often it is asked.
class FakeMeter final : public Meter {
 public:
  explicit FakeMeter(std::function<double(const std::string&)> seconds) : seconds_(std::move(seconds)) {}
  std::vector<Sample> measure(std::span<const CompiledPlan> plans, const Windows& w) override {
    std::vector<Sample> samples;
    asked.emplace_back();
    for (const CompiledPlan& p : plans) {
      const double s = seconds_(p.name());
      samples.push_back({});
      if (s > 0)
        samples.back().windows.assign(static_cast<std::size_t>(w.rounds), s);
      else
        samples.back().failure = "its kernel does not end";
      asked.back().push_back(p.name());
    }
    return samples;
  }
  std::vector<std::vector<std::string>> asked;

 private:
  std::function<double(const std::string&)> seconds_;
};

class Tune : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<support::LtAlgorithm> algorithms;
    for (std::uint32_t i = 0; i < 8; ++i) algorithms.push_back({66, 10 + i, 1, 0});
    lt.offer(algorithms);
  }
  static Graph graph(std::int64_t m = 32, const std::string& name = "a") {
    Graph g;
    const Tensor a = g.tensor({.name = name, .dim = {1, m, 64}, .stride = {m * 64, 64, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {1, 64, 48}, .stride = {64 * 48, 1, 64}});
    g.matmul(a, b).set_output(true).set_name("d");
    return g;
  }
  static std::shared_ptr<PlanState> state(std::int64_t m = 32, const std::string& name = "a") {
    Graph g = graph(m, name);
    g.validate();
    return make_plans(chain::analyse(g.data()), {.device = kGpu, .deselect_engines = {"sm90", "cpu"}});
  }
  /// By the knob TILE of a plan's name.
  static std::function<double(const std::string&)> by_tile(std::vector<double> seconds) {
    return [seconds](const std::string& name) {
      return seconds.at(static_cast<std::size_t>(std::stoi(name.substr(name.find("TILE=") + 5)) - 10));
    };
  }
  static std::vector<std::string> order_of(const PlanState& s) {
    std::vector<std::string> names;
    for (const Entry& e : s.entries) names.push_back("TILE=" + std::to_string(e.knobs.at("TILE")));
    return names;
  }

  support::TempFolder temp;
  support::ScopedVariable cache{"VERGLAS_CACHE", temp.path().c_str()};
  support::RecordingDriver driver;
  support::FakeCublasLt lt;
};

TEST_F(Tune, PutsTheFastestFirstNowAndInEveryListToCome) {
  const auto s = state();
  ASSERT_EQ(s->entries.size(), 8U);
  EXPECT_EQ(s->tuning_note, "");
  FakeMeter meter(by_tile({5e-5, 4e-5, 9e-5, 2e-5, 2.1e-5, 8e-5, 7e-5, 6e-5}));
  const TuneReport report = tune(*s, {}, meter);
  ASSERT_EQ(report.plans.size(), 8U);
  EXPECT_EQ(report.plans[0].index, 3U);
  EXPECT_EQ(report.plans[0].seconds, 2e-5);
  EXPECT_EQ(report.plans[7].index, 2U);
  EXPECT_NE(report.record, "");
  // All in the first round, what may win in the second.
  ASSERT_EQ(meter.asked.size(), 2U);
  EXPECT_EQ(meter.asked[0].size(), 8U);
  EXPECT_EQ(meter.asked[1].size(), 2U);
  PlanList list(s);
  EXPECT_EQ(list.compile().knobs().at("TILE"), 13);
  EXPECT_EQ(list.knobs(0).at("TILE"), 10) << "indices stay";
  EXPECT_EQ(list.measured_seconds(3), 2e-5);

  const auto later = state();
  EXPECT_EQ(order_of(*later),
            (std::vector<std::string>{"TILE=13", "TILE=14", "TILE=11", "TILE=10", "TILE=17", "TILE=16", "TILE=15", "TILE=12"}));
  EXPECT_EQ(later->tuning_note, report.record + ", 8 plans measured");
  const std::string text = describe(PlanList(later));
  EXPECT_NE(text.find(", measured 2e-05 s"), std::string::npos) << text;
  EXPECT_NE(text.find("tuning record " + report.record), std::string::npos) << text;
  EXPECT_EQ(order_of(*state(32, "other names")), order_of(*later));
}

TEST_F(Tune, ADeviceThatSlowsDownBetweenTheRoundsChangesNothing) {
  const auto s = state();
  int calls = 0;
  const auto by = by_tile({5e-5, 4e-5, 9e-5, 2e-5, 2.1e-5, 8e-5, 7e-5, 6e-5});
  FakeMeter meter([&](const std::string& name) { return (calls++ < 8 ? 1.0 : 3.0) * by(name); });
  const TuneReport report = tune(*s, {}, meter);
  EXPECT_EQ(report.plans[0].index, 3U);
  EXPECT_EQ(report.plans[1].index, 4U);
  EXPECT_DOUBLE_EQ(report.plans[0].seconds, 6e-5);
  EXPECT_EQ(report.plans[2].index, 1U);
  EXPECT_DOUBLE_EQ(report.plans[2].seconds, 1.2e-4) << "as it would take now";
}

TEST_F(Tune, KeepsNothingForOtherExtentsDevicesAndVersions) {
  FakeMeter meter(by_tile({5e-5, 4e-5, 9e-5, 2e-5, 2.1e-5, 8e-5, 7e-5, 6e-5}));
  tune(*state(), {}, meter);
  EXPECT_EQ(state(33)->tuning_note, "");
  {
    const support::ScopedVariable off("VERGLAS_TUNING", "off");
    EXPECT_EQ(state()->tuning_note, "");
  }
  EXPECT_EQ(order_of(*state())[0], "TILE=13");
}

TEST_F(Tune, IgnoresPlansThatAreNotOfferedAnyMore) {
  FakeMeter meter(by_tile({5e-5, 4e-5, 9e-5, 2e-5, 2.1e-5, 8e-5, 7e-5, 6e-5}));
  const TuneReport report = tune(*state(), {}, meter);
  lt.offer({{66, 10, 1, 0}, {66, 11, 1, 0}, {66, 99, 1, 0}});
  const auto later = state();
  EXPECT_EQ(order_of(*later), (std::vector<std::string>{"TILE=11", "TILE=10", "TILE=99"}));
  EXPECT_EQ(later->tuning_note, report.record + ", 2 plans measured, 6 that are not offered any more or were built otherwise");
}

TEST_F(Tune, IgnoresADamagedRecordAndSaysSo) {
  FakeMeter meter(by_tile({5e-5, 4e-5, 9e-5, 2e-5, 2.1e-5, 8e-5, 7e-5, 6e-5}));
  const TuneReport report = tune(*state(), {}, meter);
  support::write_file(report.record, "{");
  const auto later = state();
  EXPECT_EQ(order_of(*later)[0], "TILE=10");
  EXPECT_EQ(later->tuning_note, report.record + " is ignored: it is no tuning record");
}

TEST_F(Tune, TellsPlansThatFailAndChoosesAmongTheOthers) {
  const auto s = state();
  FakeMeter meter(by_tile({0, 4e-5, 0, 2e-5, 0, 0, 0, 0}));
  const TuneReport report = tune(*s, {}, meter);
  EXPECT_EQ(report.plans[0].index, 3U);
  EXPECT_EQ(report.plans[1].index, 1U);
  for (std::size_t i = 2; i < 8; ++i) EXPECT_EQ(report.plans[i].failure, "its kernel does not end");
  EXPECT_EQ(find_tuning(device_text(kGpu), canonical_text(*s->chain)).entry->plans.size(), 2U);
  FakeMeter none(by_tile({0, 0, 0, 0, 0, 0, 0, 0}));
  try {
    tune(*s, {}, none);
    ADD_FAILURE() << "nothing was timed";
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "plan.none");
  }
}

TEST_F(Tune, MeasuresAsManyAsItIsToldButThreeOfEachEngine) {
  const auto s = state();
  EXPECT_EQ(candidates_of(*s, 5).size(), 5U);
  EXPECT_EQ(candidates_of(*s, 1).size(), 3U);
  s->entries[0].barred = true;
  EXPECT_EQ(candidates_of(*s, 100).size(), 7U);
  EXPECT_EQ(candidates_of(*s, 2)[0], 1U);
}

TEST_F(Tune, OnTheDeviceTimesPlansInTurnAndLeavesNothingBehind) {
  const auto s = state();
  const PlanList list(s);
  const std::vector<CompiledPlan> plans = {list.compile(0), list.compile(1), list.compile(2)};
  const auto before = driver.live().total();
  {
    const auto meter = make_meter(*s->chain, kGpu);
    lt.clear();
    const auto samples = meter->measure(plans, {.rounds = 4, .window_seconds = 0.004, .settle_seconds = 0.01});
    ASSERT_EQ(samples.size(), 3U);
    for (const Sample& sample : samples) {
      EXPECT_EQ(sample.failure, "");
      EXPECT_EQ(sample.windows.size(), 4U);
      EXPECT_GT(sample.median(), 0);
    }
    std::set<const void*> copies;
    std::set<std::uint64_t> algorithms;
    for (const support::LtCall& c : lt.launches()) {
      copies.insert(c.y_data);
      algorithms.insert(c.algorithm);
      EXPECT_NE(c.stream, nullptr);
    }
    EXPECT_GT(copies.size(), 1U) << "operands are rotated";
    EXPECT_EQ(algorithms.size(), 3U);
    EXPECT_GT(driver.count("cuGraphLaunch"), 3 * 4);
    lt.fail_next("cublasLtMatmul", cuda::CUBLAS_STATUS_EXECUTION_FAILED);
    const auto again = meter->measure(plans, {.rounds = 1, .window_seconds = 0.004, .settle_seconds = 0});
    EXPECT_NE(again[0].failure.find("CUBLAS_STATUS_EXECUTION_FAILED"), std::string::npos);
    EXPECT_EQ(again[1].failure, "");
  }
  EXPECT_EQ(driver.live().total(), before);
}

TEST_F(Tune, OnTheDeviceEndsWithTheDriversWordsWhateverFails) {
  const auto s = state();
  const PlanList list(s);
  const std::vector<CompiledPlan> plans = {list.compile(0), list.compile(1)};
  const auto before = driver.live().total();
  int thrown = 0;
  for (int index = 0; index < 1000; ++index) {
    driver.fail_call(index, cuda::CUDA_ERROR_UNKNOWN);
    try {
      make_meter(*s->chain, kGpu)->measure(plans, {.rounds = 1, .window_seconds = 0.001, .settle_seconds = 0});
    } catch (const Error& e) {
      EXPECT_EQ(e.rule(), "driver.call") << index;
      ++thrown;
    }
    const bool happened = !driver.failure_pending();
    driver.clear_failures();
    if (!happened) break;
  }
  EXPECT_GT(thrown, 20);
  EXPECT_LE(driver.live().total(), before + 100);  // each call that gives something back failed once, and kept it
}

TEST(TuneOnTheHost, IsRankedAndKeptToo) {
  const support::TempFolder temp;
  const support::ScopedVariable cache("VERGLAS_CACHE", temp.path().c_str());
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {1, 64, 64}, .stride = {4096, 64, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, 64, 64}, .stride = {4096, 1, 64}});
  g.matmul(a, b).set_output(true);
  PlanList plans = g.plans();
  const TuneReport report = plans.tune({.most = 4, .seconds = 0.001});
  ASSERT_GE(report.plans.size(), 1U);
  EXPECT_GT(report.plans[0].seconds, 0);
  EXPECT_EQ(plans.compile().name(), report.plans[0].name);
  if (plans.size() > 1) {
    EXPECT_EQ(Graph::from_json(g.to_json()).plans().name(0), report.plans[0].name);
  }
}

}  // namespace
}  // namespace verglas::plan
