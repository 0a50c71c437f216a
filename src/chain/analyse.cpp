#include "chain/analyse.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "numeric/convert.hpp"

namespace verglas::chain {
namespace {

using graph::GraphData;
using graph::NodeData;
using graph::NodeKind;
using graph::TensorData;

/// A decline on its way out of the analysis; the public function turns it into a value.
struct Stop {
  Rule rule;
  std::string text;
};
[[noreturn]] void stop(Rule rule, std::string text) { throw Stop{rule, std::move(text)}; }

bool is_served(DataType t) {
  return t != DataType::not_set && t != DataType::tf32 && t != DataType::int64 && t != DataType::fp4_e2m1;
}

bool is_grouped(const NodeData& n) {
  return n.kind == NodeKind::moe_grouped_matmul || n.kind == NodeKind::moe_grouped_matmul_bwd;
}
bool is_product(const NodeData& n) { return n.kind == NodeKind::matmul || is_grouped(n); }

bool is_factor_fp8(DataType t) { return is_fp8(t) && t != DataType::fp8_e8m0; }

/// No two elements in one place: each stride passes the reach of the smaller ones.
bool is_injective(const std::vector<std::int64_t>& dim, const std::vector<std::int64_t>& stride) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // (stride, extent)
  for (std::size_t i = 0; i < dim.size(); ++i) {
    if (dim[i] == 0) return true;
    if (dim[i] > 1) axes.emplace_back(stride[i], dim[i]);
  }
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;
  for (const auto& [s, e] : axes) {
    if (s <= reach) return false;
    reach += (e - 1) * s;
  }
  return true;
}

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

  /// Nodes that something stored depends on. A graph that stores nothing keeps all of them.
  void find_live() {
    const bool any_output = std::any_of(g_.nodes.begin(), g_.nodes.end(), [&](const NodeData& n) { return is_stored(n); });
    for (std::size_t k = g_.order.size(); k-- > 0;) {
      const int i = g_.order[k];
      const NodeData& n = node(i);
      const bool stored = is_stored(n);
      if (n.kind == NodeKind::reduction && !stored)
        stop(Rule::chain_reduction_output, "reduction " + label_of(n) + " is not marked as an output");
      if (stored || !any_output) live_[static_cast<std::size_t>(i)] = true;
      if (!is_live(i)) continue;
      for (const int input : n.inputs)
        if (const int p = tensor(input).producer; p >= 0) {
          if (node(p).kind == NodeKind::reduction)
            stop(Rule::chain_reduction_output, "reduction " + label_of(node(p)) + " is read by " + label_of(n));
          if (node(p).kind == NodeKind::block_scale_quantize)
            stop(Rule::chain_quantise, "tensor " + label_of(tensor(input)) + " is quantised, and read by " + label_of(n));
          live_[static_cast<std::size_t>(p)] = true;
        }
    }
  }

  /// Who owns which rows: inputs that all products share, and that nothing else reads.
  void find_groups(const NodeData& n) {
    const TensorData& token = tensor(n.inputs[0]);
    Grouping& g = c_.grouping;
    g.axis = n.kind == NodeKind::moe_grouped_matmul ? GroupedAxis::m : GroupedAxis::k;
    g.mode = n.moe_mode;
    g.offsets = n.moe_offsets;
    g.top_k = n.top_k;
    g.zero_fill = n.zero_fill;
    g.groups = graph::groups_of(tensor(n.inputs[2]));
    if (g.axis == GroupedAxis::m) g.experts = tensor(n.inputs[1]).dim[0];
    if (g.mode == MoeMode::gather) g.tokens = token.dim[1];
    g.offset_role = add_vector_role(n, n.inputs[2], RoleKind::group_offset);
    if (n.inputs.size() > 3) g.index_role = add_vector_role(n, n.inputs[3], RoleKind::token_index);
    if (n.inputs.size() > 4) g.slot_role = add_vector_role(n, n.inputs[4], RoleKind::token_slot);
  }

  int add_vector_role(const NodeData& n, int index, RoleKind kind) {
    const TensorData& t = tensor(index);
    if (t.producer >= 0 || t.by_value || t.by_pointers || t.reordering != TensorReordering::none)
      stop(Rule::chain_group_operand, "tensor " + label_of(t) + " of " + label_of(n) + " is no plain input of the graph");
    Role role;
    role.kind = kind;
    role.operand = operand_of(index);
    std::int8_t axis = -1;
    for (std::size_t i = 0; i < t.dim.size(); ++i)
      if (t.dim[i] != 1 || axis < 0) axis = static_cast<std::int8_t>(i);
    const bool along_rows = kind != RoleKind::group_offset;
    if (along_rows)
      role.symbol = {Symbol::one, Symbol::m, Symbol::one};
    else
      role.symbol = {c_.grouping.groups == 1 ? Symbol::one : Symbol::g, Symbol::one, Symbol::one};
    role.axis = {-1, -1, -1};
    role.axis[along_rows ? 1 : 0] = axis;
    return add_role(role);
  }

