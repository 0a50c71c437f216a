#pragma once
#include <cstddef>
#include <vector>

#include "base/result.hpp"
#include "chain/chain.hpp"
#include "engine/sm90/problem.hpp"
#include "engine/sm90/scratch.hpp"
#include "engine/sm90/source.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// What the epilogue of a chain reads at a call, in the order of its arguments.
struct EpiloguePlan {
  EpilogueText text;
  std::vector<StagedRole> maps;              ///< three tensor maps each, in front of all
  std::vector<int> run_outputs;              ///< roles of what the drain of runs stores
  std::vector<int> aux;                      ///< roles in device memory, inputs and outputs but the first, 32 bytes each
  std::vector<chain::Reduction> reductions;  ///< 56 bytes each, behind them
  std::vector<int> scalars;                  ///< roles in host memory, 4 bytes each, behind the others
};

/// The place of a role in such a list; behind the others where it is new.
int slot_in(std::vector<int>& roles, int role);

/// CUDA C++ for everything between the products and what is stored; or the rule that forbids it.
Result<EpiloguePlan> epilogue_of(const chain::FusionChain& chain);
/// The same of a chain that has runs (runs.hpp), which was claimed.
EpiloguePlan epilogue_of_runs(const chain::FusionChain& chain);

/// Operands that vary along N alone: each takes a tile's columns of shared memory.
int vectors_of(const chain::FusionChain& chain) noexcept;

/// Which of the chain's quantisers finds the blocks along N of what an amax of all rows and columns looks at, so that it need
/// look at them alone; -1 where none does.
int quantiser_of_amax(const chain::FusionChain& chain, const chain::Reduction& reduction) noexcept;

/// Of the maps of one role.
inline constexpr std::size_t kMapBytes = 3 * 128;
/// Writes them for one call, but for the maps. `scratch` is read where there are reductions.
void write_arguments(const EpiloguePlan& plan, const chain::FusionChain& chain, const recipe::Binding& binding,
                     const ScratchNeed& need, const Scratch& scratch, std::byte* to) noexcept;
/// The same where the call before was laid out in this way and wrote there: addresses and scalars are all that can be new.
void write_addresses(const EpiloguePlan& plan, const chain::FusionChain& chain, const recipe::Binding& binding,
                     const ScratchNeed& need, const Scratch& scratch, std::byte* to) noexcept;

}  // namespace verglas::sm90
