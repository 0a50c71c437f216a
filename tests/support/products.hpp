#pragma once
// Products with the epilogues that a vendor's library has, as graphs; and their operands filled with small integers.
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "verglas/verglas.hpp"

namespace support {

struct ProductEpilogue {
  bool factor = false, host_factor = false, matrix = false, bias = false, batched_bias = false;
  verglas::PointwiseMode activation = verglas::PointwiseMode::identity;  ///< identity: none
  bool keeps_argument = false;                                           ///< of gelu: stored as fp32
};
struct Product {
  std::int64_t l = 1, m = 5, n = 7, k = 9;
  bool a_k = true, b_k = true, d_n = true;  ///< contiguous along K, K and N
  verglas::DataType in = verglas::DataType::bf16, out = verglas::DataType::bf16, compute = verglas::DataType::fp32;
  ProductEpilogue e = {};
  bool broadcast_a = false, broadcast_b = false;
  std::int64_t pad = 0;  ///< elements between lines

  bool is_exact() const;  ///< no gelu: every implementation gives the same bits on small integers
};
std::ostream& operator<<(std::ostream& o, const Product& p);

verglas::Graph describe(const Product& p);

/// Bytes from the first to the end of the last element of an operand.
std::size_t reach_of(const verglas::OperandInfo& o);
/// One buffer for each operand, as long as it reaches: inputs hold integers from −3 to 3, gaps and outputs 0xEE… as `seed` has
/// it.
std::vector<std::vector<std::uint8_t>> fill_operands(const verglas::CompiledPlan& plan, unsigned seed);
/// Where an output differs by more than gelu's formula may; empty where none does. Both by operand.
std::string difference(const verglas::CompiledPlan& plan, const std::vector<std::vector<std::uint8_t>>& got,
                       const std::vector<std::vector<std::uint8_t>>& want, bool exact);

}  // namespace support
