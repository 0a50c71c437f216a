#pragma once
#include <string>

#include "graph/ir.hpp"
#include "verglas/plan.hpp"

namespace verglas::tool {

/// A validated graph in Graphviz's language: what the caller passes in boxes, nodes in ellipses, what stays inside on the arrows.
std::string draw(const graph::GraphData& g, const PlanList& plans);
/// Lets `dot` of the PATH draw it. Throws tool.graphviz.
void write_svg(const std::string& dot, const std::string& path);

}  // namespace verglas::tool
