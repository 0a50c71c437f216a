#pragma once
#include "chain/chain.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// The same function with rows and columns exchanged: its A is B, its M is N, and D, aux operands and reductions are seen
/// transposed; Dᵀ = B·Aᵀ. Roles keep their places. For few rows: the kernel's rows come in blocks of 64, its columns in blocks
/// of 8.
chain::FusionChain exchanged(const chain::FusionChain& chain);

/// The views of a call for the exchanged chain: `to` gets as many as `chain` has roles.
void exchange(const chain::FusionChain& chain, const recipe::Binding& from, recipe::Binding& to) noexcept;

}  // namespace verglas::sm90
