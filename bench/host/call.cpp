// What a checked call costs on the host when the driver costs nothing: by operands and by what is new since the last call.
//   verglas_bench_host           nanoseconds of a call: the least of many bursts
//   verglas_bench_host --count   under callgrind: one profile a case, each named by its number; scripts/host-budget.sh reads them
#include <fmt/format.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "cases.hpp"
#include "null_driver.hpp"

namespace {

using verglas::bench::Case;

constexpr int kCountedCalls = 64, kBursts = 2000, kCallsOfBurst = 64;

/// False when a call is refused: then there is nothing to measure.
[[gnu::noinline]] bool run(const Case& c, int calls) {
  bool ok = true;
  if (!c.addresses.empty()) {
    for (int i = 0; i < calls; ++i) ok &= c.plan.execute(std::span<void* const>(c.addresses[0])).ok();
    return ok;
  }
  const std::size_t mask = c.packs.size() - 1;  // 1 or 4 packs
  if (c.operation) {
    for (int i = 0; i < calls; ++i) c.operation->execute(c.packs[static_cast<std::size_t>(i) & mask]);
    return true;  // what is refused throws
  }
  for (int i = 0; i < calls; ++i) ok &= c.plan.execute(c.packs[static_cast<std::size_t>(i) & mask]).ok();
  return ok;
}

void count(const std::vector<Case>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CALLGRIND_ZERO_STATS;
    CALLGRIND_TOGGLE_COLLECT;
    run(cases[i], kCountedCalls);
    CALLGRIND_TOGGLE_COLLECT;
    CALLGRIND_DUMP_STATS_AT(fmt::format("case {}", i).c_str());
    fmt::print("case {}\t{}\t{}\t{}\n", i, kCountedCalls, cases[i].budget, cases[i].name);
  }
}

void time(const std::vector<Case>& cases) {
  using Clock = std::chrono::steady_clock;
  for (const Case& c : cases) {
    double least = 1e9;
    for (int burst = 0; burst < kBursts; ++burst) {
      const auto start = Clock::now();
      run(c, kCallsOfBurst);
      least = std::min(least, std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCallsOfBurst);
    }
    fmt::print("{:7.1f} ns  {}\n", least, c.name);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::setenv("VERGLAS_CACHE", "off", 1);
  verglas::bench::NullDriver driver;
  const std::vector<Case> cases = verglas::bench::make_cases();
  driver.silence();
  for (const Case& c : cases)
    if (!run(c, 8)) {
      fmt::print(stderr, "{}: refused: {}\n", c.name,
                 c.packs.empty() ? "" : c.plan.explain(c.plan.execute(c.packs[0]), c.packs[0]).what());
      return 1;
    }
  if (argc > 1 && std::string_view(argv[1]) == "--count")
    count(cases);
  else
    time(cases);
  return 0;
}
