#include "verglas/graph.hpp"

#include <algorithm>
#include <utility>

#include "base/rules.hpp"
#include "graph/ir.hpp"

namespace verglas {

using graph::GraphData;
using graph::NodeData;
using graph::NodeKind;
using graph::TensorData;

namespace {

TensorData& at(const std::shared_ptr<GraphData>& g, int index) {
  if (!g) throw broken(Rule::graph_handle, "an empty tensor handle was used");
  return g->tensors[static_cast<std::size_t>(index)];
}

TensorData& writable(const std::shared_ptr<GraphData>& g, int index) {
  TensorData& t = at(g, index);
  if (g->frozen)
    throw broken(Rule::graph_frozen, "tensor " + label_of(t) + " cannot change any more: the graph has been planned");
  return t;
}

}  // namespace

Tensor& Tensor::set_name(std::string name) {
  writable(graph_, index_).name = std::move(name);
  return *this;
}
Tensor& Tensor::set_uid(std::int64_t uid) {
  TensorData& t = writable(graph_, index_);
  for (TensorData& other : graph_->tensors) {
    if (&other == &t || other.uid != uid) continue;
    if (other.uid_is_users)
      throw broken(Rule::graph_uid_unique, "tensor " + label_of(t),
                   "uid " + std::to_string(uid) + ", which " + label_of(other) + " has", "a uid of its own");
    other.uid = 0;
  }
  t.uid = uid;
  t.uid_is_users = true;
  assign_uids(*graph_);
  return *this;
}
Tensor& Tensor::set_dim(std::vector<std::int64_t> dim) {
  TensorData& t = writable(graph_, index_);
  t.dim_is_users = !dim.empty();
  t.dim = std::move(dim);
  return *this;
}
Tensor& Tensor::set_stride(std::vector<std::int64_t> stride) {
  TensorData& t = writable(graph_, index_);
  t.stride_is_users = !stride.empty();
  t.stride = std::move(stride);
  return *this;
}
Tensor& Tensor::set_data_type(DataType type) {
  TensorData& t = writable(graph_, index_);
  t.dtype = type;
  t.dtype_is_users = type != DataType::not_set;
  return *this;
}
Tensor& Tensor::set_reordering_type(TensorReordering reordering) {
  writable(graph_, index_).reordering = reordering;
  return *this;
}
Tensor& Tensor::set_by_pointers(bool by_pointers) {
  writable(graph_, index_).by_pointers = by_pointers;
  return *this;
}
Tensor& Tensor::set_output(bool is_output) {
  writable(graph_, index_).is_virtual = !is_output;
  return *this;
}
Tensor& Tensor::set_is_pass_by_value(bool by_value) {
  writable(graph_, index_).by_value = by_value;
  return *this;
}
Tensor& Tensor::set_value(double value) {
  TensorData& t = writable(graph_, index_);
  t.value = value;
  t.by_value = true;
  return *this;
}

const std::string& Tensor::name() const { return at(graph_, index_).name; }
std::int64_t Tensor::uid() const { return at(graph_, index_).uid; }
std::vector<std::int64_t> Tensor::dim() const { return at(graph_, index_).dim; }
std::vector<std::int64_t> Tensor::stride() const { return at(graph_, index_).stride; }
DataType Tensor::data_type() const { return at(graph_, index_).dtype; }
TensorReordering Tensor::reordering_type() const { return at(graph_, index_).reordering; }
bool Tensor::is_virtual() const { return at(graph_, index_).is_virtual; }
bool Tensor::is_pass_by_value() const { return at(graph_, index_).by_value; }

Graph::Graph(GraphAttributes a) : data_(std::make_shared<GraphData>()) {
  data_->name = std::move(a.name);
  data_->io = a.io_data_type;
  data_->intermediate = a.intermediate_data_type;
  data_->compute = a.compute_data_type;
}

namespace {

int add_tensor(GraphData& g, TensorData t) {
  if (g.frozen) throw broken(Rule::graph_frozen, "nothing can be added: the graph has been planned");
  g.tensors.push_back(std::move(t));
  assign_uids(g);
  return static_cast<int>(g.tensors.size()) - 1;
}

int add_result(GraphData& g, std::string name) {
  TensorData out;
  out.name = std::move(name);
  out.is_virtual = true;
  out.producer = static_cast<int>(g.nodes.size());
  return add_tensor(g, std::move(out));
}

/// Appends the node with these inputs, which are tensors of this graph, and its (virtual) output; a quantize has its scales as a
/// second one.
template <class Attributes>
int add_node(GraphData& g, NodeData n, Attributes attributes, std::span<const Tensor* const> inputs) {
  n.name = std::move(attributes.name);
  n.compute = attributes.compute_data_type;
  n.compute_is_users = n.compute != DataType::not_set;
  for (const Tensor* t : inputs) {
    if (t->graph() != &g)
      throw broken(Rule::graph_handle, std::string(kind_of(n)) + ": an operand is a tensor of another graph, or none");
    n.inputs.push_back(t->index());
  }
  if (n.name.empty()) n.name = default_name(n, g.nodes.size());
  n.output = add_result(g, n.name + "::out");
  if (n.kind == NodeKind::block_scale_quantize) n.scale = add_result(g, n.name + "::scale");
  g.nodes.push_back(std::move(n));
  return g.nodes.back().output;
}
template <class Attributes>
int add_node(GraphData& g, NodeData n, Attributes attributes, std::initializer_list<const Tensor*> inputs) {
  return add_node(g, std::move(n), std::move(attributes), std::span(inputs.begin(), inputs.size()));
}

}  // namespace

Tensor Graph::tensor(TensorAttributes a) {
  TensorData t;
  t.name = std::move(a.name);
  t.dim_is_users = !a.dim.empty();
  t.dim = std::move(a.dim);
  t.stride_is_users = !a.stride.empty();
  t.stride = std::move(a.stride);
  t.dtype = a.data_type;
  t.dtype_is_users = a.data_type != DataType::not_set;
  t.by_value = a.pass_by_value;
  t.reordering = a.reordering;
  Tensor handle(data_, add_tensor(*data_, std::move(t)));
  if (!a.uid) return handle;
  try {
    handle.set_uid(*a.uid);
  } catch (const Error&) {  // somebody has it: then there is no such tensor
    data_->tensors.pop_back();
    throw;
  }
  return handle;
}

Tensor Graph::scalar(double value, DataType type) {
  Tensor t = tensor({.name = {},
                     .dim = {1},
                     .stride = {1},
                     .data_type = type,
                     .uid = {},
                     .pass_by_value = true,
                     .reordering = TensorReordering::none});
  return t.set_value(value);
}

Tensor Graph::matmul(const Tensor& a, const Tensor& b, NodeAttributes attributes, double padding, bool fast_accumulation) {
  NodeData n;
  n.kind = NodeKind::matmul;
  n.padding = padding;
  n.fast_accumulation = fast_accumulation;
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), {&a, &b}));
}