  /// All products of a graph, or none, are grouped; and all alike.
  static void check_alike(const NodeData& n, const NodeData& first) {
    const bool alike =
        n.kind == first.kind &&
        (!is_grouped(n) || (n.moe_mode == first.moe_mode && n.top_k == first.top_k && n.moe_offsets == first.moe_offsets &&
                            n.zero_fill == first.zero_fill &&
                            std::equal(n.inputs.begin() + 2, n.inputs.end(), first.inputs.begin() + 2, first.inputs.end())));
    if (!alike)
      stop(Rule::chain_group_alike, std::string(kind_of(n)) + " " + label_of(n) + " is not grouped as " +
                                        std::string(kind_of(first)) + " " + label_of(first));
  }

  /// The matmuls, their operands with prologues, and which tensors come after a product.
  void find_products() {
    std::vector<int> products;
    for (const int i : g_.order) {
      if (!is_live(i)) continue;
      const NodeData& n = node(i);
      const auto depends = [&](int t) { return bool{after_[static_cast<std::size_t>(t)]}; };
      const bool fed = std::any_of(n.inputs.begin(), n.inputs.end(), depends);
      if (is_product(n)) {
        if (fed) stop(Rule::chain_gemm_of_gemm, "matmul " + label_of(n) + " reads what another matmul computes");
        if (n.padding != 0.0) stop(Rule::chain_padding, "matmul " + label_of(n) + " has padding " + std::to_string(n.padding));
        if (n.accumulate) check_accumulated(n);
        products.push_back(i);
      }
      after_[static_cast<std::size_t>(n.output)] = fed || is_product(n);
      if (n.scale >= 0) after_[static_cast<std::size_t>(n.scale)] = fed;
    }
    if (products.empty()) stop(Rule::chain_no_matmul, "the graph has no matmul");
    const NodeData& first = node(products.front());
    for (const int i : products) check_alike(node(i), first);
    set_shape(first);
    for (const int i : products) check_shape(node(i), first);
    if (is_grouped(first)) find_groups(first);
    for (const int side : {0, 1})
      for (const int i : products) input_of(node(i).inputs[static_cast<std::size_t>(side)], side);
    for (const int i : products) {
      const NodeData& n = node(i);
      const TensorData& out = tensor(n.output);
      Gemm gemm;
      gemm.a = input_of(n.inputs[0], 0);
      gemm.b = input_of(n.inputs[1], 1);
      gemm.accumulate = accumulate_type(n, gemm);
      gemm.is_fast = n.fast_accumulation;
      require_served(out);
      gemm.value = add_value(n.output, {.kind = ValueKind::product,
                                        .dtype = n.accumulate ? summed_in(gemm) : out.dtype,
                                        .source = static_cast<int>(c_.gemms.size()),
                                        .constant = 0.0,
                                        .varies = {true, true, true},
                                        .name = out.name});
      c_.gemms.push_back(gemm);
    }
  }

  static std::array<std::int64_t, 3> matrix(const TensorData& t) {
    const std::size_t r = t.dim.size();
    return {r == 3 ? t.dim[0] : 1, t.dim[r - 2], t.dim[r - 1]};
  }

  /// L, M, N, K; L is 1 where the depth is grouped, since each of its parts is multiplied once.
  std::array<std::int64_t, 4> shape_of(const NodeData& n) const {
    const auto a = matrix(tensor(n.inputs[0]));
    const auto out = matrix(tensor(n.output));
    if (n.kind == NodeKind::moe_grouped_matmul_bwd) return {1, out[1], out[2], a[1]};
    return {out[0], out[1], out[2], a[2]};
  }

  void set_shape(const NodeData& n) {
    c_.declared = shape_of(n);
    full_ = {matrix(tensor(n.output))[0], c_.declared[1], c_.declared[2]};
  }

  void check_shape(const NodeData& n, const NodeData& first) {
    const auto shape = shape_of(n);
    const auto same_dim = [&](std::size_t i) { return tensor(n.inputs[i]).dim == tensor(first.inputs[i]).dim; };
    if (shape != c_.declared || (is_grouped(n) && !(same_dim(0) && same_dim(1))))
      stop(Rule::chain_gemm_shapes, "matmul " + label_of(n) + " is " + graph::text_of({shape.begin(), shape.end()}) +
                                        " (L, M, N, K), " + label_of(first) + " is " +
                                        graph::text_of({c_.declared.begin(), c_.declared.end()}));
  }

  static void require_served(const TensorData& t) {
    if (!is_served(t.dtype)) stop(Rule::chain_dtype_not_yet, "tensor " + label_of(t) + " is " + std::string(name_of(t.dtype)));
  }

  DataType accumulate_type(const NodeData& n, const Gemm& gemm) const {
    const DataType a = c_.inputs[static_cast<std::size_t>(gemm.a)].dtype;
    const DataType b = c_.inputs[static_cast<std::size_t>(gemm.b)].dtype;
    check_scales(n, gemm);
    const auto is_scaled = [&](int input) { return c_.inputs[static_cast<std::size_t>(input)].scale_role >= 0; };
    if ((is_scaled(gemm.a) || is_scaled(gemm.b)) && n.compute == DataType::fp32 && is_factor(a) && is_factor(b))
      return DataType::fp32;
    const bool fp = a == b && (a == DataType::fp32 || a == DataType::fp16 || a == DataType::bf16);
    if ((fp || (is_factor_fp8(a) && is_factor_fp8(b))) && n.compute == DataType::fp32) return DataType::fp32;
    if (a == b && a == DataType::fp32 && n.compute == DataType::tf32) return DataType::tf32;
    if (a == b && a == DataType::int8 && n.compute == DataType::int32) return DataType::int32;
    stop(Rule::chain_matmul_types, "matmul " + label_of(n) + " has a " + std::string(name_of(a)) + ", b " +
                                       std::string(name_of(b)) + " and computes in " + std::string(name_of(n.compute)));
  }

