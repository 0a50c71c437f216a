#include <gtest/gtest.h>

#include "chain/cost.hpp"
#include "verglas/verglas.hpp"

namespace verglas {
namespace {

struct Layer {
  Graph g{{.name = "g", .io_data_type = DataType::fp32}};
  Tensor a = g.tensor({.name = "a", .dim = {2, 4, 8}, .stride = {32, 8, 1}});
  Tensor b = g.tensor({.name = "b", .dim = {1, 8, 6}, .stride = {48, 6, 1}});
  Tensor row = g.tensor({.name = "row", .dim = {1, 1, 6}, .stride = {6, 6, 1}});
  Tensor column = g.tensor({.name = "column", .dim = {2, 4, 1}, .stride = {4, 1, 1}});
  Tensor full = g.tensor({.name = "full", .dim = {2, 4, 6}, .stride = {24, 6, 1}});

  std::string summary(Tensor y) {
    y.set_output(true);
    std::string s = summary_of(g.plans());
    return s.substr(0, s.find(" → "));
  }
};

TEST(Summary, UsesTheWordsOfTheField) {
  Layer l;
  Tensor y = l.g.gelu(l.g.add(l.g.matmul(l.a, l.b), l.row));
  EXPECT_EQ(l.summary(l.g.add(y, l.full)), "matmul+bias+gelu+residual");
  Layer scaled;
  y = scaled.g.mul(scaled.column, scaled.g.matmul(scaled.a, scaled.b));
  scaled.g.reduction(y, ReductionMode::add).set_dim({2, 4, 1}).set_output(true);
  scaled.g.reduction(y, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true);
  EXPECT_EQ(scaled.summary(y), "matmul+scale+row_sum+all_amax");
  Layer two;
  y = two.g.swish(two.g.matmul(two.a, two.b));
  EXPECT_EQ(two.summary(two.g.mul(y, two.g.matmul(two.a, two.b))), "2×matmul+swish+mul");
}

TEST(Summary, OfGroupedProducts) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor x = g.tensor({.dim = {1, 12, 8}, .stride = {96, 8, 1}});
  const Tensor w = g.tensor({.dim = {3, 8, 6}, .stride = {48, 6, 1}});
  const Tensor o = g.tensor({.dim = {4}, .stride = {1}, .data_type = DataType::int32});
  const Tensor bias = g.tensor({.dim = {4, 1, 6}, .stride = {6, 6, 1}});
  Tensor y = g.add(g.moe_grouped_matmul(x, w, o), bias);
  y.set_output(true);
  g.reduction(y, ReductionMode::amax, {}, o).set_dim({4, 1, 1}).set_output(true);
  EXPECT_TRUE(summary_of(g.plans()).starts_with("grouped_matmul+bias+group_all_amax → ")) << summary_of(g.plans());
}

TEST(Summary, PutsWhatComesBeforeTheProductInFront) {
  Graph g({.io_data_type = DataType::bf16});
  const Tensor a = g.tensor({.dim = {4, 8}, .stride = {8, 1}, .data_type = DataType::int8});
  const Tensor b = g.tensor({.dim = {8, 6}, .stride = {6, 1}});
  Tensor cast = g.pointwise(PointwiseMode::identity, {a});
  cast.set_data_type(DataType::bf16);
  g.matmul(cast, b).set_output(true);
  EXPECT_TRUE(summary_of(g.plans()).starts_with("[cast a] matmul → ")) << summary_of(g.plans());
}

TEST(Summary, OfNoPlanSaysWhy) {
  Graph g;
  const Tensor x = g.tensor({.name = "x", .dim = {2}, .stride = {1}});
  g.relu(x).set_output(true);
  EXPECT_EQ(summary_of(g.plans()), "no chain → no plan: chain: [chain.no_matmul] the graph has no matmul");
}

TEST(Describe, TellsChainCostPlansAndChecks) {
  Layer l;
  l.g.add(l.g.matmul(l.a, l.b), l.row).set_name("y").set_output(true);
  const PlanList plans = l.g.plans();
  const std::string all = describe(plans);
  for (const char* words : {"matmul+bias → cpu[", "chain L=2 M=4 N=6 K=8",
                            "bytes 472 read, 192 written; operations 768 of products, 48 elementwise", "  0 cpu[", "declines "})
    EXPECT_NE(all.find(words), std::string::npos) << words << "\n" << all;
  const std::string one = describe(plans.compile());
  EXPECT_NE(one.find("call.overlap"), std::string::npos) << one;
  EXPECT_NE(one.find("workspace "), std::string::npos) << one;
}

TEST(Cost, CountsWhatIsBroadcastOnceAndNothingOfWhatIsEmpty) {
  Graph g({.io_data_type = DataType::fp16});
  const Tensor a = g.tensor({.dim = {3, 4, 8}, .stride = {0, 8, 1}});
  const Tensor b = g.tensor({.dim = {1, 8, 0}, .stride = {0, 1, 8}});
  g.matmul(a, b).set_output(true);
  const PlanList plans = g.plans();
  const chain::Cost cost = chain::cost_of(*plans.chain());
  EXPECT_EQ(cost.bytes_read, 4 * 8 * 2);
  EXPECT_EQ(cost.bytes_written, 0);
  EXPECT_EQ(cost.product_operations, 0);
}

}  // namespace
}  // namespace verglas
