#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/rules.hpp"
#include "base/strides.hpp"
#include "graph/ir.hpp"

namespace verglas::graph {
namespace {

using Extents = std::vector<std::int64_t>;

std::string who(const TensorData& t) { return "tensor " + label_of(t); }
std::string who(const NodeData& n) { return std::string(kind_of(n)) + " " + label_of(n); }

/// Extents, strides and type of one tensor, once they are known.
void check_layout(const TensorData& t) {
  if (t.dim.empty() || t.dim.size() > 8) throw broken(Rule::graph_rank, who(t), "rank " + std::to_string(t.dim.size()), "1 to 8");
  if (t.stride.size() != t.dim.size())
    throw broken(Rule::graph_rank, who(t), std::to_string(t.stride.size()) + " strides for extents " + text_of(t.dim),
                 std::to_string(t.dim.size()) + " strides");
  std::int64_t elements = 1;
  std::int64_t reach = 1;
  bool over = false;
  for (std::size_t i = 0; i < t.dim.size(); ++i) {
    if (t.dim[i] < 0) throw broken(Rule::graph_extent, who(t), "extents " + text_of(t.dim), "none below 0");
    if (t.stride[i] < 0) throw broken(Rule::graph_extent, who(t), "strides " + text_of(t.stride), "none below 0");
    over |= __builtin_mul_overflow(elements, t.dim[i], &elements);
    std::int64_t step = 0;
    over |= t.dim[i] > 1 && __builtin_mul_overflow(t.dim[i] - 1, t.stride[i], &step);
    over |= __builtin_add_overflow(reach, step, &reach);
  }
  std::int64_t bytes = 0;
  over |= __builtin_mul_overflow(reach, std::int64_t{8}, &bytes);
  over |= __builtin_mul_overflow(elements, std::int64_t{8}, &bytes);
  if (over)
    throw broken(Rule::graph_overflow, who(t), "extents " + text_of(t.dim) + " with strides " + text_of(t.stride),
                 "a byte offset below 2^63");
  if (t.dtype == DataType::tf32) throw broken(Rule::graph_dtype, who(t), "tf32", "a storage type");
  if (t.dtype == DataType::fp4_e2m1 && !t.is_virtual && !t.by_value) check_packed(t);
}

void check_by_value(const TensorData& t) {
  if (t.value && !t.by_value)
    throw broken(Rule::graph_by_value, who(t), "a value in a tensor that is not passed by value", "no value, or passed by value");
  if (!t.by_value) return;
  std::int64_t elements = 1;
  for (const std::int64_t e : t.dim) elements *= e;
  if (t.is_virtual || t.producer >= 0)
    throw broken(Rule::graph_by_value, who(t), "a computed tensor passed by value", "an input");
  if (elements != 1) throw broken(Rule::graph_by_value, who(t), "extents " + text_of(t.dim), "one element");
  if (!t.value || !is_integer(t.dtype)) return;
  const double v = *t.value;
  const double limit = std::ldexp(1.0, bits_of(t.dtype) - (t.dtype == DataType::uint8 ? 0 : 1));
  const bool fits = t.dtype == DataType::boolean
                        ? (v == 0.0 || v == 1.0)
                        : v == std::trunc(v) && v < limit && v >= (t.dtype == DataType::uint8 ? 0.0 : -limit);
  if (!fits) throw broken(Rule::graph_by_value, who(t), std::to_string(v), "a value of type " + std::string(name_of(t.dtype)));
}

void check_parameters(const NodeData& n, const GraphData& g) {
  const PointwiseParameters& p = n.parameters;
  for (const auto& v :
       {p.lower_clip, p.upper_clip, p.negative_slope, std::optional<float>(p.alpha), std::optional<float>(p.beta)})
    if (v && std::isnan(*v)) throw broken(Rule::graph_parameters, who(n), "a NaN parameter", "numbers");
  const bool leaky = n.pointwise == PointwiseMode::leaky_relu || n.pointwise == PointwiseMode::leaky_relu_bwd;
  if (leaky && !p.negative_slope) throw broken(Rule::graph_parameters, who(n), "no negative_slope", "one");
  if (n.pointwise == PointwiseMode::gen_index) {
    const auto rank = static_cast<int>(g.tensors[static_cast<std::size_t>(n.inputs[0])].dim.size());
    if (p.axis < 0 || p.axis >= rank)
      throw broken(Rule::graph_parameters, who(n), "axis " + std::to_string(p.axis), "0 to " + std::to_string(rank - 1));
  }
}

/// The offsets that group the rows of an operand, −1 where none do.
int grouped_by(const NodeData& n, const GraphData& g) {
  for (const int index : n.inputs)
    if (const int by = g.tensors[static_cast<std::size_t>(index)].grouped_by; by >= 0) return by;
  return -1;
}

/// NumPy's rule: aligned at the right, each extent 1 or the common one. Beside rows of groups, an operand (groups, 1, N) has one
/// row for each group.
Extents broadcast(const NodeData& n, const GraphData& g) {
  Extents out;
  const int by = grouped_by(n, g);
  const std::int64_t groups = by < 0 ? 1 : groups_of(g.tensors[static_cast<std::size_t>(by)]);
  for (const int index : n.inputs) {
    const TensorData& t = g.tensors[static_cast<std::size_t>(index)];
    Extents dim = t.dim;
    if (groups != 1 && t.grouped_by < 0 && dim.size() == 3 && dim[0] == groups && dim[1] == 1) dim[0] = 1;
    if (dim.size() > out.size()) out.insert(out.begin(), dim.size() - out.size(), 1);
    const std::size_t skip = out.size() - dim.size();
    for (std::size_t i = 0; i < dim.size(); ++i) {
      std::int64_t& e = out[skip + i];
      if (e == 1)
        e = dim[i];
      else if (dim[i] != 1 && dim[i] != e)
        throw broken(Rule::graph_broadcast, who(n) + ", " + who(g.tensors[static_cast<std::size_t>(index)]),
                     "extents " + text_of(dim), "each 1 or as in " + text_of(out));
    }
  }
  return out;
}

Extents product_dim(const NodeData& n, const GraphData& g) {
  const TensorData& a = g.tensors[static_cast<std::size_t>(n.inputs[0])];
  const TensorData& b = g.tensors[static_cast<std::size_t>(n.inputs[1])];
  for (const TensorData* t : {&a, &b}) {
    if (t->dim.size() != 2 && t->dim.size() != 3)
      throw broken(Rule::graph_rank, who(n) + ", " + who(*t), "rank " + std::to_string(t->dim.size()), "2 or 3");
    if (t->by_value)
      throw broken(Rule::graph_by_value, who(n) + ", " + who(*t), "a tensor passed by value", "an ordinary tensor");
  }
  if (a.dim.size() != b.dim.size())
    throw broken(Rule::graph_matmul_batch, who(n),
                 "a of rank " + std::to_string(a.dim.size()) + " and b of rank " + std::to_string(b.dim.size()), "equal ranks");
  const std::size_t r = a.dim.size();
  if (a.dim[r - 1] != b.dim[r - 2])
    throw broken(Rule::graph_matmul_inner, who(n), "K = " + std::to_string(b.dim[r - 2]) + " from b " + text_of(b.dim),
                 std::to_string(a.dim[r - 1]) + " as in a " + text_of(a.dim));
  Extents out{a.dim[r - 2], b.dim[r - 1]};
  if (r == 3) {
    if (a.dim[0] != b.dim[0] && a.dim[0] != 1 && b.dim[0] != 1)
      throw broken(Rule::graph_matmul_batch, who(n), "batches " + std::to_string(a.dim[0]) + " and " + std::to_string(b.dim[0]),
                   "equal ones, or a 1");
    out.insert(out.begin(), a.dim[0] == 1 ? b.dim[0] : a.dim[0]);
  }
  return out;
}

void check_reduction(const NodeData& n, const GraphData& g) {
  if (static_cast<int>(n.reduction) >= kReductionModeCount)
    throw broken(Rule::graph_parameters, who(n), "mode " + std::to_string(static_cast<int>(n.reduction)), "a ReductionMode");
  const TensorData& in = g.tensors[static_cast<std::size_t>(n.inputs[0])];
  const TensorData& out = g.tensors[static_cast<std::size_t>(n.output)];
  if (!out.dim_is_users)
    throw broken(Rule::graph_dim_unset, who(n) + ", " + who(out), "no extents", "extents that say what is reduced");
  if (n.inputs.size() == 2) return check_group_reduction(n, g);
  bool legal = out.dim.size() == in.dim.size();
  bool reduces = false;
  for (std::size_t i = 0; legal && i < in.dim.size(); ++i) {
    legal = out.dim[i] == 1 || out.dim[i] == in.dim[i];
    const bool is_unit_batch = in.dim.size() == 3 && i == 0 && in.dim[i] == 1;
    reduces |= out.dim[i] == 1 && !is_unit_batch;
  }
  if (!legal || !reduces)
    throw broken(Rule::graph_reduction_dim, who(n), "output extents " + text_of(out.dim) + " for input " + text_of(in.dim),
                 std::string("each 1 or the full one, and a reduced axis") +
                     (in.grouped_by < 0 ? "" : "; with group_offset a result for each group"));
}

/// Half of the columns.
Extents run_dim(const NodeData& n, const GraphData& g) {
  const TensorData& in = g.tensors[static_cast<std::size_t>(n.inputs[0])];
  if (n.run < 1 || n.run > (1 << 30))
    throw broken(Rule::graph_runs, who(n), "runs of " + std::to_string(n.run), "1 column or more");
  Extents dim = in.dim;
  if (dim.empty() || dim.back() % (2 * n.run) != 0)
    throw broken(Rule::graph_runs, who(n) + ", " + who(in), "extents " + text_of(dim),
                 "a last one that is a multiple of " + std::to_string(2 * n.run) + ", pairs of runs");
  dim.back() /= 2;
  return dim;
}

/// Whole heads, and tables for some of their columns.
void check_rope(const NodeData& n, const GraphData& g) {
  const auto tensor = [&](std::size_t i) -> const TensorData& { return g.tensors[static_cast<std::size_t>(n.inputs[i])]; };
  const TensorData &in = tensor(0), &cos = tensor(1);
  const auto no = [&](const TensorData& t, std::string got, std::string wanted) {
    throw broken(Rule::graph_rope, who(n) + ", " + who(t), got, wanted);
  };
  if (in.dim.size() < 2 || n.head < 2 || in.dim.back() % n.head != 0)
    no(in, "extents " + text_of(in.dim), "a last one of whole heads of " + std::to_string(n.head));
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const TensorData& t = tensor(i);
    bool fits = t.dim.size() == in.dim.size() && t.dim.back() == cos.dim.back();
    for (std::size_t axis = 0; fits && axis + 1 < t.dim.size(); ++axis) fits = t.dim[axis] == 1 || t.dim[axis] == in.dim[axis];
    if (!fits) no(t, "extents " + text_of(t.dim), "those of " + text_of(in.dim) + " or 1, but for the last");
  }
  if (const std::int64_t rotated = cos.dim.back(); rotated < 2 || rotated > n.head || rotated % 2 != 0)
    no(cos, std::to_string(rotated) + " columns", "an even number, at most " + std::to_string(n.head));
}

void resolve_type(TensorData& t, const GraphData& g) {
  if (!t.dtype_is_users) t.dtype = t.is_virtual ? g.intermediate : g.io;
}

void infer(NodeData& n, GraphData& g) {
  if (!n.compute_is_users) n.compute = g.compute;
  TensorData& out = g.tensors[static_cast<std::size_t>(n.output)];
  resolve_type(out, g);
  if (n.kind == NodeKind::block_scale_dequantize) infer_dequantize(n, g);
  if (n.kind == NodeKind::block_scale_quantize) {
    TensorData& scale = g.tensors[static_cast<std::size_t>(n.scale)];
    resolve_type(scale, g);
    infer_quantize(n, g);
    check_layout(scale);
    check_by_value(scale);
  }
  Extents dim;
  if (n.kind == NodeKind::matmul) {
    dim = product_dim(n, g);
  } else if (n.kind == NodeKind::pointwise) {
    check_parameters(n, g);
    dim = broadcast(n, g);
    out.grouped_by = grouped_by(n, g);
  } else if (n.kind == NodeKind::take_runs) {
    dim = run_dim(n, g);
    out.grouped_by = grouped_by(n, g);
  } else if (n.kind == NodeKind::rope) {
    check_rope(n, g);
    dim = g.tensors[static_cast<std::size_t>(n.inputs[0])].dim;
  } else if (n.kind == NodeKind::reduction) {
    check_reduction(n, g);
    dim = out.dim;
  } else if (n.kind == NodeKind::moe_grouped_matmul || n.kind == NodeKind::moe_grouped_matmul_bwd) {
    dim = grouped_dim(n, g);
    if (n.kind == NodeKind::moe_grouped_matmul) check_token_scales(n, g);
    out.grouped_by = n.kind == NodeKind::moe_grouped_matmul && n.moe_mode != MoeMode::combine ? n.inputs[2] : -1;
  } else {
    dim = g.tensors[static_cast<std::size_t>(n.inputs[0])].dim;
  }
  if (out.dim_is_users && out.dim != dim)
    throw broken(Rule::graph_output_dim, who(n) + ", " + who(out), "extents " + text_of(out.dim), text_of(dim));
  out.dim = dim;
  if (!out.stride_is_users) out.stride = row_major(dim);
  check_layout(out);
  check_by_value(out);
}

/// Kahn's algorithm; among nodes that are ready the one recorded first goes first.
void order_nodes(GraphData& g) {
  const std::size_t count = g.nodes.size();
  std::vector<int> waits(count, 0);
  std::vector<std::vector<int>> readers(count);
  for (std::size_t i = 0; i < count; ++i)
    for (const int input : g.nodes[i].inputs)
      if (const int p = g.tensors[static_cast<std::size_t>(input)].producer; p >= 0) {
        ++waits[i];
        readers[static_cast<std::size_t>(p)].push_back(static_cast<int>(i));
      }
  std::vector<int> ready;  // a heap with the smallest index on top
  for (std::size_t i = 0; i < count; ++i)
    if (waits[i] == 0) ready.push_back(static_cast<int>(i));
  std::make_heap(ready.begin(), ready.end(), std::greater<>());
  g.order.clear();
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end(), std::greater<>());
    const int i = ready.back();
    ready.pop_back();
    g.order.push_back(i);
    for (const int r : readers[static_cast<std::size_t>(i)])
      if (--waits[static_cast<std::size_t>(r)] == 0) {
        ready.push_back(r);
        std::push_heap(ready.begin(), ready.end(), std::greater<>());
      }
  }
  if (g.order.size() == count) return;
  const auto stuck = std::find_if(waits.begin(), waits.end(), [](int w) { return w > 0; });
  const NodeData& n = g.nodes[static_cast<std::size_t>(stuck - waits.begin())];
  throw broken(Rule::graph_cyclic, who(n), "a node that depends on its own result", "an acyclic graph");
}

