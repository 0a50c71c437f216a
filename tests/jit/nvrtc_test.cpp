#include "jit/nvrtc.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "jit/cubin.hpp"
#include "jit/store.hpp"
#include "support/recording_driver.hpp"
#include "support/required.hpp"

namespace verglas::jit {
namespace {

using testing::HasSubstr;

/// Skips in words where the machine has no NVRTC.
#define NEEDS_NVRTC()                                                \
  const auto found = cuda::nvrtc();                                  \
  if (!found) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", found.error().text); \
  const cuda::NvrtcTable& nvrtc = **found

CompileRequest scale_kernel() {
  CompileRequest request;
  request.kernel = "vg_scale";
  request.source = R"(
#include "factor.cuh"
extern "C" __global__ void __launch_bounds__(128, 1) vg_scale(float* x, int n) {
  __shared__ float s[64];
  int i = blockIdx.x * 128 + threadIdx.x;
  s[threadIdx.x & 63] = FACTOR;
  __syncthreads();
  if (i < n) x[i] *= s[(i + 1) & 63];
}
)";
  request.headers = {{"factor.cuh", "#pragma once\n#define FACTOR 3.0f\n"}};
  return request;
}

TEST(Nvrtc, CompilesAKernelWithAnEmbeddedHeaderForHopper) {
  NEEDS_NVRTC();
  const CompiledKernel out = compile(nvrtc, scale_kernel());
  ASSERT_GE(out.cubin.size(), 64U);
  EXPECT_EQ(out.cubin.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_GT(out.report.registers, 0) << out.log;
  EXPECT_LE(out.report.registers, 64) << out.log;
  EXPECT_EQ(out.report.smem_bytes, 256) << out.log;
  EXPECT_EQ(out.report.barriers, 1) << out.log;
  EXPECT_TRUE(out.report.clean()) << out.log;
}

// The log and the image are two witnesses of the same facts.
TEST(Nvrtc, CubinConfirmsWhatTheLogReports) {
  NEEDS_NVRTC();
  CompileRequest request;
  request.kernel = "vg_struct";
  request.source = R"(
struct alignas(64) P { char map[128]; float* x; int n; };
extern "C" __global__ void __launch_bounds__(256, 1) vg_struct(const __grid_constant__ P p, long long k) {
  __shared__ float s[256];
  s[threadIdx.x] = p.map[threadIdx.x & 127];
  __syncthreads();
  if (threadIdx.x < p.n) p.x[threadIdx.x + k] = s[255 - threadIdx.x];
}
)";
  const CompiledKernel out = compile(nvrtc, request);
  const auto info = read_cubin(out.cubin, "vg_struct");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->sm, 90);
  EXPECT_EQ(info->registers, out.report.registers) << out.log;
  EXPECT_EQ(info->frame_bytes, 0);
  EXPECT_EQ(info->barriers, out.report.barriers);
  EXPECT_EQ(info->parameter_bytes, (std::vector<int>{192, 8}));
  EXPECT_GT(info->instructions, 0);
  EXPECT_FALSE(read_cubin(out.cubin, "vg_other"));
  for (std::size_t n = 0; n < out.cubin.size(); n += 7) read_cubin(std::string_view(out.cubin).substr(0, n), "vg_struct");
  EXPECT_FALSE(read_cubin(std::string_view(out.cubin).substr(0, 64), "vg_struct"));
}

TEST(Nvrtc, ReportShowsStackAndSpills) {
  NEEDS_NVRTC();
  CompileRequest request;
  request.kernel = "vg_spill";
  request.source = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) vg_spill(float* x, int n) {
  float r[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) r[i] = x[i * 1024 + threadIdx.x];
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 96; ++i) r[i] = r[i] * r[(i + 7) % 96] + k;
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = r[i];
}
)";
  const CompiledKernel out = compile(nvrtc, request);
  EXPECT_TRUE(out.report.spills()) << out.log;
  EXPECT_GT(out.report.stack_bytes, 0) << out.log;
  EXPECT_FALSE(out.report.clean());
  EXPECT_FALSE(out.report.warnings.empty()) << out.log;
  EXPECT_EQ(read_cubin(out.cubin, "vg_spill")->frame_bytes, out.report.stack_bytes);
}