  static bool is_factor(DataType t) {
    return t == DataType::fp32 || t == DataType::fp16 || t == DataType::bf16 || is_factor_fp8(t);
  }

  /// Where both sides have scales, they have them of one kind.
  void check_scales(const NodeData& n, const Gemm& gemm) const {
    const auto scale_of = [&](int input) -> const Role* {
      const int role = c_.inputs[static_cast<std::size_t>(input)].scale_role;
      return role < 0 ? nullptr : &c_.roles[static_cast<std::size_t>(role)];
    };
    const Role* a = scale_of(gemm.a);
    const Role* b = scale_of(gemm.b);
    if (!a || !b) return;
    const auto text = [&](const Role& r) {
      return std::string(name_of(c_.operands[static_cast<std::size_t>(r.operand)].dtype)) + " of " + std::to_string(r.block);
    };
    if (text(*a) != text(*b))
      stop(Rule::chain_block_scale_format,
           "matmul " + label_of(n) + " has scales " + text(*a) + " on a and " + text(*b) + " on b");
  }

  /// What is added to an output is rounded with it, not before.
  static DataType summed_in(const Gemm& gemm) { return gemm.accumulate == DataType::int32 ? DataType::int32 : DataType::fp32; }

  /// Index in inputs of the tensor that enters a product on this side; one entry for each distinct tensor.
  int input_of(int index, int side) {
    std::vector<int>& known = known_[static_cast<std::size_t>(side)];
    if (known.empty()) known.assign(g_.tensors.size(), -1);
    int& slot = known[static_cast<std::size_t>(index)];
    if (slot >= 0) return slot;
    MatrixInput in;
    in.dtype = tensor(index).dtype;
    int root = index;
    const NodeData* dequantize = nullptr;
    while (tensor(root).producer >= 0) {
      const NodeData& n = node(tensor(root).producer);
      if (n.kind == NodeKind::block_scale_dequantize) {
        if (root != index) stop(Rule::chain_block_scale_operand, "node " + label_of(n) + " is read by a node before a matmul");
        check_dequantize(n, side);
        dequantize = &n;
        root = n.inputs[0];
        break;
      }
      root = add_prologue_step(n, in);
      require_served(tensor(n.output));
    }
    std::reverse(in.prologue.begin(), in.prologue.end());
    const TensorData& t = tensor(root);
    if (!dequantize) require_served(t);
    require_plain(t);
    if (t.by_pointers) return slot = add_table_input(root, index, side, dequantize != nullptr, in);
    if (t.dim != tensor(index).dim)
      stop(Rule::chain_prologue, "tensor " + label_of(t) + " changes its shape on the way into the matmul");
    const auto extent = matrix(t);
    const auto r = static_cast<std::int8_t>(t.dim.size());
    const Symbol batch = r == 3 && extent[0] == c_.declared[0] && extent[0] != 1 ? Symbol::l : Symbol::one;
    const auto row = static_cast<std::int8_t>(r - 2);
    const auto column = static_cast<std::int8_t>(r - 1);
    const auto outer = static_cast<std::int8_t>(r == 3 ? 0 : -1);
    Role role;
    role.kind = side == 0 ? RoleKind::a : RoleKind::b;
    role.operand = operand_of(root);
    role.symbol = side == 0 ? std::array{batch, Symbol::m, Symbol::k} : std::array{batch, Symbol::n, Symbol::k};
    role.axis = side == 0 ? std::array{outer, row, column} : std::array{outer, column, row};
    if (c_.grouping.axis == GroupedAxis::k) role.axis = {outer, column, row};
    if (c_.grouping.axis != GroupedAxis::none) group_matrix(role, extent[0], dequantize);
    if (dequantize) {
      slot = known_scaled(role, *dequantize, in.dtype);
      if (slot >= 0) return slot;
      in.scale_role = add_scale_role(role, *dequantize);
    }
    in.role = add_role(role);
    c_.inputs.push_back(std::move(in));
    slot = static_cast<int>(c_.inputs.size()) - 1;
    return slot;
  }

  void group_matrix(Role& role, std::int64_t batch, const NodeData* dequantize) const {
    const bool is_a = role.kind == RoleKind::a;
    role.symbol[0] = !is_a && c_.grouping.axis == GroupedAxis::m && batch > 1 ? Symbol::e : Symbol::one;
    if (is_a && c_.grouping.mode == MoeMode::gather) role.symbol[1] = Symbol::t;
    if (!dequantize) return;
    const bool reordered = tensor(dequantize->inputs[1]).reordering != TensorReordering::none;
    if (c_.grouping.axis == GroupedAxis::k || (is_a && reordered))
      stop(Rule::chain_group_scale, "node " + label_of(*dequantize) + " has scales " +
                                        (reordered ? "reordered to f8_128x4" : "of a product with groups along K"));
  }

