#pragma once
#include "engine/engine.hpp"
#include "jit/plan_file.hpp"
#include "verglas/graph.hpp"

namespace verglas::plan {

/// Compiles the graph with the first engine that takes it, for an architecture that need not be here: no GPU is asked.
/// knobs   those that must be so; complete afterwards
/// Throws what is wrong with the graph, what the engine said that declined, nvrtc.missing, jit.compile, plan.replay.
jit::PlanFile compile_ahead(Graph& graph, const engine::AheadTarget& target, Knobs& knobs);

}  // namespace verglas::plan
