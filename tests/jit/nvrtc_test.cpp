#include "jit/nvrtc.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verglas::jit {
namespace {

using testing::HasSubstr;

/// Skips in words where the machine has no NVRTC.
#define NEEDS_NVRTC()                             \
  const auto found = cuda::nvrtc();               \
  if (!found) GTEST_SKIP() << found.error().text; \
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
