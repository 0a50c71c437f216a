#include "graph/json.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "chain/analyse.hpp"
#include "support/graph_generator.hpp"
#include "support/grouped_generator.hpp"
#include "verglas/verglas.hpp"

namespace verglas {
namespace {

/// What becomes of a graph: its chain, why it is none, or why it is not even a graph.
std::string fate_of(Graph& g) {
  try {
    g.validate();
  } catch (const Error& e) {
    return e.what();
  }
  const auto chain = chain::analyse(g.data());
  return chain ? chain::print(*chain) : chain.error().text;
}

/// Draws a description: most are wrong somewhere, and all of them must survive a round trip.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  Graph graph() {
    const bool sound = below(2) == 0;  // an even choice, so that both kinds are seen often
    const auto types = [&] { return sound ? DataType::not_set : type(); };
    Graph g({.name = word(),
             .io_data_type = below(2) == 0 ? DataType::fp32 : types(),
             .intermediate_data_type = types(),
             .compute_data_type = types()});
    std::vector<Tensor> all;
    const std::vector<std::int64_t> a = {1, 4, 3}, b = {1, 3, 5};
    for (const auto& dim : {a, b}) all.push_back(g.tensor({.name = word(), .dim = dim, .stride = {dim[1] * dim[2], dim[2], 1}}));
    all.push_back(g.matmul(all[0], all[1], {.name = word(), .compute_data_type = types()}, sound ? 0.0 : number()));
    const int count = below(6);
    for (int i = 0; i < count; ++i) {
      if (below(3) == 0) all.push_back(input(g, sound));
      all.push_back(sound ? step(g, all) : anything(g, all));
    }
    Tensor last = all.back();
    last.set_output(true);
    if (below(3) == 0)
      g.reduction(last, static_cast<ReductionMode>(below(kReductionModeCount))).set_dim({1, 4, 1}).set_output(true);
    return g;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::string word() {
    static const char* const words[] = {"", "x", "y", "ünï", "a/b~c", "quote\" \\", "line\nbreak", "\xF0\x9F\x98\x80"};
    return words[below(8)];
  }
  DataType type() {
    static const DataType types[] = {DataType::not_set, DataType::not_set, DataType::not_set, DataType::fp32,
                                     DataType::bf16,    DataType::int8,    DataType::int32,   DataType::tf32};
    return types[below(8)];
  }
  double number() {
    static const double numbers[] = {0.0, -0.0, 0.1, 1e-320, 1e300, -3.0, std::numeric_limits<double>::infinity(), std::nan("")};
    return numbers[below(8)];
  }
  float small() {
    static const float numbers[] = {0.0F,       -0.0F, 0.1F, 1e-45F, 3.4e38F, -7.25F, std::numeric_limits<float>::infinity(),
                                    16777217.0F};
    return numbers[below(8)];
  }
  Tensor input(Graph& g, bool sound) {
    if (below(2) == 0) return sound ? g.scalar(0.5) : g.scalar(number(), type());
    if (sound) return g.tensor({.name = word(), .dim = {1, 1, 5}, .stride = {5, 5, 1}, .pass_by_value = false});
    Tensor t = g.tensor({.name = word(), .data_type = type(), .pass_by_value = below(2) == 0});
    if (below(2) == 0) t.set_dim({below(3) - 1, 9223372036854775807}).set_stride({below(4)});
    if (below(4) == 0) t.set_output(false);
    if (below(4) == 0) t.set_value(number()).set_is_pass_by_value(below(2) == 0);
    return t;
  }
  Tensor step(Graph& g, const std::vector<Tensor>& all) {
    const Tensor x = all[all.size() - 1];
    switch (below(4)) {
      case 0: return g.relu(x);
      case 1: return g.pointwise(PointwiseMode::leaky_relu, {x}, {.negative_slope = 0.1F});
      case 2: return g.add(all[2], x);
      default: return g.pointwise(PointwiseMode::swish, {x}, {.beta = 1.702F}, {.name = word()});
    }
  }
  Tensor anything(Graph& g, const std::vector<Tensor>& all) {
    std::vector<Tensor> inputs;
    for (int k = below(4); k >= 0; --k) inputs.push_back(all[static_cast<std::size_t>(below(static_cast<int>(all.size())))]);
    PointwiseParameters p;
    if (below(2) == 0) p.lower_clip = small();
    if (below(2) == 0) p.upper_clip = small();
    if (below(2) == 0) p.negative_slope = small();
    if (below(2) == 0) p.alpha = small();
    if (below(2) == 0) p.beta = small();
    if (below(2) == 0) p.axis = below(5) - 1;
    Tensor t = g.pointwise(static_cast<PointwiseMode>(below(kPointwiseModeCount)), inputs, p,
                           {.name = word(), .compute_data_type = type()});
    if (below(3) == 0) t.set_uid(static_cast<std::int64_t>(random_()) - 2147483648);
    if (below(4) == 0) t.set_dim({4, 5});
    if (below(4) == 0) t.set_stride({1, 1, 1}).set_data_type(type());
    return t;
  }

