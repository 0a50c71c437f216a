#pragma once
#include <cstdint>
#include <vector>

#include "chain/chain.hpp"

namespace verglas::chain {

/// What a chain must move and compute at its declared extents, whoever runs it: each operand once, nothing in between.
struct Cost {
  std::vector<double> operand_bytes;  ///< distinct elements of each operand, in the order of FusionChain::operands
  double bytes_read = 0, bytes_written = 0;
  double product_operations = 0;      ///< two for each multiply-add
  double elementwise_operations = 0;  ///< one for each element of each step, prologue step and reduction
  double intensity() const { return bytes_read + bytes_written > 0 ? product_operations / (bytes_read + bytes_written) : 0; }
};

Cost cost_of(const FusionChain& chain);

}  // namespace verglas::chain