// C7508: setmaxnreg without a bound on the blocks of an SM is ignored by ptxas, and says so only in its log.
TEST(Nvrtc, ReportShowsASetmaxnregThatPtxasIgnores) {
  NEEDS_NVRTC();
  CompileRequest request;
  request.kernel = "vg_setmaxnreg";
  const auto source = [](const char* bounds) {
    return std::string("extern \"C\" __global__ void ") + bounds +
           " vg_setmaxnreg(float* x) {\n"
           "  if (threadIdx.x < 128) asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;\");\n"
           "  else asm volatile(\"setmaxnreg.inc.sync.aligned.u32 232;\");\n"
           "  x[threadIdx.x] += 1;\n}\n";
  };
  request.source = source("__launch_bounds__(384, 1)");
  EXPECT_FALSE(compile(nvrtc, request).report.setmaxnreg_ignored());
  request.source = source("");
  const CompiledKernel out = compile(nvrtc, request);
  EXPECT_TRUE(out.report.setmaxnreg_ignored()) << out.log;
  EXPECT_FALSE(out.report.clean());
}

TEST(Nvrtc, DefinitionsReachTheKernelAndTheKey) {
  NEEDS_NVRTC();
  CompileRequest request;
  request.kernel = "vg_defined";
  request.source = "extern \"C\" __global__ void vg_defined(int* x) { *x = BLOCK_M; }";
  EXPECT_THROW(compile(nvrtc, request), Error);
  request.definitions = {"BLOCK_M=128"};
  const std::string at_128 = compile(nvrtc, request).cubin;
  request.definitions = {"BLOCK_M=64"};
  EXPECT_NE(compile(nvrtc, request).cubin, at_128);
}

// What the disk cache rests on: equal input, equal code.
TEST(Nvrtc, CompilesTheSameInputToTheSameBytes) {
  NEEDS_NVRTC();
  EXPECT_EQ(compile(nvrtc, scale_kernel()).cubin, compile(nvrtc, scale_kernel()).cubin);
}

TEST(Nvrtc, FindsNoHeaderOutsideTheRequest) {
  NEEDS_NVRTC();
  CompileRequest request = scale_kernel();
  request.headers.clear();
  EXPECT_THROW(compile(nvrtc, request), Error);
}

// From source to a recorded launch, with the sizes of the parameters read from the real image.
TEST(Nvrtc, CompiledKernelLoadsIntoTheRecordingDriver) {
  NEEDS_NVRTC();
  support::RecordingDriver driver;
  KernelCache cache(CacheSettings{"", "a test"});
  KernelStore store(cache);
  const auto kernel = store.load(driver.table(), nvrtc, scale_kernel(), {});
  kernel->prepare(0);
  const cuda::CurrentContext current(driver.table(), kernel->context(0));
  cuda::CUlaunchConfig config{2, 1, 1, 128, 1, 1, 0, nullptr, nullptr, 0};
  float* x = nullptr;
  int n = 200;
  void* parameters[] = {&x, &n};
  ASSERT_EQ(driver.table().cuLaunchKernelEx(&config, kernel->function(0), parameters, nullptr), cuda::CUDA_SUCCESS);
  EXPECT_EQ(driver.launches().at(0).parameters.size(), sizeof x + sizeof n);
}

TEST(Nvrtc, ErrorNamesKernelVersionAndLine) {
  NEEDS_NVRTC();
  CompileRequest request = scale_kernel();
  request.source += "\nint broken = no_such_name;\n";
  try {
    compile(nvrtc, request);
    FAIL() << "compiled";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::compile_failed);
    EXPECT_EQ(e.rule(), "jit.compile");
    EXPECT_THAT(e.what(), HasSubstr("vg_scale"));
    EXPECT_THAT(e.what(), HasSubstr("no_such_name"));
  }
}

}  // namespace
}  // namespace verglas::jit
