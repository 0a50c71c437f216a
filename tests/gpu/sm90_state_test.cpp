#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <deque>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// What a plan keeps between calls, on a real device: graphs that are replayed between calls with other pointers and other data,
// launches that fail, and processes that are killed or lose their context while kernels run. Row sums and a norm beside D make
// every call need its scratch memory clean.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kM = 333, kN = 520, kK = 72;

Graph graph_of() {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}});
  Tensor d = g.matmul(a, b).set_output(true).set_data_type(DataType::fp32);
  g.reduction(d, ReductionMode::add).set_dim({kM, 1}).set_output(true).set_data_type(DataType::fp32);
  g.reduction(d, ReductionMode::amax).set_dim({1, 1}).set_output(true).set_data_type(DataType::fp32);
  return g;
}

/// Operands of one call with numbers of its own; outputs poisoned.
class Operands {
 public:
  Operands(const cuda::DriverTable& driver, std::uint64_t seed)
      : a_(driver, kM * kK * 2, 0),
        b_(driver, kN * kK * 2, 0),
        d_(driver, kM * kN * 4, 0xFF),
        rows_(driver, kM * 4, 0xFF),
        amax_(driver, 4, 0xFF) {
    load(seed);
  }
  /// Other numbers in the same memory.
  void load(std::uint64_t seed) {
    support::Random random(seed);
    std::vector<std::uint16_t> bits[2];
    std::vector<int> values[2];
    for (int i = 0; i < 2; ++i)
      for (std::int64_t j = 0; j < (i == 0 ? kM : kN) * kK; ++j) {
        const int v = static_cast<int>(random.between(-2, 2));
        values[i].push_back(v);
        bits[i].push_back(static_cast<std::uint16_t>(oracle::encode(oracle::Format::bf16, v)));
      }
    a_.upload(bits[0].data());
    b_.upload(bits[1].data());
    want_.assign(kM * kN, 0.0F);
    for (std::size_t m = 0; m < kM; ++m)
      for (std::size_t n = 0; n < kN; ++n) {
        int sum = 0;
        for (std::size_t k = 0; k < kK; ++k) sum += values[0][m * kK + k] * values[1][n * kK + k];
        want_[m * kN + n] = static_cast<float>(sum);
      }
    poison();
  }
  void poison() {
    for (auto* o : {&d_, &rows_, &amax_}) o->fill(0xFF);
  }
  std::vector<void*> addresses() const { return {a_.data(), b_.data(), d_.data(), rows_.data(), amax_.data()}; }
  /// The whole device is waited for.
  void expect_right(const std::string& where) const {
    std::vector<float> rows(kM, 0.0F);
    float largest = 0;
    for (std::size_t i = 0; i < want_.size(); ++i) {
      rows[i / kN] += want_[i];
      largest = std::max(largest, std::abs(want_[i]));
    }
    expect_bytes(d_, want_, where + ", d");
    expect_bytes(rows_, rows, where + ", row sums");
    expect_bytes(amax_, {largest}, where + ", amax");
  }
  void expect_untouched(const std::string& where) const {
    for (const auto* o : {&d_, &rows_, &amax_})
      EXPECT_EQ(o->download(), std::vector<std::uint8_t>(o->size(), 0xFF)) << where << ": an output was written";
  }

 private:
  static void expect_bytes(const support::DeviceBuffer& buffer, const std::vector<float>& want, const std::string& where) {
    const auto got = buffer.download();
    ASSERT_EQ(got.size(), want.size() * 4);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << where;
    EXPECT_EQ(buffer.touched_guard_bytes(), 0) << where;
  }
  support::DeviceBuffer a_, b_, d_, rows_, amax_;
  std::vector<float> want_;
};

