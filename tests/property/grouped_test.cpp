#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/parallel_for.hpp"
#include "oracle/compare.hpp"
#include "oracle/grouped.hpp"
#include "support/grouped_generator.hpp"
#include "verglas/verglas.hpp"

// Generated groupings against the reference: every mode, sizes from none to all rows, rows that nobody owns, offsets and indices
// that do not fit.
//   VERGLAS_CASE=n   draws that case alone     VERGLAS_SLOW=1   100,000 in place of 10,000
namespace {

using namespace support;

constexpr int kShards = 16;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kCases = 800;
#else
constexpr std::int64_t kCases = 10000;
#endif

/// Outputs as they are before a call: poison, or numbers where the call adds to them. The reference remembers those.
void prepare(const Case& c, Call& call, oracle::Graph& reference, std::vector<PoisonedBuffer>& held, Random r) {
  const bool accumulates = c.reference.nodes.front().accumulate;
  held.clear();
  held.reserve(call.buffers.size());
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    if (!c.operands[i].is_output) continue;
    PoisonedBuffer& b = call.buffers[i];
    b.clear();
    if (!accumulates) continue;
    b.fill([&] { return draw_number(b.format(), c.data, r); });
    held.push_back(b);
    oracle::Memory m = call.memory[i];
    m.base = held.back().span_bytes() == 0 ? nullptr : held.back().data();
    if (m.bare) {
      m.dims = b.dims();
      m.strides = b.strides();
      m.bare = false;
    }
    reference.tensors[static_cast<std::size_t>(c.operands[i].tensor)].held = std::move(m);
  }
}

std::string unowned_faults(const Case& c, const oracle::Graph& reference, const std::vector<oracle::Result>& results) {
  std::string text;
  const bool zero_fill = c.reference.nodes.front().zero_fill;
  for (const oracle::Node& n : reference.nodes)
    for (const int i : {n.output, n.scale}) {
      if (i < 0) continue;
      const oracle::Tensor& t = reference.tensors[static_cast<std::size_t>(i)];
      const oracle::Result& want = results[static_cast<std::size_t>(i)];
      if (!t.is_output || !want.has_groups || (zero_fill && n.kind == oracle::NodeKind::reduction)) continue;
      text += unowned_fault(t, want, zero_fill);
    }
  return text;
}

std::string run(const Case& c, const verglas::CompiledPlan& plan, const Call& call, const oracle::Graph& reference,
                const std::vector<oracle::Result>& results) {
  const auto views = in_plan_order(c, plan, call.views);
  const verglas::Status status = plan.execute(views);
  if (!status.ok()) return std::string("refused: ") + plan.explain(status, views).what();
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    const std::string damage = c.operands[i].is_output ? call.buffers[i].stray_write() : call.buffers[i].any_write();
    if (!damage.empty()) return c.reference.tensors[static_cast<std::size_t>(c.operands[i].tensor)].name + ": " + damage;
  }
  const verglas::Status again = call.has_faults ? plan.execute(views) : verglas::Status{};
  if (again.ok() == call.has_faults) return "faults of data are not met by the next call";
  bool told = false;
  try {
    plan.check();
  } catch (const verglas::Error& e) {
    told = e.rule() == "call.data";
  }
  if (told != call.has_faults) return told ? "data that fit are reported" : "data that do not fit are not reported";
  return failures(compare_outputs(reference, results)) + unowned_faults(c, reference, results);
}

std::vector<std::vector<std::byte>> outputs_of(const Case& c, const Call& call) {
  std::vector<std::vector<std::byte>> all;
  for (std::size_t i = 0; i < call.buffers.size(); ++i)
    if (c.operands[i].is_output) all.push_back(call.buffers[i].content());
  return all;
}

std::string check_case(std::uint64_t seed) {
  Case c = draw_grouped_case(seed);
  try {
    const verglas::PlanList plans = c.graph.plans();
    if (plans.size() == 0) return c.line() + "\n  no plan: " + plans.unsupported_text();
    Random random(seed ^ 0xC0FFEE);
    Call call = draw_grouped_call(c, random);
    oracle::Graph reference = bound(c, call);
    std::vector<PoisonedBuffer> held;
    prepare(c, call, reference, held, Random(seed));
    const std::vector<oracle::Result> results = evaluate(reference);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const verglas::CompiledPlan plan = plans.compile(i);
      std::string where = c.line() + "\n  live";
      for (const std::int64_t e : call.live) where += ' ' + std::to_string(e);
      where += " plan " + plan.name() + ": ";
      verglas::set_thread_count(1);
      prepare(c, call, reference, held, Random(seed));
      std::string wrong = run(c, plan, call, reference, results);
      if (!wrong.empty()) return where + wrong;
      const auto first = outputs_of(c, call);
      verglas::set_thread_count(random.pick({2, 3, 5}));
      prepare(c, call, reference, held, Random(seed));
      wrong = run(c, plan, call, reference, results);
      if (!wrong.empty()) return where + "with threads: " + wrong;
      if (!call.has_faults && outputs_of(c, call) != first) return where + "other bits with other threads";
    }
  } catch (const std::exception& e) {
    return c.line() + "\n  threw: " + e.what();
  }
  return {};
}

class Grouped : public testing::TestWithParam<int> {};

TEST_P(Grouped, AgreesWithTheReference) {
  if (const char* only = std::getenv("VERGLAS_CASE")) {
    if (GetParam() != 0) return;
    EXPECT_EQ(check_case(std::strtoull(only, nullptr, 10)), "");
    return;
  }
  const std::int64_t cases = (std::getenv("VERGLAS_SLOW") != nullptr ? 10 * kCases : kCases) / kShards;
  int wrong = 0;
  for (std::int64_t i = 0; i < cases && wrong < 3; ++i) {
    const std::string text = check_case(static_cast<std::uint64_t>(i * kShards + GetParam()));
    if (text.empty()) continue;
    ++wrong;
    ADD_FAILURE() << text;
  }
  RecordProperty("generated_calls", std::to_string(cases));
}

INSTANTIATE_TEST_SUITE_P(Property, Grouped, testing::Range(0, kShards));

}  // namespace
