#include "chain/analyser.hpp"

#include <algorithm>

namespace verglas::chain {
namespace {

bool is_served(DataType t) {
  return t != DataType::not_set && t != DataType::tf32 && t != DataType::int64 && t != DataType::fp4_e2m1;
}

}  // namespace

void Analyser::require_served(const TensorData& t) {
  if (!is_served(t.dtype)) stop(Rule::chain_dtype_not_yet, "tensor " + label_of(t) + " is " + std::string(name_of(t.dtype)));
}

DataType Analyser::type_of_value(const TensorData& out) {
  const bool is_stored = out.dtype == DataType::fp4_e2m1 && !out.is_virtual;
  const auto reads = [&](const NodeData& n) { return std::ranges::any_of(n.inputs, [&](int i) { return &tensor(i) == &out; }); };
  if (is_stored && std::ranges::none_of(g_.nodes, reads)) return DataType::fp32;
  require_served(out);
  return out.dtype;
}

void Analyser::require_plain(const TensorData& t) {
  if (t.reordering != TensorReordering::none)
    stop(Rule::chain_reordering, "tensor " + label_of(t) + " is reordered to " + std::string(graph::name_of(t.reordering)));
}

DataType Analyser::compute_type(const NodeData& n) {
  if (n.compute != DataType::fp32 && n.compute != DataType::int32)
    stop(Rule::chain_compute_type, "node " + label_of(n) + " computes in " + std::string(name_of(n.compute)));
  if (n.compute == DataType::int32 && n.kind == NodeKind::pointwise && !has_int_form(n))
    stop(Rule::chain_int_mode, "node " + label_of(n) + " computes " + std::string(name_of(n.pointwise)) + " in int32");
  return n.compute;
}

bool Analyser::has_int_form(const NodeData& n) {
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

int Analyser::operand_of(int index) {
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

int Analyser::add_role(const Role& role) {
  if (c_.roles.size() == kMaxRoles) stop(Rule::chain_too_large, "the chain has more than 64 roles");
  c_.roles.push_back(role);
  return static_cast<int>(c_.roles.size()) - 1;
}

bool Analyser::epilogue_axes(const TensorData& t, Role& role, bool is_half) const {
  const auto r = static_cast<int>(t.dim.size());
  if (r > 3) return false;
  const std::array symbols{c_.grouping.axis == GroupedAxis::k ? Symbol::g : Symbol::l, Symbol::m,
                           is_half ? Symbol::h : Symbol::n};
  for (int axis = 0; axis < 3; ++axis) {
    const int at = axis - (3 - r);
    const auto i = static_cast<std::size_t>(axis);
    role.axis[i] = static_cast<std::int8_t>(at < 0 ? -1 : at);
    const std::int64_t e = at < 0 ? 1 : t.dim[static_cast<std::size_t>(at)];
    const std::int64_t full = is_half && axis == 2 ? full_[i] / 2 : full_[i];
    if (axis < 2 && is_of_groups(t)) {
      role.symbol[i] = axis == 0 ? Symbol::g : Symbol::one;
      continue;
    }
    if (e != 1 && e != full) return false;
    role.symbol[i] = at >= 0 && e == full && !(axis == 0 && full == 1) ? symbols[i] : Symbol::one;
  }
  return true;
}

bool Analyser::is_of_groups(const TensorData& t) const {
  return c_.grouping.has_group_rows() && t.dim.size() == 3 && t.dim[0] == c_.grouping.groups && t.dim[0] != 1 && t.dim[1] == 1;
}

int Analyser::aux_role(int index) {
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

int Analyser::add_value(int index, Value value) {
  c_.values.push_back(std::move(value));
  value_of_[static_cast<std::size_t>(index)] = static_cast<int>(c_.values.size()) - 1;
  return value_of_[static_cast<std::size_t>(index)];
}

int Analyser::value_of(int index) {
  if (const int v = value_of_[static_cast<std::size_t>(index)]; v >= 0) return v;
  const TensorData& t = tensor(index);
  if (t.value) {
    require_served(t);
    return add_value(
        index, {.kind = ValueKind::constant, .dtype = t.dtype, .source = 0, .constant = *t.value, .varies = {}, .name = t.name});
  }
  const int role = aux_role(index);
  Value v{.kind = ValueKind::aux, .dtype = t.dtype, .source = role, .constant = 0.0, .varies = {}, .name = t.name};
  for (std::size_t i = 0; i < 3; ++i) v.varies[i] = c_.roles[static_cast<std::size_t>(role)].symbol[i] != Symbol::one;
  return add_value(index, std::move(v));
}

void Analyser::collect_steps() {
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
    if (n.kind == NodeKind::take_runs && is_live(i)) add_runs(n);
    if (n.kind == NodeKind::rope && is_live(i)) add_rope(n);
    if (n.kind != NodeKind::pointwise || !is_live(i)) continue;
    if (!after_[static_cast<std::size_t>(n.output)] && !tensor(n.output).is_virtual)
      stop(Rule::chain_input_output,
           "tensor " + label_of(tensor(n.output)) + " is computed from inputs alone and marked as an output");
    if (wanted[static_cast<std::size_t>(i)]) add_step(n);
  }
}

void Analyser::add_step(const NodeData& n) {
  const TensorData& out = tensor(n.output);
  const DataType type = type_of_value(out);
  if (out.dim.size() > 3) stop(Rule::chain_aux_shape, "tensor " + label_of(out) + " has rank " + std::to_string(out.dim.size()));
  if (c_.steps.size() == kMaxSteps) stop(Rule::chain_too_large, "the chain has more than 512 steps");
  Step step;
  step.mode = n.pointwise;
  step.parameters = n.parameters;
  step.compute = compute_type(n);
  step.name = n.name;
  Value v{.kind = ValueKind::step,
          .dtype = type,
          .source = static_cast<int>(c_.steps.size()),
          .constant = 0.0,
          .varies = {},
          .name = out.name};
  if (n.pointwise == PointwiseMode::gen_index) step.parameters.axis += 3 - static_cast<int>(out.dim.size());
  for (std::size_t k = 0; k < n.inputs.size(); ++k) {
    step.input[k] = value_of(n.inputs[k]);
    v.is_half |= c_.values[static_cast<std::size_t>(step.input[k])].is_half;
    for (std::size_t i = 0; i < 3; ++i) v.varies[i] = v.varies[i] || c_.values[static_cast<std::size_t>(step.input[k])].varies[i];
  }
  const bool of_one = step.parameters.axis == 0 && c_.grouping.axis == GroupedAxis::m;  // L is 1, whatever the group
  if (n.pointwise == PointwiseMode::gen_index && (of_one || !v.varies[static_cast<std::size_t>(step.parameters.axis)])) {
    // The coordinate along an axis of extent 1 is 0, wherever the value is read.
    v.kind = ValueKind::constant;
    v.varies = {};
    add_value(n.output, std::move(v));
    return;
  }
  if (v.is_half && n.pointwise == PointwiseMode::gen_index)
    stop(Rule::chain_runs, "node " + label_of(n) + " counts along what is made of runs");
  step.value = add_value(n.output, std::move(v));
  c_.steps.push_back(std::move(step));
}

void Analyser::add_step_of_products(const NodeData& n, Step step, bool is_half) {
  const TensorData& out = tensor(n.output);
  step.name = n.name;
  step.value = add_value(n.output, {.kind = ValueKind::step,
                                    .dtype = out.dtype,
                                    .source = static_cast<int>(c_.steps.size()),
                                    .constant = 0.0,
                                    .varies = {true, true, true},
                                    .name = out.name,
                                    .is_half = is_half});
  c_.steps.push_back(std::move(step));
}

void Analyser::add_runs(const NodeData& n) {
  const TensorData& out = tensor(n.output);
  const auto refuse = [&](const std::string& text) { stop(Rule::chain_runs, "node " + label_of(n) + " " + text); };
  require_served(out);
  if (!after_[static_cast<std::size_t>(n.output)]) refuse("reads what no matmul computes");
  if (n.run != kRun) refuse("takes runs of " + std::to_string(n.run));
  if (c_.grouping.axis == GroupedAxis::k) refuse("stands behind a gradient of groups");
  if (c_.grouping.combines()) refuse("stands behind a sum over the rows of each token");
  if (is_half(n.inputs[0])) refuse("takes runs of what is made of runs");
  if (c_.steps.size() == kMaxSteps) stop(Rule::chain_too_large, "the chain has more than 512 steps");
  Step step;
  step.compute = out.dtype == DataType::int32 ? DataType::int32 : DataType::fp32;
  step.input[0] = value_of(n.inputs[0]);
  step.run = n.second_runs ? 1 : 0;
  add_step_of_products(n, std::move(step), true);
}

int Analyser::table_role(const NodeData& n, int index) {
  const TensorData& t = tensor(index);
  require_served(t);
  require_plain(t);
  if (t.producer >= 0 || t.by_value || t.by_pointers || is_integer(t.dtype))
    stop(Rule::chain_rope, "tensor " + label_of(t) + " of " + label_of(n) + " is no plain input of numbers");
  Role role;
  role.kind = RoleKind::aux;
  const std::array symbols{Symbol::l, Symbol::m, Symbol::r};
  const auto rank = t.dim.size();
  for (std::size_t axis = 3 - rank; axis < 3; ++axis) {
    const std::size_t at = axis - (3 - rank);
    role.axis[axis] = static_cast<std::int8_t>(at);
    if (axis == 2 || t.dim[at] != 1) role.symbol[axis] = symbols[axis];
  }
  if (rank == 2) role.axis[0] = -1;
  role.operand = operand_of(index);
  return add_role(role);
}

void Analyser::add_rope(const NodeData& n) {
  const TensorData& out = tensor(n.output);
  const auto refuse = [&](const std::string& text) { stop(Rule::chain_rope, "node " + label_of(n) + " " + text); };
  require_served(out);
  if (!after_[static_cast<std::size_t>(n.inputs[0])]) refuse("reads what no matmul computes");
  if (c_.rope.rotated != 0) refuse("is a second one");
  if (out.dim.size() > 3) refuse("has rank " + std::to_string(out.dim.size()));
  if (c_.grouping.axis != GroupedAxis::none) refuse("stands behind a grouped product");
  if (is_half(n.inputs[0])) refuse("rotates what is made of runs");
  if (n.compute != DataType::fp32) refuse("computes in " + std::string(name_of(n.compute)));
  if (is_integer(tensor(n.inputs[0]).dtype) || is_integer(out.dtype)) refuse("rotates integers");
  if (c_.steps.size() == kMaxSteps) stop(Rule::chain_too_large, "the chain has more than 512 steps");
  c_.rope = {.head = n.head,
             .rotated = tensor(n.inputs[1]).dim.back(),
             .cos_role = table_role(n, n.inputs[1]),
             .sin_role = table_role(n, n.inputs[2])};
  Step step;
  step.input[0] = value_of(n.inputs[0]);
  step.is_rope = true;
  add_step_of_products(n, std::move(step), false);
}

}  // namespace verglas::chain
