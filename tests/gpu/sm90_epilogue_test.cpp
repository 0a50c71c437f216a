#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "oracle/compare.hpp"
#include "support/gpu.hpp"
#include "support/graph_generator.hpp"

// Generated chains on a real device against the reference: those that the Hopper engine claims, on buffers of their own.
namespace {

using namespace support;
using verglas::TensorView;

struct Outcome {
  bool claimed = false;
  std::string wrong;
};

/// Host buffers go to the device, guards and all, and come back.
Outcome check_case(std::uint64_t seed, const verglas::cuda::DriverTable& driver) {
  Case c = draw_case(seed, {.largest = 200, .most_work = 400000, .most_steps = 6});
  const verglas::PlanList plans = c.graph.plans({.device = {verglas::DeviceType::cuda, 0}, .deselect_engines = {"cpu"}});
  if (plans.size() == 0) return {};
  const verglas::CompiledPlan plan = plans.compile(seed % plans.size());
  Random random(seed ^ 0xC0FFEE);
  Call call = draw_call(c, random);
  const oracle::Graph reference = bound(c, call);
  const std::vector<oracle::Result> results = evaluate(reference, {.ulps = 4, .approximate = true});

  std::list<DeviceBuffer> device;
  std::vector<DeviceBuffer*> of(call.buffers.size(), nullptr);
  std::vector<TensorView> views = call.views;
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    const CaseOperand& o = c.operands[i];
    if (o.is_output) call.buffers[i].clear();
    views[i].observed_bytes = -1;
    if (o.is_host_scalar) continue;
    const std::int64_t bytes = call.buffers[i].span_bytes();
    // Shifted like the host's buffer, so that the same paths are legal.
    const auto shift = reinterpret_cast<std::uintptr_t>(call.views[i].data) % 16;
    of[i] = &device.emplace_back(driver, static_cast<std::size_t>(bytes), 0xFF, shift);
    if (bytes > 0) of[i]->upload(call.views[i].data);
    views[i].data = of[i]->data();
    if (!call.is_bare) views[i].device = {verglas::DeviceType::cuda, 0};
  }
  const auto ordered = in_plan_order(c, plan, views);
  const verglas::Status status = plan.execute(ordered);
  const std::string where = c.line() + " plan " + plan.name() + ": ";
  if (status.code == verglas::ErrorCode::invalid_call)
    return {};  // a layout that this plan's paths do not take: tested elsewhere
  if (!status.ok()) return {true, where + plan.explain(status, ordered).what()};
  if (driver.cuCtxSynchronize() != verglas::cuda::CUDA_SUCCESS) return {true, where + "the kernel failed"};
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    if (!of[i]) continue;
    if (of[i]->touched_guard_bytes() != 0) return {true, where + "a guard was written"};
    const auto back = of[i]->download();
    if (!back.empty()) std::memcpy(call.views[i].data, back.data(), back.size());
    const std::string damage = c.operands[i].is_output ? call.buffers[i].stray_write() : call.buffers[i].any_write();
    if (!damage.empty()) return {true, where + damage};
  }
  const std::string wrong = failures(compare_outputs(reference, results));
  return {true, wrong.empty() ? wrong : where + wrong};
}

TEST(Sm90Epilogue, AgreesWithTheReferenceOnGeneratedChains) {
  VERGLAS_NEEDS_GPU();
  const verglas::cuda::DriverTable& driver = **verglas::cuda::driver();
  const verglas::cuda::PrimaryContext primary(driver, 0);
  const char* text = std::getenv("VERGLAS_CASES");
  const int cases = text ? std::atoi(text) : 12000;
  const char* from = std::getenv("VERGLAS_FIRST");
  const int start = from ? std::atoi(from) : 0;
  std::atomic<int> claimed{0}, wrong{0}, next{start};
  std::mutex mutex;
  {
    std::vector<std::jthread> workers;  // compiling is what takes the time
    const unsigned threads = from ? 1 : std::thread::hardware_concurrency();
    for (unsigned t = 0; t < threads; ++t)
      workers.emplace_back([&] {
        const verglas::cuda::CurrentContext current(driver, primary.handle());
        for (int i = next++; i < cases && wrong < 5; i = next++) {
          Outcome outcome;
          try {
            outcome = check_case(static_cast<std::uint64_t>(i), driver);
          } catch (const std::exception& e) {
            outcome = {true, std::string("threw: ") + e.what()};
          }
          claimed += outcome.claimed ? 1 : 0;
          if (outcome.wrong.empty()) continue;
          ++wrong;
          const std::lock_guard lock(mutex);
          ADD_FAILURE() << "seed " << i << ' ' << outcome.wrong;
        }
      });
  }
  std::printf("%d of %d generated calls ran on the device\n", claimed.load(), cases);
  if (!from) {
    EXPECT_GT(claimed.load(), cases / 200);
  }
}

}  // namespace
