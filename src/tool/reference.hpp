#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/ir.hpp"
#include "tool/host_array.hpp"

namespace verglas::tool {

/// How one output compares with the evaluation in double precision.
struct Mismatch {
  std::string name;
  std::int64_t elements = 0;
  std::int64_t exact = 0;  ///< elements for which only one value is right
  std::int64_t open = 0;   ///< elements for which every value is right: rounding decides (near a pole, a jump, an overflow)
  std::int64_t wrong = 0;
  std::string text;  ///< the first that is wrong: place, got, wanted
};

/// Evaluates a validated graph node by node in plain loops, in double, each value with a radius that the rounding of sums, of
/// formulas and of declared types explains; then asks of every element of `got` whether it lies inside. Knows no chain and no
/// engine. Both maps are by uid; outputs in the order of the graph.
std::vector<Mismatch> compare_with_reference(const graph::GraphData& g, const std::map<std::int64_t, const HostArray*>& given,
                                             const std::map<std::int64_t, const HostArray*>& got);

}  // namespace verglas::tool
