#pragma once
#include <array>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "chain/chain.hpp"
#include "graph/ir.hpp"

/// What analyse() is made of; for the files of this folder that define it.
namespace verglas::chain {

using graph::GraphData;
using graph::NodeData;
using graph::NodeKind;
using graph::TensorData;

/// A decline on its way out of the analysis; the public function turns it into a value.
struct Stop {
  Rule rule;
  std::string text;
};
[[noreturn]] inline void stop(Rule rule, std::string text) { throw Stop{rule, std::move(text)}; }

inline bool is_grouped(const NodeData& n) {
  return n.kind == NodeKind::moe_grouped_matmul || n.kind == NodeKind::moe_grouped_matmul_bwd;
}
inline bool is_product(const NodeData& n) { return n.kind == NodeKind::matmul || is_grouped(n); }

inline bool is_factor_fp8(DataType t) { return is_fp8(t) && t != DataType::fp8_e8m0; }

class Analyser {
 public:
  explicit Analyser(const GraphData& g)
      : g_(g), live_(g.nodes.size(), false), after_(g.tensors.size(), false), value_of_(g.tensors.size(), -1) {}

  FusionChain run() {
    find_live();
    find_products();
    collect_steps();
    collect_outputs();
    order_roles();
    return std::move(c_);
  }

 private:
  const TensorData& tensor(int i) const { return g_.tensors[static_cast<std::size_t>(i)]; }
  const NodeData& node(int i) const { return g_.nodes[static_cast<std::size_t>(i)]; }
  bool is_stored(const NodeData& n) const {
    return !tensor(n.output).is_virtual || (n.scale >= 0 && !tensor(n.scale).is_virtual);
  }
  bool is_live(int i) const { return live_[static_cast<std::size_t>(i)]; }
  static std::array<std::int64_t, 3> matrix(const TensorData& t) {
    const std::size_t r = t.dim.size();
    return {r == 3 ? t.dim[0] : 1, t.dim[r - 2], t.dim[r - 1]};
  }
  /// What is added to an output is rounded with it, not before.
  static DataType summed_in(const Gemm& gemm) { return gemm.accumulate == DataType::int32 ? DataType::int32 : DataType::fp32; }

  // Products: analyse.cpp.
  /// Nodes that something stored depends on. A graph that stores nothing keeps all of them.
  void find_live();
  /// Who owns which rows: inputs that all products share, and that nothing else reads.
  void find_groups(const NodeData& n);
  int add_vector_role(const NodeData& n, int index, RoleKind kind);
  /// All products of a graph, or none, are grouped; and all alike.
  static void check_alike(const NodeData& n, const NodeData& first);
  /// The matmuls, their operands with prologues, and which tensors come after a product.
  void find_products();
  /// L, M, N, K; L is 1 where the depth is grouped, since each of its parts is multiplied once.
  std::array<std::int64_t, 4> shape_of(const NodeData& n) const;
  void set_shape(const NodeData& n);
  void check_shape(const NodeData& n, const NodeData& first);
  DataType accumulate_type(const NodeData& n, const Gemm& gemm) const;
  static bool is_factor(DataType t);
  /// Where both sides have scales, they have them of one kind.
  void check_scales(const NodeData& n, const Gemm& gemm) const;
  /// Roles were made as they were met; a call takes a…, b…, aux…, outputs, reductions.
  void order_roles();

  // Operands of products: inputs.cpp.
  /// Index in inputs of the tensor that enters a product on this side; one entry for each distinct tensor.
  int input_of(int index, int side);
  void group_matrix(Role& role, std::int64_t batch, const NodeData* dequantize) const;
  /// Weights whose addresses a call passes, and those of their scales.
  int add_table_input(int root, int side, const NodeData* dequantize, MatrixInput& in);
  int add_table_role(int index, RoleKind kind);
  /// The entry of another dequantize node that says the same of the same tensors; −1 when there is none.
  int known_scaled(const Role& role, const NodeData& n, DataType dtype);
  int add_scale_role(const Role& matrix, const NodeData& n);
  void check_dequantize(const NodeData& n, int side) const;
  /// Adds the node to the prologue (innermost last) and answers the tensor that it runs on.
  int add_prologue_step(const NodeData& n, MatrixInput& in);
  /// A value in the graph has its declared type like any other; an integer type holds it exactly.
  static double rounded(double v, DataType t);

  // What follows: epilogue.cpp.
  static void require_served(const TensorData& t);
  static void require_plain(const TensorData& t);
  static DataType compute_type(const NodeData& n);
  static bool has_int_form(const NodeData& n);
  int operand_of(int index);
  int add_role(const Role& role);
  /// Symbols of (L, M, N) for a tensor aligned at the right; false where an extent fits neither 1 nor the full one.
  /// `is_half`: of what is made of runs.
  bool epilogue_axes(const TensorData& t, Role& role, bool is_half = false) const;
  bool is_half(int index) const {
    return c_.values[static_cast<std::size_t>(value_of_[static_cast<std::size_t>(index)])].is_half;
  }
  /// One row for each group, beside rows of groups.
  bool is_of_groups(const TensorData& t) const;
  int aux_role(int index);
  int add_value(int index, Value value);
  /// The value that a step reads: already there, or a graph input loaded now.
  int value_of(int index);
  /// Epilogue nodes and those of inputs only that the epilogue reads; prologue nodes are done with.
  void collect_steps();
  void add_step(const NodeData& n);
  /// A step whose result varies along every axis of the products.
  void add_step_of_products(const NodeData& n, Step step, bool is_half);
  void add_runs(const NodeData& n);
  void add_rope(const NodeData& n);
  int table_role(const NodeData& n, int index);

  // What is stored: outputs.cpp.
  void add_store(const NodeData& n);
  /// What is added to an output is that product and nothing else.
  void check_accumulated(const NodeData& n) const;
  static void check_output_layout(const TensorData& out);
  void add_reduction(const NodeData& n);
  /// The data of a quantize node; its scales follow when all other outputs are there.
  void add_quantised(const NodeData& n);
  void check_pairs(const TensorData& data);
  /// Of what a node computes; fp32 of an fp4 output that no node reads: that is rounded where it is stored.
  DataType type_of_value(const TensorData& out);
  void add_output_scale(const NodeData& n, Quantise& q);
  void collect_outputs();
  /// Nothing is marked: the raw product of a graph with one matmul and no epilogue is the output.
  void store_only_product();

  const GraphData& g_;
  FusionChain c_;
  std::array<std::int64_t, 3> full_{};     // extents of what the epilogue computes
  std::vector<bool> live_;                 // by node
  std::vector<bool> after_;                // by tensor: depends on a product
  std::vector<int> value_of_;              // by tensor
  std::array<std::vector<int>, 2> known_;  // by tensor: index in inputs, for each side
  std::vector<int> operand_, aux_;         // by tensor
};

}  // namespace verglas::chain
