#include "jit/kernel.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "support/recording_driver.hpp"

namespace verglas::jit {
namespace {

using support::RecordingDriver;
using testing::HasSubstr;

CompiledKernel code(int parameter_bytes = 64) {
  CompiledKernel k;
  k.kernel = "vg_1";
  k.arch = "sm_90a";
  k.cubin = support::fake_cubin("vg_1", parameter_bytes);
  return k;
}

cuda::CUlaunchConfig config(cuda::CUstream stream = nullptr) {
  cuda::CUlaunchConfig c{};
  c.gridDimX = c.gridDimY = c.gridDimZ = 1;
  c.blockDimX = 128;
  c.blockDimY = c.blockDimZ = 1;
  c.hStream = stream;
  return c;
}

/// Loads, prepares and launches once; what the error said, or empty.
std::string whole_road(RecordingDriver& driver) {
  try {
    const auto kernel = LoadedKernel::load(driver.table(), code(), {200000, true});
    kernel->prepare(0);
    cuda::CUlaunchConfig c = config();
    kernel->max_active_clusters(0, c);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "driver.call");
    return e.what();
  }
}

TEST(LoadedKernel, IsReadyOnADeviceAfterPrepare) {
  const RecordingDriver driver;
  const auto kernel = LoadedKernel::load(driver.table(), code(), {200000, true});
  EXPECT_EQ(kernel->function(0), nullptr);
  kernel->prepare(0);
  EXPECT_NE(kernel->function(0), nullptr);
  EXPECT_EQ(kernel->context(0), driver.primary_context(0));
  EXPECT_EQ(driver.count("cuKernelSetAttribute"), 2);
  EXPECT_EQ(driver.count("cuFuncLoad"), 1);
  kernel->prepare(0);  // once is enough
  EXPECT_EQ(driver.count("cuKernelGetFunction"), 1);
  EXPECT_TRUE(driver.untouched());
}

TEST(LoadedKernel, SetsItsLimitsOnEachDevice) {
  RecordingDriver driver(std::vector<support::FakeDevice>(2));
  const auto kernel = LoadedKernel::load(driver.table(), code(), {200000, false});
  for (const int device : {0, 1}) {
    kernel->prepare(device);
    const cuda::CurrentContext current(driver.table(), kernel->context(device));
    cuda::CUlaunchConfig c = config();
    c.sharedMemBytes = 200000;
    std::array<std::byte, 64> block{};
    void* parameters[] = {block.data()};
    ASSERT_EQ(driver.table().cuLaunchKernelEx(&c, kernel->function(device), parameters, nullptr), cuda::CUDA_SUCCESS);
    EXPECT_EQ(driver.launches().back().device, device);
  }
  EXPECT_NE(kernel->function(0), kernel->function(1));
  EXPECT_EQ(driver.count("cuLibraryLoadData"), 1);
}

TEST(LoadedKernel, AnswersNothingForDevicesThatItWasNotPreparedFor) {
  const RecordingDriver driver;
  const auto kernel = LoadedKernel::load(driver.table(), code(), {});
  for (const int device : {-1, 0, 63, 64, 1000}) {
    EXPECT_EQ(kernel->function(device), nullptr) << device;
    EXPECT_EQ(kernel->context(device), nullptr) << device;
  }
  EXPECT_THROW(kernel->prepare(1), Error);  // the machine has one
  EXPECT_THROW(kernel->prepare(-1), Error);
  EXPECT_THROW(kernel->prepare(64), Error);
}

// a thread that never saw the driver, and one with another context current.
TEST(LoadedKernel, LeavesTheThreadsContextAsItWas) {
  const RecordingDriver driver(std::vector<support::FakeDevice>(2));
  const auto kernel = LoadedKernel::load(driver.table(), code(), {});
  std::jthread([&] {
    EXPECT_EQ(driver.context_depth(), 0);
    kernel->prepare(0);
    EXPECT_EQ(driver.context_depth(), 0);
  }).join();
  cuda::CUcontext other = nullptr, now = nullptr;
  ASSERT_EQ(driver.table().cuDevicePrimaryCtxRetain(&other, 0), cuda::CUDA_SUCCESS);
  ASSERT_EQ(driver.table().cuCtxSetCurrent(other), cuda::CUDA_SUCCESS);
  kernel->prepare(1);
  EXPECT_EQ(driver.table().cuCtxGetCurrent(&now), cuda::CUDA_SUCCESS);
  EXPECT_EQ(now, other);
  EXPECT_EQ(driver.context_depth(), 1);
  driver.table().cuCtxSetCurrent(nullptr);
  driver.table().cuDevicePrimaryCtxRelease(0);
}

TEST(LoadedKernel, MayBePreparedByManyThreadsAtOnce) {
  const RecordingDriver driver(std::vector<support::FakeDevice>(2));
  const auto kernel = LoadedKernel::load(driver.table(), code(), {});
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      kernel->prepare(i % 2);
      EXPECT_NE(kernel->function(i % 2), nullptr);
    });
  threads.clear();
  EXPECT_EQ(driver.count("cuFuncLoad"), 2);
  EXPECT_EQ(driver.live().retained_contexts, 2);
}

