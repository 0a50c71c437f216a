#include "tool/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "graph/ir.hpp"
#include "verglas/verglas.hpp"

namespace verglas::tool {
namespace {

/// A graph, arrays for its inputs, and what the first plan computes.
struct Trial {
  Graph graph;
  std::vector<HostArray> arrays;
  std::vector<OperandInfo> operands;

  explicit Trial(Graph g, Filling how, std::uint64_t seed, std::int64_t plan_index = 0) : graph(std::move(g)) {
    const CompiledPlan plan = graph.plans().compile(static_cast<std::size_t>(plan_index));
    std::vector<TensorView> views;
    for (const OperandInfo& o : plan.operands()) {
      operands.push_back(o);
      arrays.push_back(make_array(o.dtype, o.dim, o.stride, "test"));
      if (!o.is_output) fill(arrays.back(), how, seed, arrays.size());
    }
    for (HostArray& a : arrays) views.push_back(a.view());
    plan.run(views);
  }

  std::vector<Mismatch> check() const {
    std::map<std::int64_t, const HostArray*> given, got;
    for (std::size_t i = 0; i < arrays.size(); ++i) (operands[i].is_output ? got : given)[operands[i].uid] = &arrays[i];
    return compare_with_reference(graph.data(), given, got);
  }
  /// Moves one element of the last operand by some units in its last place.
  void disturb(std::int64_t element, int units) {
    std::byte* slot = arrays.back().at(element);
    if (bytes_of(arrays.back().dtype) == 2) {
      std::uint16_t v;
      std::memcpy(&v, slot, sizeof v);
      v = static_cast<std::uint16_t>(v + units);
      std::memcpy(slot, &v, sizeof v);
    } else {
      std::uint32_t v;
      std::memcpy(&v, slot, sizeof v);
      v += static_cast<std::uint32_t>(units);
      std::memcpy(slot, &v, sizeof v);
    }
  }
};

constexpr std::int64_t kM = 6, kN = 9, kK = 40;

struct Parts {
  Graph graph;
  Tensor product;
};
Parts product(DataType type, DataType compute = DataType::fp32) {
  Parts p{Graph({.name = "g", .io_data_type = type, .intermediate_data_type = compute, .compute_data_type = compute}), {}};
  const Tensor a = p.graph.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = p.graph.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  p.product = p.graph.matmul(a, b);
  return p;
}

TEST(Reference, IntegersLeaveNothingOpenAndOneUnitIsSeen) {
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    Parts p = product(type);
    p.graph.relu(p.product).set_output(true);
    Trial run(std::move(p.graph), Filling::integers, 1);
    auto verdict = run.check().at(0);
    EXPECT_EQ(verdict.wrong, 0) << verdict.text;
    EXPECT_EQ(verdict.exact, kM * kN);
    run.disturb(17, 1);
    verdict = run.check().at(0);
    EXPECT_EQ(verdict.wrong, 1);
    EXPECT_TRUE(verdict.text.starts_with("at (0, 1, 8): got ")) << verdict.text;
  }
}

TEST(Reference, Int8ProductsAreExactInInt32) {
  Parts p = product(DataType::int8, DataType::int32);
  p.product.set_output(true).set_data_type(DataType::int32);
  Trial run(std::move(p.graph), Filling::normal, 2);
  EXPECT_EQ(run.check().at(0).exact, kM * kN);
  EXPECT_EQ(run.check().at(0).wrong, 0);
  run.disturb(0, -1);
  EXPECT_EQ(run.check().at(0).wrong, 1);
}

TEST(Reference, NormalNumbersHaveARadiusThatRoundingExplainsAndNoMore) {
  Parts p = product(DataType::fp32);
  p.graph.gelu(p.product).set_output(true);
  Trial run(std::move(p.graph), Filling::normal, 3);
  EXPECT_EQ(run.check().at(0).wrong, 0) << run.check().at(0).text;
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < kM * kN; ++i)
    if (run.arrays.back().value(i) > run.arrays.back().value(largest)) largest = i;
  run.disturb(largest, 4000);  // of 2^23 units: a relative error of 2^-11
  EXPECT_EQ(run.check().at(0).wrong, 1);
}

TEST(Reference, NanIsRightOnlyWhereItBelongs) {
  Parts p = product(DataType::fp32);
  p.product.set_output(true);
  Trial run(std::move(p.graph), Filling::normal, 4);
  const float nan = std::nanf("");
  std::memcpy(run.arrays.back().at(5), &nan, sizeof nan);
  EXPECT_EQ(run.check().at(0).wrong, 1);
}