  /// Weights whose addresses a call passes.
  int add_table_input(int root, int index, int side, bool is_scaled, MatrixInput& in) {
    const TensorData& t = tensor(root);
    if (side == 0 || c_.grouping.axis != GroupedAxis::m || is_scaled || root != index || t.by_value)
      stop(Rule::chain_pointer_table, "tensor " + label_of(t) + " is passed by pointers");
    Role role;
    role.kind = RoleKind::b_table;
    role.operand = operand_of(root);
    role.symbol = {t.dim[0] == 1 ? Symbol::one : Symbol::e, Symbol::one, Symbol::one};
    role.axis = {0, -1, -1};
    Operand& o = c_.operands[static_cast<std::size_t>(role.operand)];
    o.dtype = DataType::int64;
    o.dim = {t.dim[0]};
    o.stride = {1};
    c_.tables.push_back({.dtype = t.dtype, .extent = {t.dim[2], t.dim[1]}, .stride = {t.stride[2], t.stride[1]}});
    in.table = static_cast<int>(c_.tables.size()) - 1;
    in.role = add_role(role);
    c_.inputs.push_back(std::move(in));
    return static_cast<int>(c_.inputs.size()) - 1;
  }

  /// The entry of another dequantize node that says the same of the same tensors; −1 when there is none.
  int known_scaled(const Role& role, const NodeData& n, DataType dtype) {
    for (std::size_t i = 0; i < c_.inputs.size(); ++i) {
      const MatrixInput& in = c_.inputs[i];
      if (in.scale_role < 0 || in.dtype != dtype) continue;
      const Role& data = c_.roles[static_cast<std::size_t>(in.role)];
      const Role& scale = c_.roles[static_cast<std::size_t>(in.scale_role)];
      if (data.kind == role.kind && data.operand == role.operand && scale.operand == operand_of(n.inputs[1]) &&
          scale.block == n.block)
        return static_cast<int>(i);
    }
    return -1;
  }

  int add_scale_role(const Role& matrix, const NodeData& n) {
    Role scale = matrix;
    scale.kind = matrix.kind == RoleKind::a ? RoleKind::scale_a : RoleKind::scale_b;
    scale.operand = operand_of(n.inputs[1]);
    scale.block = n.block;
    scale.is_interleaved = tensor(n.inputs[1]).reordering == TensorReordering::f8_128x4;
    if (scale.is_interleaved) scale.axis = {-1, -1, -1};
    return add_role(scale);
  }

  void check_dequantize(const NodeData& n, int side) const {
    const TensorData& data = tensor(n.inputs[0]);
    const TensorData& scale = tensor(n.inputs[1]);
    const TensorData& out = tensor(n.output);
    const auto rank = static_cast<int>(data.dim.size());
    const auto refuse = [&](const std::string& text) {
      stop(Rule::chain_block_scale_operand, "node " + label_of(n) + " " + text);
    };
    if (!out.is_virtual) refuse("has an output that is marked as one of the graph");
    if (data.producer >= 0 || scale.producer >= 0) refuse("reads what the graph computes");
    if (data.by_value || scale.by_value) refuse("reads a tensor passed by value");
    if (n.block_axis != (side == 0 ? rank - 1 : rank - 2))
      refuse("has blocks along axis " + std::to_string(n.block_axis) + " of " + (side == 0 ? "a" : "b"));
    if (n.is_negative_scale) refuse("has is_negative_scale");
    if (n.compute != DataType::fp32 ||
        (out.dtype != DataType::fp32 && out.dtype != DataType::fp16 && out.dtype != DataType::bf16))
      refuse("computes in " + std::string(name_of(n.compute)) + " to " + std::string(name_of(out.dtype)));
    const bool fp4 = data.dtype == DataType::fp4_e2m1;
    const bool e8m0 = scale.dtype == DataType::fp8_e8m0;
    const bool served = (is_factor_fp8(data.dtype) && e8m0 && n.block == 32) ||
                        (fp4 && (e8m0 || scale.dtype == DataType::fp8_e4m3) && (n.block == 16 || n.block == 32));
    if (!served)
      stop(Rule::chain_block_scale_format, "node " + label_of(n) + " has data " + std::string(name_of(data.dtype)) +
                                               " in blocks of " + std::to_string(n.block) + " with scales " +
                                               std::string(name_of(scale.dtype)));
    const auto k = static_cast<std::size_t>(n.block_axis);
    if (fp4 && data.dim[k] > 0 && (data.stride[k] != 1 || data.dim[k] % 2 != 0))
      stop(Rule::chain_packed_axis, "tensor " + label_of(data) + " has stride " + std::to_string(data.stride[k]) +
                                        " and extent " + std::to_string(data.dim[k]) + " along K");
  }

  static void require_plain(const TensorData& t) {
    if (t.reordering != TensorReordering::none)
      stop(Rule::chain_reordering, "tensor " + label_of(t) + " is reordered to " + std::string(graph::name_of(t.reordering)));
  }

