#include "oracle/graph.hpp"

#include <utility>

namespace oracle {

int arity_of(Pointwise mode) {
  switch (mode) {
    case Pointwise::add:
    case Pointwise::sub:
    case Pointwise::mul:
    case Pointwise::div:
    case Pointwise::max:
    case Pointwise::min:
    case Pointwise::pow:
    case Pointwise::mod:
    case Pointwise::add_square:
    case Pointwise::cmp_eq:
    case Pointwise::cmp_neq:
    case Pointwise::cmp_gt:
    case Pointwise::cmp_ge:
    case Pointwise::cmp_lt:
    case Pointwise::cmp_le:
    case Pointwise::logical_and:
    case Pointwise::logical_or:
    case Pointwise::relu_backward:
    case Pointwise::leaky_relu_backward:
    case Pointwise::sigmoid_backward:
    case Pointwise::tanh_backward:
    case Pointwise::elu_backward:
    case Pointwise::gelu_backward:
    case Pointwise::gelu_approx_tanh_backward:
    case Pointwise::softplus_backward:
    case Pointwise::swish_backward: return 2;
    case Pointwise::binary_select: return 3;
    default: return 1;
  }
}

std::string name_of(Pointwise mode) {
  static const char* const kNames[kPointwiseCount] = {"identity",
                                                      "add",
                                                      "sub",
                                                      "mul",
                                                      "div",
                                                      "max",
                                                      "min",
                                                      "pow",
                                                      "mod",
                                                      "add_square",
                                                      "abs",
                                                      "neg",
                                                      "ceil",
                                                      "floor",
                                                      "sqrt",
                                                      "rsqrt",
                                                      "reciprocal",
                                                      "exp",
                                                      "log",
                                                      "sin",
                                                      "cos",
                                                      "tan",
                                                      "erf",
                                                      "relu",
                                                      "leaky_relu",
                                                      "elu",
                                                      "gelu",
                                                      "gelu_approx_tanh",
                                                      "sigmoid",
                                                      "swish",
                                                      "softplus",
                                                      "tanh",
                                                      "cmp_eq",
                                                      "cmp_neq",
                                                      "cmp_gt",
                                                      "cmp_ge",
                                                      "cmp_lt",
                                                      "cmp_le",
                                                      "logical_and",
                                                      "logical_or",
                                                      "logical_not",
                                                      "binary_select",
                                                      "gen_index",
                                                      "relu_bwd",
                                                      "leaky_relu_bwd",
                                                      "sigmoid_bwd",
                                                      "tanh_bwd",
                                                      "elu_bwd",
                                                      "gelu_bwd",
                                                      "gelu_approx_tanh_bwd",
                                                      "softplus_bwd",
                                                      "swish_bwd"};
  return kNames[static_cast<int>(mode)];
}

std::string name_of(Reduction mode) {
  static const char* const kNames[kReductionCount] = {"add", "norm1", "amax",         "max",  "min",
                                                      "avg", "mul",   "mul_no_zeros", "norm2"};
  return kNames[static_cast<int>(mode)];
}

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * (dims[i] > 0 ? dims[i] : 1);
  return strides;
}

int Graph::add(Tensor tensor) {
  const int at = static_cast<int>(tensors.size());
  if (tensor.uid == 0) tensor.uid = at + 1;
  if (tensor.strides.empty()) tensor.strides = packed_strides(tensor.dims);
  tensors.push_back(std::move(tensor));
  return at;
}

int Graph::product(int a, int b, Tensor c, Format compute) {
  const int at = add(std::move(c));
  Node node;
  node.kind = NodeKind::matmul;
  node.inputs = {a, b};
  node.output = at;
  node.compute = compute;
  nodes.push_back(std::move(node));
  return at;
}

int Graph::apply(Pointwise mode, std::vector<int> inputs, Tensor out, Attributes attributes, Format compute) {
  const int at = add(std::move(out));
  Node node;
  node.mode = mode;
  node.inputs = std::move(inputs);
  node.output = at;
  node.attributes = attributes;
  node.compute = compute;
  nodes.push_back(std::move(node));
  return at;
}

int Graph::reduce(Reduction mode, int input, Tensor out, Format compute) {
  const int at = add(std::move(out));
  Node node;
  node.kind = NodeKind::reduction;
  node.reduction = mode;
  node.inputs = {input};
  node.output = at;
  node.compute = compute;
  nodes.push_back(std::move(node));
  return at;
}

int Graph::dequantize(int data, int scale, Tensor out, int block, std::size_t axis) {
  const int at = add(std::move(out));
  Node node;
  node.kind = NodeKind::dequantize;
  node.inputs = {data, scale};
  node.output = at;
  node.block = block;
  node.block_axis = axis;
  nodes.push_back(std::move(node));
  return at;
}

int Graph::quantize(int input, Tensor data, Tensor scale, int block, std::size_t axis, double vmax) {
  const int at = add(std::move(data));
  Node node;
  node.kind = NodeKind::quantize;
  node.inputs = {input};
  node.output = at;
  node.scale = add(std::move(scale));
  node.vmax = vmax;
  node.block = block;
  node.block_axis = axis;
  nodes.push_back(std::move(node));
  return at;
}

}  // namespace oracle
