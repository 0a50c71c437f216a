#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "chain/chain.hpp"

namespace verglas::plan {

/// Bytes of each operand as declared, in the order of a call; blobs of scales whole.
std::vector<std::size_t> operand_bytes(const chain::FusionChain& chain);

/// A run of random elements of an operand: normal numbers in floating types, small integers, scales about 1. The same each time.
/// `bytes` of it, a multiple of 8.
std::vector<std::byte> random_elements(const chain::FusionChain& chain, std::size_t operand, std::size_t bytes);

}  // namespace verglas::plan
