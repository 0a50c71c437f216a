#pragma once
#include <vector>

#include "oracle/evaluate.hpp"

// Products of groups of rows, by plain loops: who owns a row is read off memory, as the pages say.

namespace oracle {

/// One number for each element of a tensor of one axis, as the call holds it.
std::vector<std::int64_t> numbers_of(const Tensor& tensor);
/// Live number of groups of a grouped node.
std::int64_t groups_of(const Graph& graph, const Node& node);
/// The group of each row (or, of a gradient, of each step of the depth), −1 where none owns it. Offsets that fall or leave the
/// rows are clamped: a bound is the greatest offset until there, within 0 and the number of rows.
std::vector<int> owners(const std::vector<std::int64_t>& offsets, bool are_ends, std::int64_t rows);

/// The rows of the result, with their groups; rows that nobody owns hold 0.
Result grouped_product(const Graph& graph, const Node& node, const std::vector<Result>& done);
/// (groups, K, N): of each group the sum over its rows, on top of what the output held where the node accumulates.
Result grouped_gradient(const Graph& graph, const Node& node, const std::vector<Result>& done);
/// One row of `source`, (groups, 1, N), for each row of a result with groups.
Result spread_over_groups(const Result& source, const std::vector<int>& group);
/// A reduction of a result with groups: of rows that nobody owns nothing is taken in. by_groups: one result for each of `groups`.
Result reduced_rows(const Result& source, Reduction mode, const std::vector<bool>& kept, Format compute, bool by_groups,
                    std::int64_t groups);

/// What is wrong with rows that nobody owns: bytes other than 0xFF, or with zero_fill other than +0. Empty when nothing is.
std::string unowned_fault(const Tensor& tensor, const Result& want, bool zero_fill);

}  // namespace oracle
