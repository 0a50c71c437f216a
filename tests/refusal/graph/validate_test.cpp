// Every rule of descriptions: a graph that breaks only that rule, with its whole message, and its nearest legal neighbour.
#include <gtest/gtest.h>

#include <cmath>

#include "verglas/verglas.hpp"

namespace verglas {
namespace {

using Extents = std::vector<std::int64_t>;
constexpr std::int64_t kHuge = 9223372036854775807;

template <class F>
std::string answer_to(F&& build) {
  try {
    Graph g({.name = "g"});
    build(g);
    g.validate();
  } catch (const Error& e) {
    return e.what();
  }
  return "valid";
}

/// A dense input.
Tensor input(Graph& g, const char* name, Extents dim) {
  Extents stride(dim.size(), 1);
  for (std::size_t i = dim.size(); i-- > 1;) stride[i - 1] = stride[i] * std::max<std::int64_t>(dim[i], 1);
  return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride)});
}

std::string file(const std::string& tensors, const std::string& nodes) {
  try {
    Graph::from_json(R"({"verglas_graph": 1, "name": "g", "tensors": [)" + tensors + R"(], "nodes": [)" + nodes + "]}")
        .validate();
  } catch (const Error& e) {
    return e.what();
  }
  return "valid";
}

TEST(GraphRefuses, HandlesOfAnotherGraphOrNone) {
  Graph other;
  const Tensor foreign = input(other, "x", {2, 2});
  EXPECT_EQ(answer_to([&](Graph& g) { g.matmul(foreign, input(g, "b", {2, 2})); }),
            "invalid_graph [graph.handle] matmul: an operand is a tensor of another graph, or none");
  EXPECT_EQ(answer_to([&](Graph& g) { g.relu(Tensor()); }),
            "invalid_graph [graph.handle] relu: an operand is a tensor of another graph, or none");
  EXPECT_EQ(answer_to([&](Graph& g) { g.reduction(foreign, ReductionMode::add); }),
            "invalid_graph [graph.handle] reduction: an operand is a tensor of another graph, or none");
  EXPECT_EQ(answer_to([](Graph&) { Tensor().set_name("x"); }), "invalid_graph [graph.handle] an empty tensor handle was used");
  EXPECT_EQ(answer_to([](Graph& g) { g.tensor_at(0); }), "invalid_graph [graph.handle] there is no tensor number 0");
  EXPECT_EQ(answer_to([](Graph& g) { g.matmul(input(g, "a", {2, 2}), input(g, "b", {2, 2})); }), "valid");
}

TEST(GraphRefuses, ChangesAfterPlanning) {
  const auto planned = [](auto&& change) {
    return answer_to([&](Graph& g) {
      Tensor a = input(g, "a", {2, 2});
      g.matmul(a, a).set_output(true);
      change(g, a);
    });
  };
  EXPECT_EQ(planned([](Graph& g, Tensor& a) {
              g.plans();
              a.set_dim({2, 2});
            }),
            "invalid_graph [graph.frozen] tensor 'a' cannot change any more: the graph has been planned");
  EXPECT_EQ(planned([](Graph& g, Tensor& a) {
              g.plans();
              g.relu(a);
            }),
            "invalid_graph [graph.frozen] nothing can be added: the graph has been planned");
  EXPECT_EQ(planned([](Graph& g, Tensor& a) {
              g.validate();
              a.set_dim({2, 2});
              g.plans();
            }),
            "valid");
}

TEST(GraphRefuses, AGraphWithoutNodes) {
  EXPECT_EQ(answer_to([](Graph&) {}), "invalid_graph [graph.empty] graph 'g': got no nodes, wanted at least a matmul");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", {2})); }), "valid");
}

