#include "oracle/evaluate.hpp"

#include <algorithm>
#include <stdexcept>

#include "oracle/block_scale.hpp"
#include "oracle/grouped.hpp"
#include "oracle/memory.hpp"
#include "oracle/nodes.hpp"

namespace oracle {

namespace {

using Dims = std::vector<std::int64_t>;

const Node* producer_of(const Graph& graph, int tensor) {
  for (const Node& node : graph.nodes)
    if (node.output == tensor || node.scale == tensor) return &node;
  return nullptr;
}

Dims broadcast(Dims a, Dims b) {
  const std::size_t rank = std::max(a.size(), b.size());
  a = padded(std::move(a), rank);
  b = padded(std::move(b), rank);
  for (std::size_t i = 0; i < rank; ++i) {
    if (a[i] != b[i] && a[i] != 1 && b[i] != 1) throw std::invalid_argument("operands do not broadcast");
    if (a[i] == 1) a[i] = b[i];
  }
  return a;
}

bool is_grouped(const Node& node) { return node.kind == NodeKind::grouped || node.kind == NodeKind::grouped_gradient; }

/// Extents of a tensor from those of its sources, declared or live; B-chains in their own order.
struct Extent {
  Dims dims;
  bool kernel_order = false;
};

Extent extent_of(const Graph& graph, int tensor, bool live, std::size_t depth = 0) {
  const Tensor& t = graph.tensors[static_cast<std::size_t>(tensor)];
  const Node* node = producer_of(graph, tensor);
  if (depth > graph.nodes.size()) throw std::invalid_argument("the graph has a cycle");
  if (node == nullptr) {
    const bool scalar = t.memory && count_of(t.memory->dims) == 1 && count_of(t.dims) == 1;
    if (live && t.memory && !t.memory->bare && !scalar) return {t.memory->dims, t.memory->kernel_order};
    return {t.dims, false};
  }
  if (node->kind == NodeKind::reduction) return {t.dims, false};
  Extent r = extent_of(graph, node->inputs[0], live, depth + 1);
  if (is_grouped(*node)) {
    const Extent other = extent_of(graph, node->inputs[1], live, depth + 1);
    const Dims da = padded(r.dims, 3), db = padded(other.dims, 3);
    const std::int64_t columns = other.kernel_order ? db[1] : db[2];
    const auto count = [&](std::size_t i) {
      const Tensor& v = graph.tensors[static_cast<std::size_t>(node->inputs.at(i))];
      return count_of(live && v.memory && !v.memory->bare ? v.memory->dims : v.dims);
    };
    if (node->kind == NodeKind::grouped_gradient) return {{count(2), da[2], columns}, false};
    if (node->routing == Routing::combine) return {{1, count(5) / node->top_k, columns}, false};
    return {{1, node->routing == Routing::gather ? count(3) : da[1], columns}, false};
  }
  if (node->kind == NodeKind::matmul) {
    Extent b = extent_of(graph, node->inputs[1], live, depth + 1);
    const Dims da = padded(r.dims, 3);
    Dims db = padded(b.dims, 3);
    if (b.kernel_order) std::swap(db[1], db[2]);
    return {{da[0] == 1 ? db[0] : da[0], da[1], db[2]}, false};
  }
  if (node->kind == NodeKind::dequantize || node->kind == NodeKind::quantize) return r;
  for (std::size_t i = 1; i < node->inputs.size(); ++i) {
    const Extent other = extent_of(graph, node->inputs[i], live, depth + 1);
    r.dims = broadcast(r.dims, other.dims);
    r.kernel_order = r.kernel_order || other.kernel_order;
  }
  return r;
}

const Node* first_product(const Graph& graph) {
  for (const Node& node : graph.nodes)
    if (node.kind == NodeKind::matmul || is_grouped(node)) return &node;
  return nullptr;
}

/// Whether a tensor is an operand of a product, itself or through pointwise nodes.
bool feeds_product(const Graph& graph, int tensor, std::size_t depth = 0) {
  if (depth > graph.nodes.size()) return false;
  for (const Node& node : graph.nodes) {
    if (std::find(node.inputs.begin(), node.inputs.end(), tensor) == node.inputs.end()) continue;
    if (node.kind == NodeKind::matmul || is_grouped(node)) return true;
    if ((node.kind == NodeKind::pointwise || node.kind == NodeKind::dequantize) && feeds_product(graph, node.output, depth + 1))
      return true;
  }
  return false;
}

/// Scales are read with the data that they belong to.
bool is_scale_of_data(const Graph& graph, int tensor) {
  for (const Node& node : graph.nodes)
    if (node.kind == NodeKind::dequantize && node.inputs.at(1) == tensor) return true;
  return false;
}

Result read_input(const Graph& graph, int index) {
  const Tensor& t = graph.tensors[static_cast<std::size_t>(index)];
  if (t.value) {
    Result r;
    r.dims = Dims(std::max<std::size_t>(t.dims.size(), 1), 1);
    r.elements = {rounded(t.format, Bound::exact(*t.value))};
    return r;
  }
  if (!t.memory) throw std::invalid_argument("input " + t.name + " has no memory");
  Memory memory = *t.memory;
  if (memory.bare) {
    memory.dims = t.dims;
    memory.strides = t.strides;
  }
  if (count_of(memory.dims) == 1 && count_of(t.dims) == 1) {
    memory.dims = t.dims;  // a scalar may come with any number of unit axes
    memory.strides.assign(t.dims.size(), 0);
  }
  if (const Node* product = first_product(graph); product != nullptr && !feeds_product(graph, index)) {
    Dims declared = padded(extent_of(graph, product->output, false).dims, 3), live = live_domain(graph);
    const bool has_groups = product->kind == NodeKind::grouped && product->routing != Routing::combine;
    const std::int64_t groups = has_groups ? count_of(graph.tensors[static_cast<std::size_t>(product->inputs.at(2))].dims) : 1;
    if (groups != 1 && t.dims.size() == 3 && t.dims[0] == groups && t.dims[1] == 1) {  // a row for each group
      declared = {groups, 1, declared[2]};
      live = {groups_of(graph, *product), 1, live[2]};
    }
    const Memory over_domain = spread(t, declared, live);
    if (!over_domain.dims.empty()) memory = over_domain;
  }
  return load(t.format, memory);
}

/// One node element by element, its operands broadcast against each other.
Result pointwise(const Node& node, const Tensor& out, std::vector<const Result*> inputs, const Options& options) {
  Result r;
  for (const Result* input : inputs)
    if (input->has_groups) {
      r.has_groups = true;
      r.group = input->group;
    }
  std::vector<Result> spread;
  spread.reserve(inputs.size());
  for (const Result*& input : inputs)
    if (r.has_groups && !input->has_groups && input->dims.size() == 3 && input->dims[0] != 1) {
      spread.push_back(spread_over_groups(*input, r.group));
      input = &spread.back();
    }
  for (const Result* input : inputs) {
    r.dims = broadcast(r.dims, input->dims);
    r.kernel_order = r.kernel_order || input->kernel_order;
  }
  const std::size_t rank = r.dims.size();
  std::vector<Dims> strides;
  std::vector<std::vector<Bound>> operands;
  for (const Result* input : inputs) {
    const Dims dims = padded(input->dims, rank);
    Dims s = packed_strides(dims);
    for (std::size_t i = 0; i < rank; ++i)
      if (dims[i] == 1) s[i] = 0;
    strides.push_back(std::move(s));
    std::vector<Bound>& converted_input = operands.emplace_back();
    for (const Bound& v : input->elements) converted_input.push_back(converted(node.compute, v));
  }
  const std::size_t axis = static_cast<std::size_t>(node.attributes.axis) + rank - std::min(rank, out.dims.size());
  if (node.mode == Pointwise::gen_index && axis >= rank) throw std::invalid_argument("gen_index has no such axis");
  r.elements.reserve(static_cast<std::size_t>(count_of(r.dims)));
  std::vector<Bound> element(inputs.size());
  for (Walk w(r.dims); w.more(); w.next()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) element[i] = operands[i][static_cast<std::size_t>(w.offset(strides[i]))];
    Bound v;
    if (node.mode == Pointwise::gen_index) {
      v = Bound::exact(static_cast<double>(w.at()[axis]));
    } else if (node.compute == Format::int32) {
      v = pointwise_int32(node.mode, node.attributes, element);
    } else {
      v = pointwise_fp32(node.mode, node.attributes, element, options);
    }
    r.elements.push_back(v);
  }
  return r;
}

/// The axis of blocks where the evaluated tensor has another rank than the declared one.
std::size_t axis_of(const Node& node, const Tensor& declared, const Result& r) {
  return node.block_axis + r.dims.size() - declared.dims.size();
}

Result evaluate_node(const Graph& graph, const Node& node, const std::vector<Result>& done, const Options& options) {
  const Tensor& out = graph.tensors[static_cast<std::size_t>(node.output)];
  if (node.kind == NodeKind::dequantize) {
    const Tensor& scale = graph.tensors[static_cast<std::size_t>(node.inputs.at(1))];
    Result r = dequantised(done[static_cast<std::size_t>(node.inputs[0])], scale, node.block,
                           axis_of(node, out, done[static_cast<std::size_t>(node.inputs[0])]));
    for (Bound& v : r.elements) v = rounded(out.format, v);
    return r;
  }
  std::vector<const Result*> inputs;
  for (int i : node.inputs) inputs.push_back(&done[static_cast<std::size_t>(i)]);
  Result r;
  if (node.kind == NodeKind::matmul) {
    // In memory: a device multiplies the elements of blocks before their scales.
    const auto is_fp8 = [&](int i) {
      int tensor = node.inputs.at(static_cast<std::size_t>(i));
      for (const Node& n : graph.nodes)
        if (n.kind == NodeKind::dequantize && n.output == tensor) tensor = n.inputs.at(0);
      const Format f = graph.tensors[static_cast<std::size_t>(tensor)].format;
      return f == Format::e4m3 || f == Format::e5m2;
    };
    r = multiplied(*inputs.at(0), *inputs.at(1), node.compute, options.approximate && is_fp8(0) && is_fp8(1));
  } else if (node.kind == NodeKind::grouped) {
    r = grouped_product(graph, node, done);
  } else if (node.kind == NodeKind::grouped_gradient) {
    r = grouped_gradient(graph, node, done);
  } else if (node.kind == NodeKind::pointwise) {
    if (static_cast<int>(inputs.size()) != arity_of(node.mode)) throw std::invalid_argument("wrong number of operands");
    r = pointwise(node, out, inputs, options);
  } else {
    // An axis whose declared extent is 1 is reduced, whatever the live extent of the source.
    const Dims dims = padded(out.dims, inputs.at(0)->dims.size());
    std::vector<bool> kept;
    for (std::int64_t d : dims) kept.push_back(d != 1);
    if (inputs[0]->has_groups) {
      const bool by_groups = inputs.size() == 2 && dims[0] != 1;
      const std::int64_t groups = by_groups ? count_of(inputs[1]->dims) : 1;
      r = reduced_rows(*inputs[0], node.reduction, kept, node.compute, by_groups, groups);
      for (Bound& v : r.elements) v = rounded(out.format, v);
      return r;
    }
    r = reduced(*inputs[0], node.reduction, kept, node.compute);
  }
  for (Bound& v : r.elements) v = rounded(out.format, v);
  return r;
}

}  // namespace

