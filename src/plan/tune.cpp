#include "plan/tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <map>
#include <numeric>
#include <thread>

#include "base/rules.hpp"
#include "plan/summary.hpp"
#include "plan/tuning_record.hpp"

namespace verglas::plan {
namespace {

constexpr std::size_t kOfEachEngine = 3;
constexpr double kFinalist = 1.15;  ///< times the fastest of the first round: what may still win
constexpr std::size_t kMostFinalists = 6;

/// Compiled side by side: compiling is what takes the time. Null where it failed, with the reason.
std::vector<CompiledPlan> compile_all(const PlanState& s, const std::vector<std::size_t>& which,
                                      std::vector<std::string>& failures) {
  std::vector<CompiledPlan> compiled(which.size());
  failures.assign(which.size(), {});
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> workers;
    const std::size_t count = std::min<std::size_t>({which.size(), std::max(1U, std::thread::hardware_concurrency()), 8});
    for (std::size_t t = 0; t < count; ++t)
      workers.emplace_back([&] {
        for (std::size_t k = next++; k < which.size(); k = next++) try {
            const Entry& e = s.entries[which[k]];
            compiled[k] = make_compiled(s.chain, *e.engine, e.knobs, e.engine->compile(*s.chain, e.knobs, s.device));
          } catch (const std::exception& x) {
            failures[k] = x.what();
          }
      });
  }
  return compiled;
}

/// Measures those plans of `which` that are compiled; what is told is the last word.
void measure(const std::vector<CompiledPlan>& compiled, const std::vector<std::size_t>& which, const Windows& w, Meter& meter,
             std::vector<TuneReport::Plan>& told) {
  std::vector<CompiledPlan> plans;
  for (const std::size_t k : which) plans.push_back(compiled[k]);
  const std::vector<Sample> samples = meter.measure(plans, w);
  for (std::size_t i = 0; i < which.size(); ++i) {
    TuneReport::Plan& p = told[which[i]];
    p.failure = samples[i].failure;
    p.seconds = samples[i].failure.empty() ? samples[i].median() : 0;
  }
}

/// Measures the finalists anew. A device may run slower, or faster, than it did in the first round: by as much as it does for the
/// finalists all other times change, or who lost would be told as the fastest.
void measure_finalists(const std::vector<CompiledPlan>& compiled, const std::vector<std::size_t>& finalists, const Windows& w,
                       Meter& meter, std::vector<TuneReport::Plan>& told) {
  const std::vector<TuneReport::Plan> before = told;
  measure(compiled, finalists, w, meter, told);
  double first = 0, second = 0;
  for (const std::size_t k : finalists)
    if (told[k].failure.empty()) first += before[k].seconds, second += told[k].seconds;
  if (first <= 0 || second <= 0) return;
  for (std::size_t k = 0; k < told.size(); ++k)
    if (std::ranges::find(finalists, k) == finalists.end()) told[k].seconds *= second / first;
}

bool is_timed(const TuneReport::Plan& p) { return p.failure.empty() && p.seconds > 0; }

}  // namespace

std::vector<std::size_t> candidates_of(const PlanState& s, int most) {
  std::vector<std::size_t> chosen;
  std::map<const engine::Engine*, std::size_t> taken;
  std::vector<std::size_t> ranked(s.entries.size());
  std::iota(ranked.begin(), ranked.end(), std::size_t{0});
  std::erase_if(ranked, [&](std::size_t i) { return s.entries[i].barred; });
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](std::size_t x, std::size_t y) { return s.entries[x].predicted_seconds < s.entries[y].predicted_seconds; });
  for (const std::size_t i : ranked)
    if (chosen.size() < static_cast<std::size_t>(std::max(most, 1)) || taken[s.entries[i].engine] < kOfEachEngine) {
      chosen.push_back(i);
      ++taken[s.entries[i].engine];
    }
  return chosen;
}

