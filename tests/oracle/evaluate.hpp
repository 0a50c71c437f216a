#pragma once
#include <vector>

#include "oracle/bound.hpp"
#include "oracle/graph.hpp"
#include "oracle/pointwise.hpp"

namespace oracle {

/// A tensor as evaluated: what each element may be after rounding to the declared type, row-major.
struct Result {
  std::vector<std::int64_t> dims;
  std::vector<Bound> elements;
  bool has_groups = false;    ///< rows of groups
  std::vector<int> group{};   ///< of rows of groups: whose each is, −1 where nobody owns it and no element has a meaning
  bool kernel_order = false;  ///< second operand of a product in axes (b, N, K)

  bool known() const { return !dims.empty() || !elements.empty(); }
};

/// Every tensor of the graph, by index. Inputs are read from `memory` or `value`; live extents come from there, so they may
/// differ from the declared ones. Throws std::invalid_argument for a graph that has no meaning (cycle, missing input, extents
/// that do not fit).
std::vector<Result> evaluate(const Graph& graph, const Options& options = {});

/// The elements of a tensor in memory, row-major over its own axes.
Result load(Format format, const Memory& memory);

/// Live (L, M, N) of the first product of the graph; empty when it has none.
std::vector<std::int64_t> live_domain(const Graph& graph);

/// What a buffer of an aux tensor means: extents and strides over (L, M, N), unit axes dropped and put back where the declaration
/// has its real axes. Empty when extents do not fit. `declared_domain`, `domain`: (L, M, N) as declared and live.
Memory spread(const Tensor& tensor, const std::vector<std::int64_t>& declared_domain, const std::vector<std::int64_t>& domain);

}  // namespace oracle
