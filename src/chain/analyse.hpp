#pragma once
#include "base/result.hpp"
#include "chain/chain.hpp"
#include "graph/ir.hpp"

namespace verglas::chain {

/// Recognises one fused kernel in a validated graph: products, what is done to their operands before, the epilogue, its outputs
/// and reductions. What is not such a chain is declined with a rule chain.*; nothing is ever left out silently.
Result<FusionChain> analyse(const graph::GraphData& g);

}  // namespace verglas::chain
