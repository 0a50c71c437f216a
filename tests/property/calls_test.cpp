#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "oracle/judge.hpp"
#include "recipe/recipe.hpp"
#include "support/graph_generator.hpp"
#include "support/grouped_generator.hpp"
#include "support/judged.hpp"

// Legal and illegal calls: a legal call of a generated graph with one or two things changed. The library refuses exactly what the
// independent judge calls illegal, names a rule that the judge has found too, and writes nothing.
namespace {

using namespace support;
using verglas::TensorView;

constexpr int kShards = 8;
constexpr int kCallsOfACase = 40;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kCalls = 3200;
#else
constexpr std::int64_t kCalls = 32000;
#endif

std::int64_t calls_in_all() { return std::getenv("VERGLAS_SLOW") != nullptr ? 200000 : kCalls; }

/// Stands in for the engine, so that a call that is wrongly let through touches no memory.
class CountingLauncher final : public verglas::recipe::Launcher {
 public:
  verglas::Status launch(const verglas::recipe::Binding&, const verglas::recipe::Call&) const noexcept override {
    ++launches;
    return {};
  }
  verglas::Error failure(verglas::Status) const override { return {verglas::ErrorCode::internal, "internal", "never fails"}; }
  mutable int launches = 0;
};

/// One call as it will be made: views in the order of the plan, and whose they are.
struct Attempt {
  std::vector<TensorView> views;
  std::vector<std::int64_t> uids;
  std::string changes;
};

void describe(TensorView& v, const verglas::OperandInfo& info) {
  if (!v.is_bare()) return;
  void* const data = v.data;
  v = {};
  v.data = data;
  v.dtype = info.dtype;
  v.rank = static_cast<std::int8_t>(info.dim.size());
  std::copy(info.dim.begin(), info.dim.end(), v.extent.begin());
  std::copy(info.stride.begin(), info.stride.end(), v.stride.begin());
}

std::int64_t bytes_of(const TensorView& v) {
  std::int64_t last = 0;
  for (int i = 0; i < v.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (v.extent[at] <= 0) return 0;
    if (v.extent[at] > 1 && (v.extent[at] > 4096 || v.stride[at] > 1000000)) return 0;
    if (v.extent[at] > 1) last += (v.extent[at] - 1) * v.stride[at];
  }
  return (last + 1) * verglas::bytes_of(v.dtype);
}

/// Changes one thing of the call; says what.
std::string change(Attempt& t, const verglas::CompiledPlan& plan, Random& r) {
  if (r.chance(3) && t.views.size() == plan.operands().size()) {
    if (r.chance(50) && !t.views.empty()) {
      t.views.pop_back();
      t.uids.pop_back();
      return "one buffer less";
    }
    t.views.push_back(t.views[0]);
    t.uids.push_back(999999);
    return "one buffer more";
  }
  const auto i = static_cast<std::size_t>(r.between(0, static_cast<std::int64_t>(plan.operands().size()) - 1));
  if (i >= t.views.size()) return {};
  const verglas::OperandInfo& info = plan.operands()[i];
  TensorView& v = t.views[i];
  const std::string who = " of " + info.name;
  const std::int64_t what = r.between(0, 21);
  if (what != 0 && what != 1) describe(v, info);
  const auto axis = static_cast<std::size_t>(r.between(0, std::max(v.rank - 1, 0)));
  const auto byte = static_cast<char*>(v.data);
  switch (what) {
    case 0: v.data = nullptr; return "null" + who;
    case 1: v.read_only = true; return "read-only" + who;
    case 2:
      v.rank = static_cast<std::int8_t>(r.between(0, 5));
      for (std::size_t k = 3; k < 5; ++k) {
        v.extent[k] = r.between(1, 2);
        v.stride[k] = r.between(1, 5);
      }
      if (v.rank >= 3 && v.extent[2] == 0 && r.chance(50)) v.extent[2] = 1;
      return "rank" + who;
    case 3:
      v.dtype = r.pick({verglas::DataType::fp32, verglas::DataType::bf16, verglas::DataType::int8, verglas::DataType::uint8});
      return "type" + who;
    case 4: v.device = {r.pick({verglas::DeviceType::cuda, verglas::DeviceType::unknown}), 0}; return "device" + who;
    case 5: v.extent[axis] += 1; return "extent + 1" + who;
    case 6: v.extent[axis] -= 1; return "extent − 1" + who;
    case 7: v.extent[axis] = r.pick({std::int64_t{-1}, std::int64_t{-1000}}); return "negative extent" + who;
    case 8: v.extent[axis] = 0; return "no extent" + who;
    case 9: v.stride[axis] = -r.between(1, 100); return "negative stride" + who;
    case 10: v.stride[axis] = 0; return "stride 0" + who;
    case 11: v.stride[axis] = r.between(1, 6); return "small stride" + who;
    case 12:
      v.stride[axis] = r.pick({std::int64_t{1} << 62, std::int64_t{1} << 61, std::int64_t{1} << 40});
      return "huge stride" + who;
    case 13:
      v.extent[axis] = r.pick({std::int64_t{1} << 31, (std::int64_t{1} << 31) - 1, std::int64_t{1} << 62});
      return "huge extent" + who;
    case 14: v.data = byte == nullptr ? nullptr : byte + 1; return "a byte further" + who;
    case 15: v.observed_bytes = std::max<std::int64_t>(bytes_of(v) - 1, 0); return "a byte less than reached" + who;
    case 16: v.observed_bytes = bytes_of(v); return "just the bytes reached" + who;
    case 17: {
      const TensorView& other = r.pick(t.views);
      v.data =
          other.data == nullptr ? nullptr : static_cast<char*>(other.data) + verglas::bytes_of(info.dtype) * r.between(-3, 3);
      return "memory of another" + who;
    }
    case 18: {
      // Just behind or just at the end of another operand.
      const TensorView& other = r.pick(t.views);
      if (other.is_bare() || other.data == nullptr) return {};
      const std::int64_t size = verglas::bytes_of(info.dtype);
      const std::int64_t end = (bytes_of(other) + size - 1) / size * size - (r.chance(50) ? size : 0);
      v.data = static_cast<char*>(other.data) + end;
      return "memory beside another" + who;
    }
    case 19:
      v.order = v.order == verglas::AxisOrder::kernel ? verglas::AxisOrder::declared : verglas::AxisOrder::kernel;
      return "axis order" + who;
    case 20:
      if (v.rank < 2) return {};
      std::swap(v.extent[0], v.extent[static_cast<std::size_t>(v.rank - 1)]);
      return "swapped extents" + who;
    default:
      for (int k = 0; k < v.rank; ++k)
        if (v.extent[static_cast<std::size_t>(k)] == 1) v.stride[static_cast<std::size_t>(k)] = r.between(-1000, 1000);
      return "strides of unit axes" + who;
  }
}

struct Counts {
  std::int64_t legal = 0, illegal = 0;
};

/// Empty when library and judge agree.
std::string check(const Case& c, const verglas::CompiledPlan& plan, const Call& call, const Attempt& t, Counts& counts) {
  std::vector<oracle::Binding> bindings;
  for (std::size_t i = 0; i < t.views.size(); ++i) bindings.push_back({t.uids[i], seen_by_judge(t.views[i])});
  const oracle::Verdict verdict = oracle::judge(c.reference, bindings);
  const CountingLauncher launcher;
  const verglas::Status status = verglas::recipe::execute(plan.recipe(), launcher, {t.views, {}, {}});
  if (status.ok() != verdict.legal() || launcher.launches != (status.ok() ? 1 : 0))
    return "library: " + (status.ok() ? std::string("served") : plan.explain(status, t.views).what()) +
           "\n  judge: " + verdict.text();
  if (status.ok()) {
    ++counts.legal;
    return {};
  }
  ++counts.illegal;
  const verglas::Status again = plan.execute(t.views);
  if (again.code != status.code || again.check != status.check) return "two calls were refused for different reasons";
  for (const PoisonedBuffer& b : call.buffers)
    if (const std::string damage = b.any_write(); !damage.empty()) return "refused, but " + damage;
  const verglas::Error error = plan.explain(status, t.views);
  return disputed(error, verdict);
}

class Calls : public testing::TestWithParam<int> {};

TEST_P(Calls, AreRefusedExactlyWhenTheJudgeSaysSo) {
  const char* only = std::getenv("VERGLAS_CASE");
  if (only != nullptr && GetParam() != 0) return;
  const std::int64_t cases = only != nullptr ? 1 : calls_in_all() / kCallsOfACase / kShards;
  Counts counts;
  int wrong = 0;
  for (std::int64_t i = 0; i < cases && wrong < 4; ++i) {
    const std::uint64_t seed =
        only != nullptr ? std::strtoull(only, nullptr, 10) : static_cast<std::uint64_t>(10000000 + i * kShards + GetParam());
    GeneratorOptions options;
    if (seed % 4 == 3) {
      options.block_scaled = true;
      options.largest = 290;
      options.most_work = 20000;
    }
    const bool is_grouped = seed % 4 == 1;
    Case c = is_grouped ? draw_grouped_case(seed) : draw_case(seed, options);
    const verglas::CompiledPlan plan = c.graph.compile();
    Random r(seed ^ 0xBAD);
    Call call = is_grouped ? draw_grouped_call(c, r) : draw_call(c, r);
    for (std::size_t k = 0; k < call.buffers.size(); ++k)
      if (c.operands[k].is_output) call.buffers[k].clear();
    Attempt legal{in_plan_order(c, plan, call.views), {}, {}};
    for (const verglas::OperandInfo& info : plan.operands()) legal.uids.push_back(info.uid);
    for (int k = 0; k < kCallsOfACase; ++k) {
      Attempt t = legal;
      const std::int64_t changes = k == 0 ? 0 : r.chance(75) ? 1 : 2;
      for (std::int64_t n = 0; n < changes; ++n) t.changes += change(t, plan, r) + "; ";
      const std::string text = check(c, plan, call, t, counts);
      if (text.empty()) continue;
      ++wrong;
      ADD_FAILURE() << c.line() << "\n  changed: " << t.changes << "\n  " << text;
      break;
    }
  }
  if (only != nullptr || wrong > 0) return;
  RecordProperty("legal_calls", std::to_string(counts.legal));
  RecordProperty("illegal_calls", std::to_string(counts.illegal));
  EXPECT_GT(counts.legal, cases * kCallsOfACase / 10);  // the generator draws both
  EXPECT_GT(counts.illegal, cases * kCallsOfACase / 3);
}

INSTANTIATE_TEST_SUITE_P(Property, Calls, testing::Range(0, kShards));

}  // namespace
