#include "chain/analyse.hpp"
#include "graph/ir.hpp"
#include "plan/plan_state.hpp"
#include "verglas/graph.hpp"

namespace verglas {

PlanList Graph::plans(const PlanOptions& options) {
  validate();
  data_->frozen = true;
  return PlanList(plan::make_plans(chain::analyse(*data_), options));
}

CompiledPlan Graph::compile(const PlanOptions& options) { return plans(options).compile(); }

}  // namespace verglas
