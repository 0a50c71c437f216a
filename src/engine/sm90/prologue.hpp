#pragma once
#include <optional>
#include <string>

#include "base/result.hpp"
#include "chain/chain.hpp"
#include "engine/sm90/generate.hpp"

namespace verglas::sm90 {

/// The first A (side 0) or B (side 1).
const chain::MatrixInput& first_input(const chain::FusionChain& chain, int side) noexcept;
/// What its elements are stored in.
DataType stored_type(const chain::FusionChain& chain, const chain::MatrixInput& input) noexcept;

/// Matrices of one side take the same way into the product.
std::optional<Decline> fault_of_prologues(const chain::FusionChain& chain);

/// `struct Prologues` of the kernel's source; scalars get their places in the plan's arguments.
std::string prologues_text(const chain::FusionChain& chain, EpiloguePlan& plan);

}  // namespace verglas::sm90
