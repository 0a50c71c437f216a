#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/rules.hpp"
#include "base/strides.hpp"
#include "graph/ir.hpp"
#include "numeric/block_scale.hpp"

namespace verglas::graph {
namespace {

using Extents = std::vector<std::int64_t>;

std::string who(const TensorData& t) { return "tensor " + label_of(t); }
std::string who(const NodeData& n) { return std::string(kind_of(n)) + " " + label_of(n); }
TensorData& tensor(GraphData& g, int i) { return g.tensors[static_cast<std::size_t>(i)]; }

std::int64_t round_up(std::int64_t v, std::int64_t unit) { return numeric::ceil_div(v, unit) * unit; }
std::int64_t product(const Extents& dim) {
  std::int64_t n = 1;
  for (const std::int64_t e : dim) n *= e;
  return n;
}

/// One run of bytes without gaps, in any order of axes. Extents and strides may be any: what does not fit 63 bits is none.
bool is_dense(const TensorData& t) {
  std::int64_t elements = 1, last = 0;
  bool over = false;
  for (std::size_t i = 0; i < t.dim.size(); ++i) {
    if (t.dim[i] == 0) return true;
    std::int64_t step = 0;
    over |= __builtin_mul_overflow(elements, t.dim[i], &elements) || __builtin_mul_overflow(t.dim[i] - 1, t.stride[i], &step) ||
            __builtin_add_overflow(last, step, &last);
  }
  return !over && elements - 1 == last;
}

/// Axis of K where the tensor enters a matmul: the last of an A, the one before it of a B; the last where it enters none.
std::size_t contraction_axis(const GraphData& g, int index, std::size_t rank) {
  for (const NodeData& n : g.nodes)
    if (n.kind == NodeKind::matmul && n.inputs.size() == 2 && n.inputs[0] != index && n.inputs[1] == index) return rank - 2;
  return rank - 1;
}

Error wrong_block(const NodeData& n, std::string got, std::string want) {
  return broken(Rule::graph_block_size, who(n), std::move(got), std::move(want));
}

/// Fills in block and axis of a dequantize.
void read_block(NodeData& n, const GraphData& g, std::size_t rank) {
  const Extents& given = n.block_size;
  if (given.size() == 1) {
    if (given[0] < 2) throw wrong_block(n, "block_size " + text_of(given), "2 elements or more");
    n.block_axis = static_cast<int>(contraction_axis(g, n.output, rank));
    n.block = static_cast<int>(std::min<std::int64_t>(given[0], 1 << 30));
    return;
  }
  const auto real = std::count_if(given.begin(), given.end(), [](std::int64_t e) { return e != 1; });
  const auto at = std::find_if(given.begin(), given.end(), [](std::int64_t e) { return e != 1; });
  if (given.empty() || given.size() > rank || real != 1 || *at < 2)
    throw wrong_block(n, "block_size " + text_of(given),
                      "at most " + std::to_string(rank) + " numbers, one of them 2 or more and the others 1");
  n.block_axis = static_cast<int>(rank - given.size()) + static_cast<int>(at - given.begin());
  n.block = static_cast<int>(std::min<std::int64_t>(*at, 1 << 30));
}

/// Rows in atoms of each group: as many as any groups need, or more atoms where the user says so.
std::int64_t grouped_rows(const TensorData& data, const TensorData& offsets, const TensorData& scale) {
  const std::size_t row = data.dim.size() - 2;
  const std::int64_t least = numeric::grouped_scale_rows(data.dim[row], groups_of(offsets));
  const bool says = scale.dim_is_users && scale.dim.size() == data.dim.size() && scale.dim[row] % numeric::kScaleAtomRows == 0;
  return says ? std::max(scale.dim[row], least) : least;
}

/// Plain scales have one extent a block; an interleaved blob has the bytes of its atoms, or names its logical extents.
void check_scale(const NodeData& n, const TensorData& data, const TensorData& scale) {
  Extents plain = data.dim;
  const auto axis = static_cast<std::size_t>(n.block_axis);
  plain[axis] = numeric::scale_columns(plain[axis], n.block);
  const std::string subject = who(n) + ", " + who(scale);
  const std::string of_data = " for data " + text_of(data.dim) + " in blocks of " + std::to_string(n.block);
  if (scale.reordering == TensorReordering::none) {
    if (scale.dim != plain)
      throw broken(Rule::graph_scale_extent, subject, "extents " + text_of(scale.dim), text_of(plain) + of_data);
    return;
  }
  if (!is_dense(scale))
    throw broken(Rule::graph_scale_extent, subject, "extents " + text_of(scale.dim) + " with strides " + text_of(scale.stride),
                 "a dense run");
  const std::size_t r = data.dim.size();
  const std::size_t other = axis == r - 1 ? r - 2 : r - 1;
  const std::int64_t batches = r == 3 ? data.dim[0] : 1;
  const std::int64_t bytes = numeric::scale_blob_bytes({.batches = batches, .rows = data.dim[other], .columns = plain[axis]});
  if (scale.dim != plain && product(scale.dim) < bytes)
    throw broken(Rule::graph_scale_extent, subject, "extents " + text_of(scale.dim),
                 std::to_string(bytes) + " bytes in whole atoms of 128 by 4, or " + text_of(plain) + of_data);
}

}  // namespace

void check_token_scales(const NodeData& n, const GraphData& g) {
  const TensorData& token = g.tensors[static_cast<std::size_t>(n.inputs[0])];
  if (n.moe_mode == MoeMode::gather || n.moe_mode == MoeMode::combine || token.producer < 0) return;
  const NodeData& from = g.nodes[static_cast<std::size_t>(token.producer)];
  if (from.kind != NodeKind::block_scale_dequantize) return;
  const TensorData& scale = g.tensors[static_cast<std::size_t>(from.inputs[1])];
  if (scale.reordering == TensorReordering::none || scale.dim.size() != token.dim.size()) return;
  const std::int64_t groups = groups_of(g.tensors[static_cast<std::size_t>(n.inputs[2])]), rows = token.dim[1];
  const std::int64_t blocks = numeric::scale_columns(token.dim[2], from.block);
  const std::int64_t bytes = numeric::scale_blob_bytes({.rows = numeric::grouped_scale_rows(rows, groups), .columns = blocks});
  if (scale.dim != Extents{1, rows, blocks} && product(scale.dim) < bytes)
    throw broken(Rule::graph_scale_extent, who(from) + ", " + who(scale), "extents " + text_of(scale.dim),
                 std::to_string(bytes) + " bytes in whole atoms of 128 by 4 for " + std::to_string(rows) + " rows in " +
                     std::to_string(groups) + " groups, or " + text_of({1, rows, blocks}));
}

void check_packed(const TensorData& t) {
  const auto text = [&] { return "extents " + text_of(t.dim) + " with strides " + text_of(t.stride); };
  bool is_packed = t.dim.empty();
  for (std::size_t i = 0; i < t.dim.size(); ++i) {
    is_packed |= t.stride[i] == 1 && t.dim[i] % 2 == 0;
    if (t.dim[i] == 0) return;
  }
  for (std::size_t i = 0; i < t.dim.size(); ++i)
    if (t.dim[i] > 1 && t.stride[i] % 2 != 0) is_packed &= t.stride[i] == 1 && t.dim[i] % 2 == 0;
  if (!is_packed)
    throw broken(Rule::graph_packed, who(t), text(), "fp4 in pairs: stride 1 along an even extent, other strides even");
}

void infer_dequantize(NodeData& n, GraphData& g) {
  const TensorData& data = tensor(g, n.inputs[0]);
  const TensorData& scale = tensor(g, n.inputs[1]);
  if (data.dim.size() != 2 && data.dim.size() != 3)
    throw broken(Rule::graph_rank, who(n) + ", " + who(data), "rank " + std::to_string(data.dim.size()), "2 or 3");
  read_block(n, g, data.dim.size());
  if (n.block_axis + 2 < static_cast<int>(data.dim.size()))
    throw wrong_block(n, "block_size " + text_of(n.block_size), "blocks along one of the last two axes");
  check_scale(n, data, scale);
  TensorData& out = tensor(g, n.output);
  if (!out.stride_is_users) out.stride = data.stride;
}

void infer_quantize(NodeData& n, GraphData& g) {
  const TensorData& data = tensor(g, n.inputs[0]);
  TensorData& scale = tensor(g, n.scale);
  const auto rank = static_cast<int>(data.dim.size());
  if (rank != 2 && rank != 3) throw broken(Rule::graph_rank, who(n) + ", " + who(data), "rank " + std::to_string(rank), "2 or 3");
  const std::int64_t block = n.block_size.size() == 1 ? n.block_size[0] : 0;
  if (block < 2 || block > (1 << 30)) throw wrong_block(n, "block_size " + text_of(n.block_size), "one number, 2 or more");
  n.block = static_cast<int>(block);
  n.block_axis = n.transpose ? rank - 2 : n.axis && *n.axis != -1 ? *n.axis : rank - 1;
  if (n.block_axis != rank - 1 && n.block_axis != rank - 2)
    throw broken(Rule::graph_parameters, who(n), "axis " + std::to_string(n.block_axis),
                 std::to_string(rank - 2) + ", " + std::to_string(rank - 1) + " or -1");
  // Three bits of a significand are what elements have, and what engines rely on.
  if (n.vmax != 0.0 && !(n.vmax >= 2.0 && n.vmax <= 57344.0 && std::fmod(n.vmax, std::exp2(std::ilogb(n.vmax) - 3)) == 0.0))
    throw broken(Rule::graph_parameters, who(n), "vmax " + fmt::format("{}", n.vmax),
                 "0, or a number of fp8 between 2 and 57344");
  const auto axis = static_cast<std::size_t>(n.block_axis);
  if (data.dim[axis] % block != 0)
    throw broken(Rule::graph_block_divides, who(n) + ", " + who(data), "extent " + std::to_string(data.dim[axis]),
                 "a multiple of " + std::to_string(block));
  Extents dim = data.dim;
  dim[axis] = data.dim[axis] / block;
  const bool interleaved = scale.reordering == TensorReordering::f8_128x4;
  if (interleaved) {
    const auto r = static_cast<std::size_t>(rank);
    const bool by_row = axis == r - 1;
    const std::int64_t rows = by_row ? data.dim[r - 2] : data.dim[r - 1];
    dim[r - 2] = round_up(rows, numeric::kScaleAtomRows);
    if (by_row && data.grouped_by >= 0) dim[r - 2] = grouped_rows(data, tensor(g, data.grouped_by), scale);
    dim[r - 1] = round_up(data.dim[axis] / block, numeric::kScaleAtomColumns);
  }
  if (scale.dim_is_users && scale.dim != dim)
    throw broken(Rule::graph_output_dim, who(n) + ", " + who(scale), "extents " + text_of(scale.dim), text_of(dim));
  scale.dim = dim;
  if (!scale.stride_is_users) scale.stride = row_major(dim);
  if (scale.stride.size() != dim.size())
    throw broken(Rule::graph_rank, who(scale), std::to_string(scale.stride.size()) + " strides for extents " + text_of(dim),
                 std::to_string(dim.size()) + " strides");
  if (interleaved && scale.stride_is_users && !is_dense(scale))
    throw broken(Rule::graph_scale_extent, who(n) + ", " + who(scale),
                 "extents " + text_of(dim) + " with strides " + text_of(scale.stride), "a dense run");
}

}  // namespace verglas::graph
