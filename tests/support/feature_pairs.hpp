#pragma once
// Plans in which features of kernels meet.
#include <cstdint>
#include <string>
#include <vector>

#include "verglas/plan.hpp"

namespace support {

/// A plan of FeatureGraph(seed), by its knobs.
struct DrawnPlan {
  std::uint64_t seed = 0;
  verglas::Knobs knobs;
  std::vector<std::string> features;

  /// How to draw it again, and what it has.
  std::string line() const;
};

/// All plans that the Hopper engine offers for one graph, on an H200; none where it is refused or declined.
std::vector<DrawnPlan> plans_of(std::uint64_t seed);

/// Of all plans of the first `graphs` graphs those that have every pair of features that there is: each next one has the most
/// pairs that none before it has. By threads.
std::vector<DrawnPlan> plans_with_all_pairs(std::size_t graphs);

}  // namespace support
