#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/driver_table.hpp"
#include "support/required.hpp"
#include "verglas/plan.hpp"

namespace support {

/// What keeps this machine from running GPU tests, in words; empty when nothing does.
std::string missing_gpu();

/// Plans, best first: each tile once, with programmatic launch or without it in turn.
std::vector<std::size_t> each_tile_once(const verglas::PlanList& plans);
/// The first of them, compiled at one time.
std::vector<verglas::CompiledPlan> compile_each_tile_once(const verglas::PlanList& plans, std::size_t most = SIZE_MAX);

/// Device memory between two guards of 4 KiB, filled with a byte. `misalign` shifts the payload by some bytes. What is written is
/// there when a function returns: streams that wait for no other may follow.
class DeviceBuffer {
 public:
  static constexpr std::size_t kGuard = 4096;

  DeviceBuffer(const verglas::cuda::DriverTable& driver, std::size_t bytes, int fill, std::size_t misalign = 0);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const noexcept { return reinterpret_cast<void*>(base_ + kGuard + misalign_); }
  std::size_t size() const noexcept { return bytes_; }
  void upload(const void* from);
  void fill(int byte);
  std::vector<std::uint8_t> download() const;
  /// Bytes around the payload that no longer hold their pattern.
  int touched_guard_bytes() const;

 private:
  void wait() const;
  const verglas::cuda::DriverTable& driver_;
  std::size_t bytes_, misalign_;
  verglas::cuda::CUdeviceptr base_ = 0;
};

}  // namespace support

/// Skips the test in words, or fails it where a GPU is required.
#define VERGLAS_NEEDS_GPU() \
  if (const std::string missing = support::missing_gpu(); !missing.empty()) VERGLAS_SKIP_FOR_WANT_OF("gpu", missing)

namespace support {

/// A test with the primary context of device 0 current on its thread.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    VERGLAS_NEEDS_GPU();
    open_gpu();
  }
  void open_gpu() {
    driver_ = *verglas::cuda::driver();
    primary_.emplace(*driver_, 0);
    current_.emplace(*driver_, primary_->handle());
  }

  /// 50 turns of one plan: a call on each of two streams, and a graph that was captured from the first, on a third.
  void run_on_two_streams_and_in_a_replay(const verglas::CompiledPlan& plan, std::span<const verglas::TensorView> first,
                                          std::span<const verglas::TensorView> second,
                                          std::span<const verglas::TensorView> replayed);

  const verglas::cuda::DriverTable* driver_ = nullptr;
  std::optional<verglas::cuda::PrimaryContext> primary_{};
  std::optional<verglas::cuda::CurrentContext> current_{};
};

}  // namespace support