int arity_of(const NodeData& n) {
  switch (n.kind) {
    case NodeKind::matmul:
    case NodeKind::block_scale_dequantize: return 2;
    case NodeKind::moe_grouped_matmul:
    case NodeKind::moe_grouped_matmul_bwd: return grouped_arity(n);
    case NodeKind::reduction: return n.inputs.size() == 2 ? 2 : 1;
    case NodeKind::block_scale_quantize:
    case NodeKind::take_runs: return 1;
    case NodeKind::rope: return 3;
    case NodeKind::pointwise: break;
  }
  return verglas::arity_of(n.pointwise);
}

/// How many, and of a grouped product which: what its mode asks for is easily forgotten.
std::string operands_of(const NodeData& n) {
  const std::string count = std::to_string(arity_of(n));
  if (n.kind != NodeKind::moe_grouped_matmul) return count;
  return count + ": token, weight, first_token_offset" + (n.moe_mode == MoeMode::none ? "" : ", token_index") +
         (n.moe_mode >= MoeMode::scatter ? ", token_ks" : "") + (n.moe_mode == MoeMode::combine ? ", top_k_scores" : "");
}

void check_links(const GraphData& g) {
  std::unordered_map<std::int64_t, const TensorData*> by_uid;
  for (const TensorData& t : g.tensors) {
    const auto [it, fresh] = by_uid.emplace(t.uid, &t);
    if (!fresh)
      throw broken(Rule::graph_uid_unique, who(t), "uid " + std::to_string(t.uid) + ", which " + label_of(*it->second) + " has",
                   "a uid of its own");
  }
  std::vector<int> producer(g.tensors.size(), -1);
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const NodeData& n = g.nodes[i];
    const auto arity = static_cast<std::size_t>(arity_of(n));
    if (n.inputs.size() != arity || arity == 0)
      throw broken(Rule::graph_arity, who(n), std::to_string(n.inputs.size()) + " operands", operands_of(n));
    for (const int result : {n.output, n.scale}) {
      if (result < 0) continue;
      const auto out = static_cast<std::size_t>(result);
      if (producer[out] >= 0) throw broken(Rule::graph_dangling, who(g.tensors[out]), "two nodes that compute it", "one");
      producer[out] = static_cast<int>(i);
    }
  }
  for (const NodeData& n : g.nodes)
    for (const int input : n.inputs) {
      const TensorData& t = g.tensors[static_cast<std::size_t>(input)];
      if (t.is_virtual && producer[static_cast<std::size_t>(input)] < 0)
        throw broken(Rule::graph_dangling, who(n) + ", " + who(t), "a virtual tensor that nothing computes",
                     "an input or a result");
    }
}

}  // namespace

void validate(GraphData& g) {
  if (g.nodes.empty()) throw broken(Rule::graph_empty, "graph '" + g.name + "'", "no nodes", "at least a matmul");
  if (g.io == DataType::not_set) g.io = DataType::bf16;
  if (g.intermediate == DataType::not_set) g.intermediate = DataType::fp32;
  if (g.compute == DataType::not_set) g.compute = DataType::fp32;
  check_links(g);
  order_nodes(g);
  for (TensorData& t : g.tensors) {
    if (t.producer >= 0) continue;
    if (t.dim.empty()) throw broken(Rule::graph_dim_unset, who(t), "no extents", "extents");
    if (t.stride.empty())
      throw broken(Rule::graph_stride_unset, who(t), "no strides", "one for each extent of " + text_of(t.dim));
    resolve_type(t, g);
    check_layout(t);
    check_by_value(t);
  }
  for (const int i : g.order) infer(g.nodes[static_cast<std::size_t>(i)], g);
}

}  // namespace verglas::graph
