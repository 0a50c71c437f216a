#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oracle/formats.hpp"

// A graph and the memory of one call, as the reference sees them: plain data, nothing of the library.

namespace oracle {

enum class NodeKind { matmul, pointwise, reduction, dequantize, quantize, grouped, grouped_gradient };

/// Which row of a grouped product reads which token, and where it goes.
enum class Routing { plain, gather, scatter, combine };

/// Ports in the order of `Node::inputs`: binary {x, y}; binary_select {input0, input1, mask}; every backward mode {loss, x}.
enum class Pointwise {
  identity,
  add,
  sub,
  mul,
  div,
  max,
  min,
  pow,
  mod,
  add_square,
  abs,
  neg,
  ceil,
  floor,
  sqrt,
  rsqrt,
  reciprocal,
  exp,
  log,
  sin,
  cos,
  tan,
  erf,
  relu,
  leaky_relu,
  elu,
  gelu,
  gelu_approx_tanh,
  sigmoid,
  swish,
  softplus,
  tanh,
  cmp_eq,
  cmp_neq,
  cmp_gt,
  cmp_ge,
  cmp_lt,
  cmp_le,
  logical_and,
  logical_or,
  logical_not,
  binary_select,
  gen_index,
  relu_backward,
  leaky_relu_backward,
  sigmoid_backward,
  tanh_backward,
  elu_backward,
  gelu_backward,
  gelu_approx_tanh_backward,
  softplus_backward,
  swish_backward,
};
inline constexpr int kPointwiseCount = static_cast<int>(Pointwise::swish_backward) + 1;

/// How many operands a mode takes: 1, 2, or 3.
int arity_of(Pointwise mode);
/// "add_square", "relu_bwd", …: the names of graph files.
std::string name_of(Pointwise mode);

enum class Reduction { add, norm1, amax, max, min, avg, mul, mul_no_zeros, norm2 };
inline constexpr int kReductionCount = static_cast<int>(Reduction::norm2) + 1;
std::string name_of(Reduction mode);

/// Memory that the caller holds, and how it is to be read. Extents and strides in elements.
struct Memory {
  const void* base = nullptr;
  std::vector<std::int64_t> dims;  ///< empty with `bare`: the declaration's
  std::vector<std::int64_t> strides;
  bool bare = false;          ///< an address without a description
  bool kernel_order = false;  ///< rank 3, axes (b, N, K) where the tensor is the second operand of a product
};

struct Tensor {
  std::string name;
  std::int64_t uid = 0;
  std::vector<std::int64_t> dims;     ///< as declared
  std::vector<std::int64_t> strides;  ///< as declared
  Format format = Format::fp32;
  bool is_virtual = false;
  bool is_output = false;
  bool is_interleaved = false;   ///< scales in atoms of 128 rows by 4 columns: a blob, whatever its extents say
  std::optional<double> value;   ///< scalar that is part of the graph; no memory then
  bool is_host_scalar = false;   ///< scalar handed over by each call, in host memory whatever the engine
  bool is_table = false;         ///< a call passes addresses, one int64 for each matrix; `memory` is what they point to
  std::optional<Memory> memory;  ///< inputs of a call
  std::optional<Memory> held;    ///< an output that is added to: what it held before the call
};

/// Parameters of the modes, converted to the node's compute type before use. Unset is the mode's default.
struct Attributes {
  std::optional<double> relu_lower;
  std::optional<double> relu_upper;
  std::optional<double> slope;
  double alpha = 1;  ///< elu
  double beta = 1;   ///< swish, softplus
  int axis = 0;      ///< gen_index: axis of the tensor as declared
};

struct Node {
  NodeKind kind = NodeKind::pointwise;
  Pointwise mode = Pointwise::identity;
  Reduction reduction = Reduction::add;
  std::vector<int> inputs;  ///< indices into Graph::tensors
  int output = -1;
  Format compute = Format::fp32;  ///< fp32 | tf32 | int32
  Attributes attributes;
  int scale = -1;                    ///< quantize: the second output; a dequantize reads {data, scale}
  int block = 0;                     ///< of the two: elements that share a scale
  std::size_t block_axis = 0;        ///< of the data as declared
  double vmax = 0;                   ///< quantize: what the largest of a block becomes; 0 is the largest of the format
  Routing routing = Routing::plain;  ///< grouped: inputs {token, weight, offsets, indices, slots, scores}, as many as it takes
  bool are_ends = false;             ///< offsets are the rows behind the groups
  std::int64_t top_k = 1;
  bool zero_fill = false, accumulate = false;
  std::string name;
};

struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  ///< any order that has no cycle

  /// Appends and answers the index.
  int add(Tensor tensor);
  /// Appends a node and the tensor it makes; answers the index of that tensor.
  int product(int a, int b, Tensor c, Format compute = Format::fp32);
  int apply(Pointwise mode, std::vector<int> inputs, Tensor out, Attributes attributes = {}, Format compute = Format::fp32);
  int reduce(Reduction mode, int input, Tensor out, Format compute = Format::fp32);
  int dequantize(int data, int scale, Tensor out, int block, std::size_t axis);
  /// The tensor of scales is the one behind the answered one.
  int quantize(int input, Tensor data, Tensor scale, int block, std::size_t axis, double vmax = 0);
};

/// Row-major strides of a dense tensor.
std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& dims);

}  // namespace oracle
