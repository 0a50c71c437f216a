#include <fmt/format.h>

#include "base/rules.hpp"
#include "chain/chain.hpp"
#include "chain/cost.hpp"
#include "plan/summary.hpp"
#include "recipe/recipe.hpp"
#include "verglas/explain.hpp"

namespace verglas {
namespace {

using chain::FusionChain;

std::string cost_text(const FusionChain& c) {
  const chain::Cost cost = chain::cost_of(c);
  return fmt::format("bytes {:.6g} read, {:.6g} written; operations {:.6g} of products, {:.6g} elementwise; {:.4g} per byte\n",
                     cost.bytes_read, cost.bytes_written, cost.product_operations, cost.elementwise_operations, cost.intensity());
}

std::string faults_text(const CompiledPlan& p) {
  return (p.passed_over().empty() ? "" : "passed over\n" + p.passed_over()) + (p.flaw().empty() ? "" : "flaw " + p.flaw() + "\n");
}

}  // namespace

std::string summary_of(const CompiledPlan& p) {
  if (!p.valid()) throw broken(Rule::plan_stage, "a plan was used that nobody has compiled");
  return plan::summary_of(p.chain()) + " → " + p.name();
}

std::string summary_of(const PlanList& plans) {
  const FusionChain* c = plans.chain();
  const std::string what = c ? plan::summary_of(*c) : "no chain";
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (!plans.barred(i)) return what + " → " + plans.name(i);
  return what + " → no plan: " + plans.unsupported_text();
}

std::string describe(const CompiledPlan& p) {
  std::string s = summary_of(p);  // first: it refuses what is no plan
  s += "\n" + faults_text(p) + chain::print(p.chain()) + cost_text(p.chain());
  const WorkspaceSize w = p.workspace();
  s += fmt::format("workspace {} bytes\nchecks of a call\n", w.bytes);
  return s + recipe::print_checks(p.recipe(), p.chain());
}

std::string describe(const PlanList& plans) {
  std::string s = summary_of(plans) + "\n";
  if (const FusionChain* c = plans.chain()) s += chain::print(*c) + cost_text(*c);
  s += fmt::format("plans {}\n", plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i)
    s += fmt::format("  {} {} predicted {:.3g} s{}{}\n", i, plans.name(i), plans.predicted_seconds(i),
                     plans.measured_seconds(i) > 0 ? fmt::format(", measured {:.3g} s", plans.measured_seconds(i)) : "",
                     plans.barred(i) ? " (deselected)" : "");
  if (!plans.tuning_note().empty()) s += fmt::format("tuning record {}\n", plans.tuning_note());
  s += fmt::format("declines {}\n", plans.declines().size());
  for (const DeclineRecord& d : plans.declines()) s += fmt::format("  {} [{}] {}\n", d.engine, d.rule, d.text);
  return s;
}

}  // namespace verglas
