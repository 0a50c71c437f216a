#include <functional>
#include <vector>

#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Columns that come in runs: what descriptions, chains, engines and calls with them are refused for.
namespace {

using namespace verglas;
using refusal::said;

/// What a test changes about c (8, N / 2) = up · gate of x (8, N) = a (8, 4) · b (4, N) in fp32.
struct Runs {
  std::int64_t n = 128, length = 32;
  bool of_input = false, again = false, counts = false, keeps_columns = false, is_mean = false, along_m = false;
  bool stores_product = true, bias = false, residual = false, sums_product = false, row_factor = false;
  std::int64_t m = 32;
  DataType out = DataType::fp32;

  Graph graph() const {
    Graph g({.io_data_type = DataType::fp32});
    const Tensor a = g.tensor({.name = "a", .dim = {m, 4}, .stride = {4, 1}, .data_type = DataType::bf16});
    const Tensor b = g.tensor({.name = "b", .dim = {4, n}, .stride = {1, 4}, .data_type = DataType::bf16});
    Tensor x = g.matmul(a, b, {.name = "mm"});
    if (bias || residual) x = g.add(x, g.tensor({.name = "bias", .dim = {residual ? m : 1, n}, .stride = {n, 1}}));
    if (row_factor) x = g.mul(x, g.tensor({.name = "factor", .dim = {m, 1}, .stride = {1, 1}}));
    const Tensor of = of_input ? g.relu(g.tensor({.name = "z", .dim = {m, n}, .stride = {n, 1}})) : x;
    Tensor up = g.take_runs(of, length, false, {.name = "up"});
    if (again) up = g.take_runs(up, length, true, {.name = "again"});
    Tensor c = g.mul(up, again ? up : g.take_runs(x, length, true, {.name = "gate"}));
    if (counts) c = g.add(c, g.pointwise(PointwiseMode::gen_index, {c}, {.axis = 1}, {.name = "index"}));
    if (stores_product) g.relu(x).set_output(true).set_name("x").set_data_type(out);
    g.pointwise(PointwiseMode::identity, {c}).set_output(true).set_name("c");
    const auto reduce = [&](const Tensor& v, ReductionMode mode, std::vector<std::int64_t> dim) {
      g.reduction(v, mode, {.name = "sum"}).set_output(true).set_dim(std::move(dim)).set_name("r");
    };
    if (keeps_columns) reduce(c, ReductionMode::add, {1, n / 2});
    if (is_mean) reduce(c, ReductionMode::avg, {m, 1});
    if (sums_product) reduce(x, ReductionMode::add, {m, 1});
    if (along_m) {
      auto [y, s] = g.block_scale_quantize(c, 32, 0, {.name = "q"});
      y.set_output(true).set_data_type(DataType::fp8_e4m3);
      s.set_output(true).set_data_type(DataType::fp8_e8m0);
    }
    return g;
  }
};

std::string validated(const Runs& r) {
  return said([&] { r.graph().validate(); });
}
std::string declined(const Runs& r) {
  const PlanList plans = r.graph().plans();
  return plans.size() > 0 ? std::string() : plans.declines().front().rule + " " + plans.declines().front().text;
}
std::string said_by_sm90(const Runs& r) {
  const PlanList plans = r.graph().plans({.device = {DeviceType::cuda, 0}});
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == "sm90") return d.rule.starts_with("sm90.") && d.rule != "sm90.device" ? d.rule + " " + d.text : "";
  return {};
}

REFUSES(graph_runs) {
  EXPECT_EQ(validated({.n = 96}),
            "invalid_graph [graph.runs] take_runs 'up', tensor 'mm::out': got extents (32, 96), wanted a last one that is a "
            "multiple of 64, pairs of runs");
  EXPECT_EQ(validated({.length = 0}), "invalid_graph [graph.runs] take_runs 'up': got runs of 0, wanted 1 column or more");
  EXPECT_EQ(validated({.n = 96, .length = 48}), "");
  EXPECT_EQ(validated({}), "");
}

REFUSES(chain_runs) {
  EXPECT_EQ(declined({.length = 16}), "chain.runs node 'up' takes runs of 16");
  EXPECT_EQ(declined({.again = true}), "chain.runs node 'again' takes runs of what is made of runs");
  EXPECT_EQ(declined({.of_input = true}), "chain.runs node 'up' reads what no matmul computes");
  EXPECT_EQ(declined({.counts = true}), "chain.runs node 'index' counts along what is made of runs");
  EXPECT_EQ(declined({.keeps_columns = true}), "chain.runs reduction 'sum' of what is made of runs keeps its columns");
  EXPECT_EQ(declined({.is_mean = true}), "chain.runs reduction 'sum' of what is made of runs is a mean");
  EXPECT_EQ(declined({.along_m = true}), "chain.runs node 'q' quantises what is made of runs along M");
  EXPECT_EQ(declined({}), "");
  EXPECT_EQ(declined({.bias = true, .sums_product = true}), "");
}

