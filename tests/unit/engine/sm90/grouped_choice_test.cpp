#include <gtest/gtest.h>

#include "chain/analyse.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "verglas/verglas.hpp"

// What is chosen for grouped products of an H200's extents, by the description alone.
namespace verglas {
namespace {

struct Shape {
  std::int64_t groups, rows, k, n;
};

sm90::KernelConfig first_choice(const Shape& s) {
  Graph g;
  const Tensor x = g.tensor({.name = "x", .dim = {1, s.rows, s.k}, .stride = {s.rows * s.k, s.k, 1}});
  const Tensor w = g.tensor({.name = "w", .dim = {s.groups, s.k, s.n}, .stride = {s.k * s.n, 1, s.k}});
  const Tensor o = g.tensor({.name = "o", .dim = {s.groups}, .stride = {1}, .data_type = DataType::int32});
  g.moe_grouped_matmul(x, w, o).set_output(true).set_data_type(DataType::bf16);
  g.validate();
  const auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return sm90::configuration_of(*chain, sm90::configurations_of(*chain, 132).front());
}

/// 128 by 256 reads least for what it multiplies, and power is the limit there: 407 µs where 128 by 128 takes 429.
TEST(Sm90GroupedChoice, LargeGroupsTakeTheTileThatReadsLeast) {
  const sm90::KernelConfig c = first_choice({8, 8192, 4096, 4096});
  EXPECT_EQ(c.block_m, 128);
  EXPECT_EQ(c.block_n, 256);
}

/// Where each has a handful of rows half of the rows of wider tiles would be nobody's.
TEST(Sm90GroupedChoice, AHandfulOfRowsTakesSmallTiles) { EXPECT_EQ(first_choice({256, 1024, 2048, 1408}).block_m, 64); }

/// Of little depth: 512 adapters take 71 µs, and 118 by 128 by 192 whose tiles each warp finds for itself.
TEST(Sm90GroupedChoice, FewRowsOfLittleDepthAreFoundAhead) {
  const sm90::KernelConfig c = first_choice({512, 8192, 16, 4096});
  EXPECT_EQ(c.block_m, 64);
  EXPECT_EQ(c.block_n, 256);
  EXPECT_EQ(c.schedule, sm90::Schedule::pingpong);
  EXPECT_EQ(c.listed, 256);
  EXPECT_EQ(first_choice({512, 8192, 512, 4096}).listed, 0);
}

}  // namespace
}  // namespace verglas
