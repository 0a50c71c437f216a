#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "verglas/dtype.hpp"
#include "verglas/moe.hpp"
#include "verglas/plan.hpp"
#include "verglas/pointwise.hpp"

namespace verglas {

namespace graph {
struct GraphData;
}

/// How the elements of a tensor lie in memory, where strides cannot say it.
enum class TensorReordering : std::uint8_t {
  none = 0,
  f8_128x4 = 1,  ///< scales of blocks in atoms of 128 rows by 4 columns: docs/numerics.md, "Block scales"
};

/// Handle of a tensor of a graph: two words, copied freely. Setters change the graph and return the handle; all of them throw
/// `graph.frozen` once the graph has been planned.
class Tensor {
 public:
  Tensor() = default;

  Tensor& set_name(std::string name);
  Tensor& set_uid(std::int64_t uid);                     ///< an automatic uid that is in the way is renumbered
  Tensor& set_dim(std::vector<std::int64_t> dim);        ///< extents, outermost first
  Tensor& set_stride(std::vector<std::int64_t> stride);  ///< in elements; for outputs only a set stride binds
  Tensor& set_data_type(DataType type);
  Tensor& set_reordering_type(TensorReordering reordering);  ///< of scales of blocks
  /// Weights of a grouped product, or the scales of blocks of such weights, as a table of addresses, one int64 for each expert:
  /// what a call passes. Of the strides the first means nothing.
  Tensor& set_by_pointers(bool by_pointers);
  Tensor& set_output(bool is_output);  ///< an output is stored; everything else computed stays inside
  Tensor& set_is_virtual(bool is_virtual) { return set_output(!is_virtual); }
  Tensor& set_is_pass_by_value(bool by_value);  ///< a host scalar handed over at each call
  Tensor& set_value(double value);              ///< a scalar that is part of the graph; no operand at the call

  const std::string& name() const;
  std::int64_t uid() const;
  std::vector<std::int64_t> dim() const;
  std::vector<std::int64_t> stride() const;
  DataType data_type() const;
  TensorReordering reordering_type() const;
  bool is_virtual() const;
  bool is_pass_by_value() const;

  int index() const noexcept { return index_; }  ///< position in the graph's list of tensors
  bool valid() const noexcept { return graph_ != nullptr; }
  const graph::GraphData* graph() const noexcept { return graph_.get(); }  ///< identity of the graph it belongs to
  friend bool operator==(const Tensor&, const Tensor&) = default;

 private:
  friend class Graph;
  Tensor(std::shared_ptr<graph::GraphData> g, int index) : graph_(std::move(g)), index_(index) {}
  std::shared_ptr<graph::GraphData> graph_;
  int index_ = -1;
};

struct TensorAttributes {
  std::string name = {};
  std::vector<std::int64_t> dim = {};
  std::vector<std::int64_t> stride = {};
  DataType data_type = DataType::not_set;  ///< not set: the graph's io type, or its intermediate type where the tensor is virtual
  std::optional<std::int64_t> uid = {};
  bool pass_by_value = false;
  TensorReordering reordering = TensorReordering::none;
};

struct GraphAttributes {
  std::string name = {};
  DataType io_data_type = DataType::not_set;            ///< not set: bf16
  DataType intermediate_data_type = DataType::not_set;  ///< not set: fp32
  DataType compute_data_type = DataType::not_set;       ///< not set: fp32
};

struct NodeAttributes {
  std::string name = {};
  DataType compute_data_type = DataType::not_set;  ///< not set: the graph's
};

/// A computation around matrix products, as the user describes it. Nothing here knows that engines exist.
///
/// Shapes   matmul: A (L, M, K) · B (L, K, N) → (L, M, N); rank 2 is L = 1; a batch of 1 broadcasts. Pointwise operands broadcast
///          as in NumPy; reductions keep the axes whose extent in the output's dim is the full one and reduce those with 1
/// Types    every tensor's value is rounded to its declared type, stored or not; sums are fp32, int32 for int8 · int8
/// Errors   invalid_graph, rules graph.*; unsupported, with what each engine said
/// Source   cuDNN Frontend's graph API (vocabulary); docs/numerics.md (formulas and rounding points)
/// Example  examples/01_first_matmul.cpp
class Graph {
 public:
  explicit Graph(GraphAttributes attributes = {});
  /// A copy is the same graph, and so is what was moved from: it is never without one.
  Graph(const Graph&) = default;
  Graph& operator=(const Graph&) = default;

