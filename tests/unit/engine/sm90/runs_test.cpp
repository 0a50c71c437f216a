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

// Products of runs without a device: which chains are one product of a whole matrix, and which calls.
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

/// The products alone, with B as two tensors of this layout.
struct Halves {
  std::int64_t a_batches = 1, columns = 32, step = 64, second_step = 64;
  bool is_one = false, reduces_columns = false;
};
Graph describe(const Halves& h) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {h.a_batches, kM, kK}, .stride = {kM * kK, kK, 1}});
  const auto half = [&](const char* name, std::int64_t step) {
    return g.tensor({.name = name, .dim = {kPairs, kK, h.columns}, .stride = {step * kK, 1, kK}});
  };
  const Tensor up = half("up", h.step);
  Tensor c = g.mul(g.matmul(a, up), g.matmul(a, h.is_one ? up : half("gate", h.second_step)));
  c.set_output(true);
  if (h.reduces_columns)
    g.reduction(c, ReductionMode::add).set_dim({kPairs, 1, h.columns}).set_output(true).set_data_type(DataType::fp32);
  return g;
}

TEST(Sm90RunChains, AreThoseOfAlternatingRuns) {
  EXPECT_TRUE(has_runs(chain_of(support::describe(kGraph))));
  EXPECT_TRUE(has_runs(chain_of(describe(Halves{}))));
  EXPECT_FALSE(has_runs(chain_of(describe({.a_batches = kPairs}))));
  EXPECT_FALSE(has_runs(chain_of(describe({.columns = 24}))));
  EXPECT_FALSE(has_runs(chain_of(describe({.step = 72, .second_step = 72}))));
  EXPECT_FALSE(has_runs(chain_of(describe({.second_step = 32}))));
  EXPECT_FALSE(has_runs(chain_of(describe({.is_one = true}))));
  EXPECT_FALSE(has_runs(chain_of(describe({.reduces_columns = true}))));
}

TEST(Sm90RunChains, BecomeOneProductOfAllRows) {
  const chain::FusionChain c = chain_of(support::describe(kGraph)), x = in_runs(c);
  EXPECT_EQ(x.declared, (std::array<std::int64_t, 4>{1, kM, kN, kK}));
  EXPECT_EQ(x.inputs.size(), 2U);
  EXPECT_EQ(x.gemms[0].b, x.gemms[1].b);
  EXPECT_TRUE(x.stores.empty());
  EXPECT_EQ(run_bytes_of(c), 3 * 64 * 32 * 2);
  const ProductRoles roles = product_roles(x);
  EXPECT_EQ(roles.d, -1);
  const auto view = declared_views(x)[static_cast<std::size_t>(roles.b[0])];
  EXPECT_EQ(view.extent[0], 1);
  EXPECT_EQ(view.extent[1], kN);
  EXPECT_EQ(view.stride[1], kK);
}

class Sm90RunLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("VERGLAS_CACHE", "off", 1);
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  }

  static PlanList plans() { return support::describe(kGraph).plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}); }

  /// Operands as declared, of other rows and pairs; the gate's matrix lies `apart` bytes behind that of up.
  std::vector<TensorView> call(std::int64_t m = kM, std::int64_t pairs = kPairs, std::int64_t apart = 32 * kK * 2) {
    const std::int64_t n = 64 * pairs;
    const auto half = [&](std::int64_t offset) {
      return TensorView::strided(at((1 << 20) + static_cast<std::uintptr_t>(offset)), DataType::bf16, {pairs, kK, 32},
                                 {64 * kK, 1, kK}, kGpu);
    };
    const auto run = [&](std::uintptr_t address, std::int64_t width, std::int64_t step) {
      return TensorView::strided(at(address), DataType::bf16, {pairs, m, 32}, {step, width, 1}, kGpu);
    };
    return {TensorView::dense(at(64 << 20), DataType::bf16, {1, m, kK}, kGpu),
            half(0),
            half(apart),
            TensorView::address(&alpha),
            run(128 << 20, n, 64),
            run((128 << 20) + 64, n, 64),
            run(256 << 20, n / 2, 32)};
  }

  /// The block of the one kernel that a call of this plan launches.
  ParameterBlock launched(const CompiledPlan& p, const std::vector<TensorView>& buffers) {
    driver.clear();
    const Status s = p.execute(buffers);
    EXPECT_TRUE(s.ok()) << p.explain(s, buffers).what();
    EXPECT_EQ(driver.launches().size(), 1U);
    EXPECT_TRUE(driver.memsets().empty());
    return driver.launches().empty() ? ParameterBlock{} : driver.launches().back().as<ParameterBlock>();
  }

  float alpha = 1;
  support::RecordingDriver driver;
  support::FakeNvrtc nvrtc;
};