Result load(Format format, const Memory& memory) {
  Result r;
  r.dims = memory.dims;
  r.kernel_order = memory.kernel_order;
  r.elements.reserve(static_cast<std::size_t>(count_of(r.dims)));
  for (Walk w(r.dims); w.more(); w.next())
    r.elements.push_back(Bound::exact(value_at(format, memory.base, w.offset(memory.strides))));
  return r;
}

Dims live_domain(const Graph& graph) {
  const Node* product = first_product(graph);
  return product == nullptr ? Dims{} : extent_of(graph, product->output, true).dims;
}

Memory spread(const Tensor& tensor, const Dims& declared_domain, const Dims& domain) {
  const Dims declared = padded(tensor.dims, 3);
  Memory memory = *tensor.memory;
  if (memory.bare) {
    memory.dims = tensor.dims;
    memory.strides = tensor.strides;
    memory.bare = false;
  }
  if (declared.size() != 3 || domain.size() != 3) return {};
  Memory r = memory;
  r.kernel_order = false;
  r.dims.assign(3, 1);
  r.strides.assign(3, 0);
  const std::size_t missing = 3 - std::min<std::size_t>(3, tensor.dims.size());
  const bool one_element = count_of(declared) == 1;
  std::size_t from = 0;
  const auto skip_units = [&] {
    while (from < memory.dims.size() && memory.dims[from] == 1) ++from;
  };
  for (std::size_t axis = 0; axis < 3; ++axis) {
    // Where the declared domain has extent 1, an axis that the tensor has counts as full on M and N; a batch and a scalar stay 1.
    const bool full =
        declared[axis] == declared_domain[axis] && axis >= missing && !one_element && (axis > 0 || declared[0] != 1);
    if (!full && declared[axis] != 1) return {};
    if (!full || domain[axis] == 1) continue;
    skip_units();
    if (from == memory.dims.size() || memory.dims[from] != domain[axis]) return {};
    r.dims[axis] = domain[axis];
    r.strides[axis] = memory.strides[from++];
  }
  skip_units();
  return from == memory.dims.size() ? r : Memory{};
}

