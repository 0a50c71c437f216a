#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "cuda/context.hpp"
#include "support/allocations.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// Everything about a call of cuBLASLt but its arithmetic: addresses, streams, workspaces, other extents, failures.

namespace verglas {
namespace {

constexpr std::int64_t kM = 48, kN = 64, kK = 32;
constexpr Device kGpu{DeviceType::cuda, 0};

/// The fakes write down the names of their calls, two of them too long for a string without memory; and what was launched.
constexpr long kOfTheFakes = 40;

void* at(std::uintptr_t megabyte) { return reinterpret_cast<void*>(megabyte << 20); }

class CublasLtCalls : public ::testing::Test {
 protected:
  static Graph graph(bool biased = false, std::int64_t l = 1) {
    Graph g({.name = "plain"});
    const Tensor a = g.tensor({.name = "a", .dim = {l, kM, kK}, .stride = {kM * kK, kK, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {l, kK, kN}, .stride = {kK * kN, 1, kK}});
    Tensor d = g.matmul(a, b);
    if (biased) d = g.add(d, g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}}));
    d.set_output(true).set_name("d");
    return g;
  }
  static PlanList plans(bool biased = false, std::int64_t l = 1, Device device = kGpu) {
    PlanList p = graph(biased, l).plans({.device = device, .deselect_engines = {"cpu", "sm90"}});
    EXPECT_GE(p.size(), 1U) << p.unsupported_text();
    return p;
  }
  static std::vector<TensorView> buffers(std::int64_t m = kM, std::int64_t l = 1, bool biased = false) {
    std::vector<TensorView> v = {TensorView::dense(at(1), DataType::bf16, {l, m, kK}, kGpu),
                                 TensorView::strided(at(65), DataType::bf16, {l, kK, kN}, {kK * kN, 1, kK}, kGpu),
                                 TensorView::dense(at(129), DataType::bf16, {l, m, kN}, kGpu)};
    if (biased) v.insert(v.begin() + 2, TensorView::dense(at(200), DataType::bf16, {kN}, kGpu));
    return v;
  }
  cuda::CUstream stream() {
    const cuda::CurrentContext here(driver.table(), driver.primary_context(0));
    cuda::CUstream s = nullptr;
    EXPECT_EQ(driver.table().cuStreamCreate(&s, 1), cuda::CUDA_SUCCESS);
    return s;
  }

  support::RecordingDriver driver{{support::FakeDevice{}, support::FakeDevice{}}};
  support::FakeCublasLt lt;
};

TEST_F(CublasLtCalls, AreOneCallWithTheBuffersOfTheUser) {
  const CompiledPlan p = plans(true).compile();
  lt.clear();
  p.run(buffers(kM, 1, true));
  ASSERT_EQ(lt.launches().size(), 1U);
  const support::LtCall c = lt.launches()[0];
  EXPECT_EQ(c.x_data, at(65));
  EXPECT_EQ(c.y_data, at(1));
  EXPECT_EQ(c.c_data, at(129));
  EXPECT_EQ(c.d_data, at(129));
  EXPECT_EQ(c.bias, at(200));
  EXPECT_EQ(c.alpha, 1.0);
  EXPECT_EQ(c.beta, 0.0);
  EXPECT_EQ(lt.count("cublasLtMatmulAlgoGetHeuristic"), 0);
  EXPECT_EQ(lt.count("cublasLtMatrixLayoutInit_internal"), 0);
  EXPECT_TRUE(driver.untouched());
}

TEST_F(CublasLtCalls, UseTheAlgorithmOfTheirPlan) {
  lt.offer({{66, 7, 1, 0}, {66, 8, 1, 0}, {66, 8, 1, 0}, {21, 9, 4, 64}});
  const PlanList all = plans();
  ASSERT_EQ(all.size(), 3U);  // two of one configuration are one plan
  EXPECT_EQ(all.name(0),
            "cublaslt[ALGO=66,CLUSTER=0,CUSTOM=0,INNER=0,RANK=0,REDUCTION=0,SPLIT_K=1,STAGES=0,SWIZZLE=0,TILE=7,VERSION=130100]");
  for (std::size_t i = 0; i < 3; ++i) {
    lt.clear();
    all.compile(i).run(buffers());
    EXPECT_EQ(lt.launches()[0].algorithm, 7 + i);
    EXPECT_EQ(lt.launches()[0].workspace_bytes, i == 2 ? 64U : 0U);
  }
}

TEST_F(CublasLtCalls, ArePlansThatAreReplayedByTheSameLibraryOnly) {
  const Knobs knobs = plans().knobs(1);
  PlanList again = graph().plans({.device = kGpu, .deselect_engines = {""}});
  const std::size_t i = again.append(3, knobs);
  EXPECT_EQ(again.knobs(i), knobs);
  Knobs newer = knobs;
  newer["VERSION"] = 130200;
  try {
    again.append(3, newer);
    ADD_FAILURE() << "was replayed";
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "plan.replay");
  }
}

