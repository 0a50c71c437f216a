#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <thread>

#include "support/gpu.hpp"
#include "support/products.hpp"
#include "verglas/verglas.hpp"

// cuBLASLt on a real device beside the CPU engine: small integers bit for bit, every algorithm that is offered.
namespace verglas {
namespace {

using support::DeviceBuffer;
using support::Product;
using enum DataType;

constexpr Device kGpu{DeviceType::cuda, 0};

using Buffers = std::vector<std::vector<std::uint8_t>>;

class CublasLt : public support::GpuTest {
 protected:
  static PlanList plans_of(const Product& p) { return describe(p).plans({.device = kGpu, .deselect_engines = {"sm90", "cpu"}}); }
  static Buffers on_the_host(const CompiledPlan& reference) {
    Buffers memory = support::fill_operands(reference, 7);
    std::vector<void*> at;
    for (auto& m : memory) at.push_back(m.data());
    EXPECT_TRUE(reference.execute(at).ok());
    return memory;
  }

  /// The buffers after one call, in memory of the device between guards.
  Buffers on_the_device(const CompiledPlan& plan, Stream stream = {}, std::size_t misalign = 0) {
    Buffers memory = support::fill_operands(plan, 7);
    std::list<DeviceBuffer> device;
    std::vector<void*> at;
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (plan.operands()[i].is_host_scalar) {
        at.push_back(memory[i].data());
      } else {
        const bool is_bias = plan.operands()[i].name == "bias";
        device.emplace_back(*driver_, memory[i].size(), 0xEE, is_bias ? 0 : misalign).upload(memory[i].data());
        at.push_back(device.back().data());
      }
      views.push_back(TensorView::address(at.back()));
    }
    const Status s = plan.execute(at, stream);
    EXPECT_TRUE(s.ok()) << plan.explain(s, views).what();
    EXPECT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
    auto d = device.begin();
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (plan.operands()[i].is_host_scalar) continue;
      memory[i] = d->download();
      EXPECT_EQ(d->touched_guard_bytes(), 0);
      ++d;
    }
    return memory;
  }

  void check(const Product& p, std::size_t misalign = 0) {
    SCOPED_TRACE(::testing::PrintToString(p));
    const PlanList plans = plans_of(p);
    ASSERT_GE(plans.size(), 1U) << plans.unsupported_text();
    const Buffers want = on_the_host(describe(p).compile());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const CompiledPlan plan = plans.compile(i);
      ASSERT_EQ(plan.engine(), "cublaslt");
      const Buffers got = on_the_device(plan, {}, misalign);
      EXPECT_EQ(support::difference(plan, got, want, p.is_exact()), "") << plan.name();
    }
  }
};

TEST_F(CublasLt, IsExactInAllMajors) {
  for (const bool a_k : {false, true})
    for (const bool b_k : {false, true})
      for (const bool d_n : {false, true})
        for (const std::int64_t pad : {0, 8}) {
          check({.m = 72, .n = 136, .k = 200, .a_k = a_k, .b_k = b_k, .d_n = d_n, .pad = pad});
          check({.m = 72, .n = 136, .k = 208, .a_k = a_k, .b_k = b_k, .d_n = d_n, .in = int8, .out = int32, .pad = 2 * pad});
        }
}

TEST_F(CublasLt, IsExactInAllTypes) {
  for (const bool d_n : {false, true}) {
    for (const auto& [in, out] : {std::pair{bf16, bf16}, {bf16, fp32}, {fp16, fp16}, {fp16, fp32}, {fp32, fp32}})
      check({.m = 130, .n = 66, .k = 514, .d_n = d_n, .in = in, .out = out});
    check({.m = 130, .n = 66, .k = 514, .d_n = d_n, .in = fp32, .out = fp32, .compute = tf32});
    for (const DataType out : {bf16, fp16, fp32}) {
      check({.m = 48, .n = 64, .k = 256, .d_n = d_n, .in = fp8_e4m3, .out = out});
    }
  }
}

TEST_F(CublasLt, IsExactAtRaggedExtents) {
  for (const std::int64_t m : {1, 2, 7, 65, 129})
    for (const std::int64_t n : {1, 3, 31, 130})
      for (const std::int64_t k : {1, 5, 33, 257}) {
        check({.m = m, .n = n, .k = k});
        // One line is declared as one of whole pieces, and such a declaration asks for aligned addresses.
        check({.m = m, .n = n, .k = k, .in = fp16, .out = fp32}, std::min({m, n, k}) > 1 && n != 130 ? 4 : 0);
      }
  check({.m = 33, .n = 65, .k = 127}, 2);
}

TEST_F(CublasLt, HasTheEpiloguesOfTheContract) {
  for (const bool d_n : {false, true})
    for (const std::int64_t l : {1, 3})
      for (const DataType out : {bf16, fp32}) {
        const auto with = [&](const support::ProductEpilogue& e) {
          check({.l = l, .m = 72, .n = 136, .k = 64, .d_n = d_n, .out = out, .e = e, .pad = 8});
        };
        with({.factor = true});
        with({.host_factor = true});
        with({.matrix = true});
        with({.bias = true});
        with({.bias = true, .batched_bias = true});
        with({.activation = PointwiseMode::relu});
        with({.bias = true, .activation = PointwiseMode::relu});
        with({.activation = PointwiseMode::gelu_approx_tanh});
        with({.bias = true, .activation = PointwiseMode::gelu_approx_tanh});
        with({.activation = PointwiseMode::gelu_approx_tanh_bwd});
        with({.factor = true, .matrix = true, .bias = true, .activation = PointwiseMode::relu});
        if (out != fp32) continue;
        with({.activation = PointwiseMode::gelu_approx_tanh, .keeps_argument = true});
        with({.bias = true, .activation = PointwiseMode::gelu_approx_tanh, .keeps_argument = true});
      }
  check({.m = 67, .n = 33, .k = 65, .e = {.bias = true, .activation = PointwiseMode::relu}}, 2);
}

