#include <gtest/gtest.h>

#include "chain/analyse.hpp"
#include "clean.hpp"
#include "cuda/nvrtc_table.hpp"
#include "support/required.hpp"
#include "support/run_graph.hpp"

// Products whose columns come in runs: on every tile that is offered, without a spill.
namespace verglas {
namespace {

using enum DataType;

struct Case {
  support::RunGraph graph;
  int tiles = 5;  ///< that are offered
};
std::ostream& operator<<(std::ostream& o, const Case& c) { return o << c.graph; }

class Sm90RunKernels : public ::testing::TestWithParam<Case> {};

TEST_P(Sm90RunKernels, CompileCleanOnEveryTile) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  Graph g = support::describe(GetParam().graph);
  g.validate();
  const auto chain = chain::analyse(g.data());
  ASSERT_TRUE(chain.has_value()) << chain.error().text;
  EXPECT_EQ(jit_test::compile_clean(*chain), GetParam().tiles);
}

INSTANTIATE_TEST_SUITE_P(
    Graphs, Sm90RunKernels,
    ::testing::Values(
        Case{}, Case{{.has_bias = true}}, Case{{.in = fp32, .ab = fp32, .c = fp32, .has_bias = true, .amax = true}, 4},
        Case{{.in = fp8_e4m3, .c = fp8_e4m3, .has_bias = true, .block = 32, .is_quantised = true}},
        Case{{.in = fp4_e2m1, .c = fp8_e4m3, .has_bias = true, .amax = true, .block = 16, .is_quantised = true}, 2},
        Case{{.ab = fp32, .c = fp16}}, Case{{.in = fp8_e4m3, .ab = fp8_e4m3, .c = fp32}},
        Case{{.in = fp32, .b_k = false, .out_n = false, .ab = fp32, .c = fp32}},
        Case{{.in = fp16, .a_k = false, .b_k = false, .out_n = false, .amax = true}, 4}, Case{{.rows = 16}, 7},
        Case{{.in = fp8_e4m3, .block = 32}}, Case{{.in = fp8_e4m3, .c = fp8_e4m3, .block = 32, .is_quantised = true}},
        Case{{.in = fp8_e5m2, .out_n = false, .ab = fp16, .c = fp8_e4m3, .amax = true, .block = 32, .is_quantised = true}},
        Case{{.in = fp4_e2m1, .ab = fp32, .c = bf16, .amax = true, .block = 16}, 4},
        Case{{.in = fp4_e2m1, .c = fp8_e4m3, .amax = true, .block = 16, .is_quantised = true}, 3},
        Case{{.in = fp4_e2m1, .ab = fp16, .c = fp16, .block = 32}, 6}));

}  // namespace
}  // namespace verglas