TEST_F(CublasLtCalls, AtOtherExtentsAskOnceAndAllocateNothingAfterwards) {
  const CompiledPlan p = plans(true, 2).compile();
  std::set<std::int64_t> seen;
  for (int round = 0; round < 2; ++round)
    for (const std::int64_t m : {1, 16, 300, 7}) {
      lt.clear();
      const auto call = buffers(m, 3, true);
      p.run(call);
      EXPECT_EQ(lt.count("cublasLtMatmulAlgoGetHeuristic"), round == 0 ? 1 : 0);
      const support::LtCall c = lt.launches().at(0);
      EXPECT_EQ(c.d.cols, static_cast<std::uint64_t>(m));
      EXPECT_EQ(c.d.batches, 3);
      EXPECT_EQ(c.d.batch_stride, m * kN);
      EXPECT_EQ(c.y.batch_stride, m * kK);
    }
  const auto call = buffers(300, 3, true);
  for (int i = 0; i < 100; ++i) p.run(call);
  const long before = support::allocations_of_this_thread();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(p.execute(call).ok());
  EXPECT_LE(support::allocations_of_this_thread() - before, 20 * kOfTheFakes);
}

TEST_F(CublasLtCalls, RefuseExtentsWithoutAnAlgorithmAndEnqueueNothing) {
  const CompiledPlan p = plans().compile();
  lt.refuse([](const support::LtCall& c) { return c.d.cols == 5; });
  lt.clear();
  const auto call = buffers(5);
  const Status s = p.execute(call);
  EXPECT_EQ(s.code, ErrorCode::driver_failed);
  EXPECT_STREQ(p.explain(s, call).what(),
               "driver_failed [cublaslt.call] multiplying on device 0: it has no algorithm for the extents of this call; nothing "
               "was enqueued");
  EXPECT_TRUE(lt.launches().empty());
  p.run(buffers(6));
  EXPECT_EQ(lt.launches().size(), 1U);
}

TEST_F(CublasLtCalls, RefuseWhatTheLibraryWouldNotReadAndAskItNothing) {
  const CompiledPlan p = plans(true).compile();
  lt.clear();
  const auto refuses = [&](auto change, const char* text) {
    auto call = buffers(kM, 1, true);
    change(call);
    const Status s = p.execute(call);
    EXPECT_EQ(s.code, ErrorCode::invalid_call) << text;
    EXPECT_EQ(std::string(p.explain(s, call).what()), text);
    EXPECT_TRUE(lt.launches().empty() && lt.asked().empty()) << text;
  };
  refuses([](auto& c) { c[0].stride[1] = 16; },
          "invalid_call [call.pitch] a 'a': got stride 16 along M from shape (1, 48, 32), wanted at least K = 32");
  refuses([](auto& c) { c[0].data = static_cast<char*>(c[0].data) + 8; },
          "invalid_call [call.alignment] a 'a': got address 0x100008, wanted a multiple of 16 bytes");
  refuses(
      [](auto& c) { c[0].stride[1] = kK + 4; },
      "invalid_call [call.outer_stride] a 'a': got a stride of 36 elements of 2 bytes along M, wanted a multiple of 16 bytes");
  refuses(
      [](auto& c) { c[2].stride[0] = 2; },
      "invalid_call [call.major] aux 'bias': got stride 2 along N from shape (64) with strides (2), wanted stride 1 along it, as "
      "declared");
  refuses([](auto& c) { c[0].extent[2] = c[1].extent[1] = 0; }, "invalid_call [call.inner] call: got K = 0, wanted at least 1");
  auto whole = buffers(kM, 1, true);
  whole[0].stride[1] = kK + 8;
  EXPECT_TRUE(p.execute(whole).ok());
}

TEST_F(CublasLtCalls, OfNoElementsDoNothing) {
  const CompiledPlan p = plans().compile();
  lt.clear();
  p.run(buffers(0));
  EXPECT_TRUE(lt.launches().empty());
}