// Each driver call fails once in turn: the error names it, nothing leaks, the thread's contexts are as before, and the next try
// works.
TEST(LoadedKernel, SurvivesTheFailureOfEachDriverCallInTurn) {
  RecordingDriver driver;
  ASSERT_EQ(whole_road(driver), "");
  const std::vector<std::string> calls = driver.calls();
  ASSERT_GE(calls.size(), 15U);
  int errors = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(std::to_string(i) + " " + calls[i]);
    driver.clear();
    driver.fail_call(static_cast<int>(i), cuda::CUDA_ERROR_UNKNOWN);
    const std::string said = whole_road(driver);
    EXPECT_FALSE(driver.failure_pending());
    const bool harmless = calls[i] == "cuThreadExchangeStreamCaptureMode" || calls[i] == "cuCtxPopCurrent";
    const bool at_the_end = calls[i] == "cuLibraryUnload" || calls[i] == "cuDevicePrimaryCtxRelease";
    if (harmless || at_the_end) {
      EXPECT_EQ(said, "");
    } else {
      EXPECT_THAT(said, HasSubstr("driver_failed [driver.call] " + calls[i] + " answers CUDA_ERROR_UNKNOWN (999)"));
      ++errors;
    }
    EXPECT_EQ(driver.context_depth(), 0);
    cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
    driver.table().cuThreadExchangeStreamCaptureMode(&mode);
    EXPECT_EQ(mode, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_TRUE(driver.untouched());
    // What the driver refuses to take back is the driver's: one object, and only where giving it back failed.
    EXPECT_EQ(driver.live().total(), at_the_end ? 1 : 0);
    if (calls[i] == "cuDevicePrimaryCtxRelease") driver.table().cuDevicePrimaryCtxRelease(0);
    if (calls[i] == "cuLibraryUnload") break;  // the last but the releases, which hang on it
    EXPECT_EQ(whole_road(driver), "");
    EXPECT_EQ(driver.live().total(), 0);
  }
  EXPECT_GE(errors, 10);
}

