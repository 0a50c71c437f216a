#include "plan/ahead.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/rules.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "jit/cache.hpp"
#include "jit/container.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "support/temp_folder.hpp"
#include "verglas/verglas.hpp"

// Compiling with no GPU, loading with no compiler: the code comes from a fake NVRTC and goes to a driver in memory.

namespace verglas {
namespace {

using sm90::ParameterBlock;

constexpr std::int64_t kM = 300, kN = 520, kK = 136;
constexpr Device kGpu{DeviceType::cuda, 0};

void* at(std::uintptr_t megabyte) { return reinterpret_cast<void*>(megabyte << 20); }

Graph product(DataType type = DataType::bf16) {
  Graph g({.name = "plain", .io_data_type = type});
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  g.matmul(a, b).set_output(true).set_name("d");
  return g;
}

std::vector<TensorView> buffers() {
  return {TensorView::address(at(1)), TensorView::address(at(65)), TensorView::address(at(129))};
}

class Ahead : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("VERGLAS_CACHE", "off", 1); }

  /// A plan file's bytes, compiled with no driver at all.
  static jit::PlanFile compiled(Graph g = product(), engine::AheadTarget target = {}, Knobs knobs = {}) {
    const cuda::DriverOverride none(nullptr);
    support::FakeNvrtc nvrtc;
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
    return plan::compile_ahead(g, target, knobs);
  }

  std::string written(const jit::PlanFile& file) {
    const std::string path = folder / "plan.vgp";
    support::write_file(path, jit::write_plan_file(file));
    return path;
  }

  /// The file with one field changed, and a checksum that is right.
  std::string altered(const std::string& field, const std::string& value) {
    auto file = jit::read_container(jit::write_plan_file(compiled()), jit::kPlanFileKind, 1);
    EXPECT_TRUE(file);
    for (auto& [name, text] : file->fields)
      if (name == field) text = value;
    const std::string path = folder / "altered.vgp";
    support::write_file(path, jit::write_container(*file));
    return path;
  }

  static std::string rule_of(const std::string& path, Device device = kGpu) {
    try {
      load_plan(path, device);
      return "";
    } catch (const Error& e) {
      EXPECT_TRUE(e.operand().empty() || e.operand().find(path) != std::string::npos) << e.what();
      return e.rule();
    }
  }

  static std::string compile_rule(Graph g, engine::AheadTarget target = {}, Knobs knobs = {}) {
    try {
      compiled(std::move(g), target, knobs);
      return "";
    } catch (const Error& e) {
      return e.rule();
    }
  }

  support::TempFolder folder;
};

TEST_F(Ahead, TakesKnobsWhoseKernelDoesNotSpill) {
  const cuda::DriverOverride none(nullptr);
  support::FakeNvrtc nvrtc;
  nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  Graph g = product();
  Knobs first, other;
  jit::cache_clear();  // of kernels with what was said about them
  const std::string spilled = plan::compile_ahead(g, {}, first).kernels[0].kernel;
  jit::cache_clear();
  nvrtc.set_log_of(spilled.substr(0, spilled.find("_")) + "_" + std::to_string(first.at("TILE_M")) + "x" +
                       std::to_string(first.at("TILE_N")) + "x",
                   "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n");
  EXPECT_FALSE(plan::compile_ahead(g, {}, other).kernels[0].report.spills());
  EXPECT_NE(other, first);
  Knobs wanted = first;
  EXPECT_TRUE(plan::compile_ahead(g, {}, wanted).kernels[0].report.spills()) << "knobs that are asked for are not replaced";
  jit::cache_clear();
}

TEST_F(Ahead, LoadsWithoutNvrtcAndLaunchesWhatACompiledPlanDoes) {
  const std::string path = written(compiled());
  support::RecordingDriver driver;
  ParameterBlock direct{};
  Knobs knobs;
  {
    support::FakeNvrtc nvrtc;
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
    Graph g = product();
    const CompiledPlan p = g.compile({.device = kGpu, .deselect_engines = {"cpu"}});
    knobs = p.knobs();
    driver.clear();
    ASSERT_TRUE(p.execute(buffers()).ok());
    direct = driver.launches().at(0).as<ParameterBlock>();
  }
  const cuda::NvrtcOverride no_compiler(nullptr);
  const CompiledPlan p = load_plan(path, kGpu);
  EXPECT_EQ(p.engine(), "sm90");
  EXPECT_EQ(p.knobs(), knobs);
  EXPECT_EQ(p.operand_index("d"), 2);
  driver.clear();
  ASSERT_TRUE(p.execute(buffers()).ok());
  ASSERT_EQ(driver.launches().size(), 1U);
  EXPECT_TRUE(driver.memsets().empty());
  const auto loaded = driver.launches()[0].as<ParameterBlock>();
  EXPECT_EQ(std::memcmp(&loaded, &direct, sizeof loaded), 0);
  auto wrong = buffers();
  wrong[2] = wrong[0];
  EXPECT_EQ(p.execute(wrong).code, ErrorCode::invalid_call);
}

