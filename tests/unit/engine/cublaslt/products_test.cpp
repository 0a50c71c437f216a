#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "support/fake_cublaslt.hpp"
#include "support/products.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// What the library is told of each chain: a cuBLASLt in memory multiplies what its descriptors say, and the CPU engine the graph.

namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
using support::describe;
using support::Product;
using Epilogue = support::ProductEpilogue;
using enum DataType;

class CublasLtProducts : public ::testing::Test {
 protected:
  /// The plans of cublaslt, and what each stores, beside what the CPU engine stores.
  void check(const Product& c) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const CompiledPlan reference = describe(c).compile();
    const PlanList plans = describe(c).plans({.device = kGpu, .deselect_engines = {"sm90", "cpu"}});
    ASSERT_EQ(plans.size(), 3U) << plans.unsupported_text();
    const auto want = run(reference);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const CompiledPlan plan = plans.compile(i);
      ASSERT_EQ(plan.engine(), "cublaslt");
      lt.clear();
      const auto got = run(plan);
      EXPECT_EQ(support::difference(plan, got, want, c.is_exact()), "") << plan.name();
      ASSERT_EQ(lt.launches().size(), 1U);
      epilogue = lt.launches()[0].epilogue;
    }
  }

  /// The buffers after one call, at addresses of whole pieces, as the declaration promises.
  static std::vector<std::vector<std::uint8_t>> run(const CompiledPlan& plan) {
    auto memory = support::fill_operands(plan, 7);
    std::vector<std::vector<std::uint8_t>> room;
    std::vector<void*> at;
    std::vector<TensorView> views;
    for (const auto& m : memory) {
      room.emplace_back(m.size() + 16);
      at.push_back(reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(room.back().data()) + 15) / 16 * 16));
      std::memcpy(at.back(), m.data(), m.size());
      views.push_back(TensorView::address(at.back()));
    }
    const Status s = plan.execute(at);
    EXPECT_TRUE(s.ok()) << plan.explain(s, views).what();
    for (std::size_t i = 0; i < at.size(); ++i) std::memcpy(memory[i].data(), at[i], memory[i].size());
    return memory;
  }

  void SetUp() override { lt.multiply(); }
  support::RecordingDriver driver;
  support::FakeCublasLt lt;
  std::uint32_t epilogue = 0;
};

TEST_F(CublasLtProducts, OfAllMajorsAreThoseOfTheCpu) {
  for (const bool a_k : {false, true})
    for (const bool b_k : {false, true})
      for (const bool d_n : {false, true})
        for (const std::int64_t pad : {0, 3}) {
          check({.a_k = a_k, .b_k = b_k, .d_n = d_n, .pad = pad});
          check({.m = 16, .n = 24, .k = 32, .a_k = a_k, .b_k = b_k, .d_n = d_n, .in = int8, .out = int32, .pad = 4 * pad});
        }
}

TEST_F(CublasLtProducts, OfAllTypesAreThoseOfTheCpu) {
  for (const bool d_n : {false, true}) {
    for (const auto& [in, out] : {std::pair{bf16, bf16}, {bf16, fp32}, {fp16, fp16}, {fp16, fp32}, {fp32, fp32}})
      check({.d_n = d_n, .in = in, .out = out});
    check({.d_n = d_n, .in = fp32, .out = fp32, .compute = tf32});
    for (const DataType out : {bf16, fp16, fp32}) check({.m = 16, .n = 32, .k = 32, .d_n = d_n, .in = fp8_e4m3, .out = out});
  }
}

