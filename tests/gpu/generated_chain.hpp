#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cuda/driver_table.hpp"
#include "support/graph_generator.hpp"
#include "verglas/verglas.hpp"

// A generated chain on a plan of the Hopper engine, and calls of it whose every element is judged.
namespace gpu_test {

struct Tally {
  int calls = 0, exact_calls = 0;                ///< exact: one bit pattern alone was right, and it was the CPU engine's too
  std::map<std::string, int> declined, refused;  ///< graphs and calls, by rule
  void add(const Tally& other);
};
std::string text_of(const std::map<std::string, int>& counts);

/// What chains are drawn from: all that there is to describe, what a kernel can serve, or operands with scales of blocks and
/// quantised outputs.
enum class Kind : std::uint8_t { any, kernel_types, block_scaled };

struct GeneratedChain {
  std::uint64_t seed = 0;
  Kind kind = Kind::any;
  support::Case c;
  verglas::PlanList plans;
  verglas::CompiledPlan plan, host;  ///< the Hopper engine's, and the CPU engine's for the same graph
  std::string wrong;                 ///< what was wrong, first; empty while nothing is
  Tally tally;

  /// Compiles one of the plans, by the seed.
  void compile();
};

/// A chain that the Hopper engine takes; a decline is counted and answered by nothing.
std::optional<GeneratedChain> draw_chain(std::uint64_t seed, Kind kind, Tally& tally);
/// The first chains that are taken among seeds `first`, `first + step`, …
std::vector<GeneratedChain> draw_chains(std::size_t count, std::uint64_t first, std::uint64_t step, Kind kind, Tally& tally);

/// Where an operand lies on the device.
struct Place {
  void* data = nullptr;
  std::function<int()> touched = [] { return 0; };  ///< bytes around it that were written
  std::shared_ptr<void> owner = nullptr;
};
/// operand, bytes, and what the address is modulo 16
using Placement = std::function<Place(std::size_t, std::size_t, std::size_t)>;
/// In allocations of their own, between guards.
Placement between_guards(const verglas::cuda::DriverTable& driver);

/// Calls until `calls` of them have run, each with extents, layouts and data of its own, on two streams in turn. Stops at the
/// first that is wrong.
void check_calls(GeneratedChain& chain, int calls, const verglas::cuda::DriverTable& driver, const Placement& place);

}  // namespace gpu_test
