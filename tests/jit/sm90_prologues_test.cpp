#include <gtest/gtest.h>

#include <functional>

#include "chain/analyse.hpp"
#include "clean.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/engine.hpp"
#include "graph_parts.hpp"
#include "support/required.hpp"
#include "verglas/verglas.hpp"

// Matrices that are converted on their way into the product compile clean on every tile that the engine may choose.
namespace verglas {
namespace {

constexpr std::int64_t kN = 4096;

struct Way {
  std::string name;
  DataType stored_a, stored_b, compute;
  bool a_k_major, b_k_major;
  std::function<Tensor(Graph&, Tensor)> on_a, on_b;
  DataType out = DataType::bf16;
};

Tensor typed(Tensor t, DataType type) { return t.set_data_type(type); }
Tensor as_is(Graph&, Tensor t) { return t; }
std::function<Tensor(Graph&, Tensor)> cast(DataType to) {
  return [to](Graph& g, Tensor t) { return typed(g.pointwise(PointwiseMode::identity, {t}), to); };
}
Tensor scaled_relu(Graph& g, Tensor t) {
  const Tensor s = g.tensor({.name = "s", .dim = {1}, .stride = {1}, .data_type = DataType::fp32});
  return typed(g.relu(g.mul(t, s)), DataType::bf16);
}

std::vector<Way> ways() {
  using enum DataType;
  return {
      {"int8_to_bf16_a", int8, bf16, fp32, true, true, cast(bf16), as_is},
      {"int8_to_bf16_b_along_n", bf16, int8, fp32, true, false, as_is, cast(bf16)},
      {"scaled_relu_both", bf16, bf16, fp32, true, true, scaled_relu, scaled_relu},
      {"fp32_to_fp16_both", fp32, fp32, fp32, true, false, cast(fp16), cast(fp16)},
      {"bf16_to_fp8_turned", bf16, fp8_e5m2, fp32, false, true, cast(fp8_e4m3), as_is},
      {"fp8_to_bf16", fp8_e4m3, fp8_e5m2, fp32, true, true, cast(bf16), cast(bf16)},
      {"fp32_abs_in_tf32", fp32, fp32, tf32, true, true,
       [](Graph& g, Tensor t) { return typed(g.pointwise(PointwiseMode::abs, {t}), fp32); }, as_is, fp32},
      {"int8_relu_in_int32", int8, int8, int32, true, true,
       [](Graph& g, Tensor t) { return typed(g.pointwise(PointwiseMode::relu, {t}, {}, {.compute_data_type = int32}), int8); },
       as_is, int32}};
}

class Prologues : public ::testing::TestWithParam<Way> {};

enum class Wanted { all, held, wide };
/// A kernel for each tile, at least three, and none spills; or for each that decodes A to registers, or has two consumers.
void expect_clean_on_every_tile(Graph& g, Wanted which = Wanted::all) {
  g.validate();
  const auto chain = chain::analyse(g.data());
  ASSERT_TRUE(chain.has_value()) << chain.error().text;
  const auto claimed = sm90::claim_chain(*chain);
  ASSERT_TRUE(claimed.has_value()) << claimed.error().text;
  const auto wanted = [which](const Knobs& knobs) {
    return which == Wanted::held ? knobs.at("A_IN_REGISTERS") != 0 : which == Wanted::all || knobs.at("CONSUMERS") == 2;
  };
  EXPECT_GE(jit_test::compile_clean(*chain, wanted), which == Wanted::all ? 3 : which == Wanted::wide ? 2 : 1);
}

TEST_P(Prologues, CompileCleanOnEveryTile) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  const Way& w = GetParam();
  Graph g;
  const auto matrix = [&](const char* name, DataType type, bool rows) {
    return g.tensor({.name = name, .dim = {kN, kN}, .stride = {rows ? kN : 1, rows ? 1 : kN}, .data_type = type});
  };
  const Tensor a = w.on_a(g, matrix("a", w.stored_a, w.a_k_major)), b = w.on_b(g, matrix("b", w.stored_b, !w.b_k_major));
  g.matmul(a, b, {.compute_data_type = w.compute}).set_output(true).set_data_type(w.out);
  expect_clean_on_every_tile(g);
}

struct Scaled {
  DataType a, b;  ///< fp8 and fp4 with scales of blocks
  std::int64_t block = 32;
};

/// One product or two, at their rows.
void compile_clean(const Scaled& x, bool interleaved, int products, std::int64_t rows,
                   const std::function<Tensor(Graph&, Tensor)>& then = {}, DataType out = DataType::bf16) {
  Graph g;
  const auto matrix = [&](const char* name, bool is_a) {
    const DataType type = is_a ? x.a : x.b;
    const std::int64_t blocks = kN / x.block, lines = is_a ? rows : kN;
    const Tensor t = g.tensor({.name = name,
                               .dim = {is_a ? lines : kN, is_a ? kN : lines},
                               .stride = {is_a ? kN : 1, is_a ? 1 : kN},
                               .data_type = type});
    if (type == DataType::bf16) return t;
    const Tensor s = g.tensor({.name = "s",
                               .dim = {is_a ? (lines + 127) / 128 * 128 : blocks, is_a ? blocks : lines},
                               .stride = {is_a ? blocks : 1, is_a ? 1 : blocks},
                               .data_type = x.block == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0,
                               .reordering = interleaved ? TensorReordering::f8_128x4 : TensorReordering::none});
    return g.block_scale_dequantize(t, s, is_a ? std::vector{std::int64_t{1}, x.block} : std::vector{x.block, std::int64_t{1}});
  };
  const Tensor a = matrix("a", true);
  Tensor d = g.matmul(a, matrix("b", false));
  if (products == 2) d = g.mul(g.swish(d), g.matmul(a, matrix("b2", false)));
  (then ? then(g, d) : d).set_output(true).set_data_type(out);
  expect_clean_on_every_tile(g, !then ? Wanted::all : x.b == DataType::fp4_e2m1 ? Wanted::held : Wanted::wide);
}

TEST(Scales, CompileCleanOnEveryTile) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  using enum DataType;
  for (const bool interleaved : {true, false}) {
    for (const int products : {1, 2}) compile_clean({fp8_e4m3, fp8_e4m3}, interleaved, products, kN);
    compile_clean({bf16, fp4_e2m1, 16}, interleaved, 1, kN);
  }
  for (const int products : {1, 2}) compile_clean({fp4_e2m1, fp4_e2m1, 16}, true, products, kN);
  compile_clean({fp4_e2m1, bf16}, true, 1, kN);
  for (const std::int64_t rows : {16, 32, 64, 128}) compile_clean({bf16, fp4_e2m1, 16}, true, 1, rows);
  compile_clean({bf16, fp8_e4m3}, true, 2, 16);
  compile_clean({bf16, fp8_e5m2}, true, 1, kN);
  compile_clean({fp8_e4m3, fp4_e2m1}, true, 1, kN);
}