  std::mt19937 random_;
};

TEST(GraphFile, RandomGraphsAreReadAsTheyWereSaved) {
  int chains = 0, refused = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    Graph g = Draw(seed).graph();
    const std::string saved = g.to_json();
    Graph read = Graph::from_json(saved);
    ASSERT_EQ(read.to_json(), saved) << "seed " << seed;
    const std::string fate = fate_of(g);
    ASSERT_EQ(fate_of(read), fate) << "seed " << seed << "\n" << saved;
    (fate.starts_with("chain ") ? chains : refused) += 1;
    // Once more after inference, which must not leak into the file as if a user had said it.
    const std::string after = g.to_json();
    Graph third = Graph::from_json(after);
    ASSERT_EQ(third.to_json(), after) << "seed " << seed;
    ASSERT_EQ(fate_of(third), fate) << "seed " << seed << "\n" << after;
  }
  EXPECT_GT(chains, 200);
  EXPECT_GT(refused, 200);
}

TEST(GraphFile, GraphsWithScalesOfBlocksAreReadAsTheyWereSaved) {
  int quantised = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    support::Case c = support::draw_case(seed, {.largest = 290, .most_work = 20000, .most_steps = 3, .block_scaled = true});
    const std::string saved = c.graph.to_json();
    Graph read = Graph::from_json(saved);
    ASSERT_EQ(read.to_json(), saved) << "seed " << seed;
    const std::string fate = fate_of(c.graph);
    ASSERT_TRUE(fate.starts_with("chain ")) << fate;
    ASSERT_EQ(fate_of(read), fate) << "seed " << seed << "\n" << saved;
    ASSERT_EQ(Graph::from_json(c.graph.to_json()).to_json(), c.graph.to_json()) << "seed " << seed;
    quantised += fate.find("quantise") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(quantised, 30);
}

TEST(GraphFile, GroupedProductsAreReadAsTheyWereSaved) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    support::Case c = support::draw_grouped_case(seed);
    const std::string saved = c.graph.to_json();
    Graph read = Graph::from_json(saved);
    ASSERT_EQ(read.to_json(), saved) << "seed " << seed;
    const std::string fate = fate_of(c.graph);
    ASSERT_TRUE(fate.starts_with("chain ")) << fate;
    ASSERT_EQ(fate_of(read), fate) << "seed " << seed << "\n" << saved;
    ASSERT_EQ(Graph::from_json(c.graph.to_json()).to_json(), c.graph.to_json()) << "seed " << seed;
  }
}

TEST(GraphFile, EveryModeAndParameterIsKept) {
  for (int mode = 0; mode < kPointwiseModeCount; ++mode) {
    Graph g;
    const Tensor x = g.tensor({.name = "x", .dim = {2, 3}, .stride = {3, 1}});
    const std::vector<Tensor> inputs(static_cast<std::size_t>(arity_of(static_cast<PointwiseMode>(mode))), x);
    const PointwiseParameters p{
        .lower_clip = 0.1F, .upper_clip = 6.0F, .negative_slope = 0.01F, .alpha = 1.5F, .beta = -2.0F, .axis = 1};
    g.pointwise(static_cast<PointwiseMode>(mode), inputs, p, {.name = "n", .compute_data_type = DataType::int32});
    const graph::GraphData read = graph::load(g.to_json());
    ASSERT_EQ(read.nodes.size(), 1U);
    EXPECT_EQ(read.nodes[0].pointwise, static_cast<PointwiseMode>(mode));
    EXPECT_EQ(read.nodes[0].parameters, p);
    EXPECT_EQ(read.nodes[0].compute, DataType::int32);
    EXPECT_EQ(read.nodes[0].name, "n");
  }
}

TEST(GraphFile, FastAccumulationIsKept) {
  for (const bool fast : {false, true}) {
    Graph g;
    const Tensor x = g.tensor({.name = "x", .dim = {3, 3}, .stride = {3, 1}});
    g.matmul(x, x, {}, 0.0, fast);
    EXPECT_EQ(graph::load(g.to_json()).nodes.at(0).fast_accumulation, fast);
  }
}