TEST_F(CublasLtCalls, HaveAWorkspaceForEachStreamAndForEachCapture) {
  lt.offer({{66, 7, 2, 1 << 20}});
  const CompiledPlan first = plans().compile();  // and with it the context
  cuda::CUstream one = stream(), two = stream();
  {
    const CompiledPlan p = plans().compile();
    EXPECT_EQ(p.workspace().bytes, 0);
    lt.clear();
    for (const cuda::CUstream s : {one, two, one, two}) p.run(buffers(), {s});
    auto calls = lt.launches();
    ASSERT_EQ(calls.size(), 4U);
    EXPECT_NE(calls[0].workspace, calls[1].workspace);
    EXPECT_EQ(calls[0].workspace, calls[2].workspace);
    EXPECT_EQ(calls[1].workspace, calls[3].workspace);
    EXPECT_EQ(calls[1].stream, two);
    const auto& d = driver.table();
    ASSERT_EQ(d.cuStreamBeginCapture(one, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
    p.run(buffers(), {one});
    cuda::CUgraph graph = nullptr;
    EXPECT_EQ(d.cuStreamEndCapture(one, &graph), cuda::CUDA_SUCCESS);
    d.cuGraphDestroy(graph);
    EXPECT_NE(lt.launches().back().workspace, calls[0].workspace);
    EXPECT_EQ(driver.live().allocations, 3);
    EXPECT_TRUE(driver.memsets().empty());
  }
  EXPECT_EQ(driver.live().allocations, 0);
  for (const cuda::CUstream s : {one, two}) driver.table().cuStreamDestroy(s);
}

TEST_F(CublasLtCalls, OfManyThreadsShareOneHandle) {
  lt.offer({{66, 7, 2, 1 << 10}});
  const CompiledPlan p = plans(true).compile();
  lt.clear();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (std::int64_t m = 1; m < 40; ++m) p.run(buffers(m + t % 2, 1, true));
      });
  }
  EXPECT_EQ(lt.launches().size(), 8U * 39U);
  EXPECT_EQ(lt.live_handles(), 1);
}

TEST_F(CublasLtCalls, HaveOneHandleForEachDevice) {
  const CompiledPlan one = plans().compile(), two = plans(false, 1, {DeviceType::cuda, 1}).compile();
  EXPECT_EQ(lt.live_handles(), 2);
  EXPECT_EQ(plans().compile().engine(), "cublaslt");
  EXPECT_EQ(lt.live_handles(), 2);
}

TEST_F(CublasLtCalls, RefuseAnotherCurrentDeviceAndBorrowWhereThereIsNone) {
  const CompiledPlan p = plans().compile(), other = plans(false, 1, {DeviceType::cuda, 1}).compile();
  lt.clear();
  EXPECT_EQ(driver.context_depth(), 0);
  p.run(buffers());
  EXPECT_EQ(driver.context_depth(), 0);
  const cuda::CurrentContext here(driver.table(), driver.primary_context(1));
  const Status s = p.execute(buffers());
  EXPECT_EQ(s.code, ErrorCode::invalid_call);
  EXPECT_EQ(lt.launches().size(), 1U);
}

TEST_F(CublasLtCalls, FailWithTheLibrarysWordsAndLeaveNothingBehind) {
  // Every call of the library in turn while plans are made and compiled: an error or a decline, and nothing leaks.
  int failures = 0;
  for (int index = 0;; ++index) {
    lt.fail_call(index, cuda::CUBLAS_STATUS_INTERNAL_ERROR);
    {
      PlanList p = graph(true).plans({.device = kGpu, .deselect_engines = {"cpu", "sm90"}});
      if (p.size() == 0) {
        EXPECT_NE(p.unsupported_text().find("CUBLAS_STATUS_INTERNAL_ERROR"), std::string::npos) << p.unsupported_text();
      } else {
        try {
          p.compile(0).run(buffers(kM, 1, true));
        } catch (const Error& e) {
          EXPECT_EQ(e.rule(), std::string(e.what()).find("plan.replay") != std::string::npos ? "plan.replay" : "cublaslt.call")
              << e.what();
          ++failures;
        }
      }
    }
    EXPECT_EQ(lt.live_preferences(), 0);
    EXPECT_EQ(driver.live().allocations, 0);
    if (lt.failure_pending()) break;
    ASSERT_LT(index, 500);
  }
  lt.clear_failures();
  EXPECT_GT(failures, 3);
}

TEST_F(CublasLtCalls, OfAFailedLaunchAreToldByName) {
  const CompiledPlan p = plans().compile();
  lt.fail_next("cublasLtMatmul", cuda::CUBLAS_STATUS_EXECUTION_FAILED);
  const Status s = p.execute(buffers());
  EXPECT_EQ(s.code, ErrorCode::driver_failed);
  EXPECT_STREQ(
      p.explain(s, buffers()).what(),
      "driver_failed [cublaslt.call] cublasLtMatmul answered CUBLAS_STATUS_EXECUTION_FAILED (13), multiplying on device 0");
  EXPECT_TRUE(p.execute(buffers()).ok());
}

TEST_F(CublasLtCalls, AreDeclinedWithoutTheLibraryAndOnTheHost) {
  const cuda::CublasLtOverride none(nullptr);
  Graph g = graph();
  const PlanList p = g.plans({.device = kGpu, .deselect_engines = {"cpu", "sm90"}});
  EXPECT_EQ(p.size(), 0U);
  EXPECT_NE(p.unsupported_text().find("cublaslt: [cublaslt.missing]"), std::string::npos) << p.unsupported_text();
  const PlanList host = graph().plans();
  EXPECT_NE(host.unsupported_text().find("cublaslt: [engine.device]"), std::string::npos) << host.unsupported_text();
}

}  // namespace
}  // namespace verglas