TEST_F(CublasLtProducts, WithEpiloguesAreThoseOfTheCpu) {
  const auto with = [&](const Epilogue& e, DataType out = bf16, std::int64_t l = 1) {
    for (const bool d_n : {false, true}) check({.l = l, .d_n = d_n, .out = out, .e = e, .pad = 1});
    return epilogue;
  };
  EXPECT_EQ(with({}), cuda::CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(with({.factor = true}), cuda::CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(with({.host_factor = true}), cuda::CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(with({.matrix = true}), cuda::CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(with({.bias = true}), cuda::CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(with({.bias = true}, fp32), cuda::CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(with({.activation = PointwiseMode::relu}), cuda::CUBLASLT_EPILOGUE_RELU);
  EXPECT_EQ(with({.bias = true, .activation = PointwiseMode::relu}), cuda::CUBLASLT_EPILOGUE_RELU_BIAS);
  EXPECT_EQ(with({.activation = PointwiseMode::gelu_approx_tanh}), cuda::CUBLASLT_EPILOGUE_GELU);
  EXPECT_EQ(with({.bias = true, .activation = PointwiseMode::gelu_approx_tanh}), cuda::CUBLASLT_EPILOGUE_GELU_BIAS);
  EXPECT_EQ(with({.activation = PointwiseMode::gelu_approx_tanh, .keeps_argument = true}, fp32),
            cuda::CUBLASLT_EPILOGUE_GELU_AUX);
  EXPECT_EQ(with({.bias = true, .activation = PointwiseMode::gelu_approx_tanh, .keeps_argument = true}, fp32, 3),
            cuda::CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  EXPECT_EQ(with({.activation = PointwiseMode::gelu_approx_tanh_bwd}), cuda::CUBLASLT_EPILOGUE_DGELU);
  EXPECT_EQ(with({.factor = true, .matrix = true, .bias = true, .activation = PointwiseMode::relu}, fp32),
            cuda::CUBLASLT_EPILOGUE_RELU_BIAS);
}

TEST_F(CublasLtProducts, InBatchesAreThoseOfTheCpu) {
  for (const bool d_n : {false, true}) {
    check({.l = 3, .d_n = d_n});
    check({.l = 3, .d_n = d_n, .broadcast_a = true});
    check({.l = 3, .d_n = d_n, .broadcast_b = true});
    check({.l = 3, .m = 8, .n = 16, .d_n = d_n, .e = {.matrix = true, .bias = true, .batched_bias = true}});
    check({.l = 3, .d_n = d_n, .e = {.bias = true}});
    check({.l = 2, .d_n = d_n, .out = fp32, .e = {.activation = PointwiseMode::gelu_approx_tanh_bwd}});
  }
}

TEST_F(CublasLtProducts, OfSingleRowsAndColumnsAreThoseOfTheCpu) {
  for (const std::int64_t m : {1, 8})
    for (const std::int64_t n : {1, 8})
      for (const std::int64_t k : {1, 8})
        for (const bool d_n : {false, true}) check({.m = m, .n = n, .k = k, .d_n = d_n});
}

/// Rule and text of the engine's decline, empty where it takes the graph.
std::string said_of(Graph g) {
  const PlanList plans = g.plans({.device = kGpu, .deselect_engines = {"sm90", "cpu"}});
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == "cublaslt") return d.rule + ": " + d.text;
  return {};
}

Graph plain(const std::function<Tensor(Graph&, Tensor)>& epilogue, DataType virtual_type = fp32) {
  Graph g({.intermediate_data_type = virtual_type});
  const Tensor a = g.tensor({.name = "a", .dim = {1, 8, 8}, .stride = {64, 8, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, 8, 8}, .stride = {64, 1, 8}});
  epilogue(g, g.matmul(a, b)).set_output(true).set_name("d");
  return g;
}
Tensor row(Graph& g, DataType t = bf16) {
  return g.tensor({.name = "row", .dim = {1, 1, 8}, .stride = {8, 8, 1}, .data_type = t});
}
Tensor column(Graph& g) { return g.tensor({.name = "column", .dim = {1, 8, 1}, .stride = {8, 1, 1}}); }

TEST_F(CublasLtProducts, DeclineWhatTheLibraryRoundsOrOrdersOtherwise) {
  const auto of = [](const std::function<Tensor(Graph&, Tensor)>& e, DataType t = fp32) { return said_of(plain(e, t)); };
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.add(v, row(g)); }), "");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.add(v, row(g)); }, bf16),
            "cublaslt.chain: node 'add_1': its operand is rounded to bf16 before, which the library does not do");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.add(v, column(g)); }),
            "cublaslt.layout: aux 'column' is not contiguous along the axis along which D is");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.add(v, row(g, fp32)); }), "cublaslt.types: aux 'row' is fp32 and D bf16");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.add(g.relu(v), row(g)); }),
            "cublaslt.chain: node 'add_2': the library adds one row or column, before an activation");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.mul(g.add(v, row(g)), g.scalar(2)); }),
            "cublaslt.chain: node 'mul_2': the library multiplies the bare product only");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.mul(v, row(g, fp32)); }),
            "cublaslt.chain: node 'mul_1': the library multiplies by a constant, or by a number that is passed by value");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.gelu(v); }), "cublaslt.chain: node 'gelu_1': the library has no gelu");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.relu(g.relu(v)); }),
            "cublaslt.chain: node 'relu_2': the library has one activation");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.add(v, v); }), "cublaslt.chain: node 'add_1': the library adds an operand");
  EXPECT_EQ(of([](Graph& g, Tensor v) { return g.pointwise(PointwiseMode::relu, {v}, {.upper_clip = 6.0F}); }),
            "cublaslt.chain: node 'relu_1': the library has relu without clips and slope");
  EXPECT_EQ(of([](Graph& g, Tensor v) {
              g.reduction(v, ReductionMode::add).set_output(true).set_dim({1, 8, 1}).set_data_type(fp32);
              return v;
            }),
            "cublaslt.chain: a reduction");
  EXPECT_EQ(of([](Graph& g, Tensor v) {
              v.set_output(true).set_name("z").set_data_type(bf16);
              return g.pointwise(PointwiseMode::gelu_approx_tanh, {v});
            }),
            "cublaslt.chain: node 'gelu_approx_tanh_1': its operand is rounded to bf16 before, which the library does not do");
}