void apply_tuning(PlanState& s) {
  if (!has_tuning()) return;
  const TuningLookup found = find_tuning(device_text(s.device), canonical_text(*s.chain));
  if (found.file.empty()) return;
  s.tuning_note = found.file;
  if (!found.entry) {
    s.tuning_note += " is ignored: " + found.ignored;
    return;
  }
  int used = 0, gone = 0;
  for (const MeasuredPlan& m : found.entry->plans) {
    const auto it = std::find_if(s.entries.begin(), s.entries.end(), [&](const Entry& e) {
      return e.engine->name() == m.engine && e.knobs == m.knobs && e.engine->build() == m.build;
    });
    if (it == s.entries.end()) {
      ++gone;
      continue;
    }
    it->measured_seconds = m.seconds;
    ++used;
  }
  s.tuning_note += gone == 0
                       ? fmt::format(", {} plans measured", used)
                       : fmt::format(", {} plans measured, {} that are not offered any more or were built otherwise", used, gone);
  std::stable_sort(s.entries.begin(), s.entries.end(), [](const Entry& x, const Entry& y) {
    if ((x.measured_seconds > 0) != (y.measured_seconds > 0)) return x.measured_seconds > 0;
    return x.measured_seconds < y.measured_seconds;  // both 0: the order stays
  });
}

TuneReport tune(PlanState& s, const TuneOptions& options, Meter& meter) {
  const std::vector<std::size_t> which = candidates_of(s, options.most);
  if (which.empty()) throw broken(Rule::plan_none, "no plan is left to measure");
  std::vector<std::string> failures;
  const std::vector<CompiledPlan> compiled = compile_all(s, which, failures);
  TuneReport report;
  for (std::size_t k = 0; k < which.size(); ++k) {
    const Entry& e = s.entries[which[k]];
    report.plans.push_back({which[k], engine::plan_name(*e.engine, e.knobs), 0, failures[k]});
  }
  std::vector<std::size_t> alive;
  for (std::size_t k = 0; k < which.size(); ++k)
    if (failures[k].empty()) alive.push_back(k);
  const double seconds = options.seconds > 0 ? std::min(options.seconds, 10.0) : 0;  // what is no number is no time
  const Windows quick{.rounds = 3, .window_seconds = seconds / 2, .settle_seconds = 5 * seconds};
  const Windows thorough{.rounds = 8, .window_seconds = seconds, .settle_seconds = seconds};
  if (!alive.empty()) measure(compiled, alive, quick, meter, report.plans);
  std::erase_if(alive, [&](std::size_t k) { return !is_timed(report.plans[k]); });
  const auto by_time = [&](std::size_t x, std::size_t y) { return report.plans[x].seconds < report.plans[y].seconds; };
  std::stable_sort(alive.begin(), alive.end(), by_time);
  if (alive.size() > 1) {
    const double limit = kFinalist * report.plans[alive[0]].seconds;
    std::vector<std::size_t> finalists;
    for (const std::size_t k : alive)
      if (finalists.size() < kMostFinalists && report.plans[k].seconds <= limit) finalists.push_back(k);
    if (finalists.size() > 1) measure_finalists(compiled, finalists, thorough, meter, report.plans);
  }
  std::stable_sort(report.plans.begin(), report.plans.end(), [](const TuneReport::Plan& x, const TuneReport::Plan& y) {
    if (is_timed(x) != is_timed(y)) return is_timed(x);
    return is_timed(x) && x.seconds < y.seconds;
  });
  if (!is_timed(report.plans.front()))
    throw broken(Rule::plan_none, "no plan could be timed: " + report.plans.front().name + ": " + report.plans.front().failure);

  TuningEntry entry{.device = device_text(s.device),
                    .chain = canonical_text(*s.chain),
                    .summary = summary_of(*s.chain),
                    .extents = s.chain->declared,
                    .when = static_cast<std::int64_t>(std::time(nullptr)),
                    .plans = {}};
  s.order.clear();
  for (const TuneReport::Plan& p : report.plans) {
    if (!is_timed(p)) continue;
    Entry& e = s.entries[p.index];
    e.measured_seconds = p.seconds;
    s.order.push_back(p.index);
    entry.plans.push_back({std::string(e.engine->name()), e.knobs, e.engine->build(), p.seconds});
  }
  for (std::size_t i = 0; i < s.entries.size(); ++i)
    if (std::find(s.order.begin(), s.order.end(), i) == s.order.end()) s.order.push_back(i);
  report.record = keep_tuning(entry, report.why_not);
  return report;
}

}  // namespace verglas::plan
