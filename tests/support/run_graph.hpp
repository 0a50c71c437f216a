#pragma once
// C = up · swish(gate) of one product whose columns alternate, 32 of up and 32 of gate, as two products with the run as batch.
#include <cstdint>
#include <iosfwd>

#include "verglas/verglas.hpp"

namespace support {

struct RunGraph {
  std::int64_t rows = 4096, pairs = 64, k = 4096;  ///< pairs of runs: 64 columns of the product each
  verglas::DataType in = verglas::DataType::bf16;
  bool a_k = true, b_k = true, out_n = true;  ///< contiguous along K and along N
  verglas::DataType ab = verglas::DataType::bf16, c = verglas::DataType::bf16;
  bool amax = false;    ///< of C
  bool linear = false;  ///< C = up · max(gate, 0), which small integers make exact
};
std::ostream& operator<<(std::ostream& o, const RunGraph& g);

verglas::Graph describe(const RunGraph& g);

}  // namespace support
