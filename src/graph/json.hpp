#pragma once
#include <string>
#include <string_view>

#include "graph/ir.hpp"

namespace verglas::graph {

/// Text of a description, docs/graph-file.md. The same for equal descriptions.
std::string save(const GraphData& g);
/// Reads what `save`, or a person, wrote. Nothing is inferred: `validate` is for later. Throws rules file.*.
GraphData load(std::string_view text);

}  // namespace verglas::graph
