#include <gtest/gtest.h>

#include <functional>

#include "chain/analyse.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "verglas/verglas.hpp"

// Generated epilogues compile without a spill, a stack frame or a remark of ptxas, on the tile that a large product takes.
namespace verglas {
namespace {

/// bf16 product of n × n matrices whose epilogue `describe` writes.
jit::CompiledKernel compile(const std::function<Tensor(Graph&, Tensor)>& describe, std::int64_t n = 4096) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {n, n}, .stride = {n, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {n, n}, .stride = {1, n}});
  describe(g, g.matmul(a, b)).set_output(true).set_data_type(DataType::bf16);
  g.validate();
  const auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  const auto epilogue = sm90::epilogue_of(*chain);
  EXPECT_TRUE(epilogue.has_value()) << epilogue.error().text;
  const sm90::KernelConfig config = sm90::configuration_of(*chain, sm90::configurations_of(*chain, 132).front());
  return jit::compile(**cuda::nvrtc(), sm90::compile_request(config, epilogue->text));
}

void expect_clean(const jit::CompiledKernel& k) { EXPECT_TRUE(k.report.clean()) << k.kernel << '\n' << k.log; }

Tensor aux(Graph& g, std::vector<std::int64_t> dim, DataType t = DataType::bf16) {
  std::vector<std::int64_t> stride(dim.size(), 1);
  for (std::size_t i = dim.size() - 1; i-- > 0;) stride[i] = stride[i + 1] * dim[i + 1];
  return g.tensor({.name = "aux", .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
}

#define VERGLAS_NEEDS_NVRTC() \
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) GTEST_SKIP() << nvrtc.error().text

TEST(Epilogues, OfBiasAndActivationCompileClean) {
  VERGLAS_NEEDS_NVRTC();
  expect_clean(compile([](Graph& g, Tensor c) { return g.gelu(g.add(c, aux(g, {4096}))); }));
  expect_clean(compile([](Graph& g, Tensor c) { return g.relu(g.add(c, aux(g, {4096}))); }));
}

TEST(Epilogues, OfResidualAndScaleCompileClean) {
  VERGLAS_NEEDS_NVRTC();
  expect_clean(compile([](Graph& g, Tensor c) {
    const Tensor scaled = g.mul(c, aux(g, {4096, 1}, DataType::fp32));
    return g.swish(g.add(g.add(scaled, aux(g, {4096})), aux(g, {4096, 4096})));
  }));
}

TEST(Epilogues, OfEveryModeCompile) {
  VERGLAS_NEEDS_NVRTC();
  // All modes in one chain: it compiles; whether such a monster spills is not the point.
  const jit::CompiledKernel k = compile(
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
  EXPECT_FALSE(k.report.wgmma_serialised()) << k.log;
}

}  // namespace
}  // namespace verglas
