#include <gtest/gtest.h>

#include <functional>

#include "chain/analyse.hpp"
#include "clean.hpp"
#include "cuda/nvrtc_table.hpp"
#include "support/required.hpp"
#include "verglas/verglas.hpp"

// Quantised outputs behind products that need more registers than those of bf16: sums that are promoted or have scales, matrices
// that are decoded.
namespace verglas {
namespace {

using enum DataType;
constexpr std::int64_t kN = 4096;

/// What the matrices are stored in.
struct Operand {
  const char* name;
  DataType type;
  std::int64_t block = 0;
  DataType scale = not_set;
};
struct Outputs {
  const char* name;
  std::function<void(Graph&, Tensor)> describe;
};

void quantise(Graph& g, Tensor c, std::int64_t block, DataType data, DataType scale, bool along_m = false) {
  auto [y, s] = g.block_scale_quantize(c, block, {}, {}, along_m);
  y.set_data_type(data).set_output(true);
  s.set_data_type(scale).set_output(true).set_reordering_type(TensorReordering::f8_128x4);
}

const std::array kOperands = {Operand{"fp8", fp8_e4m3}, Operand{"mxfp8", fp8_e4m3, 32, fp8_e8m0},
                              Operand{"nvfp4", fp4_e2m1, 16, fp8_e4m3}};
const std::array kOutputs = {Outputs{"rows", [](Graph& g, Tensor c) { quantise(g, c, 32, fp8_e4m3, fp8_e8m0); }},
                             Outputs{"columns", [](Graph& g, Tensor c) { quantise(g, c, 32, fp8_e4m3, fp8_e8m0, true); }},
                             Outputs{"fp4_columns", [](Graph& g, Tensor c) { quantise(g, c, 16, fp4_e2m1, fp8_e4m3, true); }},
                             Outputs{"rows_beside_bytes",
                                     [](Graph& g, Tensor c) {
                                       g.pointwise(PointwiseMode::identity, {c}).set_output(true).set_data_type(fp8_e4m3);
                                       quantise(g, c, 32, fp8_e4m3, fp8_e8m0);
                                     }},
                             Outputs{"both_ways_behind_a_bias",
                                     [](Graph& g, Tensor c) {
                                       const Tensor bias =
                                           g.tensor({.name = "bias", .dim = {1, kN}, .stride = {kN, 1}, .data_type = bf16});
                                       const Tensor x = g.relu(g.add(c, bias)).set_data_type(fp32);
                                       for (const bool along_m : {false, true}) quantise(g, x, 32, fp8_e4m3, fp8_e8m0, along_m);
                                     }},
                             Outputs{"fp4_beside_dense_and_amax", [](Graph& g, Tensor c) {
                                       g.pointwise(PointwiseMode::identity, {c}).set_output(true).set_data_type(bf16);
                                       g.reduction(c, ReductionMode::amax).set_dim({1, 1}).set_output(true).set_data_type(fp32);
                                       quantise(g, c, 16, fp4_e2m1, fp8_e4m3);
                                     }}};

chain::FusionChain chain_of(const Operand& of, const Outputs& outputs) {
  Graph g;
  const auto matrix = [&](bool is_a) {
    const std::vector<std::int64_t> stride = is_a ? std::vector{kN, std::int64_t{1}} : std::vector{std::int64_t{1}, kN};
    const Tensor x = g.tensor({.name = is_a ? "a" : "b", .dim = {kN, kN}, .stride = stride, .data_type = of.type});
    if (of.block == 0) return x;
    const std::int64_t blocks = kN / of.block;
    const Tensor s = g.tensor({.name = is_a ? "sa" : "sb",
                               .dim = {is_a ? kN : blocks, is_a ? blocks : kN},
                               .stride = {is_a ? blocks : 1, is_a ? 1 : blocks},
                               .data_type = of.scale,
                               .reordering = TensorReordering::f8_128x4});
    return g.block_scale_dequantize(x, s, is_a ? std::vector<std::int64_t>{1, of.block} : std::vector<std::int64_t>{of.block, 1});
  };
  outputs.describe(g, g.matmul(matrix(true), matrix(false)).set_data_type(fp32));
  g.validate();
  auto chain = chain::analyse(g.data());
  EXPECT_TRUE(chain.has_value());
  return *std::move(chain);
}

class Quantised : public ::testing::TestWithParam<std::tuple<Operand, Outputs>> {};

TEST_P(Quantised, CompileCleanOnEveryTile) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  const chain::FusionChain chain = chain_of(std::get<0>(GetParam()), std::get<1>(GetParam()));
  EXPECT_GE(jit_test::compile_clean(chain), 2);
}

INSTANTIATE_TEST_SUITE_P(Jit, Quantised, ::testing::Combine(::testing::ValuesIn(kOperands), ::testing::ValuesIn(kOutputs)),
                         [](const auto& i) { return std::string(std::get<0>(i.param).name) + "_" + std::get<1>(i.param).name; });

}  // namespace
}  // namespace verglas
