#pragma once
#include <string>

#include "chain/chain.hpp"

namespace verglas::plan {

/// "2×matmul+swish+mul", "[cast a] matmul+bias+gelu+row_sum".
std::string summary_of(const chain::FusionChain& chain);

}  // namespace verglas::plan
