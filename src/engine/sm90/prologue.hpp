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

/// The type that the tensor cores read. Of a product with scales of blocks: fp8 as it is stored, where they multiply sums, else
/// bf16.
DataType multiplied_type(const chain::FusionChain& chain, const chain::MatrixInput& input) noexcept;
/// What narrow matrices become on their way: bf16, or fp16 where that stands beside and holds them.
DataType decoded_type(const chain::FusionChain& chain) noexcept;
bool has_scales(const chain::FusionChain& chain) noexcept;
/// True for fp8 on both sides with MX scales: the sum of each block is multiplied by them.
bool scales_sums(const chain::FusionChain& chain) noexcept;
/// Of a matrix that a Decoder turns into 16-bit values on its way into the product, with its scales or by its prologue: pieces of
/// 16 bytes in 64 elements; else 0.
int pieces_decoded(const chain::FusionChain& chain, const chain::MatrixInput& input) noexcept;
/// True where consumers may decode A: it is fp4, and B is too or is bf16 as it is stored.
bool may_be_held(const chain::FusionChain& chain) noexcept;
/// True where consumers may cast A: bytes along K, of one product with 16-bit values, which are cast and no more, and both lie as
/// the copy engine wants them.
bool may_be_cast(const chain::FusionChain& chain) noexcept;
std::optional<Decline> fault_of_scales(const chain::FusionChain& chain);

/// Matrices of one side take the same way into the product.
std::optional<Decline> fault_of_prologues(const chain::FusionChain& chain);

/// `struct Prologues` of the kernel's source; scalars get their places in the plan's arguments.
std::string prologues_text(const chain::FusionChain& chain, EpiloguePlan& plan);

}  // namespace verglas::sm90