TEST_F(Ahead, TakesTheKnobsThatAreAskedFor) {
  const jit::PlanFile file = compiled(product(), {}, {{"TILE_M", 64}, {"TILE_N", 64}});
  EXPECT_NE(file.configuration.find("\"TILE_N\":64"), std::string::npos) << file.configuration;
  EXPECT_NE(file.configuration.find("\"PINGPONG\":0"), std::string::npos) << file.configuration;
  support::RecordingDriver driver;
  const cuda::NvrtcOverride no_compiler(nullptr);
  EXPECT_EQ(load_plan(written(file), kGpu).knobs().at("TILE_N"), 64);
  EXPECT_EQ(compile_rule(product(), {}, {{"TILE_N", 65}}), "plan.replay");
  EXPECT_EQ(compile_rule(product(), {}, {{"COLOUR", 1}}), "plan.replay");
}

TEST_F(Ahead, SaysWhyItDoesNotCompile) {
  EXPECT_EQ(compile_rule(product()), "");
  EXPECT_EQ(compile_rule(product(), {.arch = "sm_80"}), "engine.arch");
  EXPECT_EQ(compile_rule(product(DataType::fp32)), "sm90.types");
  const cuda::NvrtcOverride no_compiler(nullptr);
  Graph g = product();
  Knobs knobs;
  try {
    plan::compile_ahead(g, {}, knobs);
    FAIL() << "compiled without a compiler";
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "nvrtc.missing");
  }
}

TEST_F(Ahead, RefusesFilesThatItMayNotRun) {
  const std::string good = written(compiled());
  const std::string bytes = support::read_file(good), cut = folder / "cut.vgp", text = folder / "text.vgp";
  support::write_file(cut, bytes.substr(0, bytes.size() - 1));
  support::write_file(text, "{}");
  const cuda::NvrtcOverride no_compiler(nullptr);
  support::RecordingDriver driver{{support::FakeDevice{}, support::FakeDevice{.name = "NVIDIA B200", .major = 10}}};
  EXPECT_EQ(rule_of(good), "");
  driver.clear();
  EXPECT_EQ(rule_of(folder / "none.vgp"), "file.open");
  EXPECT_EQ(rule_of(text), "file.plan_format");
  EXPECT_EQ(rule_of(cut), "file.plan_damaged");
  EXPECT_EQ(rule_of(altered("verglas", "0.0.1")), "file.plan_version");
  EXPECT_EQ(rule_of(altered("key", std::string(64, '0'))), "file.plan_version");
  EXPECT_EQ(rule_of(altered("engine", "sm80")), "file.plan_version");
  EXPECT_EQ(rule_of(altered("engine", "cpu")), "file.plan_format");
  EXPECT_EQ(rule_of(altered("configuration", "{\"TILE_M\": 1}")), "file.plan_version");
  EXPECT_EQ(rule_of(altered("configuration", "[]")), "file.plan_damaged");
  EXPECT_EQ(rule_of(altered("kernel0.name", "vg_other")), "file.plan_version");
  EXPECT_EQ(rule_of(good, {DeviceType::cuda, 1}), "file.plan_arch");
  EXPECT_EQ(rule_of(good, {DeviceType::cuda, 2}), "engine.device");
  EXPECT_EQ(rule_of(good, {DeviceType::cpu, 0}), "file.plan_arch");
  EXPECT_EQ(driver.count("cuLibraryLoadData"), 0);  // none of them came near the driver
}

TEST_F(Ahead, LoadsFromBytesAsFromAFile) {
  const std::string bytes = jit::write_plan_file(compiled());
  const auto span_of = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
  support::RecordingDriver driver;
  const cuda::NvrtcOverride no_compiler(nullptr);
  CompiledPlan p;
  {
    std::string passing = bytes;
    p = load_plan(span_of(passing), kGpu);
    std::fill(passing.begin(), passing.end(), 'x');  // the bytes are not needed any more
  }
  driver.clear();
  ASSERT_TRUE(p.execute(buffers()).ok());
  EXPECT_EQ(driver.launches().size(), 1U);
  const auto rule_of_bytes = [&](std::string_view text) -> std::string {
    try {
      load_plan(span_of(text), kGpu);
      return "";
    } catch (const Error& e) {
      EXPECT_TRUE(e.operand().starts_with("plan")) << e.what();
      return e.rule();
    }
  };
  EXPECT_EQ(rule_of_bytes(bytes), "");
  EXPECT_EQ(rule_of_bytes(""), "file.plan_format");
  EXPECT_EQ(rule_of_bytes(std::string_view(bytes).substr(0, bytes.size() - 1)), "file.plan_damaged");
}

TEST_F(Ahead, NeedsADriver) {
  const std::string good = written(compiled());
  const cuda::DriverOverride none(nullptr);
  try {
    load_plan(good, kGpu);
    FAIL() << "loaded without a driver";
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "driver.missing");
  }
}

}  // namespace
}  // namespace verglas
