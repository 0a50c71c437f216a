#include <gtest/gtest.h>

#include <algorithm>

#include "chain/analyse.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "verglas/verglas.hpp"

// How many warpgroups load operands that the copy engine cannot read.
namespace verglas {
namespace {

/// The most of any plan of a product in fp16 where A has rows of `pitch_a` elements along K, and B of `pitch_b` along K or N.
int most_producers(std::int64_t pitch_a, std::int64_t pitch_b, bool b_along_k) {
  constexpr std::int64_t m = 33, n = 500, k = 131;
  Graph g({.io_data_type = DataType::fp16});
  const Tensor a = g.tensor({.name = "a", .dim = {2, m, k}, .stride = {m * pitch_a, pitch_a, 1}});
  const Tensor b = b_along_k ? g.tensor({.name = "b", .dim = {2, k, n}, .stride = {n * pitch_b, 1, pitch_b}})
                             : g.tensor({.name = "b", .dim = {2, k, n}, .stride = {k * pitch_b, pitch_b, 1}});
  g.matmul(a, b).set_output(true);
  g.validate();
  const auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  int most = 0;
  for (const Knobs& knobs : sm90::configurations_of(*chain, 132)) {
    const sm90::KernelConfig c = sm90::configuration_of(*chain, knobs);
    EXPECT_EQ(sm90::fault_of(c), std::nullopt);
    EXPECT_TRUE(c.producers == 1 || sm90::shifts_all(c)) << sm90::name_of(c);
    most = std::max(most, c.producers);
  }
  return most;
}

TEST(Sm90LoadingChoice, WarpgroupsTakeTurnsWhereTheyShiftEverythingThatTheyLoad) {
  for (const bool b_along_k : {true, false}) {
    const std::int64_t odd = b_along_k ? 133 : 503, even = b_along_k ? 134 : 502, whole = b_along_k ? 136 : 504;
    EXPECT_GT(most_producers(133, odd, b_along_k), 1);
    EXPECT_GT(most_producers(133, whole, b_along_k), 1);
    EXPECT_GT(most_producers(136, odd, b_along_k), 1);
    EXPECT_EQ(most_producers(133, even, b_along_k), 1) << "B in pieces of four bytes";
    EXPECT_EQ(most_producers(134, odd, b_along_k), 1) << "A in pieces of four bytes";
    EXPECT_EQ(most_producers(136, whole, b_along_k), 1);
  }
}

}  // namespace
}  // namespace verglas
