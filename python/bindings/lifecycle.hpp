#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pack.hpp"
#include "verglas/graph.hpp"

namespace verglas::python {

/// Which ranking, by cuDNN's names: there is one, so that all of them mean the same.
enum class HeurMode : std::uint8_t { a, b, fallback, opensource };

enum class BuildPlanPolicy : std::uint8_t { heuristics_choice, all };

/// Python's Graph: the description, and the plans that were made of it, in the stages that cuDNN Frontend has.
class Lifecycle {
 public:
  Lifecycle(GraphAttributes attributes, Device device) : graph_(std::move(attributes)), device_(device) {}
  Lifecycle(Graph graph, Device device) : graph_(std::move(graph)), device_(device) {}

  Graph& graph() noexcept { return graph_; }
  const Graph& graph() const noexcept { return graph_; }

  void create_plans();
  void append_plan(int engine_id, const Knobs& knobs);
  void deselect_engines(const std::vector<std::string>& substrings);
  void deselect_workspace_above(std::int64_t bytes);
  void select(std::int64_t index);
  void check_support() const;
  void build_plans(BuildPlanPolicy policy);
  /// Measures plans; the fastest is compiled and chosen.
  TuneReport tune(const TuneOptions& options);
  void build();  ///< whatever of the stages is still to do

  bool is_planned() const noexcept { return planned_; }
  const PlanList& plans() const;
  std::size_t index(std::int64_t i) const;  ///< throws plan.index
  std::shared_ptr<const PlanFacts> built_at(std::int64_t i);
  std::shared_ptr<const PlanFacts> chosen() const;  ///< throws plan.stage before a build
  std::shared_ptr<const PlanFacts> chosen_or_build();

 private:
  std::shared_ptr<const PlanFacts> compile(std::size_t i);
  /// Why entry i may not be chosen; empty when it may.
  std::string bar_of(std::size_t i) const;

  Graph graph_;
  Device device_;
  PlanList plans_;
  bool planned_ = false;
  std::vector<std::shared_ptr<const PlanFacts>> built_;  ///< by index of the plan; null: not compiled
  std::vector<std::string> deselected_;
  std::optional<std::int64_t> workspace_limit_;
  std::optional<std::size_t> selected_, chosen_;
};

}  // namespace verglas::python
