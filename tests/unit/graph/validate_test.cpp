// What validate infers: extents, strides and types of results, and an order of the nodes. Refusals are in tests/refusal/graph.
#include <gtest/gtest.h>

#include "graph/ir.hpp"
#include "graph/json.hpp"
#include "verglas/verglas.hpp"

namespace verglas {
namespace {

using Extents = std::vector<std::int64_t>;

Extents packed(const Extents& dim) {
  Extents s(dim.size(), 1);
  for (std::size_t i = dim.size(); i-- > 1;) s[i - 1] = s[i] * std::max<std::int64_t>(dim[i], 1);
  return s;
}
Tensor input(Graph& g, Extents dim, DataType type = DataType::not_set) {
  return g.tensor({.dim = dim, .stride = packed(dim), .data_type = type});
}

TEST(Validate, AProductHasTheBatchOfEitherTheRowsOfAAndTheColumnsOfB) {
  for (const auto& [a, b, c] : {std::tuple<Extents, Extents, Extents>{{2, 3}, {3, 4}, {2, 4}},
                                {{1, 2, 3}, {1, 3, 4}, {1, 2, 4}},
                                {{5, 2, 3}, {1, 3, 4}, {5, 2, 4}},
                                {{1, 2, 3}, {5, 3, 4}, {5, 2, 4}},
                                {{5, 2, 3}, {5, 3, 4}, {5, 2, 4}},
                                {{0, 2, 0}, {0, 0, 4}, {0, 2, 4}},
                                {{1, 2, 3}, {0, 3, 4}, {0, 2, 4}}}) {
    Graph g;
    const Tensor y = g.matmul(input(g, a), input(g, b));
    g.validate();
    EXPECT_EQ(y.dim(), c);
    EXPECT_EQ(y.stride(), packed(c));
  }
}

TEST(Validate, PointwiseOperandsBroadcastFromTheRight) {
  for (const auto& [a, b, c] : {std::tuple<Extents, Extents, Extents>{{2, 3}, {3}, {2, 3}},
                                {{3}, {2, 1}, {2, 3}},
                                {{4, 1, 3}, {2, 1}, {4, 2, 3}},
                                {{1}, {7, 1, 1, 1}, {7, 1, 1, 1}},
                                {{2, 0}, {1, 1}, {2, 0}},
                                {{1, 5}, {0, 5}, {0, 5}}}) {
    Graph g;
    const Tensor y = g.add(input(g, a), input(g, b));
    g.validate();
    EXPECT_EQ(y.dim(), c);
  }
  Graph g;
  const Tensor y = g.pointwise(PointwiseMode::binary_select, {input(g, {2, 1}), input(g, {3}), input(g, {1, 1})});
  g.validate();
  EXPECT_EQ(y.dim(), (Extents{2, 3}));
}

TEST(Validate, StridesAreRowMajorUnlessSet) {
  Graph g;
  const Tensor a = input(g, {2, 3});
  const Tensor b = input(g, {3, 4});
  Tensor set = g.matmul(a, b);
  set.set_stride({1, 2});
  const Tensor left = g.relu(set);
  g.validate();
  EXPECT_EQ(set.stride(), (Extents{1, 2}));
  EXPECT_EQ(left.stride(), (Extents{4, 1}));
}

TEST(Validate, TypesComeFromTheTensorElseFromWhetherItIsStored) {
  Graph g({.io_data_type = DataType::fp16, .intermediate_data_type = DataType::int32, .compute_data_type = DataType::tf32});
  const Tensor a = input(g, {2, 3});
  const Tensor b = input(g, {3, 4}, DataType::fp32);
  const Tensor inside = g.matmul(a, b);
  Tensor set = g.relu(inside);
  set.set_data_type(DataType::int8);
  Tensor stored = g.pointwise(PointwiseMode::exp, {set}, {}, {.compute_data_type = DataType::fp32});
  stored.set_output(true);
  g.validate();
  EXPECT_EQ(a.data_type(), DataType::fp16);
  EXPECT_EQ(b.data_type(), DataType::fp32);
  EXPECT_EQ(inside.data_type(), DataType::int32);
  EXPECT_EQ(set.data_type(), DataType::int8);
  EXPECT_EQ(stored.data_type(), DataType::fp16);
  EXPECT_EQ(g.data().nodes[0].compute, DataType::tf32);
  EXPECT_EQ(g.data().nodes[2].compute, DataType::fp32);
}

TEST(Validate, TypesThatAreNotSetAreBf16OutsideAndFp32Inside) {
  Graph g;
  const Tensor a = input(g, {2, 2});
  const Tensor inside = g.matmul(a, a);
  g.relu(inside).set_output(true);
  g.validate();
  EXPECT_EQ(a.data_type(), DataType::bf16);
  EXPECT_EQ(inside.data_type(), DataType::fp32);
  EXPECT_EQ(g.data().nodes[0].compute, DataType::fp32);
}

TEST(Validate, MayBeCalledAgainAfterAChange) {
  Graph g;
  Tensor a = input(g, {2, 3});
  const Tensor y = g.relu(a);
  g.validate();
  a.set_dim({4, 5}).set_stride({5, 1});
  Tensor out = y;
  out.set_output(true);
  g.validate();
  EXPECT_EQ(y.dim(), (Extents{4, 5}));
  EXPECT_EQ(y.stride(), (Extents{5, 1}));
  EXPECT_EQ(y.data_type(), DataType::bf16);
}

TEST(Validate, NodesAreOrderedByDependencyAndElseAsRecorded) {
  // Nodes 0 and 2 wait for 3; 1 waits for nothing.
  graph::GraphData g = graph::load(R"({"verglas_graph": 1,
    "tensors": [{"name": "x", "dim": [2], "stride": [1]}, {"name": "y0"}, {"name": "y1"}, {"name": "y2"}, {"name": "y3"}],
    "nodes": [{"op": "relu", "inputs": ["y3"], "output": "y0"}, {"op": "relu", "inputs": ["x"], "output": "y1"},
              {"op": "add", "inputs": ["y3", "y0"], "output": "y2"}, {"op": "exp", "inputs": ["x"], "output": "y3"}]})");
  graph::validate(g);
  EXPECT_EQ(g.order, (std::vector<int>{1, 3, 0, 2}));
  for (const graph::TensorData& t : g.tensors) EXPECT_EQ(t.dim, Extents{2});
}

TEST(Validate, ReductionsKeepTheAxesWhoseExtentIsFull) {
  for (const Extents& dim : {Extents{1, 3, 1}, Extents{1, 1, 4}, Extents{2, 3, 1}, Extents{1, 1, 1}, Extents{1, 3, 4}}) {
    Graph g;
    Tensor y = g.reduction(input(g, {2, 3, 4}), ReductionMode::max);
    y.set_dim(dim);
    g.validate();
    EXPECT_EQ(y.dim(), dim);
    EXPECT_EQ(y.stride(), packed(dim));
  }
}

TEST(Validate, AQuantiseHasOneScaleForEachBlockAndWholeAtomsWhereTheyAreReordered) {
  for (const bool reordered : {false, true})
    for (const bool along_m : {false, true}) {
      Graph g;
      const Tensor y = g.matmul(input(g, {3, 96, 8}), input(g, {3, 8, 320}));
      auto [q, s] = g.block_scale_quantize(y, 32, along_m ? std::optional(1) : std::nullopt);
      if (reordered) s.set_reordering_type(TensorReordering::f8_128x4);
      g.validate();
      EXPECT_EQ(q.dim(), (Extents{3, 96, 320}));
      const Extents plain = along_m ? Extents{3, 3, 320} : Extents{3, 96, 10};
      const Extents atoms = along_m ? Extents{3, 384, 4} : Extents{3, 128, 12};
      EXPECT_EQ(s.dim(), reordered ? atoms : plain);
      EXPECT_EQ(s.stride(), packed(s.dim()));
    }
}

TEST(Validate, ScalesOfExtentsThatFitNoMemoryAreRefused) {
  const std::int64_t n = std::int64_t{1} << 59;
  Graph g;
  const Tensor b = g.tensor({.dim = {1, n}, .stride = {0, 0}});
  auto [q, s] = g.block_scale_quantize(g.matmul(input(g, {1, 1}), b), 16);
  s.set_reordering_type(TensorReordering::f8_128x4);
  try {
    g.validate();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "graph.overflow");
  }
}

TEST(Uids, AreUniqueAndGiveWayToTheUsers) {
  Graph g;
  const Tensor a = input(g, {2, 2});
  const Tensor b = input(g, {2, 2});
  EXPECT_NE(a.uid(), b.uid());
  EXPECT_GT(a.uid(), 0);
  Tensor c = input(g, {2, 2});
  c.set_uid(a.uid());
  EXPECT_NE(a.uid(), c.uid());
  EXPECT_NE(a.uid(), b.uid());
}

}  // namespace
}  // namespace verglas
