#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "cuda/context.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "support/child.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// Plans of the Hopper engine among devices, threads, processes and captures. Numbers A-xx are those of the field cases.

namespace verglas {
namespace {

using sm90::ParameterBlock;
using support::record_of;

constexpr Device kGpu{DeviceType::cuda, 0};

void* at(std::uintptr_t megabyte) { return reinterpret_cast<void*>(megabyte << 20); }

class Sm90State : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("VERGLAS_CACHE", "off", 1);
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  }

  static PlanList plans(std::int64_t m, std::int64_t n, std::int64_t k, Device device = kGpu, DataType t = DataType::bf16) {
    Graph g({.io_data_type = t});
    const Tensor a = g.tensor({.name = "a", .dim = {m, k}, .stride = {k, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {k, n}, .stride = {1, k}});
    g.matmul(a, b).set_output(true).set_name("d");
    return g.plans({.device = device, .deselect_engines = {"cpu"}});
  }
  static std::vector<TensorView> buffers(std::int64_t m, std::int64_t n, std::int64_t k, std::uintptr_t base = 1,
                                         Device device = kGpu, DataType t = DataType::bf16) {
    return {TensorView::dense(at(base), t, {m, k}, device), TensorView::strided(at(base + 64), t, {k, n}, {1, k}, device),
            TensorView::dense(at(base + 128), t, {m, n}, device)};
  }
  /// A stream of device 0.
  cuda::CUstream stream() {
    const cuda::CurrentContext here(driver.table(), driver.primary_context(0));
    cuda::CUstream s = nullptr;
    EXPECT_EQ(driver.table().cuStreamCreate(&s, 1), cuda::CUDA_SUCCESS);
    return s;
  }
  std::size_t nodes_of(cuda::CUgraph graph) {
    std::size_t n = 0;
    EXPECT_EQ(driver.table().cuGraphGetNodes(graph, nullptr, &n), cuda::CUDA_SUCCESS);
    return n;
  }

  support::RecordingDriver driver{{support::FakeDevice{}, support::FakeDevice{}}};
  support::FakeNvrtc nvrtc;
};

TEST_F(Sm90State, AChildOfForkTouchesNoDriver) {
  const CompiledPlan p = plans(128, 128, 64).compile();
  const auto call = buffers(128, 128, 64);
  ASSERT_TRUE(p.execute(call).ok());
  EXPECT_EQ(support::in_child([&]() -> std::string {
              driver.clear();
              const Status s = p.execute(call);
              if (s.code != ErrorCode::driver_failed || s.driver != cuda::CUDA_ERROR_NOT_INITIALIZED) return "was served";
              const std::string text = p.explain(s, call).what();
              if (text.find("fork") == std::string::npos) return text;
              auto refused = call;
              refused[0].data = nullptr;
              if (p.execute(refused).code != ErrorCode::invalid_call) return "a call that is not legal was not refused";
              return driver.calls().empty() ? "" : "called " + driver.calls().front();
            }),
            "");
  EXPECT_TRUE(p.execute(call).ok());  // the parent goes on
}

// what was warm on another stream, and a shape that comes for the first time, are one node each.
TEST_F(Sm90State, OneCallIsOneNodeOfACapture) {
  const CompiledPlan p = plans(128, 128, 64).compile();
  const cuda::CUstream warm = stream(), captured = stream();
  ASSERT_TRUE(p.execute(buffers(128, 128, 64), {warm}).ok());
  for (const std::int64_t m : {128, 77}) {
    ASSERT_EQ(driver.table().cuStreamBeginCapture(captured, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
    driver.clear();
    ASSERT_TRUE(p.execute(buffers(m, 128, 64), {captured}).ok());
    static const std::set<std::string> kAllowed = {"cuCtxGetCurrent", "cuCtxPushCurrent",          "cuCtxPopCurrent",
                                                   "cuCtxGetDevice",  "cuTensorMapReplaceAddress", "cuTensorMapEncodeTiled",
                                                   "cuLaunchKernelEx"};
    for (const std::string& name : driver.calls()) EXPECT_TRUE(kAllowed.count(name)) << name;
    EXPECT_TRUE(driver.untouched());
    cuda::CUgraph graph = nullptr;
    ASSERT_EQ(driver.table().cuStreamEndCapture(captured, &graph), cuda::CUDA_SUCCESS);
    EXPECT_EQ(nodes_of(graph), 1U);
    cuda::CUgraphExec executable = nullptr;
    ASSERT_EQ(driver.table().cuGraphInstantiateWithFlags(&executable, graph, 0), cuda::CUDA_SUCCESS);
    {
      const cuda::CurrentContext here(driver.table(), driver.primary_context(0));
      for (int i = 0; i < 2; ++i) ASSERT_EQ(driver.table().cuGraphLaunch(executable, warm), cuda::CUDA_SUCCESS);
    }
    ASSERT_EQ(driver.launches().size(), 2U);
    EXPECT_EQ(driver.launches()[1].as<ParameterBlock>().m, m);
    driver.table().cuGraphExecDestroy(executable);
    driver.table().cuGraphDestroy(graph);
  }
  driver.table().cuStreamDestroy(warm);
  driver.table().cuStreamDestroy(captured);
}

//
TEST_F(Sm90State, PlansCanBeMadeAndDroppedWhileAStreamIsCaptured) {
  const CompiledPlan p = plans(128, 128, 64).compile();
  const cuda::CUstream captured = stream();
  ASSERT_EQ(driver.table().cuStreamBeginCapture(captured, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
  ASSERT_TRUE(p.execute(buffers(128, 128, 64), {captured}).ok());
  std::jthread([] { const CompiledPlan dropped = plans(64, 256, 128).compile(); }).join();
  const CompiledPlan q = plans(256, 64, 128, kGpu, DataType::fp16).compile();
  ASSERT_TRUE(q.execute(buffers(256, 64, 128, 500, kGpu, DataType::fp16), {captured}).ok());
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(driver.table().cuStreamEndCapture(captured, &graph), cuda::CUDA_SUCCESS);
  EXPECT_EQ(nodes_of(graph), 2U);
  driver.table().cuGraphDestroy(graph);
  driver.table().cuStreamDestroy(captured);
}

TEST_F(Sm90State, TheProgrammaticKnobSetsTheAttribute) {
  PlanList all = plans(512, 512, 64);
  std::set<std::int64_t> seen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    driver.clear();
    ASSERT_TRUE(all.compile(i).execute(buffers(512, 512, 64)).ok()) << all.name(i);
    ASSERT_EQ(driver.launches().size(), 1U) << all.name(i);
    EXPECT_EQ(driver.launches()[0].programmatic, all.knobs(i).at("PROGRAMMATIC") == 1) << all.name(i);
    EXPECT_EQ(driver.launches()[0].attributes.size(), all.knobs(i).at("PROGRAMMATIC") == 1 ? 1U : 0U);
    seen.insert(all.knobs(i).at("PROGRAMMATIC"));
  }
  EXPECT_EQ(seen.size(), 2U);
}

//
TEST_F(Sm90State, AnotherTypeOrLayoutIsAnotherKernel) {
  std::set<std::string> kernels;
  for (const DataType t : {DataType::bf16, DataType::fp16}) {
    const CompiledPlan p = plans(128, 128, 64, kGpu, t).compile();
    driver.clear();
    auto call = buffers(128, 128, 64, 1, kGpu, t);
    ASSERT_TRUE(p.execute(call).ok());
    call[0].stride[0] = 72;  // the same shape out of a wider one
    ASSERT_TRUE(p.execute(call).ok());
    ASSERT_EQ(driver.launches().size(), 2U);
    EXPECT_EQ(record_of(driver.launches()[0].as<ParameterBlock>().a[0]).strides[0], 128U);
    EXPECT_EQ(record_of(driver.launches()[1].as<ParameterBlock>().a[0]).strides[0], 144U);
    kernels.insert(driver.launches()[0].kernel);
  }
  EXPECT_EQ(kernels.size(), 2U);
}

//
TEST_F(Sm90State, StridesOfUnitAxesMeanNothing) {
  const CompiledPlan p = plans(1, 128, 64).compile();
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{-3}, std::int64_t{5}, std::int64_t{1} << 60}) {
    auto call = buffers(1, 128, 64);
    call[0].stride[0] = call[2].stride[0] = stride;
    driver.clear();
    const Status s = p.execute(call);
    ASSERT_TRUE(s.ok()) << p.explain(s, call).what();
    EXPECT_EQ(driver.launches().size(), 1U);
  }
}

//
TEST_F(Sm90State, NothingStaysOfPlansThatAreDropped) {
  const int live = driver.live().total();
  for (int i = 0; i < 500; ++i) {
    const std::int64_t m = 64 + i, n = 8 * (1 + i % 70), k = 8 * (1 + i % 31);
    PlanList all = plans(m, n, k, kGpu, i % 2 ? DataType::bf16 : DataType::fp16);
    const CompiledPlan p = all.compile(static_cast<std::size_t>(i) % all.size());
    EXPECT_LE(driver.live().libraries, 1);
  }
  EXPECT_EQ(driver.live().total(), live);
}

// threads that each have a device current, or none, and plans of both devices.
TEST_F(Sm90State, TwoDevicesAndManyThreads) {
  const std::array<CompiledPlan, 2> both = {plans(128, 128, 64).compile(), plans(128, 128, 64, {DeviceType::cuda, 1}).compile()};
  driver.clear();
  std::atomic<int> refused{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 6; ++t)
      threads.emplace_back([&, t] {
        const int current = t % 3 - 1;  // none, 0, 1
        std::optional<cuda::CurrentContext> here;
        if (current >= 0) here.emplace(driver.table(), driver.primary_context(current));
        for (int i = 0; i < 40; ++i) {
          const int own = i % 2;
          const auto call = buffers(100 + i % 5, 128, 64, 1000 * (static_cast<std::uintptr_t>(t) + 1),
                                    {DeviceType::cuda, static_cast<std::int16_t>(own)});
          const Status s = both[static_cast<std::size_t>(own)].execute(call);
          const bool legal = current < 0 || current == own;
          EXPECT_EQ(s.ok(), legal);
          if (s.ok()) continue;
          ++refused;
          EXPECT_EQ(both[static_cast<std::size_t>(own)].explain(s, call).rule(), "call.device");
        }
      });
  }
  EXPECT_EQ(refused.load(), 80);
  const auto launches = driver.launches();
  ASSERT_EQ(launches.size(), 160U);
  EXPECT_EQ(std::count_if(launches.begin(), launches.end(), [](const auto& l) { return l.device == 1; }), 80);
  for (const auto& l : launches) {
    const auto block = l.as<ParameterBlock>();
    EXPECT_EQ(record_of(block.b[0]).address - record_of(block.a[0]).address, 64U << 20);
  }
}

// what a call asks of the driver does not grow, and is the address of each map and the launch.
TEST_F(Sm90State, ASteadyCallAsksTheDriverForLittle) {
  const CompiledPlan p = plans(128, 128, 64).compile();
  const cuda::CurrentContext here(driver.table(), driver.primary_context(0));
  std::vector<std::string> first;
  for (int i = 0; i < 100; ++i) {
    driver.clear();
    ASSERT_TRUE(p.execute(buffers(128, 128, 64, static_cast<std::uintptr_t>(i) + 1)).ok());
    if (i == 0) first = driver.calls();
    EXPECT_EQ(driver.calls(), first);
  }
  EXPECT_EQ(std::count(first.begin(), first.end(), "cuLaunchKernelEx"), 1);
  EXPECT_LE(first.size(), 7U);  // context, five maps at most, launch
}

TEST_F(Sm90State, LimitsOf32BitsAreRules) {
  const CompiledPlan p = plans(128, 128, 64).compile();
  const auto rule_of = [&](std::int64_t m, std::int64_t n) {
    auto call = buffers(m, n, 64);
    for (std::size_t i = 0; i < 3; ++i) call[i].data = reinterpret_cast<void*>(std::uintptr_t{1} << 50 << 2 * i);
    driver.clear();
    const Status s = p.execute(call);
    if (s.ok()) return std::string();
    EXPECT_TRUE(driver.untouched());
    return std::string(p.explain(s, call).rule());
  };
  EXPECT_EQ(rule_of(std::int64_t{1} << 31, 8), "call.extent_limit");
  EXPECT_EQ(rule_of((std::int64_t{1} << 31) - 1, 8), "");
  const std::int64_t tile_m = p.knobs().at("TILE_M"), tile_n = p.knobs().at("TILE_N");
  EXPECT_EQ(rule_of(tile_m << 16, tile_n << 15), "call.grid");
  EXPECT_EQ(rule_of(tile_m << 16, (tile_n << 15) - 8 * tile_n), "");
}

}  // namespace
}  // namespace verglas
