#include <gtest/gtest.h>

#include <functional>

#include "chain/analyse.hpp"
#include "clean.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "graph_parts.hpp"
#include "support/required.hpp"
#include "verglas/verglas.hpp"

// Generated epilogues compile without a spill, a stack frame or a remark of ptxas, on every tile that the engine may choose, and
// within so many instructions as a second of compiling makes.
namespace verglas {
namespace {

using jit_test::aux;
using jit_test::reduce;
using Describe = std::function<void(Graph&, Tensor a, Tensor c)>;

constexpr std::int64_t kN = 4096;

/// c = a · b, bf16 n × n matrices; `describe` writes the rest.
chain::FusionChain chain_of(const Describe& describe, std::int64_t n = kN) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {n, n}, .stride = {n, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {n, n}, .stride = {1, n}});
  describe(g, a, g.matmul(a, b));
  g.validate();
  auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return *std::move(chain);
}

jit::CompiledKernel compile(const chain::FusionChain& chain, const Knobs& knobs) {
  const auto epilogue = sm90::epilogue_of(sm90::seen_chain(chain, knobs));
  EXPECT_TRUE(epilogue.has_value()) << epilogue.error().text;
  return jit::compile(**cuda::nvrtc(), sm90::compile_request(sm90::configuration_of(chain, knobs), epilogue->text));
}

void quantise(Graph& g, Tensor c, std::int64_t block, DataType data, DataType scale, bool along_m = false) {
  auto [y, s] = g.block_scale_quantize(c, block, {}, {}, along_m);
  y.set_data_type(data).set_output(true);
  s.set_data_type(scale).set_output(true).set_reordering_type(TensorReordering::f8_128x4);
}
/// Another product beside the first, which gates it.
void gated(Graph& g, Tensor a, Tensor first) {
  const Tensor b = g.tensor({.name = "b2", .dim = {kN, kN}, .stride = {1, kN}});
  Tensor y = g.mul(g.swish(first), g.matmul(a, b)).set_output(true);
  reduce(g, y, ReductionMode::amax, {1, 1});
}

