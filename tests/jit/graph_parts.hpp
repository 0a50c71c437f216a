#pragma once
#include <utility>
#include <vector>

#include "verglas/graph.hpp"

namespace jit_test {

/// An operand of an epilogue, row by row.
inline verglas::Tensor aux(verglas::Graph& g, std::vector<std::int64_t> dim, verglas::DataType t = verglas::DataType::bf16) {
  std::vector<std::int64_t> stride(dim.size(), 1);
  for (std::size_t i = dim.size() - 1; i-- > 0;) stride[i] = stride[i + 1] * dim[i + 1];
  return g.tensor({.name = "aux", .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
}

inline void reduce(verglas::Graph& g, const verglas::Tensor& c, verglas::ReductionMode mode, std::vector<std::int64_t> dim) {
  g.reduction(c, mode).set_dim(std::move(dim)).set_output(true).set_data_type(verglas::DataType::fp32);
}

}  // namespace jit_test
