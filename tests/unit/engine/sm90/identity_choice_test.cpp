#include <gtest/gtest.h>

#include "chain/analyse.hpp"
#include "engine/sm90/code_size.hpp"
#include "engine/sm90/engine.hpp"
#include "verglas/verglas.hpp"

// Operations store a value behind an identity that has the output's type. It takes no instruction, so tiles are what they are
// without it.
namespace verglas {
namespace {

enum class Stored { as_it_is, by_identity, by_identity_that_is_read };

/// The gradient of a squared ReLU, with a sum of its rows.
chain::FusionChain gradient(Stored stored) {
  constexpr std::int64_t m = 8192, n = 16384, k = 2048;
  Graph g({.io_data_type = DataType::bf16, .intermediate_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {1, m, k}, .stride = {m * k, k, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, k, n}, .stride = {n * k, 1, k}});
  const Tensor dy = g.tensor({.name = "dy", .dim = {1, m, n}, .stride = {m * n, n, 1}});
  const Tensor prob = g.tensor({.name = "prob", .dim = {1, m, 1}, .stride = {m, 1, 1}, .data_type = DataType::fp32});
  const Tensor alpha = g.tensor({.dim = {1, 1, 1}, .stride = {1, 1, 1}, .data_type = DataType::fp32, .pass_by_value = true});
  const Tensor r = g.relu(g.mul(g.matmul(a, b), alpha));
  Tensor d = g.mul(g.mul(g.scalar(2.0), r), g.mul(dy, prob));
  if (stored != Stored::as_it_is) d = g.pointwise(PointwiseMode::identity, {d});
  d.set_output(true).set_data_type(DataType::bf16);
  const Tensor summed = stored == Stored::by_identity_that_is_read ? d : g.mul(g.mul(r, r), dy);
  g.reduction(summed, ReductionMode::add).set_dim({1, m, 1}).set_output(true).set_data_type(DataType::fp32);
  g.validate();
  auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return *std::move(chain);
}

TEST(Sm90IdentityChoice, AStoreBehindAnIdentityHasThePlansOfAStore) {
  const std::vector<Knobs> plain = sm90::configurations_of(gradient(Stored::as_it_is), 132);
  ASSERT_FALSE(plain.empty());
  EXPECT_EQ(plain.front().at("TILE_N"), 192);
  EXPECT_EQ(sm90::configurations_of(gradient(Stored::by_identity), 132), plain);
}

TEST(Sm90IdentityChoice, AnIdentityThatIsReadRounds) {
  const chain::FusionChain c = gradient(Stored::by_identity_that_is_read);
  chain::FusionChain unread = c;
  for (chain::Reduction& r : unread.reductions) r.value = c.gemms[0].value;
  const sm90::KernelConfig config = sm90::configuration_of(c, sm90::configurations_of(c, 132).front());
  EXPECT_GT(sm90::instructions_of(c, config), sm90::instructions_of(unread, config));
}

}  // namespace
}  // namespace verglas