TEST(GraphRefuses, TwoUidsOfTheUserThatAreEqual) {
  const auto with = [](std::int64_t second) {
    return answer_to([&](Graph& g) {
      g.relu(input(g, "x", {2}).set_uid(5));
      g.tensor({.name = "y", .dim = {1}, .stride = {1}, .uid = second});
    });
  };
  EXPECT_EQ(with(5), "invalid_graph [graph.uid_unique] tensor 'y': got uid 5, which 'x' has, wanted a uid of its own");
  EXPECT_EQ(with(6), "valid");
}

TEST(GraphRefuses, InputsWithoutExtentsOrStrides) {
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(g.tensor({.name = "x"})); }),
            "invalid_graph [graph.dim_unset] tensor 'x': got no extents, wanted extents");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(g.tensor({.name = "x", .dim = {2, 3}})); }),
            "invalid_graph [graph.stride_unset] tensor 'x': got no strides, wanted one for each extent of (2, 3)");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(g.tensor({.name = "x", .dim = {2, 3}, .stride = {3, 1}})); }), "valid");
  EXPECT_EQ(answer_to([](Graph& g) { g.reduction(input(g, "x", {2, 3}), ReductionMode::add).set_name("s"); }),
            "invalid_graph [graph.dim_unset] reduction 'reduction_0', tensor 's': got no extents, wanted extents that say what "
            "is reduced");
}

TEST(GraphRefuses, RanksThatDoNotFit) {
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(g.tensor({.name = "x", .dim = {2, 3}, .stride = {1}})); }),
            "invalid_graph [graph.rank] tensor 'x': got 1 strides for extents (2, 3), wanted 2 strides");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", Extents(9, 1))); }),
            "invalid_graph [graph.rank] tensor 'x': got rank 9, wanted 1 to 8");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", Extents(8, 1))); }), "valid");
  EXPECT_EQ(answer_to([](Graph& g) { g.matmul(input(g, "a", {1, 1, 2, 2}), input(g, "b", {2, 2})); }),
            "invalid_graph [graph.rank] matmul 'matmul_0', tensor 'a': got rank 4, wanted 2 or 3");
  EXPECT_EQ(answer_to([](Graph& g) { g.matmul(input(g, "a", {2, 2}), input(g, "b", {2})); }),
            "invalid_graph [graph.rank] matmul 'matmul_0', tensor 'b': got rank 1, wanted 2 or 3");
}

TEST(GraphRefuses, NegativeExtentsAndStrides) {
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(g.tensor({.name = "x", .dim = {-1}, .stride = {1}})); }),
            "invalid_graph [graph.extent] tensor 'x': got extents (-1), wanted none below 0");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(g.tensor({.name = "x", .dim = {2}, .stride = {-1}})); }),
            "invalid_graph [graph.extent] tensor 'x': got strides (-1), wanted none below 0");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(g.tensor({.name = "x", .dim = {0}, .stride = {0}})); }), "valid");
}

TEST(GraphRefuses, ExtentsWhoseBytesPass63Bits) {
  const auto with = [](Extents dim, Extents stride) {
    return answer_to([&](Graph& g) { g.relu(g.tensor({.name = "x", .dim = dim, .stride = stride})); });
  };
  EXPECT_EQ(
      with({3037000500, 3037000500}, {0, 0}),
      "invalid_graph [graph.overflow] tensor 'x': got extents (3037000500, 3037000500) with strides (0, 0), wanted a byte offset "
      "below 2^63");
  EXPECT_EQ(with({3, 1}, {kHuge / 2, 1}),
            "invalid_graph [graph.overflow] tensor 'x': got extents (3, 1) with strides (4611686018427387903, 1), wanted a byte "
            "offset below "
            "2^63");
  EXPECT_EQ(with({1, 1}, {kHuge, kHuge}), "valid");  // strides of unit axes reach nothing
  EXPECT_EQ(with({std::int64_t{1} << 59}, {1}), "valid");
  EXPECT_TRUE(with({std::int64_t{1} << 60}, {1}).starts_with("invalid_graph [graph.overflow]"));
}

