#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "engine/sm90/parameter_block.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

/// A plan of one product on a driver in memory.
namespace verglas {

using sm90::ParameterBlock;
using support::record_of;

inline constexpr std::int64_t kM = 300, kN = 520, kK = 136;
inline constexpr Device kGpu{DeviceType::cuda, 0};

/// Addresses that nobody dereferences: kernels do not run here.
inline void* at(std::uintptr_t megabyte) { return reinterpret_cast<void*>(megabyte << 20); }

class Sm90Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("VERGLAS_CACHE", "off", 1);
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  }

  CompiledPlan plan(std::int64_t l = 1, Device device = kGpu) {
    Graph g({.name = "plain"});
    const Tensor a = g.tensor({.name = "a", .dim = {l, kM, kK}, .stride = {kM * kK, kK, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {l, kK, kN}, .stride = {kK * kN, 1, kK}});
    g.matmul(a, b).set_output(true).set_name("d");
    PlanList plans = g.plans({.device = device, .deselect_engines = {"cpu"}});
    EXPECT_GE(plans.size(), 1U) << plans.unsupported_text();
    return plans.compile();
  }

  static std::vector<TensorView> buffers(std::int64_t l, std::int64_t m, std::uintptr_t base) {
    return {TensorView::dense(at(base), DataType::bf16, {l, m, kK}, kGpu),
            TensorView::strided(at(base + 64), DataType::bf16, {l, kK, kN}, {kK * kN, 1, kK}, kGpu),
            TensorView::dense(at(base + 128), DataType::bf16, {l, m, kN}, kGpu)};
  }

  support::RecordingDriver driver{{support::FakeDevice{}, support::FakeDevice{}}};
  support::FakeNvrtc nvrtc;
};

}  // namespace verglas
