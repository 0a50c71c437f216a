#include "chain/analyse.hpp"

#include <algorithm>
#include <numeric>

#include "chain/analyser.hpp"

namespace verglas::chain {

void Analyser::find_live() {
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

void Analyser::find_groups(const NodeData& n) {
  const TensorData& token = tensor(n.inputs[0]);
  Grouping& g = c_.grouping;
  g.axis = n.kind == NodeKind::moe_grouped_matmul ? GroupedAxis::m : GroupedAxis::k;
  g.mode = n.moe_mode;
  g.offsets = n.moe_offsets;
  g.top_k = n.top_k;
  g.zero_fill = n.zero_fill;
  g.groups = graph::groups_of(tensor(n.inputs[2]));
  if (g.axis == GroupedAxis::m) g.experts = tensor(n.inputs[1]).dim[0];
  if (g.has_tokens()) g.tokens = token.dim[1];
  g.offset_role = add_vector_role(n, n.inputs[2], RoleKind::group_offset);
  if (n.inputs.size() > 3) g.index_role = add_vector_role(n, n.inputs[3], RoleKind::token_index);
  if (n.inputs.size() > 4) g.slot_role = add_vector_role(n, n.inputs[4], RoleKind::token_slot);
  if (n.inputs.size() > 5) g.score_role = add_vector_role(n, n.inputs[5], RoleKind::token_score);
}

int Analyser::add_vector_role(const NodeData& n, int index, RoleKind kind) {
  const TensorData& t = tensor(index);
  if (t.producer >= 0 || t.by_value || t.by_pointers || t.reordering != TensorReordering::none)
    stop(Rule::chain_group_operand, "tensor " + label_of(t) + " of " + label_of(n) + " is no plain input of the graph");
  Role role;
  role.kind = kind;
  role.operand = operand_of(index);
  if (kind == RoleKind::token_score) {
    const auto at = static_cast<std::int8_t>(graph::token_axis_of_scores(t, c_.grouping.top_k));
    role.symbol = {Symbol::one, Symbol::m, Symbol::r};
    role.axis = {-1, at, static_cast<std::int8_t>(at + 1)};
    return add_role(role);
  }
  std::int8_t axis = -1;
  for (std::size_t i = 0; i < t.dim.size(); ++i)
    if (t.dim[i] != 1 || axis < 0) axis = static_cast<std::int8_t>(i);
  const bool along_rows = kind != RoleKind::group_offset;
  if (along_rows)
    role.symbol = {Symbol::one, c_.grouping.combines() ? Symbol::t : Symbol::m, Symbol::one};
  else
    role.symbol = {c_.grouping.groups == 1 ? Symbol::one : Symbol::g, Symbol::one, Symbol::one};
  role.axis = {-1, -1, -1};
  role.axis[along_rows ? 1 : 0] = axis;
  return add_role(role);
}

void Analyser::check_alike(const NodeData& n, const NodeData& first) {
  const bool alike =
      n.kind == first.kind &&
      (!is_grouped(n) || (n.moe_mode == first.moe_mode && n.top_k == first.top_k && n.moe_offsets == first.moe_offsets &&
                          n.zero_fill == first.zero_fill &&
                          std::equal(n.inputs.begin() + 2, n.inputs.end(), first.inputs.begin() + 2, first.inputs.end())));
  if (!alike)
    stop(Rule::chain_group_alike, std::string(kind_of(n)) + " " + label_of(n) + " is not grouped as " +
                                      std::string(kind_of(first)) + " " + label_of(first));
}

void Analyser::find_products() {
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
    const DataType type = type_of_value(out);
    gemm.value = add_value(n.output, {.kind = ValueKind::product,
                                      .dtype = n.accumulate ? summed_in(gemm) : type,
                                      .source = static_cast<int>(c_.gemms.size()),
                                      .constant = 0.0,
                                      .varies = {true, true, true},
                                      .name = out.name});
    c_.gemms.push_back(gemm);
  }
}

std::array<std::int64_t, 4> Analyser::shape_of(const NodeData& n) const {
  const auto a = matrix(tensor(n.inputs[0]));
  const auto out = matrix(tensor(n.output));
  if (n.kind == NodeKind::moe_grouped_matmul_bwd) return {1, out[1], out[2], a[1]};
  return {out[0], out[1], out[2], a[2]};
}

void Analyser::set_shape(const NodeData& n) {
  c_.declared = shape_of(n);
  full_ = {matrix(tensor(n.output))[0], c_.declared[1], c_.declared[2]};
}

void Analyser::check_shape(const NodeData& n, const NodeData& first) {
  const auto shape = shape_of(n);
  const auto same_dim = [&](std::size_t i) { return tensor(n.inputs[i]).dim == tensor(first.inputs[i]).dim; };
  if (shape != c_.declared || (is_grouped(n) && !(same_dim(0) && same_dim(1))))
    stop(Rule::chain_gemm_shapes, "matmul " + label_of(n) + " is " + graph::text_of({shape.begin(), shape.end()}) +
                                      " (L, M, N, K), " + label_of(first) + " is " +
                                      graph::text_of({c_.declared.begin(), c_.declared.end()}));
}

DataType Analyser::accumulate_type(const NodeData& n, const Gemm& gemm) const {
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

bool Analyser::is_factor(DataType t) {
  return t == DataType::fp32 || t == DataType::fp16 || t == DataType::bf16 || is_factor_fp8(t);
}

void Analyser::check_scales(const NodeData& n, const Gemm& gemm) const {
  const ScaleFormat a = scale_format(c_, c_.inputs[static_cast<std::size_t>(gemm.a)]),
                    b = scale_format(c_, c_.inputs[static_cast<std::size_t>(gemm.b)]);
  if (a.block == 0 || b.block == 0) return;
  const auto text = [](const ScaleFormat& s) { return std::string(name_of(s.dtype)) + " of " + std::to_string(s.block); };
  if (text(a) != text(b))
    stop(Rule::chain_block_scale_format, "matmul " + label_of(n) + " has scales " + text(a) + " on a and " + text(b) + " on b");
}

void Analyser::order_roles() {
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
  moved(c_.rope.cos_role);
  moved(c_.rope.sin_role);
  moved(c_.grouping.offset_role);
  moved(c_.grouping.index_role);
  moved(c_.grouping.slot_role);
  moved(c_.grouping.score_role);
  for (Store& s : c_.stores) moved(s.role);
  for (Reduction& r : c_.reductions) moved(r.role);
  for (Quantise& q : c_.quantised) {
    moved(q.role);
    if (q.scale_role >= 0) moved(q.scale_role);
  }
}

Result<FusionChain> analyse(const GraphData& g) {
  try {
    return Analyser(g).run();
  } catch (Stop& s) {
    return decline(s.rule, std::move(s.text));
  }
}

}  // namespace verglas::chain