TEST(GraphFile, ParametersAreWrittenAsTheyWereMeant) {
  Graph g;
  const Tensor x = g.tensor({.name = "x", .dim = {2, 3}, .stride = {3, 1}});
  g.pointwise(PointwiseMode::leaky_relu, {x}, {.negative_slope = 0.1F});
  EXPECT_NE(g.to_json().find("\"negative_slope\": 0.1}"), std::string::npos) << g.to_json();
}

TEST(GraphFile, TwoTensorsOfOneNameAreReferredToByUid) {
  Graph g;
  const Tensor a = g.tensor({.name = "x", .dim = {2, 3}, .stride = {3, 1}});
  const Tensor b = g.tensor({.name = "x", .dim = {3, 4}, .stride = {4, 1}, .uid = 77});
  g.matmul(a, b);
  EXPECT_NE(g.to_json().find("\"inputs\": [1, 77], \"output\": \"matmul_0::out\""), std::string::npos) << g.to_json();
  Graph read = Graph::from_json(g.to_json());
  EXPECT_EQ(fate_of(read), fate_of(g));
}

TEST(GraphFile, AutomaticUidsAvoidThoseOfTheFile) {
  const graph::GraphData g =
      graph::load(R"({"verglas_graph": 1, "tensors": [{"name": "a"}, {"uid": 1}, {"name": "c"}], "nodes": []})");
  EXPECT_EQ(g.tensors[0].uid, 2);
  EXPECT_EQ(g.tensors[1].uid, 1);
  EXPECT_EQ(g.tensors[2].uid, 3);
}

TEST(GraphFile, WhatANodeComputesStaysInsideUnlessTheFileSaysOtherwise) {
  const graph::GraphData g = graph::load(
      R"({"verglas_graph": 1, "tensors": [{"name": "x"}, {"name": "y"}, {"name": "z", "output": true}, {"name": "w", "output": false}],
          "nodes": [{"op": "relu", "inputs": ["x"], "output": "y"}, {"op": "exp", "inputs": ["y"], "output": "z"}]})");
  EXPECT_FALSE(g.tensors[0].is_virtual);
  EXPECT_TRUE(g.tensors[1].is_virtual);
  EXPECT_FALSE(g.tensors[2].is_virtual);
  EXPECT_TRUE(g.tensors[3].is_virtual);
  EXPECT_EQ(g.nodes[0].name, "relu_0");
  EXPECT_EQ(g.tensors[2].producer, 1);
}

TEST(GraphFile, ReadsCudnnsNamesOfTypes) {
  EXPECT_EQ(graph::load(R"({"verglas_graph": 1, "io_data_type": "HALF", "tensors": [], "nodes": []})").io, DataType::fp16);
}

TEST(GraphFile, AGraphThatWasReadCanBeChangedAndPlanned) {
  Graph g = Graph::from_json(R"({"verglas_graph": 1, "tensors": [{"name": "a", "dim": [2, 3], "stride": [3, 1]},
     {"name": "b", "dim": [3, 4], "stride": [4, 1]}, {"name": "c"}], "nodes": [{"op": "matmul", "inputs": ["a", "b"], "output": "c"}]})");
  g.relu(g.tensor_at(2)).set_name("y").set_output(true);
  EXPECT_EQ(g.compile().operands().size(), 3U);
}

// Long enough that time by the square of the length shows; shorter under the sanitizers, where each step costs far more.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kTensors = 2048;
#else
constexpr int kTensors = 16384;
#endif

TEST(GraphFile, LargeFilesAreReadInTimeThatGrowsWithTheirLength) {
  std::string text = R"({"verglas_graph": 1, "tensors": [{"name": "t0", "dim": [2], "stride": [1]})";
  std::string nodes;
  for (int i = 1; i < kTensors; ++i) {
    text += ",{\"name\": \"t" + std::to_string(i) + "\"}";
    nodes += (i > 1 ? "," : "") + std::string("{\"op\": \"relu\", \"inputs\": [\"t") + std::to_string(i - 1) +
             "\"], \"output\": \"t" + std::to_string(i) + "\"}";
  }
  Graph g = Graph::from_json(text + "], \"nodes\": [" + nodes + "]}");
  g.validate();
  EXPECT_EQ(g.tensor_at(kTensors - 1).dim(), std::vector<std::int64_t>{2});
}

}  // namespace
}  // namespace verglas