TEST_F(CublasLtProducts, DeclineLayoutsWithoutAContiguousAxisAndLinesThatOverlap) {
  const auto of = [](std::vector<std::int64_t> a, std::vector<std::int64_t> d, std::int64_t k = 8) {
    Graph g;
    const Tensor x = g.tensor({.name = "a", .dim = {1, 8, k}, .stride = std::move(a)});
    const Tensor y = g.tensor({.name = "b", .dim = {1, k, 8}, .stride = {8 * k, 1, k}});
    g.matmul(x, y).set_output(true).set_name("d").set_stride(std::move(d));
    return said_of(g);
  };
  EXPECT_EQ(of({64, 8, 1}, {64, 8, 1}), "");
  EXPECT_EQ(of({128, 16, 2}, {64, 8, 1}), "cublaslt.layout: a 'a' has no contiguous axis");
  EXPECT_EQ(of({64, 4, 1}, {64, 8, 1}), "cublaslt.layout: a 'a' has lines that overlap");
  EXPECT_EQ(of({64, 8, 1}, {256, 16, 2}), "cublaslt.layout: output 'd' has no contiguous axis");
  EXPECT_EQ(of({8, 1, 1}, {64, 8, 1}, 0), "cublaslt.layout: an extent of 0");
  EXPECT_EQ(said_of(describe({.l = 3, .n = 16, .e = {.bias = true, .batched_bias = true}})), "");
  EXPECT_EQ(said_of(describe({.l = 3, .n = 12, .e = {.bias = true, .batched_bias = true}})),
            "cublaslt.layout: aux 'bias' begins in the middle of 16 bytes in some batch");
}

TEST_F(CublasLtProducts, SumFastWhereTheGraphAllowsIt) {
  for (const bool fast : {false, true}) {
    Graph g({.io_data_type = fp8_e4m3});
    const Tensor a = g.tensor({.name = "a", .dim = {1, 16, 16}, .stride = {256, 16, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {1, 16, 16}, .stride = {256, 1, 16}});
    g.matmul(a, b, {}, 0.0, fast).set_output(true).set_data_type(bf16);
    lt.clear();
    ASSERT_EQ(g.plans({.device = kGpu, .deselect_engines = {"sm90", "cpu"}}).size(), 3U);
    EXPECT_EQ(lt.asked().back().is_fast, fast);
  }
}

TEST_F(CublasLtProducts, DeclineTypesThatTheLibraryDoesNotHave) {
  const auto of = [](DataType in, DataType out) {
    Graph g({.io_data_type = in});
    const Tensor a = g.tensor({.name = "a", .dim = {1, 16, 16}, .stride = {256, 16, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {1, 16, 16}, .stride = {256, 1, 16}});
    g.matmul(a, b).set_output(true).set_data_type(out);
    return said_of(g);
  };
  EXPECT_EQ(of(bf16, fp32), "");
  EXPECT_EQ(of(bf16, fp16), "cublaslt.types: bf16 · bf16 → fp16 in fp32");
  EXPECT_EQ(of(fp32, bf16), "cublaslt.types: fp32 · fp32 → bf16 in fp32");
  EXPECT_EQ(of(fp8_e4m3, fp8_e4m3), "cublaslt.types: fp8_e4m3 · fp8_e4m3 → fp8_e4m3 in fp32");
  EXPECT_EQ(of(fp8_e5m2, bf16), "cublaslt.types: fp8_e5m2 · fp8_e5m2 → bf16 in fp32");
}

}  // namespace
}  // namespace verglas
