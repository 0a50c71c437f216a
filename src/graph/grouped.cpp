#include <algorithm>
#include <limits>

#include "base/rules.hpp"
#include "graph/ir.hpp"

namespace verglas::graph {
namespace {

using Extents = std::vector<std::int64_t>;

std::string who(const TensorData& t) { return "tensor " + label_of(t); }
std::string who(const NodeData& n) { return std::string(kind_of(n)) + " " + label_of(n); }

Error wrong(const NodeData& n, const TensorData& t, std::string got, std::string want) {
  return broken(Rule::graph_moe_operand, who(n) + ", " + who(t), std::move(got), std::move(want));
}

/// Extents other than 1 are `count` alone, along one axis.
bool is_vector(const TensorData& t, std::int64_t count) {
  std::int64_t elements = 1;
  int axes = 0;
  for (const std::int64_t e : t.dim) {
    elements *= e == 1 ? 1 : e;
    axes += e != 1;
  }
  return axes <= 1 && elements == count;
}

void check_matrix(const NodeData& n, const TensorData& t, const char* what, bool has_batch) {
  if (t.dim.size() != 3 || (!has_batch && t.dim[0] != 1))
    throw wrong(n, t, what + (" of extents " + text_of(t.dim)), has_batch ? "(experts, K, N)" : "(1, rows, columns)");
  if (t.by_value) throw broken(Rule::graph_by_value, who(n) + ", " + who(t), "a tensor passed by value", "an ordinary tensor");
}

void check_offsets(const NodeData& n, const TensorData& t) {
  if (t.dtype != DataType::int32 && t.dtype != DataType::int64)
    throw wrong(n, t, "offsets of type " + std::string(name_of(t.dtype)), "int32 or int64");
  if (!is_vector(t, groups_of(t))) throw wrong(n, t, "offsets of extents " + text_of(t.dim), "one axis of groups");
}

void check_rows(const NodeData& n, const TensorData& t, const char* what, std::int64_t rows) {
  if (t.dtype != DataType::int32) throw wrong(n, t, what + (" of type " + std::string(name_of(t.dtype))), "int32");
  if (!is_vector(t, rows)) throw wrong(n, t, what + (" of extents " + text_of(t.dim)), "one axis of " + std::to_string(rows));
}

/// Of combine; answers how many tokens there are.
std::int64_t check_scores(const NodeData& n, const TensorData& t) {
  if (t.dtype != DataType::fp32 && t.dtype != DataType::bf16 && t.dtype != DataType::fp16)
    throw wrong(n, t, "scores of type " + std::string(name_of(t.dtype)), "fp32, bf16 or fp16");
  const int axis = token_axis_of_scores(t, n.top_k);
  if (axis < 0)
    throw wrong(n, t, "scores of extents " + text_of(t.dim), "(tokens, " + std::to_string(n.top_k) + "), the second being top_k");
  return t.dim[static_cast<std::size_t>(axis)];
}

}  // namespace

int token_axis_of_scores(const TensorData& scores, std::int64_t top_k) {
  const Extents& d = scores.dim;
  if (d.size() == 2) return d[1] == top_k ? 0 : -1;
  if (d.size() != 3) return -1;
  return d[1] == top_k && d[2] == 1 ? 0 : d[0] == 1 && d[2] == top_k ? 1 : -1;
}

std::int64_t groups_of(const TensorData& offsets) {
  std::int64_t count = 1;
  for (const std::int64_t e : offsets.dim)
    if (e != 1) count = e;
  return count;
}

int grouped_arity(const NodeData& n) {
  if (n.kind == NodeKind::moe_grouped_matmul_bwd) return 3;
  return 3 + static_cast<int>(n.moe_mode);  // each mode asks for one more: index, slot, scores
}

Extents grouped_dim(const NodeData& n, const GraphData& g) {
  const auto input = [&](std::size_t i) -> const TensorData& { return g.tensors[static_cast<std::size_t>(n.inputs[i])]; };
  const TensorData& token = input(0);
  const TensorData& other = input(1);
  const TensorData& offsets = input(2);
  check_matrix(n, token, "tokens", false);
  check_offsets(n, offsets);
  if (n.kind == NodeKind::moe_grouped_matmul_bwd) {
    check_matrix(n, other, "a gradient", false);
    if (other.dim[1] != token.dim[1])
      throw wrong(n, other, std::to_string(other.dim[1]) + " rows", std::to_string(token.dim[1]) + " as in the tokens");
    return {groups_of(offsets), token.dim[2], other.dim[2]};
  }
  check_matrix(n, other, "weights", true);
  if (other.dim[1] != token.dim[2])
    throw broken(Rule::graph_matmul_inner, who(n), "K = " + std::to_string(other.dim[1]) + " from weights " + text_of(other.dim),
                 std::to_string(token.dim[2]) + " as in tokens " + text_of(token.dim));
  if (other.dim[0] == 0) throw wrong(n, other, "no experts", "one or more");
  constexpr std::int64_t kMostSlots = std::numeric_limits<std::int32_t>::max();  // slots are int32
  if (n.top_k < 1 || n.top_k > kMostSlots)
    throw broken(Rule::graph_parameters, who(n), "top_k " + std::to_string(n.top_k), "1 to " + std::to_string(kMostSlots));
  std::int64_t rows = token.dim[1];
  if (n.moe_mode == MoeMode::gather) {
    rows = groups_of(input(3));
    check_rows(n, input(3), "token indices", rows);
  } else if (n.moe_mode != MoeMode::none) {
    check_rows(n, input(3), "token indices", rows);
    check_rows(n, input(4), "slots", rows);
    if (n.moe_mode == MoeMode::combine) rows = check_scores(n, input(5));
  }
  return {1, rows, other.dim[2]};
}

void check_group_reduction(const NodeData& n, const GraphData& g) {
  const TensorData& in = g.tensors[static_cast<std::size_t>(n.inputs[0])];
  const TensorData& out = g.tensors[static_cast<std::size_t>(n.output)];
  const TensorData& offsets = g.tensors[static_cast<std::size_t>(n.inputs[1])];
  if (in.grouped_by != n.inputs[1])
    throw broken(Rule::graph_group_offset, who(n) + ", " + who(offsets), "offsets that do not group the rows of " + label_of(in),
                 "those of the grouped product before it");
  const std::int64_t groups = groups_of(offsets);
  const Extents all{groups, 1, 1}, columns{groups, 1, in.dim.back()};
  if (out.dim != all && out.dim != columns)
    throw broken(Rule::graph_group_offset, who(n), "output extents " + text_of(out.dim),
                 text_of(all) + " or " + text_of(columns));
}

}  // namespace verglas::graph
