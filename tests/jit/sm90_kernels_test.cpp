#include <gtest/gtest.h>

#include "engine/sm90/engine.hpp"
#include "engine/sm90/source.hpp"
#include "jit/embedded.hpp"
#include "jit/nvrtc.hpp"
#include "support/required.hpp"

// Every flavor that the engine may choose compiles without a spill, a stack frame or a remark of ptxas.
namespace verglas::sm90 {
namespace {

struct Shape {
  int m, n, consumers;
  Schedule schedule;
};

class Kernels : public ::testing::TestWithParam<KernelConfig> {};

std::vector<KernelConfig> flavors() {
  std::vector<KernelConfig> all;
  for (const Shape& s : {Shape{128, 256, 2, Schedule::cooperative}, Shape{128, 192, 2, Schedule::pingpong},
                         Shape{128, 176, 2, Schedule::pingpong}, Shape{128, 128, 2, Schedule::pingpong},
                         Shape{128, 192, 2, Schedule::cooperative}, Shape{128, 128, 2, Schedule::cooperative},
                         Shape{64, 128, 1, Schedule::cooperative}, Shape{64, 64, 1, Schedule::cooperative},
                         Shape{64, 32, 1, Schedule::cooperative}, Shape{64, 16, 1, Schedule::cooperative}}) {
    const auto add = [&](auto change) {
      KernelConfig k;
      k.block_m = s.m;
      k.block_n = s.n;
      k.consumers = s.consumers;
      k.schedule = s.schedule;
      change(k);
      fit_staging(k);
      const bool spills = s.schedule == Schedule::pingpong &&  // never offered
                          ((s.n > 128 && k.d_path != Path::tma) || (s.n > 176 && k.d_along_m && k.output == DataType::fp32));
      const bool pieces =
          s.m >= 128 && s.n >= 128 && k.a_path == Path::bytes16 && k.b_path == Path::bytes16 && k.d_path == Path::bytes16;
      if (!fault_of(k) && !spills && !pieces) all.push_back(k);
    };
    add([](KernelConfig&) {});
    add([](KernelConfig& k) { k.programmatic = true; });
    add([](KernelConfig& k) { k.a_major = k.b_major = Major::mn; });
    add([](KernelConfig& k) { k.input = k.output = DataType::fp16; });
    add([](KernelConfig& k) { k.output = DataType::fp32; });
    add([](KernelConfig& k) { k.d_along_m = true; });
    add([](KernelConfig& k) { k.output = DataType::fp32, k.d_along_m = true; });
    add([](KernelConfig& k) { k.a_path = k.b_path = k.d_path = Path::bytes2; });
    add([](KernelConfig& k) { k.a_path = k.b_path = k.d_path = Path::bytes16; });
    add([](KernelConfig& k) { k.output = DataType::fp32, k.d_path = Path::bytes4; });
    add([](KernelConfig& k) { k.a_path = Path::bytes8, k.b_major = Major::mn; });
    add([](KernelConfig& k) { k.input = k.output = DataType::fp32; });
    add([](KernelConfig& k) { k.input = DataType::fp32, k.a_path = k.b_path = Path::bytes4; });
    add([](KernelConfig& k) { k.input = DataType::fp32, k.a_turned = k.b_turned = true, k.a_path = k.b_path = Path::bytes4; });
    add([](KernelConfig& k) { k.input = DataType::fp32, k.a_turned = true, k.a_path = Path::bytes16; });
    add([](KernelConfig& k) { k.input = DataType::int8, k.output = DataType::int32; });
    add([](KernelConfig& k) { k.input = k.output = DataType::int8, k.a_path = k.b_path = k.d_path = Path::bytes1; });
    add([](KernelConfig& k) { k.input = DataType::int8, k.a_turned = k.b_turned = true, k.a_path = k.b_path = Path::bytes4; });
    add([](KernelConfig& k) { k.input = DataType::int8, k.a_turned = true, k.a_path = Path::bytes1; });
    add([](KernelConfig& k) { k.input = DataType::fp8_e4m3; });
    add([](KernelConfig& k) { k.input = DataType::fp8_e5m2, k.output = DataType::fp8_e4m3; });
    add([](KernelConfig& k) { k.input = DataType::fp8_e4m3, k.promoted = true; });
    add([](KernelConfig& k) { k.input = DataType::fp8_e5m2, k.promoted = true, k.output = DataType::fp8_e5m2; });
    add([](KernelConfig& k) {
      k.input = DataType::fp8_e4m3, k.input_b = DataType::fp8_e5m2, k.promoted = true, k.output = DataType::fp32;
    });
    add([](KernelConfig& k) { k.input = DataType::fp8_e4m3, k.promoted = k.b_turned = true, k.b_path = Path::bytes4; });
    add([](KernelConfig& k) { k.split = 2; });
    add([](KernelConfig& k) { k.groups = kMostGroups; });
    add([](KernelConfig& k) {
      k.groups = kMostGroups, k.programmatic = k.wide_offsets = k.offsets_are_ends = k.zero_fill = true;
    });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.b_major = Major::mn, k.d_path = Path::bytes2; });
    add([](KernelConfig& k) {
      k.groups = kMostGroups, k.a_path = Path::bytes2, k.a_major = Major::mn, k.output = DataType::fp32;
    });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.input = DataType::fp8_e4m3, k.promoted = true; });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.gathers = true, k.a_path = Path::bytes16; });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.gathers = true, k.a_path = Path::bytes2, k.d_path = Path::bytes2; });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.scatters = true; });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.scatters = true, k.output = DataType::fp32, k.b_major = Major::mn; });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.depth_groups = true, k.a_major = k.b_major = Major::mn; });
    add([](KernelConfig& k) {
      k.groups = kMostGroups, k.depth_groups = k.accumulates = true, k.a_major = k.b_major = Major::mn, k.output = DataType::fp32;
    });
    add([](KernelConfig& k) { k.groups = kMostGroups, k.depth_groups = true, k.b_major = Major::mn, k.a_path = Path::bytes2; });
    add([](KernelConfig& k) { k.split = 4, k.programmatic = true, k.output = DataType::fp32; });
    add([](KernelConfig& k) { k.split = 2, k.a_path = k.b_path = k.d_path = Path::bytes2; });
  }
  return all;
}

TEST_P(Kernels, CompileWithoutSpillStackOrRemark) {
  const auto nvrtc = cuda::nvrtc();
  if (!nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  const jit::CompiledKernel kernel = jit::compile(**nvrtc, compile_request(GetParam()));
  EXPECT_TRUE(kernel.report.clean()) << kernel.log;
  EXPECT_LE(kernel.report.registers, entry_registers(GetParam())) << kernel.log;
  std::printf("%-48s %4d registers %7.0f ms\n", name_of(GetParam()).c_str(), kernel.report.registers, kernel.compile_ms);
}

INSTANTIATE_TEST_SUITE_P(Flavors, Kernels, ::testing::ValuesIn(flavors()), [](const auto& i) { return "k" + name_of(i.param); });

}  // namespace
}  // namespace verglas::sm90
