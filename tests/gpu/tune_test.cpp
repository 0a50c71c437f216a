#include <gtest/gtest.h>

#include <algorithm>

#include "support/gpu.hpp"
#include "support/temp_folder.hpp"
#include "verglas/verglas.hpp"

// Plans measured on a real device.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

Graph product(std::int64_t m, std::int64_t n, std::int64_t k, bool with_gelu = false) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, m, k}, .stride = {m * k, k, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, k, n}, .stride = {k * n, 1, k}});
  Tensor d = g.matmul(a, b);
  if (with_gelu) d = g.pointwise(PointwiseMode::gelu_approx_tanh, {d});
  d.set_output(true);
  return g;
}

TEST(TuneOnTheDevice, RanksLaterListsByWhatWasMeasured) {
  VERGLAS_NEEDS_GPU();
  const support::TempFolder temp;
  const support::ScopedVariable cache("VERGLAS_CACHE", temp.path().c_str());
  for (const bool with_gelu : {false, true}) {
    PlanList plans = product(256, 1024, 512, with_gelu).plans({.device = kGpu, .deselect_engines = {}});
    const TuneReport report = plans.tune({.most = 5, .seconds = 0.005});
    ASSERT_GE(report.plans.size(), 5U);
    for (const TuneReport::Plan& p : report.plans) {
      EXPECT_EQ(p.failure, "") << p.name;
      EXPECT_GT(p.seconds, 1e-6) << p.name;
      EXPECT_LT(p.seconds, 1e-3) << p.name;
    }
    EXPECT_TRUE(
        std::any_of(report.plans.begin(), report.plans.end(), [](const auto& p) { return p.name.starts_with("cublaslt"); }));
    EXPECT_TRUE(std::any_of(report.plans.begin(), report.plans.end(), [](const auto& p) { return p.name.starts_with("sm90"); }));
    EXPECT_EQ(plans.compile().name(), report.plans[0].name);
    const PlanList later = product(256, 1024, 512, with_gelu).plans({.device = kGpu, .deselect_engines = {}});
    EXPECT_EQ(later.name(0), report.plans[0].name) << later.tuning_note();
    EXPECT_EQ(later.measured_seconds(0), report.plans[0].seconds);
  }
}

}  // namespace
}  // namespace verglas
