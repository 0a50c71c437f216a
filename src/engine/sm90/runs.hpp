#pragma once
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "chain/chain.hpp"
#include "engine/sm90/problem.hpp"

namespace verglas::sm90 {

/// Every second run of columns is taken somewhere: one product, whose tiles hold both values of a pair 32 columns apart.
bool has_runs(const chain::FusionChain& chain) noexcept;

/// The rule that forbids it, of chains that have runs.
std::optional<Decline> fault_of_runs(const chain::FusionChain& chain);

/// What the drain of runs stores of each pair.
struct RunStore {
  int value = 0, role = 0;
  int run = -1;  ///< the first or the second run of an output of all columns; −1: of one of half as many
};

/// The chain as the epilogue of a pair of runs sees it: two products of the same matrices, one for each run, and every step
/// before the runs are taken twice. It stores nothing; the stores stand in a list of their own.
struct RunChain {
  chain::FusionChain chain;
  std::vector<RunStore> stores;
  std::vector<int> second;  ///< values of operands along N that are of the second run; their twins are of the first
};
RunChain in_runs(const chain::FusionChain& chain);

/// Bytes of 64 rows by a run of all that is stored.
int run_bytes_of(const chain::FusionChain& chain) noexcept;

/// How the copy engine stores an output of the chain run by run; role −1 where it cannot, and threads do.
StagedRole staged_run(const chain::FusionChain& chain, int role);

}  // namespace verglas::sm90