TEST_F(CublasLt, BroadcastsBatches) {
  check({.l = 3, .m = 72, .n = 40, .k = 64, .broadcast_a = true});
  check({.l = 3, .m = 72, .n = 40, .k = 64, .broadcast_b = true});
}

/// One plan of 200 × 136 × 64 at other extents; the padded rows keep their alignment.
TEST_F(CublasLt, ServesOtherExtentsThanTheDeclaredOnes) {
  const Product declared{.l = 2, .m = 200, .n = 136, .k = 64, .e = {.bias = true}};
  const CompiledPlan plan = plans_of(declared).compile();
  for (const std::int64_t l : {2, 3})
    for (const std::int64_t m : {1, 16, 17, 130, 300, 1000}) {
      const Product live{.l = l, .m = m, .n = 136, .k = 64, .e = {.bias = true}};
      SCOPED_TRACE(::testing::PrintToString(live));
      const CompiledPlan reference = describe(live).compile();
      const Buffers want = on_the_host(reference);
      Buffers memory = support::fill_operands(reference, 7);
      std::list<DeviceBuffer> device;
      std::vector<TensorView> views;
      for (std::size_t i = 0; i < memory.size(); ++i) {
        const OperandInfo& o = reference.operands()[i];
        device.emplace_back(*driver_, memory[i].size(), 0xEE).upload(memory[i].data());
        TensorView v;
        v.data = device.back().data();
        v.dtype = o.dtype;
        v.device = kGpu;
        v.rank = static_cast<std::int8_t>(o.dim.size());
        std::copy(o.dim.begin(), o.dim.end(), v.extent.begin());
        std::copy(o.stride.begin(), o.stride.end(), v.stride.begin());
        views.push_back(v);
      }
      for (int round = 0; round < 2; ++round) plan.run(views);
      ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
      auto d = device.begin();
      for (auto& m_bytes : memory) m_bytes = (d++)->download();
      EXPECT_EQ(support::difference(reference, memory, want, true), "");
    }
}

/// The first launch of its kernel at all, into a graph that is replayed, while another stream works.
TEST_F(CublasLt, IsCapturedAsTheFirstCallAndReplayed) {
  const Product p{.m = 328, .n = 264, .k = 488, .in = fp16, .out = fp16, .e = {.bias = true, .activation = PointwiseMode::relu}};
  const Buffers want = on_the_host(describe(p).compile());
  for (std::size_t i = 0; i < plans_of(p).size(); ++i) {
    const CompiledPlan plan = plans_of(p).compile(i);
    cuda::CUstream stream = nullptr;
    ASSERT_EQ(driver_->cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
    Buffers memory = support::fill_operands(plan, 7);
    std::list<DeviceBuffer> device;
    std::vector<void*> at;
    for (auto& m : memory) {
      device.emplace_back(*driver_, m.size(), 0xEE).upload(m.data());
      at.push_back(device.back().data());
    }
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec executable = nullptr;
    ASSERT_EQ(driver_->cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
    EXPECT_TRUE(plan.execute(at, {stream}).ok());
    ASSERT_EQ(driver_->cuStreamEndCapture(stream, &graph), cuda::CUDA_SUCCESS);
    ASSERT_EQ(driver_->cuGraphInstantiateWithFlags(&executable, graph, 0), cuda::CUDA_SUCCESS);
    for (int replay = 0; replay < 3; ++replay) {
      device.back().fill(0xEE);
      ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
      ASSERT_EQ(driver_->cuGraphLaunch(executable, stream), cuda::CUDA_SUCCESS);
      on_the_device(plan);
      auto d = device.begin();
      for (auto& m : memory) m = (d++)->download();
      EXPECT_EQ(support::difference(plan, memory, want, true), "") << plan.name();
    }
    driver_->cuGraphExecDestroy(executable);
    driver_->cuGraphDestroy(graph);
    driver_->cuStreamDestroy(stream);
  }
}

TEST_F(CublasLt, RunsOnManyStreamsAndThreadsAtOnce) {
  const Product p{.m = 16, .n = 4096, .k = 2048, .e = {.bias = true}};  // K is split, through a workspace
  const Buffers want = on_the_host(describe(p).compile());
  const CompiledPlan plan = plans_of(p).compile();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      const cuda::CurrentContext here(*driver_, primary_->handle());
      cuda::CUstream stream = nullptr;
      ASSERT_EQ(driver_->cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
      for (int round = 0; round < 10; ++round)
        EXPECT_EQ(support::difference(plan, on_the_device(plan, {stream}), want, true), "");
      driver_->cuStreamDestroy(stream);
    });
}

}  // namespace
}  // namespace verglas