TEST(Scales, CompileCleanBehindAProductOfFp4) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  using enum DataType;
  const auto scaled_bias_gelu = [](Graph& g, Tensor d) {
    const Tensor alpha = g.tensor({.name = "alpha", .dim = {1, 1}, .stride = {1, 1}, .data_type = fp32});
    const Tensor bias = g.tensor({.name = "bias", .dim = {1, kN}, .stride = {kN, 1}, .data_type = bf16});
    return g.pointwise(PointwiseMode::gelu_approx_tanh, {g.add(g.mul(d, alpha), bias)});
  };
  const auto residual_twice = [](Graph& g, Tensor d) {
    const Tensor sum = g.add(d, g.tensor({.name = "r", .dim = {kN, kN}, .stride = {kN, 1}, .data_type = bf16}));
    g.relu(sum).set_output(true).set_data_type(bf16);
    return sum;
  };
  const auto amax = [](Graph& g, Tensor d) {
    g.reduction(d, ReductionMode::amax).set_dim({1, 1}).set_stride({1, 1}).set_output(true).set_data_type(fp32);
    return d;
  };
  compile_clean({fp4_e2m1, fp4_e2m1, 16}, true, 1, kN, scaled_bias_gelu);
  compile_clean({fp4_e2m1, fp4_e2m1, 16}, true, 1, kN, residual_twice);
  compile_clean({fp4_e2m1, fp4_e2m1, 16}, true, 1, kN, as_is, fp32);
  compile_clean({bf16, fp4_e2m1, 16}, true, 1, 16, scaled_bias_gelu);
  compile_clean({bf16, fp4_e2m1, 16}, true, 1, 32, amax);
  compile_clean({bf16, fp4_e2m1, 16}, true, 1, 64, amax);
  compile_clean({bf16, fp4_e2m1, 16}, true, 1, 64, scaled_bias_gelu);
  compile_clean({bf16, fp4_e2m1, 32}, true, 1, 64, as_is, fp32);
}

// Sums with scales, and an A that consumers decode, leave a drain few registers; what it forms of the thread's number must not be
// kept beside products, or the tiles with reductions are those of one consumer, at 0.7 of the rate.
TEST(Scales, CompileCleanBehindReductions) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  using enum DataType;
  const auto row_sum = [](Graph& g, Tensor d) {
    jit_test::reduce(g, d, ReductionMode::add, {kN, 1});
    return d;
  };
  const auto column_sum = [](Graph& g, Tensor d) {
    jit_test::reduce(g, d, ReductionMode::add, {1, kN});
    return d;
  };
  const auto norm_of_bias_gelu = [](Graph& g, Tensor d) {
    d = g.pointwise(PointwiseMode::gelu_approx_tanh, {g.add(d, jit_test::aux(g, {1, kN}))});
    jit_test::reduce(g, d, ReductionMode::norm2, {kN, 1});
    return d;
  };
  // That of squared ReLU, with its largest magnitude.
  const auto gradient = [](Graph& g, Tensor d) {
    const Tensor r = g.relu(d), dy = jit_test::aux(g, {kN, kN});
    const Tensor x = g.mul(g.mul(g.scalar(2.0), r), g.mul(dy, jit_test::aux(g, {kN, 1}, fp32)));
    jit_test::reduce(g, g.mul(g.mul(r, r), dy), ReductionMode::add, {kN, 1});
    jit_test::reduce(g, x, ReductionMode::amax, {1, 1});
    return x;
  };
  for (const auto& then : std::vector<std::function<Tensor(Graph&, Tensor)>>{row_sum, column_sum, norm_of_bias_gelu, gradient}) {
    compile_clean({fp8_e4m3, fp8_e4m3}, true, 1, kN, then);
    compile_clean({fp4_e2m1, fp4_e2m1, 16}, true, 1, kN, then);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Prologues, ::testing::ValuesIn(ways()), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace verglas
