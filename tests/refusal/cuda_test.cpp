// Rules of driver.*, nvrtc.*, cublaslt.*, jit.* and file.plan_*: each one refusing, and its nearest legal neighbour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "cuda/cublaslt_table.hpp"
#include "jit/container.hpp"
#include "jit/kernel.hpp"
#include "jit/plan_file.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"

namespace verglas {
namespace {

using testing::HasSubstr;

/// "code rule" of what the body throws; empty where it throws nothing.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("[" + e.rule() + "]"));
    return std::string(name_of(e.code())) + " " + e.rule();
  }
}

TEST(RefusalCuda, DriverMissing) {
  {
    const cuda::DriverOverride none(nullptr);
    EXPECT_EQ(cuda::driver().error().rule, Rule::driver_missing);
  }
  const support::RecordingDriver driver;
  EXPECT_TRUE(cuda::driver());
}

TEST(RefusalCuda, NvrtcMissing) {
  {
    const cuda::NvrtcOverride none(nullptr);
    EXPECT_EQ(cuda::nvrtc().error().rule, Rule::nvrtc_missing);
  }
  const support::FakeNvrtc nvrtc;
  EXPECT_TRUE(cuda::nvrtc());
}

TEST(RefusalCuda, CublasLtMissing) {
  {
    const cuda::CublasLtOverride none(nullptr);
    EXPECT_EQ(cuda::cublaslt().error().rule, Rule::cublaslt_missing);
  }
  const cuda::CublasLtTable table;
  const cuda::CublasLtOverride there(&table);
  EXPECT_TRUE(cuda::cublaslt());
}

TEST(RefusalCuda, DriverCall) {
  support::RecordingDriver driver;
  jit::CompiledKernel code;
  code.kernel = "vg_1";
  code.cubin = support::fake_cubin("vg_1", 8);
  const auto load = [&] { jit::LoadedKernel::load(driver.table(), code, {})->prepare(0); };
  driver.fail_next("cuFuncLoad", cuda::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(refusal(load), "driver_failed driver.call");
  EXPECT_EQ(refusal(load), "");
}

TEST(RefusalCuda, JitCompile) {
  support::FakeNvrtc nvrtc;
  jit::CompileRequest request;
  request.kernel = "vg_1";
  const auto compile = [&] { jit::compile(nvrtc.table(), request); };
  nvrtc.fail_next("nvrtcCompileProgram", cuda::NVRTC_ERROR_COMPILATION);
  EXPECT_EQ(refusal(compile), "compile_failed jit.compile");
  EXPECT_EQ(refusal(compile), "");
}

TEST(RefusalCuda, PlanFiles) {
  jit::PlanFile plan;
  plan.arch = "sm_90a";
  const std::string good = jit::write_plan_file(plan);
  const auto reading = [](const std::string& bytes, const char* arch = "sm_90") {
    return refusal([&] { jit::read_plan_file(bytes, arch, "x.vgp"); });
  };
  EXPECT_EQ(reading(good), "");
  EXPECT_EQ(reading("{}"), "io_failed file.plan_format");
  EXPECT_EQ(reading(good.substr(0, good.size() - 1)), "io_failed file.plan_damaged");
  EXPECT_EQ(reading(good, "sm_80"), "unsupported file.plan_arch");
  auto file = jit::read_container(good, jit::kPlanFileKind, 1);
  ASSERT_TRUE(file);
  for (auto& [name, value] : file->fields)
    if (name == "verglas") value += ".1";
  EXPECT_EQ(reading(jit::write_container(*file)), "io_failed file.plan_version");
}

}  // namespace
}  // namespace verglas