Tensor Graph::pointwise(PointwiseMode mode, std::initializer_list<Tensor> inputs, PointwiseParameters parameters,
                        NodeAttributes attributes) {
  return pointwise(mode, std::vector<Tensor>(inputs), parameters, std::move(attributes));
}

Tensor Graph::pointwise(PointwiseMode mode, const std::vector<Tensor>& inputs, PointwiseParameters parameters,
                        NodeAttributes attributes) {
  NodeData n;
  n.kind = NodeKind::pointwise;
  n.pointwise = mode;
  n.parameters = parameters;
  std::vector<const Tensor*> all;
  for (const Tensor& t : inputs) all.push_back(&t);
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), all));
}

Tensor Graph::reduction(const Tensor& input, ReductionMode mode, NodeAttributes attributes, const Tensor& group_offset) {
  NodeData n;
  n.kind = NodeKind::reduction;
  n.reduction = mode;
  if (!group_offset.valid()) return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), {&input}));
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), {&input, &group_offset}));
}

Tensor Graph::moe_grouped_matmul(const Tensor& token, const Tensor& weight, const Tensor& first_token_offset,
                                 MoeAttributes attributes, const Tensor& token_index, const Tensor& token_ks,
                                 const Tensor& top_k_scores) {
  NodeData n;
  n.kind = NodeKind::moe_grouped_matmul;
  n.moe_mode = attributes.mode;
  n.moe_offsets = attributes.offsets;
  n.top_k = attributes.top_k;
  n.zero_fill = attributes.zero_fill;
  std::vector<const Tensor*> inputs = {&token, &weight, &first_token_offset};
  for (const Tensor* t : {&token_index, &token_ks, &top_k_scores})
    if (t->valid()) inputs.push_back(t);
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), inputs));
}

Tensor Graph::moe_grouped_matmul_bwd(const Tensor& token, const Tensor& dout, const Tensor& first_token_offset,
                                     MoeGradientAttributes attributes) {
  NodeData n;
  n.kind = NodeKind::moe_grouped_matmul_bwd;
  n.moe_offsets = attributes.offsets;
  n.accumulate = attributes.accumulate;
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), {&token, &dout, &first_token_offset}));
}

Tensor Graph::block_scale_dequantize(const Tensor& input, const Tensor& descale, std::vector<std::int64_t> block_size,
                                     NodeAttributes attributes, bool is_negative_scale) {
  NodeData n;
  n.kind = NodeKind::block_scale_dequantize;
  n.block_size = std::move(block_size);
  n.is_negative_scale = is_negative_scale;
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), {&input, &descale}));
}

std::array<Tensor, 2> Graph::block_scale_quantize(const Tensor& input, std::int64_t block_size, std::optional<int> axis,
                                                  NodeAttributes attributes, bool transpose, double vmax) {
  NodeData n;
  n.kind = NodeKind::block_scale_quantize;
  n.block_size = {block_size};
  n.axis = axis;
  n.transpose = transpose;
  n.vmax = vmax;
  const int data = add_node(*data_, std::move(n), std::move(attributes), {&input});
  return {Tensor(data_, data), Tensor(data_, data + 1)};
}

Tensor Graph::take_runs(const Tensor& input, std::int64_t length, bool second, NodeAttributes attributes) {
  NodeData n;
  n.kind = NodeKind::take_runs;
  n.run = length;
  n.second_runs = second;
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), {&input}));
}

Tensor Graph::rope(const Tensor& input, const Tensor& cos, const Tensor& sin, std::int64_t head, NodeAttributes attributes) {
  NodeData n;
  n.kind = NodeKind::rope;
  n.head = head;
  return Tensor(data_, add_node(*data_, std::move(n), std::move(attributes), {&input, &cos, &sin}));
}

std::size_t Graph::tensor_count() const { return data_->tensors.size(); }
Tensor Graph::tensor_at(std::size_t index) const {
  if (index >= data_->tensors.size()) throw broken(Rule::graph_handle, "there is no tensor number " + std::to_string(index));
  return Tensor(data_, static_cast<int>(index));
}

void Graph::validate() { graph::validate(*data_); }

}  // namespace verglas