/// Every mode that exists in int32, with operands of which some are 0.
TEST(Reference, EveryIntegerModeOfTheEngineLiesInside) {
  int served = 0;
  for (int mode = 0; mode < kPointwiseModeCount; ++mode) {
    const auto m = static_cast<PointwiseMode>(mode);
    Parts p = product(DataType::int8, DataType::int32);
    const Tensor other =
        p.graph.tensor({.name = "other", .dim = {1, kM, kN}, .stride = {kM * kN, kN, 1}, .data_type = DataType::int32});
    std::vector<Tensor> inputs = {p.product, other, other};
    inputs.resize(static_cast<std::size_t>(arity_of(m)));
    p.graph.pointwise(m, inputs, {.axis = 2}).set_output(true).set_data_type(DataType::int32);
    try {
      if (p.graph.plans().size() == 0) continue;
    } catch (const Error&) {
      continue;  // leaky_relu without its slope
    }
    ++served;
    Trial run(std::move(p.graph), Filling::integers, static_cast<std::uint64_t>(mode));
    EXPECT_EQ(run.check().at(0).wrong, 0) << name_of(m) << ' ' << run.check().at(0).text;
  }
  EXPECT_EQ(served, 23);
}

TEST(Reference, AnInfiniteLossMeetsTheSlopeAsFp32HasIt) {
  Parts p = product(DataType::fp32);
  const Tensor loss = p.graph.scalar(INFINITY, DataType::fp32);
  const Tensor far = p.graph.add(p.graph.mul(p.product, p.product), p.graph.scalar(200, DataType::fp32));
  p.graph.pointwise(PointwiseMode::sigmoid_bwd, {loss, far}).set_output(true);
  Trial run(std::move(p.graph), Filling::integers, 5);
  EXPECT_EQ(run.check().at(0).wrong, 0) << run.check().at(0).text;
}

/// Every pointwise mode behind a product, on integers and on normal numbers: what the engine answers lies inside.
TEST(Reference, EveryModeOfTheEngineLiesInside) {
  for (int mode = 0; mode < kPointwiseModeCount; ++mode)
    for (const Filling how : {Filling::integers, Filling::normal}) {
      const auto m = static_cast<PointwiseMode>(mode);
      Parts p = product(DataType::fp32);
      const Tensor row = p.graph.tensor({.name = "row", .dim = {1, 1, kN}, .stride = {kN, kN, 1}});
      std::vector<Tensor> inputs = {p.product, row, row};
      inputs.resize(static_cast<std::size_t>(arity_of(m)));
      if (mode >= static_cast<int>(PointwiseMode::relu_bwd)) inputs = {row, p.product};
      p.graph.pointwise(m, inputs, {.negative_slope = 0.125F, .alpha = 1.5F, .beta = 0.75F, .axis = 2}).set_output(true);
      Trial run(std::move(p.graph), how, static_cast<std::uint64_t>(mode));
      EXPECT_EQ(run.check().at(0).wrong, 0) << name_of(m) << ' ' << run.check().at(0).text;
      EXPECT_EQ(run.check().at(0).open, 0) << name_of(m);
    }
}

TEST(Reference, EveryReductionOfTheEngineLiesInside) {
  for (int mode = 0; mode < kReductionModeCount; ++mode)
    for (const Filling how : {Filling::integers, Filling::normal})
      for (const std::vector<std::int64_t>& dim : {std::vector<std::int64_t>{1, kM, 1}, {1, 1, kN}, {1, 1, 1}}) {
        Parts p = product(DataType::fp32);
        p.graph.reduction(p.product, static_cast<ReductionMode>(mode)).set_dim(dim).set_output(true);
        Trial run(std::move(p.graph), how, static_cast<std::uint64_t>(mode));
        EXPECT_EQ(run.check().at(0).wrong, 0) << name_of(static_cast<ReductionMode>(mode)) << ' ' << run.check().at(0).text;
      }
}

TEST(Reference, BatchesBroadcastAndStridesAreFollowed) {
  Graph g({.name = "g", .io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {3, 4, 5}, .stride = {1, 3, 12}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, 5, 2}, .stride = {99, 1, 7}});
  const Tensor c = g.tensor({.name = "c", .dim = {3, 1, 2}, .stride = {4, 1, 2}});
  Tensor y = g.add(g.matmul(a, b), c);
  y.set_output(true).set_stride({8, 1, 4});
  Trial run(std::move(g), Filling::integers, 9);
  EXPECT_EQ(run.check().at(0).wrong, 0) << run.check().at(0).text;
  EXPECT_EQ(run.check().at(0).exact, 24);
  run.disturb(23, 1);
  EXPECT_TRUE(run.check().at(0).text.starts_with("at (2, 3, 1): ")) << run.check().at(0).text;
}

TEST(HostArray, RandomNumbersAreTheSameEverywhere) {
  HostArray a = make_array(DataType::fp32, {4}, {1}, "test");
  fill(a, Filling::integers, 1, 0);
  std::vector<double> first;
  for (int i = 0; i < 4; ++i) first.push_back(a.value(i));
  fill(a, Filling::integers, 1, 0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(a.value(i), first[static_cast<std::size_t>(i)]);
  HostArray many = make_array(DataType::fp32, {10000}, {1}, "test");
  fill(many, Filling::normal, 5, 0);
  double sum = 0, squares = 0;
  for (int i = 0; i < 10000; ++i) {
    sum += many.value(i);
    squares += many.value(i) * many.value(i);
  }
  EXPECT_NEAR(sum / 10000, 0, 0.05);
  EXPECT_NEAR(squares / 10000, 1, 0.05);
}

}  // namespace
}  // namespace verglas::tool
