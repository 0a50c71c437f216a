#include <gtest/gtest.h>

#include "chain/analyse.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/code_size.hpp"
#include "engine/sm90/engine.hpp"
#include "jit/cubin.hpp"
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
  int tiles = 0;
  for (const Knobs& knobs : sm90::configurations_of(*chain, 132)) {
    if (knobs.at("PROGRAMMATIC") != 0) continue;
    const auto config = sm90::configuration_of(*chain, knobs);
    const jit::CompiledKernel k =
        jit::compile(**cuda::nvrtc(), sm90::compile_request(config, sm90::epilogue_of(*chain, knobs).text));
    EXPECT_TRUE(k.report.clean()) << k.kernel << '\n' << k.log;
    const int instructions = jit::read_cubin(k.cubin, k.kernel)->instructions;
    EXPECT_LE(instructions, sm90::kMostInstructions) << k.kernel;
    std::printf("%-72s %4d registers %5d instructions (%5d counted)\n", k.kernel.c_str(), k.report.registers, instructions,
                sm90::instructions_of(*chain, config));
    ++tiles;
  }
  EXPECT_EQ(tiles, GetParam().tiles);
}

INSTANTIATE_TEST_SUITE_P(Graphs, Sm90RopeKernels,
                         ::testing::Values(Case{{}, 4}, Case{{.head = 128, .w_out_in = false}, 4}, Case{{.rows_only = true}, 4},
                                           Case{{.in = fp8_e4m3}, 4}));

}  // namespace
}  // namespace verglas
