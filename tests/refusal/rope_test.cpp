#include <vector>

#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Rotated columns of heads: what descriptions, chains, engines and calls with them are refused for.
namespace {

using namespace verglas;
using refusal::said;

/// What a test changes about z (32, N) = rope of a (32, 4) · b (4, N), quantised.
struct Turned {
  std::int64_t n = 384, head = 192, rotated = 64, rows = 32, step = 1, block = 32;
  bool of_input = false, twice = false, of_runs = false, computed_table = false, stored = false, clipped = false;
  DataType y = DataType::bf16, table = DataType::bf16;

  Graph graph() const {
    constexpr std::int64_t m = 32;
    Graph g({.io_data_type = DataType::bf16});
    const Tensor a = g.tensor({.name = "a", .dim = {m, 4}, .stride = {4, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {4, n}, .stride = {1, 4}});
    Tensor x = g.matmul(a, b, {.name = "mm"}).set_data_type(y);
    if (clipped) x = g.relu(x).set_name("clipped").set_data_type(y);
    if (of_runs) x = g.take_runs(x, 32, false);
    const auto angle = [&](const char* name) {
      return g.tensor({.name = name, .dim = {rows, rotated}, .stride = {rotated * step, step}, .data_type = table});
    };
    const Tensor cos = angle("cos"), sin = computed_table ? g.pointwise(PointwiseMode::neg, {angle("sin")}) : angle("sin");
    const Tensor of = of_input ? g.relu(g.tensor({.name = "z", .dim = {m, n}, .stride = {n, 1}})) : x;
    Tensor z = g.rope(of, cos, sin, head, {.name = "turn"});
    if (twice) z = g.rope(z, cos, sin, head, {.name = "again"});
    if (of_input) g.relu(x).set_output(true);
    if (stored || of_input) g.pointwise(PointwiseMode::identity, {z}).set_output(true).set_name("whole");
    auto [data, scale] = g.block_scale_quantize(z, block);
    data.set_name("row").set_output(true).set_data_type(DataType::fp8_e4m3);
    scale.set_output(true).set_data_type(DataType::fp8_e8m0);
    return g;
  }
};

std::string validated(const Turned& t) {
  return said([&] { t.graph().validate(); });
}
std::string declined(const Turned& t) {
  const PlanList plans = t.graph().plans();
  return plans.size() > 0 ? std::string() : plans.declines().front().rule + " " + plans.declines().front().text;
}
std::string said_by_sm90(const Turned& t) {
  const PlanList plans = t.graph().plans({.device = {DeviceType::cuda, 0}});
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == "sm90") return d.rule.starts_with("sm90.") && d.rule != "sm90.device" ? d.rule + " " + d.text : "";
  return {};
}

REFUSES(graph_rope) {
  EXPECT_EQ(
      validated({.n = 352}),
      "invalid_graph [graph.rope] rope 'turn', tensor 'mm::out': got extents (32, 352), wanted a last one of whole heads of "
      "192");
  EXPECT_EQ(validated({.rows = 16}),
            "invalid_graph [graph.rope] rope 'turn', tensor 'cos': got extents (16, 64), wanted those of (32, 384) or 1, but for "
            "the last");
  EXPECT_EQ(validated({.rotated = 63}),
            "invalid_graph [graph.rope] rope 'turn', tensor 'cos': got 63 columns, wanted an even number, at most 192");
  EXPECT_EQ(validated({.head = 32}),
            "invalid_graph [graph.rope] rope 'turn', tensor 'cos': got 64 columns, wanted an even number, at most 32");
  EXPECT_EQ(validated({.head = 64}), "");
  EXPECT_EQ(validated({.rows = 1}), "");
  EXPECT_EQ(validated({}), "");
}

REFUSES(chain_rope) {
  EXPECT_EQ(declined({.of_input = true}), "chain.rope node 'turn' reads what no matmul computes");
  EXPECT_EQ(declined({.twice = true}), "chain.rope node 'again' is a second one");
  EXPECT_EQ(declined({.n = 768, .of_runs = true}), "chain.rope node 'turn' rotates what is made of runs");
  EXPECT_EQ(declined({.y = DataType::int32}), "chain.rope node 'turn' rotates integers");
  EXPECT_EQ(declined({.computed_table = true}),
            "chain.aux_shape tensor 'sin' has extents (32, 64) beside (L, M, N) = (1, 32, 384)");
  EXPECT_EQ(declined({.table = DataType::int8}), "chain.rope tensor 'cos' of 'turn' is no plain input of numbers");
  EXPECT_EQ(declined({.stored = true, .y = DataType::fp32}), "");
  EXPECT_EQ(declined({}), "");
}

REFUSES(sm90_rope) {
  EXPECT_EQ(said_by_sm90({.rotated = 32}), "sm90.rope 32 of 192 columns are rotated");
  EXPECT_EQ(said_by_sm90({.head = 96}), "sm90.rope 64 of 96 columns are rotated");
  EXPECT_EQ(said_by_sm90({.y = DataType::fp32}), "sm90.rope tensor 'mm::out' is fp32");
  EXPECT_EQ(said_by_sm90({.table = DataType::fp32}), "sm90.rope aux 'cos' is fp32");
  EXPECT_EQ(said_by_sm90({.step = 2}), "sm90.rope aux 'cos' has other strides");
  EXPECT_EQ(said_by_sm90({.block = 16}), "sm90.rope output 'row' is fp8_e4m3 in blocks of 16");
  EXPECT_EQ(said_by_sm90({.clipped = true}), "sm90.rope tensor 'clipped' is no product");
  EXPECT_EQ(said_by_sm90({.stored = true}), "sm90.rope more is asked for than what is rotated, quantised");
  EXPECT_EQ(said_by_sm90({.head = 128}), "");
  EXPECT_EQ(said_by_sm90({}), "");
}

REFUSES(call_rope) {
  const CompiledPlan plan = Turned{}.graph().compile();
  const auto call = [&](std::int64_t n) {
    std::vector<std::uint16_t> a(32 * 4), b(static_cast<std::size_t>(4 * n)), table(32 * 64);
    std::vector<std::uint8_t> data(static_cast<std::size_t>(32 * n)), scale(static_cast<std::size_t>(n));
    const std::vector<TensorView> views = {TensorView::dense(a.data(), DataType::bf16, {32, 4}),
                                           TensorView::strided(b.data(), DataType::bf16, {4, n}, {1, 4}),
                                           TensorView::dense(table.data(), DataType::bf16, {32, 64}),
                                           TensorView::dense(table.data(), DataType::bf16, {32, 64}),
                                           TensorView::dense(data.data(), DataType::fp8_e4m3, {32, n}),
                                           TensorView::dense(scale.data(), DataType::fp8_e8m0, {32, n / 32})};
    return said([&] { plan.run(views); });
  };
  EXPECT_EQ(call(416), "invalid_call [call.rope] call: got N = 416, wanted a multiple of 192: whole heads");
  EXPECT_EQ(call(576), "");
}

}  // namespace
