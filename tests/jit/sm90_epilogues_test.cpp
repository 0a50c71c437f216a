#include <gtest/gtest.h>

#include <functional>

#include "chain/analyse.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "support/required.hpp"
#include "verglas/verglas.hpp"

// Generated epilogues compile without a spill, a stack frame or a remark of ptxas, on every tile that the engine may choose.
namespace verglas {
namespace {

using Describe = std::function<Tensor(Graph&, Tensor)>;

/// bf16 product of n × n matrices whose epilogue `describe` writes.
chain::FusionChain chain_of(const Describe& describe, std::int64_t n = 4096) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {n, n}, .stride = {n, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {n, n}, .stride = {1, n}});
  describe(g, g.matmul(a, b)).set_output(true).set_data_type(DataType::bf16);
  g.validate();
  auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return *std::move(chain);
}

jit::CompiledKernel compile(const chain::FusionChain& chain, const Knobs& knobs) {
  const auto epilogue = sm90::epilogue_of(chain);
  EXPECT_TRUE(epilogue.has_value()) << epilogue.error().text;
  return jit::compile(**cuda::nvrtc(), sm90::compile_request(sm90::configuration_of(chain, knobs), epilogue->text));
}

Tensor aux(Graph& g, std::vector<std::int64_t> dim, DataType t = DataType::bf16) {
  std::vector<std::int64_t> stride(dim.size(), 1);
  for (std::size_t i = dim.size() - 1; i-- > 0;) stride[i] = stride[i + 1] * dim[i + 1];
  return g.tensor({.name = "aux", .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
}

struct NamedChain {
  std::string name;
  Describe describe;
};
std::vector<NamedChain> chains() {
  return {
      {"bias_relu", [](Graph& g, Tensor c) { return g.relu(g.add(c, aux(g, {4096}))); }},
      {"gelu", [](Graph& g, Tensor c) { return g.gelu(c); }},
      {"bias_gelu", [](Graph& g, Tensor c) { return g.gelu(g.add(c, aux(g, {4096}))); }},
      {"residual", [](Graph& g, Tensor c) { return g.add(c, aux(g, {4096, 4096})); }},
      {"scale_bias_residual_swish",
       [](Graph& g, Tensor c) {
         const Tensor scaled = g.mul(c, aux(g, {4096, 1}, DataType::fp32));
         return g.swish(g.add(g.add(scaled, aux(g, {4096})), aux(g, {4096, 4096})));
       }},
  };
}

class Epilogues : public ::testing::TestWithParam<NamedChain> {};

TEST_P(Epilogues, CompileCleanOnEveryTile) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  const chain::FusionChain chain = chain_of(GetParam().describe);
  int tiles = 0;
  for (const Knobs& knobs : sm90::configurations_of(chain, 132)) {
    if (knobs.at("PROGRAMMATIC") != 0) continue;
    const jit::CompiledKernel k = compile(chain, knobs);
    EXPECT_TRUE(k.report.clean()) << k.kernel << '\n' << k.log;
    std::printf("%-56s %4d registers %7.0f ms\n", k.kernel.c_str(), k.report.registers, k.compile_ms);
    ++tiles;
  }
  EXPECT_EQ(tiles, 6);
}

INSTANTIATE_TEST_SUITE_P(Chains, Epilogues, ::testing::ValuesIn(chains()), [](const auto& i) { return i.param.name; });

TEST(EpilogueModes, CompileAllInOneChain) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  // All modes in one chain: it compiles; whether such a monster spills is not the point.
  const chain::FusionChain chain = chain_of(
      [](Graph& g, Tensor c) {
        Tensor v = c;
        for (int m = 0; m < kPointwiseModeCount; ++m) {
          const auto mode = static_cast<PointwiseMode>(m);
          std::vector<Tensor> in = {v};
          if (arity_of(mode) > 1) in.push_back(c);
          if (arity_of(mode) > 2) in.push_back(v);
          v = g.pointwise(mode, in, {.negative_slope = 0.1F, .axis = 1});
        }
        return v;
      },
      64);
  const jit::CompiledKernel k = compile(chain, sm90::configurations_of(chain, 132).front());
  EXPECT_FALSE(k.report.wgmma_serialised()) << k.log;
}

}  // namespace
}  // namespace verglas
