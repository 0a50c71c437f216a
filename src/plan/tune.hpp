#pragma once
#include "plan/measure.hpp"
#include "plan/plan_state.hpp"

namespace verglas::plan {

/// Ranks a fresh list by the tuning record of its device: what was measured there comes first. Notes what the record said.
void apply_tuning(PlanState& state);

/// Measures, ranks and keeps. The list's entries stay where they are.
TuneReport tune(PlanState& state, const TuneOptions& options, Meter& meter);

/// Entries worth measuring: up to `most`, best predictions first, three at least of each engine that has them.
std::vector<std::size_t> candidates_of(const PlanState& state, int most);

}  // namespace verglas::plan
