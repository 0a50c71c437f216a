#pragma once
#include <optional>
#include <string>

#include "jit/plan_file.hpp"
#include "tool/command.hpp"

namespace verglas::tool {

/// The plan file at this path; none where something else is there, which then may be a graph file. Throws file.plan_*.
std::optional<jit::PlanFile> plan_file_at(const std::string& path);

/// What the file holds beside the graph: engine and architecture, knobs, kernels and their resources.
std::string text_of(const jit::PlanFile& file);
Json json_of(const jit::PlanFile& file);

}  // namespace verglas::tool