TEST(RefusesChainRuns, BehindGroups) {
  const auto declined_behind = [](const std::function<Tensor(Graph&, Tensor)>& product, const Device& device = {}) {
    Graph g({.io_data_type = DataType::bf16});
    const Tensor o = g.tensor({.name = "o", .dim = {2}, .stride = {1}, .data_type = DataType::int32});
    const Tensor x = product(g, o);
    const Tensor up = g.take_runs(x, 32, false, {.name = "up"});
    g.mul(up, g.take_runs(x, 32, true)).set_output(true);
    const PlanList plans = g.plans({.device = device});
    const std::string engine = device.type == DeviceType::cpu ? "cpu" : "sm90";
    for (const DeclineRecord& d : plans.declines())
      if (d.engine == engine || d.rule.starts_with("chain.")) return d.rule + " " + d.text;
    return std::string();
  };
  const auto tensor = [](Graph& g, const char* name, std::vector<std::int64_t> dim, DataType t = DataType::bf16) {
    return g.tensor({.name = name, .dim = dim, .stride = {dim[1] * dim[2], dim[2], 1}, .data_type = t});
  };
  const auto forward = [&](MoeMode mode) {
    return [&, mode](Graph& g, Tensor o) {
      const auto list = [&](const char* name) { return tensor(g, name, {1, 16, 1}, DataType::int32); };
      const bool combines = mode == MoeMode::combine, has_slots = combines || mode == MoeMode::scatter;
      return g.moe_grouped_matmul(tensor(g, "x", {1, 16, 8}), tensor(g, "w", {2, 8, 64}), o,
                                  {.mode = mode, .top_k = has_slots ? 2 : 1}, mode == MoeMode::none ? Tensor() : list("index"),
                                  has_slots ? list("slot") : Tensor(), combines ? tensor(g, "scores", {1, 8, 2}) : Tensor());
    };
  };
  const auto gradient = [&](Graph& g, Tensor o) {
    return g.moe_grouped_matmul_bwd(tensor(g, "x", {1, 16, 8}), tensor(g, "dy", {1, 16, 64}), o);
  };
  EXPECT_EQ(declined_behind(gradient), "chain.runs node 'up' stands behind a gradient of groups");
  EXPECT_EQ(declined_behind(forward(MoeMode::combine)), "chain.runs node 'up' stands behind a sum over the rows of each token");
  for (const MoeMode mode : {MoeMode::none, MoeMode::gather, MoeMode::scatter}) {
    EXPECT_EQ(declined_behind(forward(mode)), "");
    EXPECT_FALSE(declined_behind(forward(mode), {DeviceType::cuda, 0}).starts_with("sm90.runs"));
    EXPECT_FALSE(declined_behind(forward(mode), {DeviceType::cuda, 0}).starts_with("sm90.grouped"));
  }
}

REFUSES(sm90_runs) {
  EXPECT_EQ(said_by_sm90({.residual = true}), "sm90.runs operand 'bias' varies along M and N");
  EXPECT_EQ(said_by_sm90({.bias = true}), "");
  EXPECT_EQ(said_by_sm90({.sums_product = true}), "sm90.runs reduction 'r' is of all columns");
  EXPECT_EQ(said_by_sm90({.out = DataType::int32}), "sm90.runs output 'x' is int32");
  EXPECT_EQ(said_by_sm90({.row_factor = true}), "");
  EXPECT_EQ(said_by_sm90({.stores_product = false}), "");
}

REFUSES(call_runs) {
  const CompiledPlan plan = Runs{}.graph().compile();
  const auto call = [&](std::int64_t n) {
    std::vector<std::uint16_t> a(32 * 4), b(static_cast<std::size_t>(4 * n));
    std::vector<float> x(static_cast<std::size_t>(32 * n)), c(static_cast<std::size_t>(16 * n));
    const std::vector<TensorView> views = {
        TensorView::dense(a.data(), DataType::bf16, {32, 4}), TensorView::strided(b.data(), DataType::bf16, {4, n}, {1, 4}),
        TensorView::dense(x.data(), DataType::fp32, {32, n}), TensorView::dense(c.data(), DataType::fp32, {32, n / 2})};
    return said([&] { plan.run(views); });
  };
  EXPECT_EQ(call(96), "invalid_call [call.runs] call: got N = 96, wanted a multiple of 64: pairs of runs of 32");
  EXPECT_EQ(call(192), "");
}

}  // namespace