  /// Adds the node to the prologue (innermost last) and answers the tensor that it runs on.
  int add_prologue_step(const NodeData& n, MatrixInput& in) {
    const auto is_scalar = [&](int i) {
      const TensorData& t = tensor(i);
      return t.producer < 0 && std::all_of(t.dim.begin(), t.dim.end(), [](std::int64_t e) { return e == 1; });
    };
    if (n.kind != NodeKind::pointwise || n.pointwise == PointwiseMode::gen_index || n.pointwise == PointwiseMode::binary_select ||
        n.inputs.size() > 2)
      stop(Rule::chain_prologue, "node " + label_of(n) + " stands before a matmul");
    if (!tensor(n.output).is_virtual)
      stop(Rule::chain_input_output,
           "tensor " + label_of(tensor(n.output)) + " is computed before a matmul and marked as an output");
    PrologueStep step;
    step.mode = n.pointwise;
    step.parameters = n.parameters;
    step.compute = compute_type(n);
    step.dtype = tensor(n.output).dtype;
    int main = n.inputs[0];
    if (n.inputs.size() == 2) {
      int scalar = n.inputs[1];
      if (!is_scalar(scalar)) {
        std::swap(main, scalar);
        step.scalar_first = true;
      }
      if (!is_scalar(scalar))
        stop(Rule::chain_prologue, "node " + label_of(n) + " before a matmul has two operands, neither of them one scalar");
      require_served(tensor(scalar));
      if (tensor(scalar).value)
        step.constant = rounded(*tensor(scalar).value, tensor(scalar).dtype);
      else
        step.scalar_role = aux_role(scalar);
    }
    in.prologue.push_back(step);
    return main;
  }

  /// A value in the graph has its declared type like any other; an integer type holds it exactly.
  static double rounded(double v, DataType t) {
    return is_integer(t) ? v : static_cast<double>(numeric::round_to(static_cast<float>(v), t));
  }

  static DataType compute_type(const NodeData& n) {
    if (n.compute != DataType::fp32 && n.compute != DataType::int32)
      stop(Rule::chain_compute_type, "node " + label_of(n) + " computes in " + std::string(name_of(n.compute)));
    if (n.compute == DataType::int32 && n.kind == NodeKind::pointwise && !has_int_form(n))
      stop(Rule::chain_int_mode, "node " + label_of(n) + " computes " + std::string(name_of(n.pointwise)) + " in int32");
    return n.compute;
  }

  static bool has_int_form(const NodeData& n) {
    using enum PointwiseMode;
    switch (n.pointwise) {
      case identity:
      case add:
      case sub:
      case mul:
      case div:
      case mod:
      case max:
      case min:
      case add_square:
      case abs:
      case neg:
      case cmp_eq:
      case cmp_neq:
      case cmp_gt:
      case cmp_ge:
      case cmp_lt:
      case cmp_le:
      case logical_and:
      case logical_or:
      case logical_not:
      case binary_select:
      case gen_index: return true;
      case relu: return !n.parameters.lower_clip && !n.parameters.upper_clip && !n.parameters.negative_slope;
      default: return false;
    }
  }

  int operand_of(int index) {
    const TensorData& t = tensor(index);
    if (operand_.empty()) operand_.assign(g_.tensors.size(), -1);
    int& slot = operand_[static_cast<std::size_t>(index)];
    if (slot >= 0) return slot;
    c_.operands.push_back({.name = t.name,
                           .uid = t.uid,
                           .dtype = t.dtype,
                           .dim = t.dim,
                           .stride = t.stride,
                           .is_output = t.producer >= 0,
                           .is_host_scalar = t.by_value});
    slot = static_cast<int>(c_.operands.size()) - 1;
    return slot;
  }

  int add_role(const Role& role) {
    if (c_.roles.size() == kMaxRoles) stop(Rule::chain_too_large, "the chain has more than 64 roles");
    c_.roles.push_back(role);
    return static_cast<int>(c_.roles.size()) - 1;
  }

  /// Symbols of (L, M, N) for a tensor aligned at the right; false where an extent fits neither 1 nor the full one.
  bool epilogue_axes(const TensorData& t, Role& role) const {
    const auto r = static_cast<int>(t.dim.size());
    if (r > 3) return false;
    const std::array symbols{c_.grouping.axis == GroupedAxis::k ? Symbol::g : Symbol::l, Symbol::m, Symbol::n};
    for (int axis = 0; axis < 3; ++axis) {
      const int at = axis - (3 - r);
      const auto i = static_cast<std::size_t>(axis);
      role.axis[i] = static_cast<std::int8_t>(at < 0 ? -1 : at);
      const std::int64_t e = at < 0 ? 1 : t.dim[static_cast<std::size_t>(at)];
      const std::int64_t full = full_[i];
      if (axis < 2 && is_of_groups(t)) {
        role.symbol[i] = axis == 0 ? Symbol::g : Symbol::one;
        continue;
      }
      if (e != 1 && e != full) return false;
      role.symbol[i] = at >= 0 && e == full && !(axis == 0 && full == 1) ? symbols[i] : Symbol::one;
    }
    return true;
  }

  /// One row for each group, beside rows of groups.
  bool is_of_groups(const TensorData& t) const {
    return c_.grouping.axis == GroupedAxis::m && t.dim.size() == 3 && t.dim[0] == c_.grouping.groups && t.dim[0] != 1 &&
           t.dim[1] == 1;
  }

