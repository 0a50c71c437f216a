#include "chain/analyse.hpp"
#include "engine/flawed_plans.hpp"
#include "engine/sm90/engine.hpp"
#include "jit/cache.hpp"
#include "launch.hpp"
#include "plan/plan_state.hpp"

// Plans whose kernels ptxas has made slower than was predicted.
namespace verglas {
namespace {

constexpr const char* kSpills = "ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n";
constexpr const char* kClean = "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
constexpr const char* kSerial =
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n";

PlanList plans_of(std::shared_ptr<plan::PlanState>* state = nullptr) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}});
  g.matmul(a, b).set_output(true).set_name("d");
  g.validate();
  auto made = plan::make_plans(chain::analyse(g.data()), {.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  if (state) *state = made;
  return PlanList(std::move(made));
}
std::string tile_of(const Knobs& knobs) {
  return "vg_" + std::to_string(knobs.at("TILE_M")) + "x" + std::to_string(knobs.at("TILE_N")) + "x";
}

/// No kernel of another test is left, with what was said about it.
class Sm90Flaws : public Sm90Launch {
 protected:
  void SetUp() override {
    Sm90Launch::SetUp();
    jit::cache_clear();
  }
  void TearDown() override { jit::cache_clear(); }
};

TEST_F(Sm90Flaws, PassesOverPlansThatSpillAndSaysSo) {
  const PlanList plans = plans_of();
  ASSERT_GT(plans.size(), 2U);
  nvrtc.set_log_of(tile_of(plans.knobs(0)), kSpills);
  const CompiledPlan taken = plans.compile();
  EXPECT_NE(tile_of(taken.knobs()), tile_of(plans.knobs(0)));
  EXPECT_NE(taken.passed_over().find(plans.name(0) + ": it spills 40 bytes\n"), std::string::npos) << taken.passed_over();
  EXPECT_EQ(taken.flaw(), "");
  EXPECT_NE(describe(taken).find("passed over\n" + taken.passed_over()), std::string::npos);
  EXPECT_EQ(plans.compile(0).name(), plans.name(0)) << "one that is asked for is not replaced";
  EXPECT_EQ(plans.compile(0).flaw(), "it spills 40 bytes");
}

TEST_F(Sm90Flaws, PassesOverPlansWhoseProductsWait) {
  const PlanList plans = plans_of();
  nvrtc.set_log_of(tile_of(plans.knobs(0)), kSerial);
  EXPECT_NE(plans.compile().passed_over().find(plans.name(0) + ": its products wait for each other\n"), std::string::npos);
}

TEST_F(Sm90Flaws, CompilesNoOtherLaunchOfWhatSpills) {
  const PlanList plans = plans_of();
  const Knobs code = sm90::code_of(plans.knobs(0));
  std::size_t twins = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) twins += sm90::code_of(plans.knobs(i)) == code ? 1 : 0;
  ASSERT_EQ(twins, 2U);
  nvrtc.set_log_of(tile_of(plans.knobs(0)), kSpills);
  EXPECT_EQ(plans.compile().passed_over(), plans.name(0) + ": it spills 40 bytes\n");
  EXPECT_EQ(nvrtc.compiles(), 2);
}

TEST_F(Sm90Flaws, TakesTheFirstWhereAllSpillAndTriesFew) {
  const PlanList plans = plans_of();
  nvrtc.set_log(kSpills);
  const CompiledPlan taken = plans.compile();
  EXPECT_GT(plans.size(), 10U);
  EXPECT_LE(nvrtc.compiles(), 5);
  EXPECT_EQ(taken.name(), plans.name(0));
  EXPECT_EQ(taken.flaw(), "it spills 40 bytes");
  EXPECT_NE(describe(taken).find("flaw it spills 40 bytes\n"), std::string::npos);
}

TEST_F(Sm90Flaws, TakesWhatWasMeasuredThoughItSpills) {
  std::shared_ptr<plan::PlanState> state;
  const PlanList plans = plans_of(&state);
  nvrtc.set_log_of(tile_of(plans.knobs(0)), kSpills);
  state->entries[0].measured_seconds = 1e-5;
  EXPECT_EQ(plans.compile().name(), plans.name(0));
}

TEST_F(Sm90Flaws, PassesOverNothingWhereNothingSpills) {
  nvrtc.set_log(kClean);
  EXPECT_EQ(plans_of().compile().passed_over(), "");
}

TEST(FlawedPlans, AreAlikeByCodeAtOnceAndBySizeBehindThree) {
  const engine::Engine& e = *engine::engine_list().front();
  const auto demand = [](std::int64_t code, int results, int threads) {
    return engine::Demand{{{"CODE", code}}, results, threads};
  };
  engine::FlawedPlans flawed;
  flawed.add(e, demand(1, 128, 384));
  flawed.add(e, demand(2, 96, 512));
  EXPECT_TRUE(flawed.has_alike(e, demand(1, 128, 384)));
  EXPECT_FALSE(flawed.has_alike(*engine::engine_list().back(), demand(1, 128, 384))) << "another engine's";
  EXPECT_FALSE(flawed.has_alike(e, demand(4, 128, 384)));
  flawed.add(e, demand(3, 128, 512));
  EXPECT_TRUE(flawed.has_alike(e, demand(4, 128, 384)));
  EXPECT_TRUE(flawed.has_alike(e, demand(4, 176, 384)));
  EXPECT_FALSE(flawed.has_alike(e, demand(4, 64, 512)));
  EXPECT_FALSE(flawed.has_alike(e, demand(4, 176, 256))) << "more registers a thread";
}

}  // namespace
}  // namespace verglas
