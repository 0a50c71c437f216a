#pragma once
// Columns of heads that are rotated and quantised along both axes, behind one product.
#include <cstdint>
#include <iosfwd>

#include "verglas/verglas.hpp"

namespace support {

struct RopeGraph {
  std::int64_t rows = 512, heads = 20, k = 256, head = 192;
  verglas::DataType in = verglas::DataType::bf16;  ///< of a and b; fp8 has scales of 32 in plain order
  bool w_out_in = true;                            ///< lines of b lie along K
  bool rows_only = false;                          ///< quantised along N alone
  bool one_line = false;                           ///< the tables have one row for all
};
std::ostream& operator<<(std::ostream& o, const RopeGraph& g);

verglas::Graph describe(const RopeGraph& g);

}  // namespace support
