#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "verglas/dtype.hpp"
#include "verglas/graph.hpp"
#include "verglas/moe.hpp"
#include "verglas/pointwise.hpp"

namespace verglas::graph {

enum class NodeKind : std::uint8_t {
  matmul,
  pointwise,
  reduction,
  block_scale_dequantize,
  block_scale_quantize,
  take_runs,
  rope,
  moe_grouped_matmul,
  moe_grouped_matmul_bwd,
};

struct TensorData {
  std::string name;
  std::int64_t uid = 0;
  bool uid_is_users = false;
  std::vector<std::int64_t> dim, stride;
  bool dim_is_users = false, stride_is_users = false;
  DataType dtype = DataType::not_set;  ///< after validate never not_set
  bool dtype_is_users = false;
  TensorReordering reordering = TensorReordering::none;
  bool is_virtual = false;
  bool by_value = false;
  std::optional<double> value;  ///< part of the graph; implies by_value
  bool by_pointers = false;     ///< a call passes a table of addresses, one for each extent of the first axis
  int grouped_by = -1;          ///< filled by validate: the offsets that group its rows, −1 where none do
  int producer = -1;            ///< index of the node that computes it, −1 for an input
};

struct NodeData {
  NodeKind kind = NodeKind::pointwise;
  std::string name;
  PointwiseMode pointwise = PointwiseMode::identity;
  ReductionMode reduction = ReductionMode::add;
  PointwiseParameters parameters;
  double padding = 0.0;
  bool fast_accumulation = false;        ///< of a matmul
  std::vector<std::int64_t> block_size;  ///< of the two block_scale nodes, as given; a quantize has one number
  std::optional<int> axis;               ///< of a quantize, as given
  bool transpose = false;                ///< of a quantize
  double vmax = 0.0;                     ///< of a quantize: 0 stands for the largest number of its type
  bool is_negative_scale = false;        ///< of a dequantize
  std::int64_t run = 0;                  ///< of take_runs: columns of a run
  bool second_runs = false;              ///< of take_runs
  std::int64_t head = 0;                 ///< of rope: columns of a head
  MoeMode moe_mode = MoeMode::none;      ///< of a grouped product, as are the next four
  MoeOffsets moe_offsets = MoeOffsets::first_token;
  std::int64_t top_k = 1;
  bool zero_fill = false;
  bool accumulate = false;
  int block = 0, block_axis = 0;  ///< filled by validate: elements of a block, axis of the input along which it lies
  std::vector<int> inputs;        ///< indices of tensors; a reduction by groups has its offsets as a second one
  int output = -1;
  int scale = -1;                        ///< second output of a quantize
  DataType compute = DataType::not_set;  ///< after validate never not_set
  bool compute_is_users = false;
};

struct GraphData {
  std::string name;
  DataType io = DataType::not_set, intermediate = DataType::not_set, compute = DataType::not_set;
  std::vector<TensorData> tensors;
  std::vector<NodeData> nodes;
  std::vector<int> order;  ///< nodes in dependency order, stable in recording order; filled by validate
  bool frozen = false;
};

/// Text for errors: `'name'`, or `#uid` where there is no name.
std::string label_of(const TensorData& t);
std::string label_of(const NodeData& n);
/// "matmul", "reduction", "block_scale_dequantize", …, or the pointwise mode.
std::string_view kind_of(const NodeData& n);
/// The name of a node that was given none, "relu_3"; `index` is its place in the graph.
std::string default_name(const NodeData& n, std::size_t index);
/// "(2, 128, 64)".
std::string text_of(const std::vector<std::int64_t>& extents);

/// "none", "f8_128x4".
std::string_view name_of(TensorReordering r) noexcept;
/// The reordering of that name, in either case; nothing when there is none.
std::optional<TensorReordering> reordering_from_name(std::string_view name) noexcept;

/// Gives every tensor without one a positive uid that nobody else has.
void assign_uids(GraphData& g);

/// Axes, extents and layouts of the two block_scale nodes; part of validate. Throws Error.
void infer_dequantize(NodeData& n, GraphData& g);
/// Fills in axis and block, and extents and strides of data and scales where the user has not.
void infer_quantize(NodeData& n, GraphData& g);
/// Operands of the two grouped products, and the extents of the result; part of validate. Throws Error.
std::vector<std::int64_t> grouped_dim(const NodeData& n, const GraphData& g);
/// Whether scales of tokens that lie in atoms of each group have room for any groups.
void check_token_scales(const NodeData& n, const GraphData& g);
/// How many operands a grouped product takes.
int grouped_arity(const NodeData& n);
/// Which axis of the scores of a product is that of tokens, the one behind it being that of slots; −1 where they have other
/// extents.
int token_axis_of_scores(const TensorData& scores, std::int64_t top_k);
/// Number of groups that offsets begin or end.
std::int64_t groups_of(const TensorData& offsets);
/// Whether a reduction by groups reads rows of that grouping, and has one result for each group.
void check_group_reduction(const NodeData& n, const GraphData& g);
/// Whether fp4 elements lie in pairs: stride 1 along one axis of even extent, even strides elsewhere.
void check_packed(const TensorData& t);

/// Checks every rule graph.*, infers extents, strides and types, and orders the nodes. Throws Error.
void validate(GraphData& g);

}  // namespace verglas::graph