struct NamedChain {
  std::string name;
  int tiles;  ///< that are offered
  Describe describe;
};
std::vector<NamedChain> chains() {
  return {
      {"gelu", 4, [](Graph& g, Tensor, Tensor c) { g.gelu(c).set_output(true); }},
      {"gelu_tanh", 6, [](Graph& g, Tensor, Tensor c) { g.pointwise(PointwiseMode::gelu_approx_tanh, {c}).set_output(true); }},
      {"softplus", 4, [](Graph& g, Tensor, Tensor c) { g.pointwise(PointwiseMode::softplus, {c}).set_output(true); }},
      {"bias_relu", 6, [](Graph& g, Tensor, Tensor c) { g.relu(g.add(c, aux(g, {kN}))).set_output(true); }},
      {"scale_bias_residual_swish", 6,
       [](Graph& g, Tensor, Tensor c) {
         const Tensor scaled = g.mul(c, aux(g, {kN, 1}, DataType::fp32));
         g.swish(g.add(g.add(scaled, aux(g, {kN})), aux(g, {kN, kN}))).set_output(true);
       }},
      {"residual_and_second_output", 4,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.add(c, aux(g, {kN, kN}));
         h.set_output(true);
         g.gelu(h).set_output(true);
       }},
      {"residual_and_relu", 6,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.add(c, aux(g, {kN, kN})).set_output(true);
         g.relu(h).set_output(true);
       }},
      {"bias_and_second_output", 6,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.add(c, aux(g, {kN})).set_output(true);
         g.pointwise(PointwiseMode::gelu_approx_tanh, {h}).set_output(true);
       }},
      {"two_outputs_along_m", 6,
       [](Graph& g, Tensor, Tensor c) {
         const Tensor residual = g.tensor({.name = "residual", .dim = {kN, kN}, .stride = {1, kN}});
         Tensor h = g.add(c, residual).set_output(true).set_stride({1, kN});
         g.relu(h).set_output(true).set_stride({1, kN});
       }},
      {"fp32_and_a_residual", 6,
       [](Graph& g, Tensor, Tensor c) {
         g.add(c, aux(g, {kN, kN}, DataType::fp32)).set_output(true).set_data_type(DataType::fp32);
       }},
      {"fp32_and_a_bf16_copy", 6,
       [](Graph& g, Tensor, Tensor c) {
         c.set_output(true).set_data_type(DataType::fp32);
         g.relu(c).set_output(true);
       }},
      {"fp32_and_a_bf16_copy_along_m", 4,
       [](Graph& g, Tensor, Tensor c) {
         c.set_output(true).set_data_type(DataType::fp32).set_stride({1, kN});
         g.relu(c).set_output(true).set_stride({1, kN});
       }},
      {"bf16_and_an_fp32_copy", 4,
       [](Graph& g, Tensor, Tensor c) {
         c.set_output(true);
         g.relu(c).set_output(true).set_data_type(DataType::fp32);
       }},
      {"bf16_and_an_fp8_copy", 5,
       [](Graph& g, Tensor, Tensor c) {
         c.set_output(true);
         g.relu(c).set_output(true).set_data_type(DataType::fp8_e4m3);
       }},
      {"operands_read_by_threads", 4,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.mul(g.add(c, aux(g, {kN, kN})), aux(g, {kN, kN}));
         g.relu(h).set_output(true);
       }},
      {"three_reductions", 4,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.relu(g.add(c, aux(g, {kN})));
         h.set_output(true);
         reduce(g, h, ReductionMode::amax, {1, 1});
         reduce(g, h, ReductionMode::norm2, {kN, 1});
         reduce(g, h, ReductionMode::avg, {1, kN});
       }},
      {"row_amax", 6,
       [](Graph& g, Tensor, Tensor c) {
         c.set_output(true);
         reduce(g, c, ReductionMode::amax, {kN, 1});
       }},
      {"column_sum", 6,
       [](Graph& g, Tensor, Tensor c) {
         c.set_output(true);
         reduce(g, c, ReductionMode::add, {1, kN});
       }},
      {"bias_relu_mean_of_columns", 5,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.relu(g.add(c, aux(g, {kN}))).set_output(true);
         reduce(g, h, ReductionMode::avg, {1, kN});
       }},
      {"norm2", 6,
       [](Graph& g, Tensor, Tensor c) {
         c.set_output(true);
         reduce(g, c, ReductionMode::norm2, {1, 1});
       }},
      {"gradient_of_squared_relu", 6,
       [](Graph& g, Tensor, Tensor c) {
         const auto fp32 = [](Tensor t) { return t.set_data_type(DataType::fp32); };
         const Tensor of_output = aux(g, {kN, kN}), r = fp32(g.relu(fp32(g.mul(c, aux(g, {1, 1}, DataType::fp32)))));
         const Tensor weighted = fp32(g.mul(of_output, aux(g, {kN, 1}, DataType::fp32)));
         g.mul(fp32(g.mul(g.scalar(2.0), r)), weighted).set_output(true);
         reduce(g, fp32(g.mul(fp32(g.mul(r, r)), of_output)), ReductionMode::add, {kN, 1});
       }},
      {"quantised_rows", 4,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.relu(g.add(c, aux(g, {kN})));
         quantise(g, h, 32, DataType::fp8_e4m3, DataType::fp8_e8m0);
       }},
      {"quantised_to_fp4", 4,
       [](Graph& g, Tensor, Tensor c) { quantise(g, g.relu(c), 16, DataType::fp4_e2m1, DataType::fp8_e4m3); }},
      {"pairs_of_fp4", 4,
       [](Graph& g, Tensor, Tensor c) {
         g.pointwise(PointwiseMode::identity, {c}).set_data_type(DataType::fp4_e2m1).set_output(true);
         reduce(g, c, ReductionMode::amax, {1, 1});
       }},
      {"quantised_beside_dense", 4,
       [](Graph& g, Tensor, Tensor c) {
         Tensor h = g.relu(c).set_output(true);
         quantise(g, h, 32, DataType::fp8_e5m2, DataType::fp8_e8m0);
         reduce(g, h, ReductionMode::amax, {1, 1});
       }},
      {"quantised_columns", 4,
       [](Graph& g, Tensor, Tensor c) { quantise(g, c, 32, DataType::fp8_e4m3, DataType::fp8_e8m0, true); }},
      {"quantised_columns_to_fp4", 4,
       [](Graph& g, Tensor, Tensor c) { quantise(g, c, 16, DataType::fp4_e2m1, DataType::fp8_e4m3, true); }},
      {"quantised_both_ways", 4,
       [](Graph& g, Tensor, Tensor c) {
         for (const bool along_m : {false, true}) quantise(g, c, 32, DataType::fp8_e4m3, DataType::fp8_e8m0, along_m);
       }},
      {"reductions_alone", 4,
       [](Graph& g, Tensor, Tensor c) {
         reduce(g, c, ReductionMode::amax, {kN, 1});
         reduce(g, g.relu(c), ReductionMode::add, {1, kN});
       }},
      {"swiglu_amax", 5, [](Graph& g, Tensor a, Tensor c) { gated(g, a, c); }},
      {"two_products_amax", 5, [](Graph& g, Tensor, Tensor c) { gated(g, aux(g, {kN, kN}), c); }},
  };
}

