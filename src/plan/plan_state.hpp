#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "chain/chain.hpp"
#include "engine/engine.hpp"
#include "verglas/plan.hpp"

namespace verglas::plan {

struct Entry {
  const engine::Engine* engine = nullptr;
  Knobs knobs;
  double predicted_seconds = 0.0;
  double measured_seconds = 0.0;  ///< 0: not measured
  bool barred = false;
};

struct PlanState {
  std::shared_ptr<const chain::FusionChain> chain;  ///< null when the graph is no chain
  Device device{};
  std::vector<Entry> entries;  ///< best first
  std::vector<DeclineRecord> declines;
  int selected = -1;
  std::vector<std::size_t> order;  ///< in which entries are tried; empty: as they stand
  std::string tuning_note;         ///< what the tuning record said
};

struct CompiledState {
  std::shared_ptr<const chain::FusionChain> chain;
  const engine::Engine* engine = nullptr;
  Knobs knobs;
  engine::Compiled compiled;
  std::vector<OperandInfo> operands;
  std::unordered_map<std::int64_t, int> by_uid;
  std::unordered_map<std::string, int> by_name;  ///< −1: the name is not unique
  std::string passed_over;                       ///< plans that were compiled before this one, and their flaws, a line each
};

/// The plan around what an engine compiled or loaded.
CompiledPlan make_compiled(std::shared_ptr<const chain::FusionChain> chain, const engine::Engine& engine, Knobs knobs,
                           engine::Compiled compiled);

/// Asks every engine that is not deselected, in the order of engine_list; ranks by prediction, ties in that order.
std::shared_ptr<PlanState> make_plans(Result<chain::FusionChain> analysed, const PlanOptions& options);

}  // namespace verglas::plan