TEST(GraphRefuses, ProductsWhoseResultPasses63Bits) {
  const auto with = [](std::int64_t n) {
    return answer_to([&](Graph& g) {
      g.matmul(g.tensor({.name = "a", .dim = {n, 1}, .stride = {1, 1}}),
               g.tensor({.name = "b", .dim = {1, n}, .stride = {1, 1}}));
    });
  };
  EXPECT_TRUE(with(std::int64_t{1} << 31).starts_with("invalid_graph [graph.overflow] tensor 'matmul_0::out'"))
      << with(std::int64_t{1} << 31);
  EXPECT_EQ(with(std::int64_t{1} << 29), "valid");
}

TEST(GraphRefuses, Tf32AsAStorageType) {
  const auto with = [](DataType t) { return answer_to([&](Graph& g) { g.relu(input(g, "x", {2}).set_data_type(t)); }); };
  EXPECT_EQ(with(DataType::tf32), "invalid_graph [graph.dtype] tensor 'x': got tf32, wanted a storage type");
  EXPECT_EQ(with(DataType::fp32), "valid");
}

TEST(GraphRefuses, ValuesThatCannotBePassed) {
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", {2}).set_is_pass_by_value(true)); }),
            "invalid_graph [graph.by_value] tensor 'x': got extents (2), wanted one element");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", {1}).set_is_pass_by_value(true)); }), "valid");
  // A value means a scalar of the graph: it is no array filled with it, and a type's check of the value is not gone round.
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", {4}).set_value(2.5).set_is_pass_by_value(false)); }),
            "invalid_graph [graph.by_value] tensor 'x': got a value in a tensor that is not passed by value, wanted no value, or "
            "passed by value");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", {1})).set_name("y").set_value(1).set_is_pass_by_value(false); }),
            "invalid_graph [graph.by_value] tensor 'y': got a value in a tensor that is not passed by value, wanted no value, or "
            "passed by value");
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", {1})).set_name("y").set_is_pass_by_value(true); }),
            "invalid_graph [graph.by_value] tensor 'y': got a computed tensor passed by value, wanted an input");
  EXPECT_EQ(
      answer_to([](Graph& g) { g.matmul(input(g, "a", {1, 1}).set_is_pass_by_value(true), input(g, "b", {1, 1})); }),
      "invalid_graph [graph.by_value] matmul 'matmul_0', tensor 'a': got a tensor passed by value, wanted an ordinary tensor");
  const auto constant = [](double v, DataType t) { return answer_to([&](Graph& g) { g.relu(g.scalar(v, t).set_name("c")); }); };
  for (const auto& [fits, beyond, t] : {std::tuple{127.0, 128.0, DataType::int8},
                                        {-128.0, -129.0, DataType::int8},
                                        {255.0, 256.0, DataType::uint8},
                                        {0.0, -1.0, DataType::uint8},
                                        {2147483647.0, 2147483648.0, DataType::int32},
                                        {1.0, 2.0, DataType::boolean},
                                        {3.0, 3.5, DataType::int32},
                                        {0.0, std::nan(""), DataType::int32}}) {
    EXPECT_EQ(constant(fits, t), "valid") << fits << name_of(t);
    EXPECT_TRUE(constant(beyond, t).starts_with("invalid_graph [graph.by_value] tensor 'c': got ")) << constant(beyond, t);
  }
  EXPECT_EQ(constant(1e300, DataType::fp16), "valid");  // rounds to infinity, as any fp16 value would
}