class Sm90State : public support::GpuTest {
 protected:
  void SetUp() override {
    VERGLAS_NEEDS_GPU();
    open();
  }
  void open() {
    open_gpu();
    plan_ = graph_of().compile({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
    ok(driver_->cuStreamCreate(&stream_, cuda::kStreamNonBlocking));
  }
  void TearDown() override {
    if (stream_) driver_->cuStreamDestroy(stream_);
  }
  void ok(cuda::CUresult code) const { cuda::check(*driver_, code, "a driver call", "a test"); }
  void run(const Operands& o) const {
    const auto addresses = o.addresses();
    std::vector<TensorView> views;
    for (void* p : addresses) views.push_back(TensorView::address(p));
    plan_.run(views, {stream_});
  }
  void settle() const { ok(driver_->cuCtxSynchronize()); }
  cuda::CUgraphExec captured(const Operands& o) const {
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec executable = nullptr;
    ok(driver_->cuStreamBeginCapture(stream_, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL));
    run(o);
    ok(driver_->cuStreamEndCapture(stream_, &graph));
    ok(driver_->cuGraphInstantiateWithFlags(&executable, graph, 0));
    driver_->cuGraphDestroy(graph);
    return executable;
  }
  CompiledPlan plan_{};
  cuda::CUstream stream_ = nullptr;
};

TEST_F(Sm90State, AReplayKeepsItsPointersWhileCallsHaveOthers) {
  Operands first(*driver_, 1), second(*driver_, 2), third(*driver_, 3);
  settle();
  cuda::CUgraphExec of_first = captured(first), of_second = captured(second);
  settle();
  for (const Operands* o : {&first, &second}) o->expect_untouched("after a capture");
  for (std::uint64_t round = 0; round < 5; ++round) {
    first.load(10 + round);  // new numbers at the addresses of the graph
    second.poison();
    third.poison();
    settle();
    ok(driver_->cuGraphLaunch(of_first, stream_));
    run(third);
    ok(driver_->cuGraphLaunch(of_second, stream_));
    ok(driver_->cuGraphLaunch(of_first, stream_));
    settle();
    first.expect_right("the first graph");
    second.expect_right("the second graph");
    third.expect_right("the call between them");
  }
  driver_->cuGraphExecDestroy(of_first);
  driver_->cuGraphExecDestroy(of_second);
}

TEST_F(Sm90State, ABoundCallWithOtherPointersIsCapturedWithThem) {
  Operands first(*driver_, 4), second(*driver_, 5);
  settle();
  std::vector<TensorView> views;
  for (void* p : first.addresses()) views.push_back(TensorView::address(p));
  BoundCall call = plan_.bind(views, {stream_});
  ASSERT_TRUE(call().ok());
  settle();
  first.expect_right("as bound");
  first.poison();
  const auto others = second.addresses();
  for (std::size_t i = 0; i < others.size(); ++i) ASSERT_TRUE(call.set_address(static_cast<int>(i), others[i]));
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec executable = nullptr;
  ok(driver_->cuStreamBeginCapture(stream_, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_TRUE(call().ok());
  ok(driver_->cuStreamEndCapture(stream_, &graph));
  ok(driver_->cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) ok(driver_->cuGraphLaunch(executable, stream_));
  settle();
  second.expect_right("captured");
  first.expect_untouched("after the capture");
  driver_->cuGraphExecDestroy(executable);
  driver_->cuGraphDestroy(graph);
}

// A stream whose capture has been spoilt refuses every launch until the capture is ended.
TEST_F(Sm90State, ALaunchThatFailsLeavesTheNextOneRight) {
  Operands o(*driver_, 6);
  run(o);
  settle();
  for (int round = 0; round < 3; ++round) {
    o.poison();
    settle();
    ok(driver_->cuStreamBeginCapture(stream_, cuda::CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_NE(driver_->cuStreamSynchronize(stream_), cuda::CUDA_SUCCESS);  // not allowed in a capture, which it spoils
    const auto addresses = o.addresses();
    const Status status = plan_.execute(addresses, {stream_});
    EXPECT_EQ(status.code, ErrorCode::driver_failed);
    cuda::CUgraph graph = nullptr;
    EXPECT_NE(driver_->cuStreamEndCapture(stream_, &graph), cuda::CUDA_SUCCESS);
    settle();
    o.expect_untouched("after the failure");
    run(o);
    settle();
    o.expect_right("after round " + std::to_string(round));
  }
}

using Sm90StateDeathTest = Sm90State;

// A process that dies with thousands of its kernels in flight takes nothing of ours with it.
TEST_F(Sm90StateDeathTest, AKilledProcessLeavesOthersRight) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: a forked one could not use the device
  Operands o(*driver_, 7);
  EXPECT_EXIT(
      {
        Operands mine(*driver_, 8);
        for (int i = 0; i < 2000; ++i) run(mine);
        std::raise(SIGKILL);
      },
      ::testing::KilledBySignal(SIGKILL), "");
  run(o);
  settle();
  o.expect_right("beside the killed process");
}

// A kernel that faults ends the context of its process: later calls say so by name, and neither hang nor write.
TEST_F(Sm90StateDeathTest, AFaultIsSaidByEveryLaterCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Operands o(*driver_, 9);
  EXPECT_EXIT(
      {
        auto addresses = Operands(*driver_, 10).addresses();
        addresses[2] = reinterpret_cast<void*>(std::uintptr_t{1} << 46);  // nothing lies there
        static_cast<void>(plan_.execute(addresses, {stream_}));
        static_cast<void>(driver_->cuCtxSynchronize());
        const Status status = plan_.execute(o.addresses(), {stream_});
        std::vector<TensorView> views;
        for (void* p : o.addresses()) views.push_back(TensorView::address(p));
        std::fputs(status.ok() ? "nothing was said" : plan_.explain(status, views, {stream_}).what(), stderr);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "driver_failed.*CUDA_ERROR");
  run(o);
  settle();
  o.expect_right("beside the process that faulted");
}

}  // namespace
}  // namespace verglas
