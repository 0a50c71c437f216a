#pragma once
#include <memory>
#include <span>
#include <vector>

#include "chain/chain.hpp"
#include "engine/sm90/problem.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// Columns of a run, as gemm_swiglu pairs them.
inline constexpr int kRun = 32;

/// Two products of one A, repeated over the batch, with B that are declared as the first and the second half of each 64 rows of
/// one matrix; the batch counts these 64. Such a chain is one product of all rows of that matrix, whose tiles hold both values
/// of a pair 32 columns apart.
bool has_runs(const chain::FusionChain& chain);

/// The chain as the kernel of the whole matrix sees it: one batch, one B with two products of it, nothing stored. What the chain
/// stores the kernel's drain takes from a list of its own.
chain::FusionChain in_runs(const chain::FusionChain& chain);

/// Bytes of 64 rows by a run of all outputs.
int run_bytes_of(const chain::FusionChain& chain) noexcept;

/// How the copy engine stores an output of the chain run by run; role −1 where it cannot, and threads do.
StagedRole staged_run(const chain::FusionChain& chain, int role);

/// The views of a call as that kernel sees them; false where the matrices of the call do not lie as the halves of one, or an
/// output as none of `staged` does.
bool join_runs(const chain::FusionChain& chain, std::span<const StagedRole> staged, const recipe::Binding& from,
               recipe::Binding& to) noexcept;

/// Launches `joined` where the operands of a call lie as declared, and `general`, the two products as they stand, where not.
std::unique_ptr<recipe::Launcher> make_run_launcher(chain::FusionChain chain, std::vector<StagedRole> staged,
                                                    std::unique_ptr<recipe::Launcher> joined,
                                                    std::unique_ptr<recipe::Launcher> general);

}  // namespace verglas::sm90
