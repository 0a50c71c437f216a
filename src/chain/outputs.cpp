#include "chain/analyser.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/strides.hpp"
#include "numeric/quantise.hpp"

namespace verglas::chain {

void Analyser::add_store(const NodeData& n) {
  const TensorData& out = tensor(n.output);
  const bool in_pairs = out.dtype == DataType::fp4_e2m1;
  check_output_layout(out);
  require_plain(out);
  if (in_pairs) check_pairs(out);
  Role role;  // a result of products has their shape: no operand that the epilogue accepts widens it
  role.kind = RoleKind::output;
  epilogue_axes(out, role, is_half(n.output));
  role.operand = operand_of(n.output);
  const int value = value_of_[static_cast<std::size_t>(n.output)];
  if (in_pairs)
    c_.quantised.push_back({.value = value, .block = 16, .vmax = numeric::largest_of(out.dtype), .role = add_role(role)});
  else
    c_.stores.push_back({.value = value, .role = add_role(role), .accumulate = n.accumulate});
}

void Analyser::check_accumulated(const NodeData& n) const {
  for (const NodeData& reader : g_.nodes)
    if (std::ranges::find(reader.inputs, n.output) != reader.inputs.end())
      stop(Rule::chain_accumulate, "what " + label_of(n) + " adds to its output is read by " + label_of(reader));
}

void Analyser::check_output_layout(const TensorData& out) {
  if (!is_injective(out.dim, out.stride))
    stop(Rule::chain_output_layout,
         "output " + label_of(out) + " has extents " + graph::text_of(out.dim) + " and strides " + graph::text_of(out.stride));
}

void Analyser::add_reduction(const NodeData& n) {
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
  const bool of_runs = is_half(source);
  epilogue_axes(out, role, of_runs);
  const bool by_groups = n.inputs.size() == 2 && m[0] != 1;
  for (std::size_t i = 0; i < 3; ++i) {
    if (i == 0 && by_groups) continue;
    r.reduces[i] = m[i] == 1;  // an axis with extent 1 in the output is reduced, also where the full extent is 1
    if (r.reduces[i]) role.symbol[i] = Symbol::one;
  }
  if (of_runs && (!r.reduces[2] || r.mode == ReductionMode::avg))
    stop(Rule::chain_runs,
         "reduction " + label_of(n) + " of what is made of runs " + (r.reduces[2] ? "is a mean" : "keeps its columns"));
  role.operand = operand_of(n.output);
  r.role = add_role(role);
  c_.reductions.push_back(r);
}

void Analyser::add_quantised(const NodeData& n) {
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
  if (c_.grouping.has_group_rows()) {
    const bool along_n = n.block_axis + 1 == static_cast<int>(data.dim.size());
    const auto decline = [&](const char* what) {
      stop(Rule::chain_group_scale, "node " + label_of(n) + " quantises rows of groups " + what);
    };
    if (!along_n && c_.grouping.mode != MoeMode::none) decline("that have token indices along M");
    if (scale.reordering != TensorReordering::none && c_.grouping.mode == MoeMode::scatter)
      decline("that are scattered, with scales reordered to f8_128x4");
  }
  if (fp4) check_pairs(data);
  const float largest = numeric::largest_of(data.dtype);
  if (n.vmax > largest) refuse(fmt::format("brings {} to {}, which ends at {}", name_of(data.dtype), n.vmax, largest));
  const TensorData& source = tensor(n.inputs[0]);
  Quantise q;
  q.vmax = n.vmax == 0.0 ? largest : static_cast<float>(n.vmax);
  q.value = value_of_[static_cast<std::size_t>(n.inputs[0])];
  q.along_m = n.block_axis + 2 == static_cast<int>(source.dim.size());
  q.block = n.block;
  if (is_half(n.inputs[0]) && q.along_m)
    stop(Rule::chain_runs, "node " + label_of(n) + " quantises what is made of runs along M");
  Role role;
  role.kind = RoleKind::output;
  if (!epilogue_axes(data, role, is_half(n.inputs[0]))) refuse("reads a result of another shape");
  role.operand = operand_of(n.output);
  q.role = add_role(role);
  c_.quantised.push_back(q);
}

void Analyser::check_pairs(const TensorData& data) {
  if (data.dim.back() > 0 && (data.stride.back() != 1 || data.dim.back() % 2 != 0))
    stop(Rule::chain_packed_axis, "tensor " + label_of(data) + " has stride " + std::to_string(data.stride.back()) +
                                      " and extent " + std::to_string(data.dim.back()) + " along N");
}

void Analyser::add_output_scale(const NodeData& n, Quantise& q) {
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
  role.is_by_group = role.is_interleaved && !q.along_m && c_.grouping.has_group_rows();
  role.operand = operand_of(n.scale);
  q.scale_role = add_role(role);
}

void Analyser::collect_outputs() {
  bool dense = false;
  bool reduced = false;
  std::vector<std::pair<const NodeData*, std::size_t>> scaled;
  for (const int i : g_.order) {
    const NodeData& n = node(i);
    if (is_live(i) && n.kind == NodeKind::block_scale_quantize) {
      dense = true;
      scaled.emplace_back(&n, c_.quantised.size());
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
  for (const auto& [n, at] : scaled) add_output_scale(*n, c_.quantised[at]);
}

void Analyser::store_only_product() {
  if (c_.gemms.size() != 1 || !c_.steps.empty()) stop(Rule::chain_no_output, "no tensor is marked as an output");
  for (const int i : g_.order)
    if (is_product(node(i))) add_store(node(i));
}

}  // namespace verglas::chain
