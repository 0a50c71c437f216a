#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tool/command.hpp"

namespace verglas::tool {

/// L, M, N, K; L may be left out and is 1 then.
using Extents = std::array<std::int64_t, 4>;

/// "16x4096x4096,2x16x512x64"; anything else is wrong usage.
std::vector<Extents> shapes_of(const std::string& text);

/// The graph declared for other extents: operands keep their types and the order of their axes in memory, and are packed. Of a
/// graph that has not been planned. Throws tool.shape where it is no chain, or one operand would need two extents on an axis.
Graph with_extents(const Graph& graph, const Extents& extents);

/// The graph of a file, or the graph declared for each of `shapes` in turn where there are any. Each is read anew: planning
/// freezes a graph.
void for_each_graph(const std::string& file, const std::string& shapes, const std::function<void(Graph)>& use);

}  // namespace verglas::tool
