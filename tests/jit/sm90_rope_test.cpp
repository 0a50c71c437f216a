#include <gtest/gtest.h>

#include "chain/analyse.hpp"
#include "clean.hpp"
#include "cuda/nvrtc_table.hpp"
#include "support/required.hpp"
#include "support/rope_graph.hpp"

// Rotated and quantised products: on every tile that is offered, without a spill.
namespace verglas {
namespace {

using enum DataType;

struct Case {
  support::RopeGraph graph;
  int tiles = 0;  ///< that are offered
};
std::ostream& operator<<(std::ostream& o, const Case& c) { return o << c.graph; }

class Sm90RopeKernels : public ::testing::TestWithParam<Case> {};

TEST_P(Sm90RopeKernels, CompileCleanOnEveryTile) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  Graph g = support::describe(GetParam().graph);
  g.validate();
  const auto chain = chain::analyse(g.data());
  ASSERT_TRUE(chain.has_value()) << chain.error().text;
  EXPECT_EQ(jit_test::compile_clean(*chain), GetParam().tiles);
}

INSTANTIATE_TEST_SUITE_P(Graphs, Sm90RopeKernels,
                         ::testing::Values(Case{{}, 5}, Case{{.head = 128, .w_out_in = false}, 5}, Case{{.rows_only = true}, 5},
                                           Case{{.in = fp8_e4m3}, 4}));

}  // namespace
}  // namespace verglas