TEST_F(Sm90RunLaunch, IsOneProductOfTheWholeMatrix) {
  const PlanList list = plans();
  for (std::size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list.knobs(i).at("RUNS"), 1);
  const CompiledPlan p = list.compile();
  EXPECT_EQ(nvrtc.compiles(), 2);
  for (const std::int64_t m : {kM, std::int64_t{1}})
    for (const std::int64_t pairs : {kPairs, std::int64_t{1}}) {
      const ParameterBlock block = launched(p, call(m, pairs));
      EXPECT_EQ(block.m, m);
      EXPECT_EQ(block.n, 64 * pairs);
      EXPECT_EQ(block.batches, 1);
      EXPECT_EQ(record_of(block.b[0]).extent(1), 64 * pairs);
      EXPECT_EQ(record_of(block.b[0]).address, 1U << 20);
    }
}

TEST_F(Sm90RunLaunch, IsTwoProductsWhereTheMatricesLieOtherwise) {
  const CompiledPlan p = plans().compile();
  const auto is_general = [&](const std::vector<TensorView>& buffers, const char* what) {
    const ParameterBlock block = launched(p, buffers);
    EXPECT_EQ(block.n, 32) << what;
    EXPECT_EQ(block.batches, kPairs) << what;
  };
  is_general(call(kM, kPairs, 32 << 20), "gate elsewhere");
  is_general(call(kM, kPairs, -32 * kK * 2), "gate first");
  auto wide = call();
  wide[1].stride[0] = wide[2].stride[0] = 72 * kK;
  is_general(wide, "72 rows a pair");
  auto pitched = call();
  pitched[2].stride[2] += 8;
  is_general(pitched, "another pitch");
  const ParameterBlock again = launched(p, call());
  EXPECT_EQ(again.n, kN);
}

TEST_F(Sm90RunLaunch, TakesFewerColumnsThanARun) {
  const CompiledPlan p = plans().compile();
  auto narrow = call();
  for (const std::size_t b : {1, 2}) narrow[b].extent[2] = 16;
  for (const std::size_t out : {4, 5, 6}) narrow[out].extent[2] = 16;
  EXPECT_EQ(launched(p, narrow).n, 16);
}

// What is checked is what the two products ask for.
TEST_F(Sm90RunLaunch, RefusesWhatTwoProductsRefuse) {
  const CompiledPlan p = plans().compile();
  const auto rule_of = [&](const std::vector<TensorView>& buffers) {
    const Status s = p.execute(buffers);
    return s.ok() ? std::string() : std::string(p.explain(s, buffers).rule());
  };
  auto odd_c = call(), short_c = call(), odd_b = call();
  odd_c[6].data = at((256 << 20) + 2);
  short_c[6].extent[2] = 31;
  odd_b[1].data = at((1 << 20) + 2);
  driver.clear();
  EXPECT_EQ(rule_of(odd_c), "call.alignment");
  EXPECT_EQ(rule_of(short_c), "call.output_extent");
  EXPECT_EQ(rule_of(odd_b), "call.alignment");
  EXPECT_TRUE(driver.untouched());
}

TEST_F(Sm90RunLaunch, WritesNothingOfNothing) {
  const CompiledPlan p = plans().compile();
  driver.clear();
  EXPECT_TRUE(p.execute(call(0)).ok());
  EXPECT_TRUE(driver.untouched());
}

TEST_F(Sm90RunLaunch, ComesBackFromAFileWithBothKernels) {
  Graph graph = support::describe(kGraph);
  Knobs knobs = {{"RUNS", 1}};
  const jit::PlanFile file = plan::compile_ahead(graph, {}, knobs);
  ASSERT_EQ(file.kernels.size(), 2U);
  const support::TempFolder folder;
  const std::string path = folder / "runs.vgp";
  support::write_file(path, jit::write_plan_file(file));
  const CompiledPlan p = load_plan(path, kGpu);
  EXPECT_EQ(launched(p, call()).n, kN);
  EXPECT_EQ(launched(p, call(kM, kPairs, 32 << 20)).n, 32);
}

}  // namespace
}  // namespace verglas::sm90
