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

/// The type that the tensor cores read: of a matrix with scales the one that it is stored in.
DataType multiplied_type(const chain::FusionChain& chain, const chain::MatrixInput& input) noexcept;
bool has_scales(const chain::FusionChain& chain) noexcept;
/// Scales of blocks that the tensor cores' sums can be multiplied by, and no others.
std::optional<Decline> fault_of_scales(const chain::FusionChain& chain);

/// Matrices of one side take the same way into the product.
std::optional<Decline> fault_of_prologues(const chain::FusionChain& chain);

/// `struct Prologues` of the kernel's source; scalars get their places in the plan's arguments.
std::string prologues_text(const chain::FusionChain& chain, EpiloguePlan& plan);

}  // namespace verglas::sm90
