#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "cuda/context.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "support/allocations.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

namespace verglas {
namespace {

/// y = a · b, 2 by 3 by 2 in fp32, on the host.
CompiledPlan host_plan() {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {1, 2, 3}, .stride = {6, 3, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, 3, 2}, .stride = {6, 2, 1}});
  g.matmul(a, b).set_output(true).set_name("y");
  return g.compile();
}

struct HostCall {
  std::vector<float> a{1, 2, 3, 4, 5, 6}, other{2, 4, 6, 8, 10, 12}, b{1, 0, 0, 1, 1, 1}, y = std::vector<float>(5, -7);
  std::vector<TensorView> views() {
    return {TensorView::dense(a.data(), DataType::fp32, {1, 2, 3}), TensorView::dense(b.data(), DataType::fp32, {1, 3, 2}),
            TensorView::dense(y.data(), DataType::fp32, {1, 2, 2})};
  }
};

TEST(BoundCall, RunsAgainAndFollowsAddresses) {
  const CompiledPlan p = host_plan();
  HostCall c;
  BoundCall call = p.bind(c.views());
  EXPECT_EQ(c.y, (std::vector<float>{-7, -7, -7, -7, -7}));  // binding launches nothing
  ASSERT_TRUE(call().ok());
  EXPECT_EQ(c.y, (std::vector<float>{4, 5, 10, 11, -7}));
  BoundCall copy = call;
  ASSERT_TRUE(call.set_address(0, c.other.data()));
  ASSERT_TRUE(call().ok());
  EXPECT_EQ(c.y, (std::vector<float>{8, 10, 20, 22, -7}));
  ASSERT_TRUE(copy().ok());  // a copy keeps its own addresses
  EXPECT_EQ(c.y, (std::vector<float>{4, 5, 10, 11, -7}));
  EXPECT_FALSE(call.set_address(3, c.a.data()));
  EXPECT_FALSE(call.set_address(-1, c.a.data()));
}

TEST(BoundCall, ChecksWhatAnAddressCanBreak) {
  const CompiledPlan p = host_plan();
  HostCall c;
  BoundCall call = p.bind(c.views());
  const auto refuses = [&](int operand, void* address, const char* rule) {
    void* const before = c.views()[static_cast<std::size_t>(operand)].data;
    ASSERT_TRUE(call.set_address(operand, address));
    for (int again = 0; again < 2; ++again) {  // refused until it is put right
      const Status s = call();
      EXPECT_EQ(s.code, ErrorCode::invalid_call) << rule;
      EXPECT_EQ(call.explain(s).rule(), rule);
    }
    EXPECT_EQ(c.y, (std::vector<float>(5, -7))) << rule;
    ASSERT_TRUE(call.set_address(operand, before));
  };
  refuses(0, nullptr, "call.null");
  refuses(1, reinterpret_cast<char*>(c.b.data()) + 2, "call.alignment");
  refuses(2, c.a.data() + 3, "call.overlap");
  ASSERT_TRUE(call().ok());
  EXPECT_EQ(c.y, (std::vector<float>{4, 5, 10, 11, -7}));
}

TEST(BoundCall, IsMadeOfALegalCallOnly) {
  const CompiledPlan p = host_plan();
  HostCall c;
  auto views = c.views();
  views[0].extent[2] = 2;
  try {
    p.bind(views);
    FAIL() << "bound an illegal call";
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "call.extent");
  }
  BoundCall none;
  EXPECT_FALSE(none.valid());
  EXPECT_FALSE(none.set_address(0, c.a.data()));
  const Status s = none();
  EXPECT_FALSE(s.ok());
  EXPECT_EQ(none.explain(s).rule(), "plan.stage");
}

TEST(BoundCall, IsOneLaunchOnADevice) {
  ::setenv("VERGLAS_CACHE", "off", 1);
  support::RecordingDriver driver{{support::FakeDevice{}, support::FakeDevice{}}};
  support::FakeNvrtc nvrtc;
  nvrtc.set_parameter_bytes(static_cast<int>(sizeof(sm90::ParameterBlock)));
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, 64, 64}, .stride = {4096, 64, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, 64, 64}, .stride = {4096, 1, 64}});
  g.matmul(a, b).set_output(true);
  const CompiledPlan p = g.compile({.device = {DeviceType::cuda, 0}, .deselect_engines = {"cpu"}});
  const CompiledPlan other = g.compile({.device = {DeviceType::cuda, 1}, .deselect_engines = {"cpu"}});  // keeps its context
  const auto at = [](std::uintptr_t megabyte) { return reinterpret_cast<void*>(megabyte << 20); };
  const std::vector<TensorView> views{TensorView::address(at(1)), TensorView::address(at(2)), TensorView::address(at(3))};
  BoundCall call = p.bind(views);
  driver.clear();
  ASSERT_TRUE(call().ok());
  ASSERT_TRUE(call.set_address(2, at(4)));
  ASSERT_TRUE(call().ok());
  const auto launches = driver.launches();
  ASSERT_EQ(launches.size(), 2U);
  EXPECT_EQ(support::record_of(launches[0].as<sm90::ParameterBlock>().d).address, reinterpret_cast<std::uint64_t>(at(3)));
  EXPECT_EQ(support::record_of(launches[1].as<sm90::ParameterBlock>().d).address, reinterpret_cast<std::uint64_t>(at(4)));
  EXPECT_EQ(support::record_of(launches[1].as<sm90::ParameterBlock>().a[0]).address, reinterpret_cast<std::uint64_t>(at(1)));

  const cuda::CurrentContext elsewhere(driver.table(), driver.primary_context(1));
  driver.clear();
  const Status s = call();
  EXPECT_EQ(call.explain(s).rule(), "call.device");
  EXPECT_TRUE(driver.untouched());
}

TEST(BoundCall, AllocatesNothing) {
  const CompiledPlan p = host_plan();
  HostCall c;
  BoundCall call = p.bind(c.views());
  ASSERT_TRUE(call().ok());  // the CPU engine's arena is there now
  const long before = support::allocations_of_this_thread();
  call.set_address(0, c.other.data());
  const bool ok = call().ok();
  call.set_address(0, nullptr);
  const bool refused = !call().ok();
  const long after = support::allocations_of_this_thread();
  EXPECT_TRUE(ok && refused);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace verglas
