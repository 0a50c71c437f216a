#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/context.hpp"
#include "unit/engine/sm90/launch.hpp"

// Calls that reduce: scratch memory of streams and captures, and what the kernel is told of it. A driver in memory.

namespace verglas {
namespace {

/// c = a · b, stored, with its row sums, column maxima and largest magnitude; and a copy of twice c, transposed.
Graph reducing() {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  Tensor c = g.matmul(a, b).set_output(true);
  const auto reduce = [&](ReductionMode mode, std::vector<std::int64_t> dim) {
    g.reduction(c, mode).set_dim(std::move(dim)).set_output(true).set_data_type(DataType::fp32);
  };
  reduce(ReductionMode::add, {1, kM, 1});
  reduce(ReductionMode::max, {1, 1, kN});
  reduce(ReductionMode::amax, {1, 1, 1});
  return g;
}
std::vector<TensorView> reducing_call(std::int64_t m = kM, std::int64_t n = kN) {
  return {TensorView::dense(at(64), DataType::bf16, {1, m, kK}, kGpu),
          TensorView::strided(at(128), DataType::bf16, {1, kK, n}, {kK * n, 1, kK}, kGpu),
          TensorView::dense(at(192), DataType::bf16, {1, m, n}, kGpu),
          TensorView::dense(at(256), DataType::fp32, {1, m, 1}, kGpu),
          TensorView::dense(at(320), DataType::fp32, {1, 1, n}, kGpu),
          TensorView::dense(at(384), DataType::fp32, {1, 1, 1}, kGpu)};
}
/// One reduction as the kernel reads it.
struct ReductionArgument {
  std::uint64_t partials, counters, out;
  std::int64_t batch_stride, row_stride, col_stride;
  float count, unused;
};
std::array<ReductionArgument, 3> reductions_of(const support::Launch& launch) {
  std::array<ReductionArgument, 3> got{};
  std::memcpy(&got, launch.parameters.data() + sm90::kEpilogueOffset, sizeof got);
  return got;
}

class Sm90Reductions : public Sm90Launch {
 protected:
  void SetUp() override {
    Sm90Launch::SetUp();
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)) + 192);
    plan_.emplace(reducing().compile({.device = kGpu, .deselect_engines = {"cpu"}}));
    ASSERT_EQ(plan_->engine(), "sm90");
    driver.clear();
  }
  std::array<ReductionArgument, 3> run(const std::vector<TensorView>& call, Stream stream = {}) {
    driver.clear();
    const Status s = plan_->execute(call, stream);
    EXPECT_TRUE(s.ok()) << plan_->explain(s, call, stream).what();
    EXPECT_EQ(driver.launches().size(), 1U);
    return reductions_of(driver.launches().at(0));
  }
  std::optional<CompiledPlan> plan_;
};

TEST_F(Sm90Reductions, AreOneKernelAndNoMemsetOnceAStreamIsKnown) {
  const auto first = run(reducing_call());
  const auto again = run(reducing_call());
  EXPECT_TRUE(driver.memsets().empty());
  EXPECT_TRUE(driver.copies().empty());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again[i].partials, first[i].partials);
    EXPECT_EQ(again[i].counters, first[i].counters);
    EXPECT_EQ(again[i].out, reinterpret_cast<std::uint64_t>(at(64 * (4 + i))));
  }
  EXPECT_EQ(first[0].row_stride, 1);
  EXPECT_EQ(first[0].col_stride, 0);
  EXPECT_EQ(first[1].col_stride, 1);
  EXPECT_EQ(first[0].count, static_cast<float>(kN));
  EXPECT_EQ(first[1].count, static_cast<float>(kM));
  EXPECT_EQ(first[2].count, static_cast<float>(kM * kN));
}