class Epilogues : public ::testing::TestWithParam<NamedChain> {};

TEST_P(Epilogues, CompileCleanOnEveryTile) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  const chain::FusionChain chain = chain_of(GetParam().describe);
  EXPECT_EQ(jit_test::compile_clean(chain), GetParam().tiles);
}

INSTANTIATE_TEST_SUITE_P(Chains, Epilogues, ::testing::ValuesIn(chains()), [](const auto& i) { return i.param.name; });

// Rows and columns exchanged, K split over a cluster, one wave of narrow tiles: what the first plans for few rows do.
TEST(EpiloguesOfFewRows, CompileClean) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  for (const std::int64_t rows : {16, 32, 128, 256}) {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {rows, kN}, .stride = {kN, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {kN, kN}, .stride = {1, kN}});
    Tensor h = g.swish(g.add(g.add(g.matmul(a, b), aux(g, {kN})), aux(g, {rows, kN})));
    h.set_output(true);
    reduce(g, h, ReductionMode::amax, {1, 1});
    reduce(g, h, ReductionMode::norm2, {rows, 1});
    reduce(g, h, ReductionMode::avg, {1, kN});
    g.validate();
    const auto chain = chain::analyse(g.data());
    ASSERT_TRUE(chain.has_value());
    const auto of_few_rows = [](const Knobs& knobs) {
      const bool narrow = knobs.at("TILE_M") == 128 && knobs.at("TILE_N") == 64;
      return knobs.at("EXCHANGED") != 0 || knobs.at("SPLIT") != 1 || narrow;
    };
    EXPECT_EQ(jit_test::compile_clean(*chain, of_few_rows), rows >= 128 ? 1 : 4);
  }
}

// Tiles of 32 columns, half of what a chunk has.
TEST(EpiloguesOfFewColumns, CompileClean) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  for (const DataType scale : {DataType::not_set, DataType::fp8_e4m3, DataType::fp8_e8m0}) {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {131, 72}, .stride = {72, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {72, 32}, .stride = {1, 72}});
    const Tensor c = g.matmul(a, b);
    if (scale == DataType::not_set) g.pointwise(PointwiseMode::identity, {c}).set_data_type(DataType::fp4_e2m1).set_output(true);
    if (scale == DataType::fp8_e4m3) quantise(g, c, 16, DataType::fp4_e2m1, scale);
    if (scale == DataType::fp8_e8m0) quantise(g, c, 32, DataType::fp8_e5m2, scale);
    g.validate();
    const auto chain = chain::analyse(g.data());
    ASSERT_TRUE(chain.has_value());
    EXPECT_EQ(jit_test::compile_clean(*chain, [](const Knobs& knobs) { return knobs.at("TILE_N") == 32; }), 2);
  }
}

TEST(EpilogueModes, CompileAllInOneChain) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  // All modes in one chain: it compiles; whether such a monster spills is not the point.
  const chain::FusionChain chain = chain_of(
      [](Graph& g, Tensor, Tensor c) {
        Tensor v = c;
        for (int m = 0; m < kPointwiseModeCount; ++m) {
          const auto mode = static_cast<PointwiseMode>(m);
          std::vector<Tensor> in = {v};
          if (arity_of(mode) > 1) in.push_back(c);
          if (arity_of(mode) > 2) in.push_back(v);
          v = g.pointwise(mode, in, {.negative_slope = 0.1F, .axis = 1});
        }
        v.set_output(true).set_data_type(DataType::bf16);
      },
      64);
  const jit::CompiledKernel k = compile(
      chain,
      {{"TILE_M", 64}, {"TILE_N", 64}, {"CONSUMERS", 1}, {"PINGPONG", 0}, {"PROGRAMMATIC", 0}, {"SPLIT", 1}, {"EXCHANGED", 0}});
  EXPECT_FALSE(k.report.wgmma_serialised()) << k.log;
}

}  // namespace
}  // namespace verglas