  int aux_role(int index) {
    const TensorData& t = tensor(index);
    require_served(t);
    require_plain(t);
    if (t.by_pointers) stop(Rule::chain_pointer_table, "tensor " + label_of(t) + " is passed by pointers");
    if (t.producer >= 0) {
      // Only what leads to a matmul is computed outside the epilogue, and of that only this node kind passes for a value.
      stop(Rule::chain_block_scale_operand, "tensor " + label_of(t) + " is dequantised and read by a node that is no matmul");
    }
    if (aux_.empty()) aux_.assign(g_.tensors.size(), -1);
    int& slot = aux_[static_cast<std::size_t>(index)];
    if (slot >= 0) return slot;
    Role role;
    role.kind = t.by_value ? RoleKind::host_scalar : RoleKind::aux;
    if (!epilogue_axes(t, role))
      stop(Rule::chain_aux_shape, "tensor " + label_of(t) + " has extents " + graph::text_of(t.dim) +
                                      " beside (L, M, N) = " + graph::text_of({full_.begin(), full_.end()}));
    const bool one_element = std::all_of(t.dim.begin(), t.dim.end(), [](std::int64_t e) { return e == 1; });
    if (one_element) role.symbol = {Symbol::one, Symbol::one, Symbol::one};  // a scalar stays one, also beside M = 1
    role.operand = operand_of(index);
    slot = add_role(role);
    return slot;
  }

  int add_value(int index, Value value) {
    c_.values.push_back(std::move(value));
    value_of_[static_cast<std::size_t>(index)] = static_cast<int>(c_.values.size()) - 1;
    return value_of_[static_cast<std::size_t>(index)];
  }

  /// The value that a step reads: already there, or a graph input loaded now.
  int value_of(int index) {
    if (const int v = value_of_[static_cast<std::size_t>(index)]; v >= 0) return v;
    const TensorData& t = tensor(index);
    if (t.value) {
      require_served(t);
      return add_value(
          index,
          {.kind = ValueKind::constant, .dtype = t.dtype, .source = 0, .constant = *t.value, .varies = {}, .name = t.name});
    }
    const int role = aux_role(index);
    Value v{.kind = ValueKind::aux, .dtype = t.dtype, .source = role, .constant = 0.0, .varies = {}, .name = t.name};
    for (std::size_t i = 0; i < 3; ++i) v.varies[i] = c_.roles[static_cast<std::size_t>(role)].symbol[i] != Symbol::one;
    return add_value(index, std::move(v));
  }

  /// Epilogue nodes and those of inputs only that the epilogue reads; prologue nodes are done with.
  void collect_steps() {
    std::vector<bool> wanted(g_.nodes.size(), false);
    for (std::size_t k = g_.order.size(); k-- > 0;) {
      const int i = g_.order[k];
      const NodeData& n = node(i);
      if (!is_live(i) || is_product(n)) continue;
      if (after_[static_cast<std::size_t>(n.output)]) wanted[static_cast<std::size_t>(i)] = true;
      if (!wanted[static_cast<std::size_t>(i)]) continue;
      for (const int input : n.inputs)
        if (const int p = tensor(input).producer; p >= 0) wanted[static_cast<std::size_t>(p)] = true;
    }
    for (const int i : g_.order) {
      const NodeData& n = node(i);
      if (is_live(i) && n.kind == NodeKind::block_scale_dequantize) {
        if (after_[static_cast<std::size_t>(n.output)])
          stop(Rule::chain_block_scale_operand, "node " + label_of(n) + " reads what follows a matmul");
        if (!tensor(n.output).is_virtual)
          stop(Rule::chain_block_scale_operand, "node " + label_of(n) + " has an output that is marked as one of the graph");
      }
      if (n.kind != NodeKind::pointwise || !is_live(i)) continue;
      if (!after_[static_cast<std::size_t>(n.output)] && !tensor(n.output).is_virtual)
        stop(Rule::chain_input_output,
             "tensor " + label_of(tensor(n.output)) + " is computed from inputs alone and marked as an output");
      if (wanted[static_cast<std::size_t>(i)]) add_step(n);
    }
  }

  void add_step(const NodeData& n) {
    const TensorData& out = tensor(n.output);
    require_served(out);
    if (out.dim.size() > 3)
      stop(Rule::chain_aux_shape, "tensor " + label_of(out) + " has rank " + std::to_string(out.dim.size()));
    if (c_.steps.size() == kMaxSteps) stop(Rule::chain_too_large, "the chain has more than 512 steps");
    Step step;
    step.mode = n.pointwise;
    step.parameters = n.parameters;
    step.compute = compute_type(n);
    step.name = n.name;
    Value v{.kind = ValueKind::step,
            .dtype = out.dtype,
            .source = static_cast<int>(c_.steps.size()),
            .constant = 0.0,
            .varies = {},
            .name = out.name};
    if (n.pointwise == PointwiseMode::gen_index) step.parameters.axis += 3 - static_cast<int>(out.dim.size());
    for (std::size_t k = 0; k < n.inputs.size(); ++k) {
      step.input[k] = value_of(n.inputs[k]);
      for (std::size_t i = 0; i < 3; ++i)
        v.varies[i] = v.varies[i] || c_.values[static_cast<std::size_t>(step.input[k])].varies[i];
    }
    const bool of_one = step.parameters.axis == 0 && c_.grouping.axis == GroupedAxis::m;  // L is 1, whatever the group
    if (n.pointwise == PointwiseMode::gen_index && (of_one || !v.varies[static_cast<std::size_t>(step.parameters.axis)])) {
      // The coordinate along an axis of extent 1 is 0, wherever the value is read.
      v.kind = ValueKind::constant;
      v.varies = {};
      add_value(n.output, std::move(v));
      return;
    }
    step.value = add_value(n.output, std::move(v));
    c_.steps.push_back(std::move(step));
  }

