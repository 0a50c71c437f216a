#include <gtest/gtest.h>

#include "chain/analyse.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "verglas/verglas.hpp"

// Which tile an operand of D's size and a sum of rows get, by how deep the products are.
namespace verglas {
namespace {

sm90::KernelConfig first_choice(std::int64_t m, std::int64_t n, std::int64_t k) {
  Graph g({.io_data_type = DataType::bf16});
  const auto fp32 = [](Tensor t) { return t.set_data_type(DataType::fp32); };
  const Tensor a = g.tensor({.name = "a", .dim = {m, k}, .stride = {k, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {k, n}, .stride = {1, k}});
  const Tensor c = g.tensor({.name = "c", .dim = {m, n}, .stride = {n, 1}});
  const Tensor prob = g.tensor({.name = "prob", .dim = {m, 1}, .stride = {1, 1}, .data_type = DataType::fp32});
  const Tensor r = fp32(g.relu(fp32(g.matmul(a, b))));
  g.mul(fp32(g.mul(g.scalar(2.0), r)), fp32(g.mul(c, prob))).set_output(true);
  fp32(g.reduction(fp32(g.mul(fp32(g.mul(r, r)), c)), ReductionMode::add)).set_dim({m, 1}).set_output(true);
  g.validate();
  const auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return sm90::configuration_of(*chain, sm90::configurations_of(*chain, 132).front());
}

TEST(Sm90GradientChoice, TakesTurnsBehindShallowProducts) {
  for (const std::int64_t k : {512, 1024}) {
    const sm90::KernelConfig c = first_choice(16384, 4096, k);
    EXPECT_EQ(c.schedule, sm90::Schedule::pingpong) << sm90::name_of(c);
    EXPECT_EQ(c.block_n, 192) << sm90::name_of(c);
    EXPECT_EQ(sm90::units_at_once(c), 4);
  }
  EXPECT_EQ(first_choice(4096, 4096, 4096).schedule, sm90::Schedule::cooperative);
}

}  // namespace
}  // namespace verglas
