#include "jit/plan_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rules.hpp"
#include "jit/container.hpp"
#include "verglas/version.hpp"

namespace verglas::jit {
namespace {

using testing::HasSubstr;

PlanFile sample() {
  PlanFile plan;
  plan.arch = "sm_90a";
  plan.graph = R"({"nodes": []})";
  plan.configuration = R"({"block_m": 128})";
  plan.engine = "sm90";
  plan.nvrtc = "13.0 (build)";
  plan.key = "arch 6 sm_90a\n";
  for (const char* name : {"vg_1", "vg_2"}) {
    CompiledKernel kernel;
    kernel.kernel = name;
    kernel.arch = "sm_90a";
    kernel.cubin = std::string(
                       "\x7f"
                       "ELF\0",
                       5) +
                   name;
    kernel.report.registers = 168;
    kernel.report.advice = {"(C7508) \xff not text"};
    plan.kernels.push_back(kernel);
  }
  return plan;
}

/// The rule that refuses the bytes; empty where they are read.
std::string refusal(const std::string& bytes, std::string_view arch = "sm_90") {
  try {
    read_plan_file(bytes, arch, "x.vgp");
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.operand(), "x.vgp");
    return e.rule();
  }
}

TEST(PlanFile, ReadsWhatItWrote) {
  const PlanFile plan = sample(), read = read_plan_file(write_plan_file(plan), "sm_90", "x.vgp");
  EXPECT_EQ(read.verglas_version, VERGLAS_VERSION);
  EXPECT_EQ(read.arch, plan.arch);
  EXPECT_EQ(read.graph, plan.graph);
  EXPECT_EQ(read.configuration, plan.configuration);
  EXPECT_EQ(read.engine, plan.engine);
  EXPECT_EQ(read.nvrtc, plan.nvrtc);
  EXPECT_EQ(read.key, plan.key);
  ASSERT_EQ(read.kernels.size(), 2U);
  EXPECT_EQ(read.kernels[1].kernel, "vg_2");
  EXPECT_EQ(read.kernels[1].cubin, plan.kernels[1].cubin);
  EXPECT_EQ(read.kernels[1].report.registers, 168);
  EXPECT_EQ(read.kernels[1].report.advice.size(), 1U);
}

TEST(PlanFile, RefusesAFileThatIsNoPlan) {
  EXPECT_EQ(refusal(""), "file.plan_format");
  EXPECT_EQ(refusal("{\"nodes\": []}"), "file.plan_format");
  Container entry{kCacheEntryKind, 1, {}};
  EXPECT_EQ(refusal(write_container(entry)), "file.plan_format");
}

TEST(PlanFile, RefusesAFileThatIsCutOrAltered) {
  const std::string good = write_plan_file(sample());
  EXPECT_EQ(refusal(good.substr(0, good.size() - 1)), "file.plan_damaged");
  std::string bad = good;
  bad[good.size() / 2] ^= 1;
  EXPECT_EQ(refusal(bad), "file.plan_damaged");
  EXPECT_EQ(refusal(good), "");
}

TEST(PlanFile, RefusesAFileWhoseFieldsAreMissing) {
  const auto whole = read_container(write_plan_file(sample()), kPlanFileKind, 1);
  ASSERT_TRUE(whole);
  for (std::size_t drop = 0; drop < whole->fields.size(); ++drop) {
    Container less = *whole;
    less.fields.erase(less.fields.begin() + static_cast<std::ptrdiff_t>(drop));
    EXPECT_EQ(refusal(write_container(less)), "file.plan_damaged") << whole->fields[drop].first;
  }
}

TEST(PlanFile, RefusesAnotherVersionOfVerglas) {
  auto file = read_container(write_plan_file(sample()), kPlanFileKind, 1);
  ASSERT_TRUE(file);
  for (auto& [name, value] : file->fields)
    if (name == "verglas") value = "0.0.9";
  EXPECT_EQ(refusal(write_container(*file)), "file.plan_version");
}

TEST(PlanFile, RefusesAnotherArchitectureAndNamesBoth) {
  const std::string bytes = write_plan_file(sample());
  EXPECT_EQ(refusal(bytes, "sm_90"), "");
  EXPECT_EQ(refusal(bytes, "sm_90a"), "");
  EXPECT_EQ(refusal(bytes, ""), "");
  EXPECT_EQ(refusal(bytes, "sm_100"), "file.plan_arch");
  try {
    read_plan_file(bytes, "sm_80", "x.vgp");
    FAIL() << "read";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_STREQ(e.what(),
                 "unsupported [file.plan_arch] x.vgp: got a plan for sm_90a, wanted one for sm_80, the device to run on");
  }
}

}  // namespace
}  // namespace verglas::jit
