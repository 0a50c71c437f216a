#pragma once
#include <string>

#include "verglas/plan.hpp"

namespace verglas {

/// What a graph became, in one line: "matmul+bias+gelu → cpu[PRODUCT=1]". Products first, then what is done to their result in
/// order of computation; casts and operations on the way into a product stand in brackets before it.
std::string summary_of(const CompiledPlan& plan);
/// The same of the plan that `compile()` would choose first, or why there is none.
std::string summary_of(const PlanList& plans);

/// Everything about a plan as lines of text: the chain, bytes and operations at the declared extents, and every check of a call
/// in the order in which they are made.
std::string describe(const CompiledPlan& plan);
/// The chain, bytes and operations, every plan with its prediction, best first, and what each engine that declined said.
std::string describe(const PlanList& plans);

}  // namespace verglas