  void add_store(const NodeData& n) {
    const TensorData& out = tensor(n.output);
    check_output_layout(out);
    require_plain(out);
    Role role;  // a result of products has their shape: no operand that the epilogue accepts widens it
    role.kind = RoleKind::output;
    epilogue_axes(out, role);
    role.operand = operand_of(n.output);
    c_.stores.push_back(
        {.value = value_of_[static_cast<std::size_t>(n.output)], .role = add_role(role), .accumulate = n.accumulate});
  }

  /// What is added to an output is that product and nothing else.
  void check_accumulated(const NodeData& n) const {
    for (const NodeData& reader : g_.nodes)
      if (std::ranges::find(reader.inputs, n.output) != reader.inputs.end())
        stop(Rule::chain_accumulate, "what " + label_of(n) + " adds to its output is read by " + label_of(reader));
  }

  static void check_output_layout(const TensorData& out) {
    if (!is_injective(out.dim, out.stride))
      stop(Rule::chain_output_layout,
           "output " + label_of(out) + " has extents " + graph::text_of(out.dim) + " and strides " + graph::text_of(out.stride));
  }

  void add_reduction(const NodeData& n) {
    const TensorData& out = tensor(n.output);
    const int source = n.inputs[0];
    if (!after_[static_cast<std::size_t>(source)])
      stop(Rule::chain_input_output, "reduction " + label_of(n) + " is of inputs alone");
    using enum ReductionMode;
    const bool int_form =
        n.reduction == add || n.reduction == max || n.reduction == min || n.reduction == amax || n.reduction == norm1;
    if (n.compute != out.dtype || (out.dtype != DataType::fp32 && !(out.dtype == DataType::int32 && int_form)))
      stop(Rule::chain_reduction_types, "reduction " + label_of(n) + " (" + std::string(name_of(n.reduction)) + ") computes in " +
                                            std::string(name_of(n.compute)) + " and stores " + std::string(name_of(out.dtype)));
    const auto m = matrix(out);
    check_output_layout(out);
    Reduction r;
    r.mode = n.reduction;
    r.compute = n.compute;
    r.value = value_of_[static_cast<std::size_t>(source)];
    Role role;
    role.kind = RoleKind::reduction;
    epilogue_axes(out, role);
    const bool by_groups = n.inputs.size() == 2 && m[0] != 1;
    for (std::size_t i = 0; i < 3; ++i) {
      if (i == 0 && by_groups) continue;
      r.reduces[i] = m[i] == 1;  // an axis with extent 1 in the output is reduced, also where the full extent is 1
      if (r.reduces[i]) role.symbol[i] = Symbol::one;
    }
    role.operand = operand_of(n.output);
    r.role = add_role(role);
    c_.reductions.push_back(r);
  }

  /// The data of a quantize node; its scales follow when all other outputs are there.
  void add_quantised(const NodeData& n) {
    const TensorData& data = tensor(n.output);
    const TensorData& scale = tensor(n.scale);
    const auto refuse = [&](const std::string& text) { stop(Rule::chain_quantise, "node " + label_of(n) + " " + text); };
    if (!after_[static_cast<std::size_t>(n.output)]) refuse("reads what no matmul computes");
    if (data.is_virtual || scale.is_virtual)
      refuse(std::string("has ") + (data.is_virtual ? "data" : "scales") + " that are not marked as an output");
    if (n.compute != DataType::fp32) refuse("computes in " + std::string(name_of(n.compute)));
    if (n.block != 16 && n.block != 32) refuse("has blocks of " + std::to_string(n.block));
    const bool fp4 = data.dtype == DataType::fp4_e2m1;
    if (!fp4 && !is_factor_fp8(data.dtype)) refuse("stores data as " + std::string(name_of(data.dtype)));
    if (scale.dtype != DataType::fp8_e8m0 && scale.dtype != DataType::fp8_e4m3)
      refuse("stores scales as " + std::string(name_of(scale.dtype)));
    require_plain(data);
    check_output_layout(data);
    if (c_.grouping.axis == GroupedAxis::m &&
        (n.block_axis + 1 != static_cast<int>(data.dim.size()) || scale.reordering != TensorReordering::none))
      stop(Rule::chain_group_scale,
           "node " + label_of(n) + " quantises rows of groups " +
               (scale.reordering != TensorReordering::none ? "with scales reordered to f8_128x4" : "along M"));
    if (fp4 && data.dim.back() > 0 && (data.stride.back() != 1 || data.dim.back() % 2 != 0))
      stop(Rule::chain_packed_axis, "tensor " + label_of(data) + " has stride " + std::to_string(data.stride.back()) +
                                        " and extent " + std::to_string(data.dim.back()) + " along N");
    const TensorData& source = tensor(n.inputs[0]);
    Quantise q;
    q.value = value_of_[static_cast<std::size_t>(n.inputs[0])];
    q.along_m = n.block_axis + 2 == static_cast<int>(source.dim.size());
    q.block = n.block;
    Role role;
    role.kind = RoleKind::output;
    if (!epilogue_axes(data, role)) refuse("reads a result of another shape");
    role.operand = operand_of(n.output);
    q.role = add_role(role);
    c_.quantised.push_back(q);
  }

