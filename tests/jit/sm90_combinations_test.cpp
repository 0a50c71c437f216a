#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "chain/analyse.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/flawed_plans.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "support/feature_graph.hpp"
#include "support/feature_pairs.hpp"
#include "support/required.hpp"
#include "verglas/verglas.hpp"

// What a kernel may have meets in any combination: of graphs drawn for that, the first plan that is not passed over for what
// ptxas says of its kernel (PlanList::compile) is there for each.
//   VERGLAS_CASE=n   that graph alone     VERGLAS_SLOW=1   1,000 chains in place of 72
namespace verglas {
namespace {

chain::FusionChain chain_of(std::uint64_t seed) {
  Graph g;
  support::FeatureGraph(seed).describe(g);
  g.validate();
  return *chain::analyse(g.data());
}

struct Tally {
  std::mutex mutex;  // guards the rest
  int kernels = 0, chains = 0, passed_over = 0;
};

/// Compiles plans until one has no flaw; false where there is no plan to compile.
bool try_plans(std::uint64_t seed, Tally& tally) {
  const std::vector<support::DrawnPlan> plans = support::plans_of(seed);
  if (plans.empty()) return false;
  const chain::FusionChain chain = chain_of(seed);
  std::string said, flaw = "none was tried";
  engine::FlawedPlans flawed;
  int tried = 0;
  for (auto p = plans.begin(); p != plans.end() && !flaw.empty(); ++p) {
    const engine::Demand demand = sm90::engine().demand(chain, p->knobs);
    if (flawed.has_alike(sm90::engine(), demand)) continue;
    const jit::CompileRequest request =
        sm90::compile_request(sm90::configuration_of(chain, p->knobs), sm90::epilogue_of(chain, p->knobs).text);
    flaw = jit::compile(**cuda::nvrtc(), request).report.flaw();
    ++tried;
    if (flaw.empty()) continue;
    said += p->line() + ": " + flaw + "\n";
    flawed.add(sm90::engine(), demand);
  }
  const std::scoped_lock lock(tally.mutex);
  tally.kernels += tried;
  ++tally.chains;
  tally.passed_over += flaw.empty() ? tried - 1 : 0;
  std::printf("%s", said.c_str());
  EXPECT_TRUE(flaw.empty()) << "every plan has one: " << said;
  return true;
}

TEST(Sm90Combinations, HaveAPlanWhoseKernelHasNoFlaw) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  Tally tally;
  if (const char* seed = std::getenv("VERGLAS_CASE")) {
    EXPECT_TRUE(try_plans(std::strtoull(seed, nullptr, 10), tally)) << "nobody serves that graph";
    return;
  }
  const int wanted = std::getenv("VERGLAS_SLOW") != nullptr ? 1000 : 72;
  std::atomic<std::uint64_t> next{0};
  std::atomic<int> begun{0};
  {
    std::vector<std::jthread> workers;
    for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t)
      workers.emplace_back([&] {
        while (begun++ < wanted)
          while (!try_plans(next++, tally)) continue;
      });
  }
  EXPECT_EQ(tally.chains, wanted);
  // Every plan of these spilled once: rotated heads, or two products with a reduction, beside three producers.
  for (const std::uint64_t seed : {562, 613, 690, 736}) EXPECT_TRUE(try_plans(seed, tally)) << seed;
  std::printf("%d kernels of %d chains, %d passed over\n", tally.kernels, tally.chains, tally.passed_over);
}

}  // namespace
}  // namespace verglas
