#include "chain/analyser.hpp"

#include <algorithm>

#include "numeric/convert.hpp"

namespace verglas::chain {

int Analyser::input_of(int index, int side) {
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
  if (t.dim != tensor(index).dim)
    stop(Rule::chain_prologue, "tensor " + label_of(t) + " changes its shape on the way into the matmul");
  if (t.by_pointers) return slot = add_table_input(root, side, dequantize, in);
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
    if (const TensorData& s = tensor(dequantize->inputs[1]); s.by_pointers)
      stop(Rule::chain_pointer_table, "tensor " + label_of(s) + " is passed by pointers, and what it scales is not");
    slot = known_scaled(role, *dequantize, in.dtype);
    if (slot >= 0) return slot;
    in.scale_role = add_scale_role(role, *dequantize);
  }
  in.role = add_role(role);
  c_.inputs.push_back(std::move(in));
  slot = static_cast<int>(c_.inputs.size()) - 1;
  return slot;
}

void Analyser::group_matrix(Role& role, std::int64_t batch, const NodeData* dequantize) const {
  const bool is_a = role.kind == RoleKind::a;
  role.symbol[0] = !is_a && c_.grouping.axis == GroupedAxis::m && batch > 1 ? Symbol::e : Symbol::one;
  if (is_a && c_.grouping.has_tokens()) role.symbol[1] = Symbol::t;
  if (!dequantize) return;
  const bool reordered = tensor(dequantize->inputs[1]).reordering != TensorReordering::none;
  const auto decline = [&](const char* what) {
    stop(Rule::chain_group_scale, "node " + label_of(*dequantize) + " has scales " + what);
  };
  if (c_.grouping.axis == GroupedAxis::k) decline("of a product with groups along K");
  if (is_a && reordered && c_.grouping.has_tokens()) decline("reordered to f8_128x4 where tokens are gathered or combined");
}

int Analyser::add_table_role(int index, RoleKind kind) {
  const TensorData& t = tensor(index);
  Role role;
  role.kind = kind;
  role.operand = operand_of(index);
  role.symbol = {t.dim[0] == 1 ? Symbol::one : Symbol::e, Symbol::one, Symbol::one};
  role.axis = {0, -1, -1};
  Operand& o = c_.operands[static_cast<std::size_t>(role.operand)];
  o.dtype = DataType::int64;
  o.dim = {t.dim[0]};
  o.stride = {1};
  return add_role(role);
}

int Analyser::add_table_input(int root, int side, const NodeData* dequantize, MatrixInput& in) {
  const TensorData& t = tensor(root);
  if (side == 0 || c_.grouping.axis != GroupedAxis::m || t.by_value)
    stop(Rule::chain_pointer_table, "tensor " + label_of(t) + " is passed by pointers");
  const std::array<std::int64_t, 2> extent = {t.dim[2], t.dim[1]};
  in.table = static_cast<int>(c_.tables.size());
  c_.tables.push_back({.dtype = t.dtype, .extent = extent, .stride = {t.stride[2], t.stride[1]}});
  in.role = add_table_role(root, RoleKind::b_table);
  if (dequantize) {
    const int scales = dequantize->inputs[1];
    const TensorData& s = tensor(scales);
    if (s.by_pointers) {
      if (s.dim.size() != 3)
        stop(Rule::chain_pointer_table, "tensor " + label_of(s) + " is passed by pointers, and has no experts");
      in.scale_table = static_cast<int>(c_.tables.size());
      c_.tables.push_back({.dtype = s.dtype,
                           .extent = {extent[0], (extent[1] + dequantize->block - 1) / dequantize->block},
                           .stride = {s.stride[2], s.stride[1]},
                           .block = dequantize->block,
                           .is_interleaved = s.reordering == TensorReordering::f8_128x4});
      in.scale_role = add_table_role(scales, RoleKind::scale_table);
    } else {
      Role of_tensor;
      of_tensor.kind = RoleKind::b;
      of_tensor.symbol = {Symbol::one, Symbol::n, Symbol::k};
      of_tensor.axis = {0, 2, 1};
      group_matrix(of_tensor, t.dim[0], dequantize);
      in.scale_role = add_scale_role(of_tensor, *dequantize);
    }
  }
  c_.inputs.push_back(std::move(in));
  return static_cast<int>(c_.inputs.size()) - 1;
}

int Analyser::known_scaled(const Role& role, const NodeData& n, DataType dtype) {
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

int Analyser::add_scale_role(const Role& matrix, const NodeData& n) {
  Role scale = matrix;
  scale.kind = matrix.kind == RoleKind::a ? RoleKind::scale_a : RoleKind::scale_b;
  scale.operand = operand_of(n.inputs[1]);
  scale.block = n.block;
  scale.is_interleaved = tensor(n.inputs[1]).reordering == TensorReordering::f8_128x4;
  if (scale.is_interleaved) scale.axis = {-1, -1, -1};
  scale.is_by_group = scale.is_interleaved && scale.kind == RoleKind::scale_a && c_.grouping.has_group_rows();
  return add_role(scale);
}

void Analyser::check_dequantize(const NodeData& n, int side) const {
  const TensorData& data = tensor(n.inputs[0]);
  const TensorData& scale = tensor(n.inputs[1]);
  const TensorData& out = tensor(n.output);
  const auto rank = static_cast<int>(data.dim.size());
  const auto refuse = [&](const std::string& text) { stop(Rule::chain_block_scale_operand, "node " + label_of(n) + " " + text); };
  if (!out.is_virtual) refuse("has an output that is marked as one of the graph");
  if (data.producer >= 0 || scale.producer >= 0) refuse("reads what the graph computes");
  if (data.by_value || scale.by_value) refuse("reads a tensor passed by value");
  if (n.block_axis != (side == 0 ? rank - 1 : rank - 2))
    refuse("has blocks along axis " + std::to_string(n.block_axis) + " of " + (side == 0 ? "a" : "b"));
  if (n.is_negative_scale) refuse("has is_negative_scale");
  if (n.compute != DataType::fp32 || (out.dtype != DataType::fp32 && out.dtype != DataType::fp16 && out.dtype != DataType::bf16))
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
    stop(Rule::chain_packed_axis, "tensor " + label_of(data) + " has stride " + std::to_string(data.stride[k]) + " and extent " +
                                      std::to_string(data.dim[k]) + " along K");
}

int Analyser::add_prologue_step(const NodeData& n, MatrixInput& in) {
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

double Analyser::rounded(double v, DataType t) {
  return is_integer(t) ? v : static_cast<double>(numeric::round_to(static_cast<float>(v), t));
}

}  // namespace verglas::chain