  void add_output_scale(const NodeData& n, Quantise& q) {
    const TensorData& scale = tensor(n.scale);
    Role role = c_.roles[static_cast<std::size_t>(q.role)];  // symbols and axes of the data
    role.kind = RoleKind::output_scale;
    role.block = n.block;
    role.is_interleaved = scale.reordering == TensorReordering::f8_128x4;
    if (!role.is_interleaved) check_output_layout(scale);
    if (q.along_m) {
      std::swap(role.symbol[1], role.symbol[2]);
      std::swap(role.axis[1], role.axis[2]);
    }
    if (role.is_interleaved) role.axis = {-1, -1, -1};
    role.operand = operand_of(n.scale);
    q.scale_role = add_role(role);
  }

  void collect_outputs() {
    bool dense = false;
    bool reduced = false;
    for (const int i : g_.order) {
      const NodeData& n = node(i);
      if (is_live(i) && n.kind == NodeKind::block_scale_quantize) {
        dense = true;
        add_quantised(n);
        continue;
      }
      if (!is_live(i) || tensor(n.output).is_virtual) continue;
      reduced |= n.kind == NodeKind::reduction;
      if (n.kind == NodeKind::reduction) continue;
      if (value_of_[static_cast<std::size_t>(n.output)] < 0) continue;
      dense = true;
      add_store(n);
    }
    if (!dense && !reduced) store_only_product();
    for (const int i : g_.order)
      if (is_live(i) && node(i).kind == NodeKind::reduction) add_reduction(node(i));
    std::size_t next = 0;
    for (const int i : g_.order)
      if (is_live(i) && node(i).kind == NodeKind::block_scale_quantize) add_output_scale(node(i), c_.quantised[next++]);
  }

  /// Nothing is marked: the raw product of a graph with one matmul and no epilogue is the output.
  void store_only_product() {
    if (c_.gemms.size() != 1 || !c_.steps.empty()) stop(Rule::chain_no_output, "no tensor is marked as an output");
    for (const int i : g_.order)
      if (is_product(node(i))) add_store(node(i));
  }

  /// Roles were made as they were met; a call takes a…, b…, aux…, outputs, reductions.
  void order_roles() {
    std::vector<int> by_kind(c_.roles.size());
    std::iota(by_kind.begin(), by_kind.end(), 0);
    std::stable_sort(by_kind.begin(), by_kind.end(), [&](int x, int y) {
      return c_.roles[static_cast<std::size_t>(x)].kind < c_.roles[static_cast<std::size_t>(y)].kind;
    });
    std::vector<int> now(c_.roles.size());
    std::vector<Role> roles;
    for (std::size_t i = 0; i < by_kind.size(); ++i) {
      now[static_cast<std::size_t>(by_kind[i])] = static_cast<int>(i);
      roles.push_back(c_.roles[static_cast<std::size_t>(by_kind[i])]);
    }
    const auto moved = [&](int& role) {
      if (role >= 0) role = now[static_cast<std::size_t>(role)];
    };
    // Operands follow their first role.
    std::vector<int> operand_now(c_.operands.size(), -1);
    std::vector<Operand> operands;
    for (Role& role : roles) {
      int& slot = operand_now[static_cast<std::size_t>(role.operand)];
      if (slot < 0) {
        slot = static_cast<int>(operands.size());
        operands.push_back(c_.operands[static_cast<std::size_t>(role.operand)]);
      }
      role.operand = slot;
    }
    c_.roles = std::move(roles);
    c_.operands = std::move(operands);
    for (MatrixInput& in : c_.inputs) {
      moved(in.role);
      moved(in.scale_role);
      for (PrologueStep& s : in.prologue) moved(s.scalar_role);
    }
    for (Value& v : c_.values)
      if (v.kind == ValueKind::aux) moved(v.source);
    moved(c_.grouping.offset_role);
    moved(c_.grouping.index_role);
    moved(c_.grouping.slot_role);
    for (Store& s : c_.stores) moved(s.role);
    for (Reduction& r : c_.reductions) moved(r.role);
    for (Quantise& q : c_.quantised) {
      moved(q.role);
      moved(q.scale_role);
    }
  }

  const GraphData& g_;
  FusionChain c_;
  std::array<std::int64_t, 3> full_{};     // extents of what the epilogue computes
  std::vector<bool> live_;                 // by node
  std::vector<bool> after_;                // by tensor: depends on a product
  std::vector<int> value_of_;              // by tensor
  std::array<std::vector<int>, 2> known_;  // by tensor: index in inputs, for each side
  std::vector<int> operand_, aux_;         // by tensor
};

}  // namespace

Result<FusionChain> analyse(const GraphData& g) {
  try {
    return Analyser(g).run();
  } catch (Stop& s) {
    return decline(s.rule, std::move(s.text));
  }
}

}  // namespace verglas::chain