std::vector<Result> evaluate(const Graph& graph, const Options& options) {
  std::vector<Result> done(graph.tensors.size());
  std::vector<bool> ready(graph.tensors.size(), false);
  std::vector<bool> needed(graph.tensors.size(), false);
  for (const Node& node : graph.nodes)
    for (int i : node.inputs) needed.at(static_cast<std::size_t>(i)) = true;
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    if (!needed[i] || producer_of(graph, static_cast<int>(i)) != nullptr) continue;
    if (!is_scale_of_data(graph, static_cast<int>(i))) done[i] = read_input(graph, static_cast<int>(i));
    ready[i] = true;
  }
  std::vector<bool> evaluated(graph.nodes.size(), false);
  for (std::size_t left = graph.nodes.size(); left > 0;) {
    const std::size_t before_pass = left;
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      const bool can =
          std::all_of(node.inputs.begin(), node.inputs.end(), [&](int i) { return ready[static_cast<std::size_t>(i)]; });
      if (evaluated[n] || !can) continue;
      if (node.kind == NodeKind::quantize) {
        const auto format = [&](int t) { return graph.tensors[static_cast<std::size_t>(t)].format; };
        const Result& source = done[static_cast<std::size_t>(node.inputs[0])];
        const Tensor& out = graph.tensors[static_cast<std::size_t>(node.output)];
        Quantised q =
            quantised(source, node.block, axis_of(node, out, source), format(node.output), format(node.scale), node.vmax);
        q.data.group = q.scale.group = source.group;
        q.data.has_groups = q.scale.has_groups = source.has_groups;
        done[static_cast<std::size_t>(node.output)] = std::move(q.data);
        done[static_cast<std::size_t>(node.scale)] = std::move(q.scale);
        ready[static_cast<std::size_t>(node.scale)] = true;
      } else {
        done[static_cast<std::size_t>(node.output)] = evaluate_node(graph, node, done, options);
      }
      ready[static_cast<std::size_t>(node.output)] = true;
      evaluated[n] = true;
      --left;
    }
    if (left == before_pass) throw std::invalid_argument("the graph has a cycle");
  }
  return done;
}

}  // namespace oracle
