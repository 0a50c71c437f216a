#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "beside_cpu.hpp"
#include "support/beside_cpu.hpp"
#include "support/feature_graph.hpp"
#include "support/feature_pairs.hpp"
#include "support/gpu.hpp"

// What a kernel may have meets in pairs: of graphs drawn for that, those are compiled and run whose kernel has two features
// together that no one before had. Each has the CPU engine's results.
//   VERGLAS_CASE=n    that graph alone, all of its plans     VERGLAS_GRAPHS=n   graphs that are drawn (2,000)
//   VERGLAS_SECONDS=n kernels are begun so long (60); those with the most pairs go first, from number VERGLAS_FROM on
//   VERGLAS_FEATURE=groups=    those that have it
namespace {

using namespace verglas;
using support::DrawnPlan;

struct Tally {
  std::atomic<int> kernels{0}, calls{0}, refused{0};
};

using Clock = std::chrono::steady_clock;

/// Ends the process with the plans whose launches have not ended for long: nothing else would tell which they are.
class Watch {
 public:
  void begin(const std::string& line) {
    const std::scoped_lock lock(mutex_);
    running_[line] = Clock::now();
  }
  void end(const std::string& line) {
    const std::scoped_lock lock(mutex_);
    running_.erase(line);
  }

 private:
  void look() {
    const std::scoped_lock lock(mutex_);
    const auto is_late = [](const auto& r) { return Clock::now() - r.second > std::chrono::seconds(20); };
    if (std::none_of(running_.begin(), running_.end(), is_late)) return;
    for (const auto& [line, since] : running_)
      std::printf("has not ended, begun %.3f s ago: %s\n", std::chrono::duration<double>(Clock::now() - since).count(),
                  line.c_str());
    std::fflush(stdout);
    std::_Exit(1);
  }

  std::mutex mutex_;
  std::map<std::string, Clock::time_point> running_;
  std::jthread thread_{[this](const std::stop_token& stop) {
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(200))) look();
  }};
};

/// As declared, with other extents, and with large ones.
void run(const DrawnPlan& d, bool at_edge, Tally& tally, Watch& watch) {
  SCOPED_TRACE(d.line());
  const cuda::DriverTable& driver = **cuda::driver();
  cuda::CUstream stream = nullptr;  // of its own, so that kernels of other threads run beside it
  ASSERT_EQ(driver.cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
  std::optional<CompiledPlan> plan;
  for (int of_call = 0; of_call < (at_edge ? 2 : 3); ++of_call) {
    const support::FeatureGraph declared(d.seed), drawn(d.seed, of_call);
    const auto [weights, scales] = drawn.by_address();
    support::BesideCpu both(
        driver, [&](Graph& g) { declared.describe(g); },
        [&](const OperandInfo& info, std::vector<std::uint8_t>& bytes) { drawn.fill(info, bytes); },
        {.at_edge = at_edge,
         .matrix_bytes = weights.first,
         .matrix = weights.second,
         .scales_bytes = scales.first,
         .scales = scales.second,
         .by_value = true,
         .outputs = 0x3C,
         .live = [&](Graph& g) { drawn.describe(g); }});
    for (std::size_t i = 0; i < both.plans().size() && !plan; ++i)
      if (both.plans().knobs(i) == d.knobs) plan = both.plans().compile(i);
    if (!plan) return;  // of another number of processors
    both.prepare();
    const std::vector<TensorView> call = both.views();
    // Of many tiles a block: several times, one launch behind the other, since what overtakes something else does so now and
    // then.
    const bool adds = std::find(d.features.begin(), d.features.end(), "groups=added") != d.features.end();
    const int turns = of_call == 2 && !adds ? 3 : 1;
    driver.cuCtxSynchronize();  // uploads are of another stream
    for (int turn = 0; turn < turns; ++turn) {
      watch.begin(d.line());
      Status status;
      for (int i = 0; i < turns; ++i) status = plan->execute(call, {stream});
      const cuda::CUresult code = driver.cuStreamSynchronize(stream);
      watch.end(d.line());
      ASSERT_EQ(code, cuda::CUDA_SUCCESS) << plan->name();
      if (!status.ok()) {
        const Error why = plan->explain(status, call);
        const bool of_layout =
            why.rule() == "call.modulus" || why.rule() == "call.alignment" || why.rule() == "call.outer_stride";
        EXPECT_TRUE(of_call > 0 && of_layout) << plan->name() << ": " << why.what();
        ++tally.refused;
        break;
      }
      both.compare(plan->name() + ", call " + std::to_string(of_call) + " turn " + std::to_string(turn));
      tally.calls += turns;
    }
  }
  driver.cuStreamDestroy(stream);
  ++tally.kernels;
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// `at_edge`: the page behind every operand is not mapped.
void run_all(bool at_edge) {
  const std::vector<DrawnPlan> all = std::getenv("VERGLAS_CASE")
                                         ? support::plans_of(number_of("VERGLAS_CASE", 0))
                                         : support::plans_with_all_pairs(number_of("VERGLAS_GRAPHS", 2000));
  const char* wanted = std::getenv("VERGLAS_FEATURE");
  const auto end = Clock::now() + std::chrono::seconds(number_of("VERGLAS_SECONDS", 60));
  Tally tally;
  Watch watch;
  const std::size_t from = number_of("VERGLAS_FROM", 0);
  gpu_test::each_on_device(all.size(), [&](std::size_t i) {
    if (i < from || Clock::now() > end || (wanted && all[i].line().find(wanted) == std::string::npos)) return;
    try {
      run(all[i], at_edge, tally, watch);
    } catch (const std::exception& e) {
      ADD_FAILURE() << all[i].line() << " threw: " << e.what();
    }
  });
  std::printf("%d calls of %d kernels, %d more refused\n", tally.calls.load(), tally.kernels.load(), tally.refused.load());
}

TEST(Sm90Pairs, OfFeaturesAgreeWithTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  run_all(false);
}

TEST(Sm90Pairs, OfFeaturesTouchNothingBehindTheirOperands) {
  VERGLAS_NEEDS_GPU();
  run_all(true);
}

}  // namespace
