#include <functional>

#include "refusal.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// Rules of the engine cublaslt, and the checks of a call that only it makes; each refusing, and its nearest legal neighbour.

namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

struct Shape {
  std::int64_t k = 8;
  DataType out = DataType::bf16;
  std::int64_t a_row = 8, a_column = 1;
};

Graph product(const Shape& s = {}, const std::function<Tensor(Graph&, Tensor)>& epilogue = {}) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, 8, s.k}, .stride = {64, s.a_row, s.a_column}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, s.k, 8}, .stride = {8 * s.k, 1, s.k}});
  Tensor d = g.matmul(a, b);
  if (epilogue) d = epilogue(g, d);
  d.set_output(true).set_name("d").set_data_type(s.out);
  return g;
}

/// What the engine says that declines, empty where it takes the graph.
std::string decline_of(Graph g) {
  const PlanList plans = g.plans({.device = kGpu, .deselect_engines = {"sm90", "cpu"}});
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == "cublaslt") return "[" + d.rule + "] " + d.text;
  return plans.size() > 0 ? "" : plans.unsupported_text();
}

struct Fakes {
  support::RecordingDriver driver;
  support::FakeCublasLt lt;
};

REFUSES(cublaslt_chain) {
  const Fakes fakes;
  EXPECT_EQ(decline_of(product({}, [](Graph& g, Tensor v) { return g.swish(v); })),
            "[cublaslt.chain] node 'swish_1': the library has no swish");
  EXPECT_EQ(decline_of(product({}, [](Graph& g, Tensor v) { return g.relu(v); })), "");
  Graph g;
  const Tensor t = g.tensor({.name = "t", .dim = {1, 8, 8}, .stride = {64, 8, 1}});
  const Tensor o = g.tensor({.name = "o", .dim = {2}, .stride = {1}, .data_type = DataType::int32});
  g.moe_grouped_matmul(t, t, o).set_output(true);
  EXPECT_EQ(decline_of(std::move(g)), "[cublaslt.chain] a grouped product");
}

REFUSES(cublaslt_types) {
  const Fakes fakes;
  EXPECT_EQ(decline_of(product({.out = DataType::fp16})), "[cublaslt.types] bf16 · bf16 → fp16 in fp32");
  EXPECT_EQ(decline_of(product({.out = DataType::fp32})), "");
}

REFUSES(cublaslt_layout) {
  const Fakes fakes;
  EXPECT_EQ(decline_of(product({.a_row = 16, .a_column = 2})), "[cublaslt.layout] a 'a' has no contiguous axis");
  EXPECT_EQ(decline_of(product({.a_row = 16, .a_column = 1})), "");
}

REFUSES(cublaslt_algorithm) {
  Fakes fakes;
  fakes.lt.refuse([](const support::LtCall& c) { return c.x.rows == 16; });
  EXPECT_EQ(decline_of(product({.k = 16, .a_row = 16})), "[cublaslt.algorithm] cuBLASLt 13.1.0 has none");
  EXPECT_EQ(decline_of(product()), "");
}

REFUSES(cublaslt_call) {
  Fakes fakes;
  const CompiledPlan plan = product().compile({.device = kGpu, .deselect_engines = {"sm90", "cpu"}});
  const std::vector<TensorView> call = {TensorView::address(reinterpret_cast<void*>(4096)),
                                        TensorView::address(reinterpret_cast<void*>(8192)),
                                        TensorView::address(reinterpret_cast<void*>(16384))};
  fakes.lt.fail_next("cublasLtMatmul", cuda::CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(refusal::said([&] { plan.run(call); }),
            "driver_failed [cublaslt.call] cublasLtMatmul answered CUBLAS_STATUS_INTERNAL_ERROR (14), multiplying on device 0");
  EXPECT_EQ(refusal::said([&] { plan.run(call); }), "");
}

/// A call of the plan of `product()` with these extents and this stride of the rows of a.
std::string call_of(std::int64_t k, std::int64_t a_row) {
  const Fakes fakes;
  const CompiledPlan plan = product().compile({.device = kGpu, .deselect_engines = {"sm90", "cpu"}});
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
  return refusal::said([&] {
    plan.run({{TensorView::strided(at(4096), DataType::bf16, {1, 8, k}, {64, a_row, 1}, kGpu),
               TensorView::strided(at(8192), DataType::bf16, {1, k, 8}, {64, 1, 8}, kGpu),
               TensorView::dense(at(16384), DataType::bf16, {1, 8, 8}, kGpu)}});
  });
}

REFUSES(call_pitch) {
  EXPECT_EQ(call_of(8, 0), "invalid_call [call.pitch] a 'a': got stride 0 along M from shape (1, 8, 8), wanted at least K = 8");
  EXPECT_EQ(call_of(8, 8), "");
}

REFUSES(call_inner) {
  EXPECT_EQ(call_of(0, 8), "invalid_call [call.inner] call: got K = 0, wanted at least 1");
  EXPECT_EQ(call_of(1, 8), "");
}

}  // namespace
}  // namespace verglas