  Tensor tensor(TensorAttributes attributes);
  /// A scalar with its value inside the graph; shape (1).
  Tensor scalar(double value, DataType type = DataType::fp32);
  /// fast_accumulation  of fp8: an engine may sum all of K with what a tensor core keeps, instead of 128 products at a time
  Tensor matmul(const Tensor& a, const Tensor& b, NodeAttributes attributes = {}, double padding = 0.0,
                bool fast_accumulation = false);
  Tensor pointwise(PointwiseMode mode, std::initializer_list<Tensor> inputs, PointwiseParameters parameters = {},
                   NodeAttributes attributes = {});
  Tensor pointwise(PointwiseMode mode, const std::vector<Tensor>& inputs, PointwiseParameters parameters = {},
                   NodeAttributes attributes = {});
  /// The output's dim says what is reduced: set it on the returned tensor.
  /// group_offset  the offsets of the grouped product whose rows `input` has: a result for each group, dim (groups, 1, 1 or N)
  Tensor reduction(const Tensor& input, ReductionMode mode, NodeAttributes attributes = {}, const Tensor& group_offset = {});

  /// A product of each group's rows with the weights of expert g mod experts; who owns which row only a call's memory says.
  ///
  /// Shapes   token (1, rows, K), weight (experts, K, N), first_token_offset (groups) or (groups, 1, 1) of int32 or int64
  ///          → (1, rows, N). gather: token_index (1, rows, 1) of int32, token (1, tokens, K). scatter: token_index and token_ks
  ///          combine: these and top_k_scores (tokens, top_k) of fp32, bf16 or fp16 → (1, tokens, N)
  /// Errors   data that does not fit (offsets that fall, indices out of range) is no reason to refuse: docs/moe.md
  Tensor moe_grouped_matmul(const Tensor& token, const Tensor& weight, const Tensor& first_token_offset,
                            MoeAttributes attributes = {}, const Tensor& token_index = {}, const Tensor& token_ks = {},
                            const Tensor& top_k_scores = {});
  /// The gradient of the weights, for each group the sum over its rows: token (1, rows, K), dout (1, rows, N) → (groups, K, N).
  Tensor moe_grouped_matmul_bwd(const Tensor& token, const Tensor& dout, const Tensor& first_token_offset,
                                MoeGradientAttributes attributes = {});

  /// A stored matrix times the scales of its blocks: what enters a matmul. fp4 extents and strides count elements.
  /// block_size  one number for each of the last axes, all 1 but that of K: {1, v} for A, {v, 1} for B; or v alone
  Tensor block_scale_dequantize(const Tensor& input, const Tensor& descale, std::vector<std::int64_t> block_size,
                                NodeAttributes attributes = {}, bool is_negative_scale = false);
  /// Blocks of `block_size` elements along an axis (the last one, or that of M) become narrow elements and one scale each.
  /// Answers {data, scale}: give both a type and mark both as outputs.
  /// vmax  what the largest magnitude of a block is brought to, 2 or more and a number of fp8; 0: the type's largest
  /// number
  std::array<Tensor, 2> block_scale_quantize(const Tensor& input, std::int64_t block_size, std::optional<int> axis = {},
                                             NodeAttributes attributes = {}, bool transpose = false, double vmax = 0.0);

  /// Columns of a result come in runs of `length`, by turns of two kinds: all of the first kind, or of the second. N becomes N
  /// / 2. Two of them and a product are SwiGLU over weights whose rows are interleaved in runs of 32.
  Tensor take_runs(const Tensor& input, std::int64_t length, bool second, NodeAttributes attributes = {});

  /// Rotary embedding: columns come in heads of `head`, of each of which the last R are rotated, as many as tables (…, M, R)
  /// have. Of these, pairs of neighbours become two halves: first even · cos − odd · sin, then odd · cos + even · sin, with the
  /// table's column j for the result's.
  Tensor rope(const Tensor& input, const Tensor& cos, const Tensor& sin, std::int64_t head, NodeAttributes attributes = {});

  Tensor add(const Tensor& a, const Tensor& b) { return pointwise(PointwiseMode::add, {a, b}); }
  Tensor mul(const Tensor& a, const Tensor& b) { return pointwise(PointwiseMode::mul, {a, b}); }
  Tensor relu(const Tensor& x) { return pointwise(PointwiseMode::relu, {x}); }
  Tensor gelu(const Tensor& x) { return pointwise(PointwiseMode::gelu, {x}); }
  Tensor swish(const Tensor& x) { return pointwise(PointwiseMode::swish, {x}); }

  std::size_t tensor_count() const;
  Tensor tensor_at(std::size_t index) const;

  /// Checks the description and infers what was left out; may be called again after changes.
  void validate();
  /// Validates, analyses, asks every engine; freezes the graph. Throws `unsupported` only when compile is asked of an empty list.
  PlanList plans(const PlanOptions& options = {});
  /// The first plan that compiles.
  CompiledPlan compile(const PlanOptions& options = {});

  /// JSON text of the description, docs/graph-file.md; load(save(g)) is the same graph.
  std::string to_json() const;
  static Graph from_json(std::string_view text);

  const graph::GraphData& data() const { return *data_; }  ///< for the layers inside the library

 private:
  explicit Graph(std::shared_ptr<graph::GraphData> data) : data_(std::move(data)) {}
  std::shared_ptr<graph::GraphData> data_;
};

}  // namespace verglas
