#include "lifecycle.hpp"

#include "base/rules.hpp"

namespace verglas::python {

const PlanList& Lifecycle::plans() const {
  if (!planned_) throw broken(Rule::plan_stage, "plans were asked for before create_execution_plans() or build()");
  return plans_;
}

std::size_t Lifecycle::index(std::int64_t i) const {
  const auto count = static_cast<std::int64_t>(plans().size());
  if (i < 0 || i >= count)
    throw broken(Rule::plan_index, "plan", "index " + std::to_string(i),
                 count ? "0 to " + std::to_string(count - 1) : "no index: the list is empty");
  return static_cast<std::size_t>(i);
}

void Lifecycle::create_plans() {
  if (planned_) throw broken(Rule::plan_stage, "the graph has been planned already");
  plans_ = graph_.plans({.device = device_, .deselect_engines = {}});
  planned_ = true;
  plans_.deselect_engines(deselected_);
  if (plans_.size() == 0) throw broken(Rule::plan_none, plans_.unsupported_text());
}

void Lifecycle::append_plan(int engine_id, const Knobs& knobs) {
  if (!planned_) {
    plans_ = graph_.plans({.device = device_, .deselect_engines = {""}});  // no engine is asked: the list starts empty
    planned_ = true;
  }
  plans_.append(engine_id, knobs);
}

void Lifecycle::deselect_engines(const std::vector<std::string>& substrings) {
  deselected_.insert(deselected_.end(), substrings.begin(), substrings.end());
  if (planned_) plans_.deselect_engines(substrings);
  chosen_.reset();
}

void Lifecycle::deselect_workspace_above(std::int64_t bytes) {
  workspace_limit_ = bytes;
  chosen_.reset();
}

void Lifecycle::select(std::int64_t i) {
  selected_ = index(i);
  if (const std::string bar = bar_of(*selected_); !bar.empty()) {
    selected_.reset();
    throw broken(Rule::plan_barred, plans_.name(static_cast<std::size_t>(i)) + " is " + bar);
  }
  chosen_.reset();
}

std::string Lifecycle::bar_of(std::size_t i) const {
  if (plans_.barred(i)) return "deselected";
  if (!workspace_limit_ || i >= built_.size() || !built_[i]) return {};
  const std::int64_t bytes = built_[i]->plan.workspace().bytes;
  return bytes > *workspace_limit_ ? "over the limit with a workspace of " + std::to_string(bytes) + " bytes" : "";
}

void Lifecycle::check_support() const {
  plans();
  if (selected_) {
    if (const std::string bar = bar_of(*selected_); !bar.empty())
      throw broken(Rule::plan_barred, plans_.name(*selected_) + " is selected and " + bar);
    return;
  }
  std::string reasons;
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    const std::string bar = bar_of(i);
    if (bar.empty()) return;
    reasons += plans_.name(i) + ": " + bar + "; ";
  }
  throw broken(Rule::plan_none, reasons + plans_.unsupported_text());
}

std::shared_ptr<const PlanFacts> Lifecycle::compile(std::size_t i) {
  if (built_.size() <= i) built_.resize(plans_.size());
  if (!built_[i]) built_[i] = std::make_shared<const PlanFacts>(plans_.compile(i), graph_);
  return built_[i];
}

void Lifecycle::build_plans(BuildPlanPolicy policy) {
  const bool all = policy == BuildPlanPolicy::all;
  check_support();
  chosen_.reset();
  if (selected_) {
    compile(*selected_);
    check_support();  // its workspace is known now
    chosen_ = selected_;
    if (!all) return;
  }
  std::string failures;
  std::optional<std::size_t> flawed;  // as in PlanList::compile
  for (std::size_t i = 0; i < plans_.size() && (all || !chosen_); ++i) {
    std::string why = bar_of(i);
    if (why.empty()) {
      try {
        compile(i);
        why = bar_of(i);
      } catch (const Error& e) {
        why = e.what();
      }
    }
    if (why.empty() && !chosen_) {
      if (built_[i]->plan.flaw().empty() || plans_.measured_seconds(i) > 0)
        chosen_ = i;
      else if (!flawed)
        flawed = i;
    }
    if (!why.empty()) failures += plans_.name(i) + ": " + why + "; ";
  }
  if (!chosen_) chosen_ = flawed;
  if (!chosen_) throw broken(Rule::plan_none, failures + plans_.unsupported_text());
}

TuneReport Lifecycle::tune(const TuneOptions& options) {
  if (!planned_) create_plans();
  TuneReport report = plans_.tune(options);
  selected_.reset();
  chosen_.reset();
  for (const TuneReport::Plan& p : report.plans) {
    if (!p.failure.empty()) break;
    compile(p.index);
    if (!bar_of(p.index).empty()) continue;
    chosen_ = p.index;
    break;
  }
  return report;
}

void Lifecycle::build() {
  if (!planned_) create_plans();
  if (!chosen_) build_plans(BuildPlanPolicy::heuristics_choice);
}

std::shared_ptr<const PlanFacts> Lifecycle::built_at(std::int64_t i) { return compile(index(i)); }

std::shared_ptr<const PlanFacts> Lifecycle::chosen() const {
  if (!chosen_) throw broken(Rule::plan_stage, "no plan is compiled yet: call build_plans() or build()");
  return built_[*chosen_];
}

std::shared_ptr<const PlanFacts> Lifecycle::chosen_or_build() {
  if (!chosen_) build();
  return built_[*chosen_];
}

}  // namespace verglas::python
