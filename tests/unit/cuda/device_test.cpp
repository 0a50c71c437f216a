#include "cuda/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/recording_driver.hpp"

namespace verglas::cuda {
namespace {

TEST(DeviceFacts, AreReadWithoutMakingAContext) {
  std::vector<support::FakeDevice> devices(2);
  devices[1].name = "NVIDIA A100";
  devices[1].major = 8;
  devices[1].multiprocessors = 108;
  const support::RecordingDriver driver(devices);
  EXPECT_EQ(device_count(driver.table()), 2);
  const DeviceFacts hopper = device_facts(driver.table(), 0), ampere = device_facts(driver.table(), 1);
  EXPECT_EQ(hopper.arch(), "sm_90");
  EXPECT_EQ(hopper.multiprocessors, 132);
  EXPECT_EQ(hopper.smem_optin_bytes, 232448);
  EXPECT_TRUE(hopper.clusters);
  EXPECT_EQ(ampere.arch(), "sm_80");
  EXPECT_EQ(ampere.name, "NVIDIA A100");
  EXPECT_FALSE(ampere.tensor_maps);
  EXPECT_EQ(driver.live().total(), 0);
}

TEST(DeviceFacts, OfADeviceThatIsNotThereIsAnErrorWithItsNumber) {
  const support::RecordingDriver driver;
  try {
    device_facts(driver.table(), 3);
    FAIL() << "answered";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::driver_failed);
    EXPECT_THAT(e.what(), testing::HasSubstr("cuDeviceGet answers code 101 while asking about device 3"));
  }
}

TEST(DeviceFacts, EveryCallMayFailOnce) {
  support::RecordingDriver driver;
  device_facts(driver.table(), 0);
  const std::vector<std::string> calls = driver.calls();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    driver.fail_call(static_cast<int>(i), CUDA_ERROR_UNKNOWN);
    try {
      device_facts(driver.table(), 0);
      ADD_FAILURE() << calls[i];
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(calls[i] + " answers CUDA_ERROR_UNKNOWN (999)"));
    }
  }
}

}  // namespace
}  // namespace verglas::cuda
