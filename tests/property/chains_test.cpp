#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/parallel_for.hpp"
#include "oracle/compare.hpp"
#include "support/graph_generator.hpp"

// Generated chains against the reference, element by element: every plan of the list, every way to describe a call, any number
// of threads.
//   VERGLAS_CASE=n   draws that case alone     VERGLAS_CASES=n   that many calls     VERGLAS_SLOW=1   100,000 in place of 20,000
namespace {

using namespace support;

constexpr int kShards = 16;
constexpr int kCallsOfACase = 4;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kCalls = 1280;
#else
constexpr std::int64_t kCalls = 20800;
#endif

std::int64_t calls_in_all() {
  if (const char* n = std::getenv("VERGLAS_CASES")) return std::atoll(n);
  return std::getenv("VERGLAS_SLOW") != nullptr ? 100000 : kCalls;
}

/// Runs one plan on fresh outputs; what was wrong, or nothing.
std::string run(const Case& c, const verglas::CompiledPlan& plan, Call& call, const oracle::Graph& reference,
                const std::vector<oracle::Result>& results) {
  for (std::size_t i = 0; i < call.buffers.size(); ++i)
    if (c.operands[i].is_output) call.buffers[i].clear();
  const auto views = in_plan_order(c, plan, call.views);
  verglas::Status status;
  if (call.is_bare) {
    std::vector<void*> addresses;
    for (const verglas::TensorView& v : views) addresses.push_back(v.data);
    status = plan.execute(addresses);
  } else {
    status = plan.execute(views);
  }
  if (!status.ok()) return std::string("refused: ") + plan.explain(status, views).what();
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    const std::string damage = c.operands[i].is_output ? call.buffers[i].stray_write() : call.buffers[i].any_write();
    if (!damage.empty()) return c.reference.tensors[static_cast<std::size_t>(c.operands[i].tensor)].name + ": " + damage;
  }
  return failures(compare_outputs(reference, results));
}

std::vector<std::vector<std::byte>> outputs_of(const Case& c, const Call& call) {
  std::vector<std::vector<std::byte>> all;
  for (std::size_t i = 0; i < call.buffers.size(); ++i)
    if (c.operands[i].is_output) all.push_back(call.buffers[i].content());
  return all;
}

std::string extents_text(const Extents& e) {
  std::string s = " live";
  for (std::size_t i = 1; i < e.size(); ++i) s += ' ' + std::to_string(e[i]);
  return s;
}

/// All of one case: calls × plans, then again with other threads. Answers what was wrong.
std::string check_case(std::uint64_t seed, const GeneratorOptions& options, int calls) {
  Case c = draw_case(seed, options);
  try {
    const verglas::PlanList plans = c.graph.plans();
    if (plans.size() == 0) return c.line() + "\n  no plan: " + plans.unsupported_text();
    Random random(seed ^ 0xC0FFEE);
    for (int k = 0; k < calls; ++k) {
      Call call = draw_call(c, random);
      const oracle::Graph reference = bound(c, call);
      const std::vector<oracle::Result> results = evaluate(reference);
      for (std::size_t i = 0; i < plans.size(); ++i) {
        const verglas::CompiledPlan plan = plans.compile(i);
        const std::string where = c.line() + "\n  call " + std::to_string(k) + extents_text(call.live) + " plan " + plan.name();
        verglas::set_thread_count(1);
        std::string wrong = run(c, plan, call, reference, results);
        if (!wrong.empty()) return where + ": " + wrong;
        const auto first = outputs_of(c, call);
        verglas::set_thread_count(random.pick({2, 3, 5}));
        wrong = run(c, plan, call, reference, results);
        if (!wrong.empty()) return where + ": with threads: " + wrong;
        if (outputs_of(c, call) != first) return where + ": other bits with other threads";
      }
    }
  } catch (const std::exception& e) {
    return c.line() + "\n  threw: " + e.what();
  }
  return {};
}

class Chains : public testing::TestWithParam<int> {};

TEST_P(Chains, AgreeWithTheReference) {
  if (const char* only = std::getenv("VERGLAS_CASE")) {
    if (GetParam() != 0) return;
    EXPECT_EQ(check_case(std::strtoull(only, nullptr, 10), {}, kCallsOfACase), "");
    return;
  }
  const std::int64_t cases = calls_in_all() / kCallsOfACase / kShards;
  int wrong = 0;
  for (std::int64_t i = 0; i < cases && wrong < 3; ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(i * kShards + GetParam());
    const std::string text = check_case(seed, {}, kCallsOfACase);
    if (text.empty()) continue;
    ++wrong;
    ADD_FAILURE() << text;
  }
  RecordProperty("generated_calls", std::to_string(cases * kCallsOfACase));
}

/// Matrices with scales of blocks, and quantised outputs: 20,000 graphs, one call each.
class BlockScaledChains : public testing::TestWithParam<int> {};

TEST_P(BlockScaledChains, AgreeWithTheReference) {
  GeneratorOptions options;
  options.block_scaled = true;
  options.largest = 290;
  options.most_work = 20000;
  options.most_steps = 3;
  if (const char* only = std::getenv("VERGLAS_CASE")) {
    if (GetParam() != 0) return;
    EXPECT_EQ(check_case(std::strtoull(only, nullptr, 10), options, 1), "");
    return;
  }
  const std::int64_t cases = calls_in_all() / kShards;
  int wrong = 0;
  for (std::int64_t i = 0; i < cases && wrong < 3; ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(i * kShards + GetParam());
    const std::string text = check_case(seed, options, 1);
    if (text.empty()) continue;
    ++wrong;
    ADD_FAILURE() << text;
  }
  RecordProperty("generated_calls", std::to_string(cases));
}

INSTANTIATE_TEST_SUITE_P(Property, BlockScaledChains, testing::Range(0, kShards));

INSTANTIATE_TEST_SUITE_P(Property, Chains, testing::Range(0, kShards));

}  // namespace
