#include "refusal.hpp"
#include "verglas/verglas.hpp"

// Rules sm90.*: what the Hopper engine does not serve, and the nearest that it does. Without a device it declines for want of
// one.
namespace {

using namespace verglas;

/// The rule and words of the Hopper engine; the rule alone where it would serve the graph if a device were here.
std::string said_by_sm90(Graph& g) {
  const PlanList plans = g.plans({.device = {DeviceType::cuda, 0}});
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == "sm90") return d.rule.starts_with("sm90.") && d.rule != "sm90.device" ? d.rule + " " + d.text : "";
  return {};
}

struct Types {
  DataType a = DataType::bf16, b = DataType::bf16, compute = DataType::fp32, out = DataType::bf16;
};
std::string said_of(const Types& t) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {32, 64}, .stride = {64, 1}, .data_type = t.a});
  const Tensor b = g.tensor({.name = "b", .dim = {64, 32}, .stride = {1, 64}, .data_type = t.b});
  g.matmul(a, b, {.compute_data_type = t.compute}).set_output(true).set_data_type(t.out);
  return said_by_sm90(g);
}

REFUSES(sm90_types) {
  using enum DataType;
  EXPECT_EQ(said_of({fp32, fp32, fp32, fp32}),
            "sm90.types a 'a' is fp32 and is summed in fp32; the tensor cores multiply it as tf32");
  EXPECT_EQ(said_of({fp32, fp32, tf32, fp32}), "");
  EXPECT_EQ(said_of({bf16, bf16, fp32, fp8_e8m0}), "sm90.types an output is fp8_e8m0");
  for (const DataType out : {fp32, fp16, bf16, int32, int8, uint8, boolean, fp8_e4m3, fp8_e5m2})
    EXPECT_EQ(said_of({int8, int8, int32, out}), "") << name_of(out);
  for (const DataType a : {fp8_e4m3, fp8_e5m2})
    for (const DataType b : {fp8_e4m3, fp8_e5m2}) EXPECT_EQ(said_of({a, b, fp32, bf16}), "");
}

std::string said_of_two(DataType b, DataType second) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {32, 64}, .stride = {64, 1}, .data_type = DataType::fp8_e4m3});
  const Tensor x = g.tensor({.name = "b", .dim = {64, 32}, .stride = {1, 64}, .data_type = b});
  const Tensor y = g.tensor({.name = "b2", .dim = {64, 32}, .stride = {1, 64}, .data_type = second});
  const Tensor first = g.matmul(a, x);
  g.mul(first, g.matmul(a, y)).set_output(true);
  return said_by_sm90(g);
}

TEST(Sm90Types, TwoProductsHaveOneTypeOnEachSide) {
  EXPECT_EQ(said_of_two(DataType::fp8_e5m2, DataType::fp8_e4m3), "sm90.types b 'b2' is fp8_e4m3, b 'b' is fp8_e5m2");
  EXPECT_EQ(said_of_two(DataType::fp8_e5m2, DataType::fp8_e5m2), "");
}

REFUSES(sm90_prologue) {
  const auto said = [](PointwiseMode second, DataType type) {
    Graph g;
    const auto matrix = [&](const char* name, bool rows) {
      return g.tensor({.name = name, .dim = {64, 64}, .stride = {rows ? 64 : 1, rows ? 1 : 64}, .data_type = type});
    };
    const auto on_the_way = [&](PointwiseMode mode, Tensor t) { return g.pointwise(mode, {t}).set_data_type(DataType::bf16); };
    const Tensor a = g.tensor({.name = "x", .dim = {64, 64}, .stride = {64, 1}});
    const Tensor first = g.matmul(a, on_the_way(PointwiseMode::relu, matrix("b", false)));
    g.mul(first, g.matmul(a, on_the_way(second, matrix("c", false)))).set_output(true);
    return said_by_sm90(g);
  };
  EXPECT_EQ(said(PointwiseMode::abs, DataType::int8), "sm90.prologue b 'c' takes another way than b 'b'");
  EXPECT_EQ(said(PointwiseMode::relu, DataType::fp8_e8m0), "sm90.prologue b 'b' is fp8_e8m0");
  EXPECT_EQ(said(PointwiseMode::relu, DataType::int8), "");
}

TEST(Sm90Prologue, ReadsScalarsOfTheTypesThatStepsCompute) {
  const auto said = [](DataType scalar) {
    Graph g;
    const Tensor a = g.tensor({.name = "x", .dim = {64, 64}, .stride = {64, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {64, 64}, .stride = {1, 64}});
    const Tensor s = g.tensor({.name = "s", .dim = {1, 1}, .stride = {1, 1}, .data_type = scalar});
    g.matmul(a, g.mul(b, s).set_data_type(DataType::bf16)).set_output(true);
    return said_by_sm90(g);
  };
  EXPECT_EQ(said(DataType::fp8_e8m0), "sm90.prologue aux 's' beside b 'b' is fp8_e8m0");
  EXPECT_EQ(said(DataType::fp8_e4m3), "");
}

}  // namespace
