#include <vector>

#include "refusal/refusal.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// Rules plan.*, engine.* and sm90.*: choosing among plans.
namespace {

using namespace verglas;
using refusal::said;

PlanList plans_of(const PlanOptions& options = {}) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {4, 8}, .stride = {8, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {8, 6}, .stride = {6, 1}});
  g.matmul(a, b).set_output(true);
  return g.plans(options);
}

REFUSES(plan_index) {
  PlanList plans = plans_of();
  const std::size_t n = plans.size();
  ASSERT_GT(n, 0U);
  EXPECT_EQ(said([&] { plans.select_plan(n); }),
            "invalid_graph [plan.index] plan: got index " + std::to_string(n) + ", wanted 0 to " + std::to_string(n - 1));
  EXPECT_EQ(said([&] { plans.select_plan(n - 1); }), "");
}

REFUSES(plan_replay) {
  PlanList plans = plans_of();
  EXPECT_EQ(said([&] { plans.append(99, {}); }),
            "unsupported [plan.replay] plan of engine 99: got no engine of that id, wanted an id that engine_id() has answered");
  EXPECT_NE(said([&] { plans.append(plans.engine_id(0), {{"NO_SUCH_KNOB", 1}}); }).find("[plan.replay]"), std::string::npos);
  EXPECT_EQ(said([&] { plans.append(plans.engine_id(0), plans.knobs(0)); }), "");
}

REFUSES(plan_barred) {
  PlanList plans = plans_of();
  plans.select_plan(0);
  EXPECT_EQ(said([&] { plans.compile(); }), "");
  plans.deselect_engines({"cpu"});
  EXPECT_EQ(said([&] { plans.compile(); }), "unsupported [plan.barred] " + plans.name(0) + " is selected and deselected");
}

REFUSES(plan_none) {
  const PlanList none = plans_of({.deselect_engines = {"cpu", "sm90", "cublaslt"}});
  EXPECT_NE(said([&] { none.compile(); }).find("unsupported [plan.none] "), std::string::npos);
  EXPECT_NE(said([&] { none.compile(); }).find("cpu: [plan.barred] deselected"), std::string::npos);
  EXPECT_EQ(said([&] { plans_of().compile(); }), "");
}

/// What one engine said when it did not take the chain; "" when it did.
std::string said_by(const std::string& engine, const PlanList& plans) {
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == engine) return d.rule + " " + d.text;
  return {};
}

REFUSES(sm90_device) {
  const auto on = [](int major, int minor) {
    const support::RecordingDriver driver({support::FakeDevice{.name = "a GPU", .major = major, .minor = minor}});
    Graph g({.io_data_type = DataType::bf16});
    const Tensor a = g.tensor({.dim = {64, 64}, .stride = {64, 1}});
    const Tensor b = g.tensor({.dim = {64, 64}, .stride = {1, 64}});
    g.matmul(a, b).set_output(true);
    return said_by("sm90", g.plans({.device = {DeviceType::cuda, 0}}));
  };
  EXPECT_EQ(on(8, 9), "sm90.device a GPU has compute capability 8.9");
  EXPECT_FALSE(on(9, 0).starts_with("sm90.device"));
}

REFUSES(engine_device) {
  EXPECT_EQ(said_by("cpu", plans_of({.device = {DeviceType::cuda, 0}})),
            "engine.device runs on the host; the plan is for another device");
  EXPECT_EQ(said_by("cpu", plans_of()), "");
}

}  // namespace
