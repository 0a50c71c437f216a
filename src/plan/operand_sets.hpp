#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "chain/chain.hpp"

namespace verglas::plan {

/// Bytes of each operand as declared, in the order of a call; blobs of scales whole.
std::vector<std::size_t> operand_bytes(const chain::FusionChain& chain);

/// Element i of offsets of groups, indices of tokens or their slots that fits, which a random number would not: groups of one
/// size, tokens in turn. Nothing for other operands.
std::optional<std::int64_t> routing_element(const chain::FusionChain& chain, std::size_t operand, std::int64_t i);

/// A run of random elements of an operand: normal numbers in floating types, small integers, scales about 1, rows that fit. The
/// same each time. `bytes` of it, a multiple of 8.
std::vector<std::byte> random_elements(const chain::FusionChain& chain, std::size_t operand, std::size_t bytes);

}  // namespace verglas::plan
