#pragma once
// C = up · swish(gate) of one product whose columns come in runs of 32, by turns of up and of gate.
#include <cstdint>
#include <iosfwd>

#include "verglas/verglas.hpp"

namespace support {

struct RunGraph {
  std::int64_t rows = 4096, pairs = 64, k = 4096;  ///< pairs of runs: 64 columns of the product each
  verglas::DataType in = verglas::DataType::bf16;
  bool a_k = true, b_k = true, out_n = true;  ///< contiguous along K and along N
  verglas::DataType ab = verglas::DataType::bf16, c = verglas::DataType::bf16;
  bool has_bias = false;  ///< of all columns
  bool amax = false;      ///< of C
  bool linear = false;    ///< C = up · max(gate, 0), which small integers make exact
  std::int64_t batches = 1;
  std::int64_t block = 0;     ///< elements of K that share a scale, interleaved: 32 with fp8_e8m0, 16 with fp8_e4m3; 0: none
  bool is_quantised = false;  ///< C in blocks of `block`, with scales like those of the operands
  verglas::DataType scale() const { return block == 16 ? verglas::DataType::fp8_e4m3 : verglas::DataType::fp8_e8m0; }
};
std::ostream& operator<<(std::ostream& o, const RunGraph& g);

verglas::Graph describe(const RunGraph& g);

}  // namespace support