TEST(LoadedKernel, ErrorSaysWhatWasAttempted) {
  RecordingDriver driver;
  driver.fail_next("cuLibraryLoadData", cuda::CUDA_ERROR_INVALID_IMAGE);
  EXPECT_THAT(whole_road(driver), HasSubstr("cuLibraryLoadData answers CUDA_ERROR_INVALID_IMAGE (200)"));
  driver.fail_next("cuKernelSetAttribute", cuda::CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(whole_road(driver),
            "driver_failed [driver.call] cuKernelSetAttribute answers CUDA_ERROR_INVALID_VALUE (1): invalid argument while "
            "preparing kernel "
            "vg_1 on device 0, allowing 200000 bytes of dynamic shared memory");
  driver.fail_next("cuFuncLoad", cuda::CUDA_ERROR_OUT_OF_MEMORY);
  try {
    LoadedKernel::load(driver.table(), code(), {})->prepare(0);
    FAIL() << "prepared";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
  }
  driver.fail_next("cuLibraryGetKernel", static_cast<cuda::CUresult>(4711));
  EXPECT_THAT(whole_road(driver), HasSubstr("answers code 4711 while looking for kernel vg_1"));
}

TEST(LoadedKernel, FailedPrepareMayBeTriedAgain) {
  RecordingDriver driver;
  const auto kernel = LoadedKernel::load(driver.table(), code(), {});
  driver.fail_next("cuFuncLoad", cuda::CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(kernel->prepare(0), Error);
  EXPECT_EQ(kernel->function(0), nullptr);
  EXPECT_EQ(driver.live().retained_contexts, 0);
  kernel->prepare(0);
  EXPECT_NE(kernel->function(0), nullptr);
}

TEST(LoadedKernel, RefusesMoreSharedMemoryThanTheDeviceHas) {
  RecordingDriver driver;
  const auto kernel = LoadedKernel::load(driver.table(), code(), {232449, false});
  EXPECT_THROW(kernel->prepare(0), Error);
  LoadedKernel::load(driver.table(), code(), {232448, false})->prepare(0);
}

// loading and unloading while another thread, or this one, captures leave the capture usable.
TEST(LoadedKernel, MayBeLoadedAndDroppedWhileAStreamCaptures) {
  RecordingDriver driver;
  const auto used = LoadedKernel::load(driver.table(), code(), {});
  used->prepare(0);
  const cuda::CurrentContext current(driver.table(), used->context(0));
  const cuda::DriverTable& d = driver.table();
  cuda::CUstream stream = nullptr;
  ASSERT_EQ(d.cuStreamCreate(&stream, 0), cuda::CUDA_SUCCESS);
  for (const auto mode : {cuda::CU_STREAM_CAPTURE_MODE_GLOBAL, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    ASSERT_EQ(d.cuStreamBeginCapture(stream, mode), cuda::CUDA_SUCCESS);
    EXPECT_TRUE(cuda::is_capturing(d, stream));
    const auto load_and_drop = [&] { LoadedKernel::load(d, code(), {})->prepare(0); };
    load_and_drop();
    std::jthread(load_and_drop).join();
    std::array<std::byte, 64> block{};
    void* parameters[] = {block.data()};
    cuda::CUlaunchConfig c = config(stream);
    EXPECT_EQ(d.cuLaunchKernelEx(&c, used->function(0), parameters, nullptr), cuda::CUDA_SUCCESS);
    cuda::CUgraph graph = nullptr;
    EXPECT_EQ(d.cuStreamEndCapture(stream, &graph), cuda::CUDA_SUCCESS);
    EXPECT_FALSE(cuda::is_capturing(d, stream));
    std::size_t nodes = 0;
    EXPECT_EQ(d.cuGraphGetNodes(graph, nullptr, &nodes), cuda::CUDA_SUCCESS);
    EXPECT_EQ(nodes, 1U);
    d.cuGraphDestroy(graph);
  }
  d.cuStreamDestroy(stream);
}

TEST(LoadedKernel, InAChildOfForkDoesNotTouchTheDriver) {
  RecordingDriver driver;
  auto kernel = LoadedKernel::load(driver.table(), code(), {});
  kernel->prepare(0);
  driver.clear();
  const pid_t child = ::fork();
  if (child == 0) {
    kernel.reset();
    ::_exit(driver.calls().empty() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  kernel.reset();
  EXPECT_EQ(driver.live().total(), 0);
}

}  // namespace
}  // namespace verglas::jit