TEST_F(Sm90Reductions, KeepAPieceOfMemoryForEachStreamAndEachCapture) {
  cuda::CUstream stream = nullptr;
  const cuda::CurrentContext here(driver.table(), driver.primary_context(0));
  ASSERT_EQ(driver.table().cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
  const auto on_default = run(reducing_call()), on_other = run(reducing_call(), {stream});
  EXPECT_NE(on_default[0].partials, on_other[0].partials);
  EXPECT_NE(on_default[0].counters, on_other[0].counters);
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(driver.table().cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
  const Status s = plan_->execute(reducing_call(), {stream});
  EXPECT_TRUE(s.ok()) << plan_->explain(s, reducing_call()).what();
  EXPECT_EQ(driver.table().cuStreamEndCapture(stream, &graph), cuda::CUDA_SUCCESS) << "nothing spoilt the capture";
  cuda::CUgraphExec executable = nullptr;
  ASSERT_EQ(driver.table().cuGraphInstantiateWithFlags(&executable, graph, 0), cuda::CUDA_SUCCESS);
  driver.clear();
  ASSERT_EQ(driver.table().cuGraphLaunch(executable, stream), cuda::CUDA_SUCCESS);
  ASSERT_EQ(driver.launches().size(), 1U) << "the kernel alone was recorded";
  EXPECT_TRUE(driver.memsets().empty());
  const auto captured = reductions_of(driver.launches()[0]);
  EXPECT_NE(captured[0].counters, on_other[0].counters) << "a replay may run beside the stream";
  EXPECT_EQ(run(reducing_call(), {stream})[0].counters, on_other[0].counters);
}

TEST_F(Sm90Reductions, AskNothingAboutTheLegacyStream) {
  run(reducing_call());
  EXPECT_EQ(driver.count("cuStreamGetCaptureInfo") + driver.count("cuStreamGetId"), 0);
  const auto by_null = run(reducing_call()), by_name = run(reducing_call(), {reinterpret_cast<void*>(1)});
  EXPECT_EQ(by_null[0].partials, by_name[0].partials) << "null and the driver's own name are one stream";
  EXPECT_EQ(driver.count("cuStreamGetCaptureInfo") + driver.count("cuStreamGetId"), 0);
}

TEST_F(Sm90Reductions, GrowWithTheCallAndDoNotShrink) {
  const auto small = run(reducing_call());
  const auto large = run(reducing_call(4 * kM, 4 * kN));
  EXPECT_NE(small[0].partials, large[0].partials);
  EXPECT_EQ(run(reducing_call())[0].partials, large[0].partials);
  EXPECT_TRUE(driver.memsets().empty());
}

TEST_F(Sm90Reductions, AreWrittenForAnEmptyOutputToo) {
  std::vector<TensorView> call = reducing_call(0);
  call[0].data = call[2].data = call[3].data = nullptr;
  const auto got = run(call);
  ParameterBlock block;
  std::memcpy(&block, driver.launches()[0].parameters.data(), sizeof block);
  EXPECT_EQ(block.tiles, 0U);
  EXPECT_EQ(block.n, kN);
  EXPECT_EQ(driver.launches()[0].grid, (support::Dim3{1, 1, 1}));
  EXPECT_EQ(got[1].out, reinterpret_cast<std::uint64_t>(at(320)));
}

TEST_F(Sm90Reductions, GiveTheirMemoryBackWithThePlan) {
  const std::size_t live = driver.live().total();
  {
    const CompiledPlan other = reducing().compile({.device = kGpu, .deselect_engines = {"cpu"}});
    EXPECT_TRUE(other.execute(reducing_call()).ok());
    EXPECT_GT(driver.live().total(), live);
  }
  EXPECT_EQ(driver.live().total(), live);
}

TEST_F(Sm90Reductions, FailCleanlyWhereMemoryCannotBeHad) {
  for (const char* call : {"cuMemAlloc", "cuStreamCreate", "cuMemsetD8Async", "cuStreamSynchronize"}) {
    const CompiledPlan p = reducing().compile({.device = kGpu, .deselect_engines = {"cpu"}});
    driver.clear();
    driver.fail_next(call, cuda::CUDA_ERROR_OUT_OF_MEMORY);
    const Status s = p.execute(reducing_call());
    driver.clear_failures();
    EXPECT_EQ(s.code, ErrorCode::driver_failed) << call;
    EXPECT_TRUE(driver.launches().empty());
    EXPECT_TRUE(p.execute(reducing_call()).ok()) << "the next call is as if nothing had happened";
  }
}

}  // namespace
}  // namespace verglas
