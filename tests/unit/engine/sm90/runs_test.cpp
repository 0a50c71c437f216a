#include "engine/sm90/runs.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "chain/analyse.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "jit/plan_file.hpp"
#include "plan/ahead.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "support/run_graph.hpp"
#include "support/temp_folder.hpp"
#include "verglas/verglas.hpp"

// Products whose columns come in runs, without a device: what the epilogue of a pair of runs sees, and what is launched.
namespace verglas::sm90 {
namespace {

using support::record_of;
using support::RunGraph;

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kM = 300, kPairs = 9, kK = 136, kN = 64 * kPairs;
constexpr RunGraph kGraph{.rows = kM, .pairs = kPairs, .k = kK};

void* at(std::uintptr_t byte) { return reinterpret_cast<void*>(byte); }

chain::FusionChain chain_of(Graph g) {
  g.validate();
  auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return *std::move(chain);
}

TEST(Sm90RunChains, TakeEveryStepBeforeTheRunsTwice) {
  const chain::FusionChain c = chain_of(support::describe(kGraph));
  ASSERT_TRUE(has_runs(c));
  EXPECT_FALSE(fault_of_runs(c));
  const RunChain runs = in_runs(c);
  const chain::FusionChain& x = runs.chain;
  EXPECT_EQ(x.declared, c.declared);
  ASSERT_EQ(x.gemms.size(), 2U);
  EXPECT_EQ(x.gemms[0].a, x.gemms[1].a);
  EXPECT_EQ(x.gemms[0].b, x.gemms[1].b);
  EXPECT_NE(x.gemms[0].value, x.gemms[1].value);
  EXPECT_TRUE(x.stores.empty());
  EXPECT_FALSE(has_runs(x));
  // alpha · product and its identity for each run, two roundings, swish, up · swish, and the identity that is stored.
  EXPECT_EQ(x.steps.size(), c.steps.size() + 2);
  ASSERT_EQ(runs.stores.size(), 3U);
  EXPECT_EQ(runs.stores[0].run, 0);
  EXPECT_EQ(runs.stores[1].run, 1);
  EXPECT_EQ(runs.stores[0].role, runs.stores[1].role);
  EXPECT_EQ(runs.stores[2].run, -1);
  EXPECT_EQ(run_bytes_of(c), 3 * 64 * 32 * 2);
  EXPECT_EQ(product_roles(x).d, -1);
}

TEST(Sm90RunChains, AreOfferedTilesOfWholePairs) {
  const chain::FusionChain c = chain_of(support::describe(kGraph));
  const auto all = configurations_of(c, 132);
  ASSERT_GE(all.size(), 8U);
  for (const Knobs& knobs : all) {
    EXPECT_EQ(knobs.at("TILE_N") % 64, 0);
    EXPECT_EQ(knobs.at("EXCHANGED"), 0);
  }
}

class Sm90RunLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("VERGLAS_CACHE", "off", 1);
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  }

  static PlanList plans() { return support::describe(kGraph).plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}); }

  /// Operands as declared, of other rows and columns.
  std::vector<TensorView> call(std::int64_t m = kM, std::int64_t n = kN) {
    return {TensorView::dense(at(64 << 20), DataType::bf16, {1, m, kK}, kGpu),
            TensorView::strided(at(1 << 20), DataType::bf16, {1, kK, n}, {n * kK, 1, kK}, kGpu), TensorView::address(&alpha),
            TensorView::dense(at(128 << 20), DataType::bf16, {1, m, n}, kGpu),
            TensorView::dense(at(256 << 20), DataType::bf16, {1, m, n / 2}, kGpu)};
  }

  float alpha = 1;
  support::RecordingDriver driver;
  support::FakeNvrtc nvrtc;
};

TEST_F(Sm90RunLaunch, IsOneProductOfTheWholeMatrix) {
  const CompiledPlan p = plans().compile();
  EXPECT_EQ(nvrtc.compiles(), 1);
  for (const std::int64_t m : {kM, std::int64_t{1}})
    for (const std::int64_t n : {kN, std::int64_t{64}}) {
      driver.clear();
      const auto buffers = call(m, n);
      const Status s = p.execute(buffers);
      ASSERT_TRUE(s.ok()) << p.explain(s, buffers).what();
      ASSERT_EQ(driver.launches().size(), 1U);
      EXPECT_TRUE(driver.memsets().empty());
      const auto block = driver.launches().back().as<ParameterBlock>();
      EXPECT_EQ(block.m, m);
      EXPECT_EQ(block.n, n);
      EXPECT_EQ(block.batches, 1);
      EXPECT_EQ(record_of(block.b[0]).extent(1), static_cast<std::uint64_t>(n));
      EXPECT_EQ(record_of(block.b[0]).address, 1U << 20);
    }
}

TEST_F(Sm90RunLaunch, RefusesWhatItsCopiesCannotTake) {
  const CompiledPlan p = plans().compile();
  const auto rule_of = [&](const std::vector<TensorView>& buffers) {
    const Status s = p.execute(buffers);
    return s.ok() ? std::string() : std::string(p.explain(s, buffers).rule());
  };
  auto odd_c = call(), short_c = call(), odd_b = call(), along_m = call();
  odd_c[4].data = at((256 << 20) + 2);
  short_c[4].extent[2] = kN / 2 - 1;
  odd_b[1].data = at((1 << 20) + 2);
  along_m[3].stride[1] = 1, along_m[3].stride[2] = kM;
  driver.clear();
  EXPECT_EQ(rule_of(odd_c), "call.alignment");
  EXPECT_EQ(rule_of(short_c), "call.output_extent");
  EXPECT_EQ(rule_of(odd_b), "call.alignment");
  EXPECT_EQ(rule_of(along_m), "call.major");
  EXPECT_EQ(rule_of(call(kM, kN + 32)), "call.runs");
  EXPECT_TRUE(driver.untouched());
  EXPECT_EQ(rule_of(call(kM, kN + 64)), "");
}

TEST_F(Sm90RunLaunch, WritesNothingOfNothing) {
  const CompiledPlan p = plans().compile();
  driver.clear();
  EXPECT_TRUE(p.execute(call(0)).ok());
  EXPECT_TRUE(driver.untouched());
}

TEST_F(Sm90RunLaunch, ComesBackFromAFile) {
  Graph graph = support::describe(kGraph);
  Knobs knobs;
  const jit::PlanFile file = plan::compile_ahead(graph, {}, knobs);
  ASSERT_EQ(file.kernels.size(), 1U);
  const support::TempFolder folder;
  const std::string path = folder / "runs.vgp";
  support::write_file(path, jit::write_plan_file(file));
  const CompiledPlan p = load_plan(path, kGpu);
  driver.clear();
  EXPECT_TRUE(p.execute(call()).ok());
  EXPECT_EQ(driver.launches().size(), 1U);
}

}  // namespace
}  // namespace verglas::sm90