TEST(GraphRefuses, OperandsThatAreTooManyOrTooFew) {
  EXPECT_EQ(answer_to([](Graph& g) { g.pointwise(PointwiseMode::add, {input(g, "x", {2})}); }),
            "invalid_graph [graph.arity] add 'add_0': got 1 operands, wanted 2");
  EXPECT_EQ(answer_to([](Graph& g) {
              const Tensor x = input(g, "x", {2});
              g.pointwise(PointwiseMode::relu, {x, x});
            }),
            "invalid_graph [graph.arity] relu 'relu_0': got 2 operands, wanted 1");
  EXPECT_EQ(file(R"({"name": "x", "dim": [2, 2], "stride": [2, 1]}, {"name": "y"})",
                 R"({"op": "matmul", "inputs": ["x"], "output": "y"})"),
            "invalid_graph [graph.arity] matmul 'matmul_0': got 1 operands, wanted 2");
  EXPECT_EQ(file(R"({"name": "x", "dim": [2, 2], "stride": [2, 1]}, {"name": "y"})",
                 R"({"op": "matmul", "inputs": ["x", "x"], "output": "y"})"),
            "valid");
}

TEST(GraphRefuses, ParametersThatAreMissingOrOutOfRange) {
  const auto with = [](PointwiseMode mode, const PointwiseParameters& p) {
    return answer_to([&](Graph& g) { g.pointwise(mode, {input(g, "x", {2, 3})}, p); });
  };
  EXPECT_EQ(with(PointwiseMode::leaky_relu, {}),
            "invalid_graph [graph.parameters] leaky_relu 'leaky_relu_0': got no negative_slope, wanted one");
  EXPECT_EQ(with(PointwiseMode::leaky_relu, {.negative_slope = 0.0F}), "valid");
  EXPECT_EQ(with(PointwiseMode::elu, {.alpha = std::nanf("")}),
            "invalid_graph [graph.parameters] elu 'elu_0': got a NaN parameter, wanted numbers");
  EXPECT_EQ(with(PointwiseMode::elu, {.alpha = INFINITY}), "valid");
  EXPECT_EQ(with(PointwiseMode::gen_index, {}),
            "invalid_graph [graph.parameters] gen_index 'gen_index_0': got axis -1, wanted 0 to 1");
  EXPECT_EQ(with(PointwiseMode::gen_index, {.axis = 2}),
            "invalid_graph [graph.parameters] gen_index 'gen_index_0': got axis 2, wanted 0 to 1");
  EXPECT_EQ(with(PointwiseMode::gen_index, {.axis = 1}), "valid");
}

const std::string kX = R"({"name": "x", "dim": [2], "stride": [1]}, )";

TEST(GraphRefuses, WhatNothingOrTwoNodesCompute) {
  EXPECT_EQ(answer_to([](Graph& g) { g.relu(input(g, "x", {2}).set_is_virtual(true)); }),
            "invalid_graph [graph.dangling] relu 'relu_0', tensor 'x': got a virtual tensor that nothing computes, wanted an "
            "input or a "
            "result");
  const std::string relu = R"({"op": "relu", "inputs": ["x"], "output": "y"})";
  const std::string exp = R"(, {"op": "exp", "inputs": ["x"], "output": ")";
  EXPECT_EQ(file(kX + R"({"name": "y"}, {"name": "z"})", relu + exp + "y\"}"),
            "invalid_graph [graph.dangling] tensor 'y': got two nodes that compute it, wanted one");
  EXPECT_EQ(file(kX + R"({"name": "y"}, {"name": "z"})", relu + exp + "z\"}"), "valid");
}

TEST(GraphRefuses, NodesThatDependOnThemselves) {
  const auto with = [](const char* first) {
    return file(kX + R"({"name": "y"}, {"name": "z"})",
                R"({"op": "add", "inputs": ["x", ")" + std::string(first) +
                    R"("], "output": "y"}, {"op": "relu", "inputs": ["y"], "output": "z"})");
  };
  EXPECT_EQ(with("z"),
            "invalid_graph [graph.cyclic] add 'add_0': got a node that depends on its own result, wanted an acyclic graph");
  EXPECT_EQ(with("y"),
            "invalid_graph [graph.cyclic] add 'add_0': got a node that depends on its own result, wanted an acyclic graph");
  EXPECT_EQ(with("x"), "valid");
}

TEST(GraphRefuses, ProductsWhoseOperandsDoNotFit) {
  const auto with = [](Extents a, Extents b) {
    return answer_to([&](Graph& g) { g.matmul(input(g, "a", a), input(g, "b", b)); });
  };
  EXPECT_EQ(with({1, 2, 3}, {1, 4, 5}),
            "invalid_graph [graph.matmul_inner] matmul 'matmul_0': got K = 4 from b (1, 4, 5), wanted 3 as in a (1, 2, 3)");
  EXPECT_EQ(with({1, 2, 3}, {1, 3, 5}), "valid");
  EXPECT_EQ(with({1, 2, 1}, {1, 3, 5}),
            "invalid_graph [graph.matmul_inner] matmul 'matmul_0': got K = 3 from b (1, 3, 5), wanted 1 as in a (1, 2, 1)");
  EXPECT_EQ(with({2, 2, 3}, {3, 3, 5}),
            "invalid_graph [graph.matmul_batch] matmul 'matmul_0': got batches 2 and 3, wanted equal ones, or a 1");
  EXPECT_EQ(with({2, 2, 3}, {1, 3, 5}), "valid");
  EXPECT_EQ(with({2, 3}, {1, 3, 5}),
            "invalid_graph [graph.matmul_batch] matmul 'matmul_0': got a of rank 2 and b of rank 3, wanted equal ranks");
}

TEST(GraphRefuses, OperandsThatDoNotBroadcast) {
  const auto with = [](Extents b) { return answer_to([&](Graph& g) { g.add(input(g, "a", {2, 3}), input(g, "b", b)); }); };
  EXPECT_EQ(with({4}), "invalid_graph [graph.broadcast] add 'add_0', tensor 'b': got extents (4), wanted each 1 or as in (2, 3)");
  EXPECT_EQ(with({0}), "invalid_graph [graph.broadcast] add 'add_0', tensor 'b': got extents (0), wanted each 1 or as in (2, 3)");
  EXPECT_EQ(with({3}), "valid");
}

TEST(GraphRefuses, ExtentsOfAResultThatAreNotTheInferredOnes) {
  const auto with = [](Extents dim) {
    return answer_to([&](Graph& g) { g.matmul(input(g, "a", {2, 3}), input(g, "b", {3, 4})).set_name("c").set_dim(dim); });
  };
  EXPECT_EQ(with({1, 2, 4}),
            "invalid_graph [graph.output_dim] matmul 'matmul_0', tensor 'c': got extents (1, 2, 4), wanted (2, 4)");
  EXPECT_EQ(with({4, 2}), "invalid_graph [graph.output_dim] matmul 'matmul_0', tensor 'c': got extents (4, 2), wanted (2, 4)");
  EXPECT_EQ(with({2, 4}), "valid");
}

TEST(GraphRefuses, ReductionsThatReduceNothingOrTooMuch) {
  const auto with = [](Extents in, Extents out) {
    return answer_to([&](Graph& g) { g.reduction(input(g, "x", in), ReductionMode::add).set_dim(out); });
  };
  EXPECT_EQ(with({1, 2, 3}, {1, 2, 3}),
            "invalid_graph [graph.reduction_dim] reduction 'reduction_0': got output extents (1, 2, 3) for input (1, 2, 3), "
            "wanted each 1 or "
            "the full one, and a reduced axis");
  EXPECT_EQ(with({1, 2, 3}, {1, 2, 1}), "valid");
  EXPECT_TRUE(with({1, 4, 3}, {1, 2, 1}).starts_with("invalid_graph [graph.reduction_dim]"));
  EXPECT_TRUE(with({1, 4, 3}, {4, 1}).starts_with("invalid_graph [graph.reduction_dim]"));
  EXPECT_EQ(with({4, 3}, {4, 1}), "valid");
}

}  // namespace
}  // namespace verglas
