#include "graph/ir.hpp"

#include <unordered_set>

namespace verglas::graph {

std::string label_of(const TensorData& t) { return t.name.empty() ? "#" + std::to_string(t.uid) : "'" + t.name + "'"; }
std::string label_of(const NodeData& n) { return "'" + n.name + "'"; }
std::string_view kind_of(const NodeData& n) {
  switch (n.kind) {
    case NodeKind::matmul: return "matmul";
    case NodeKind::reduction: return "reduction";
    case NodeKind::block_scale_dequantize: return "block_scale_dequantize";
    case NodeKind::block_scale_quantize: return "block_scale_quantize";
    case NodeKind::take_runs: return "take_runs";
    case NodeKind::rope: return "rope";
    case NodeKind::moe_grouped_matmul: return "moe_grouped_matmul";
    case NodeKind::moe_grouped_matmul_bwd: return "moe_grouped_matmul_bwd";
    case NodeKind::pointwise: break;
  }
  return name_of(n.pointwise);
}
std::string default_name(const NodeData& n, std::size_t index) { return std::string(kind_of(n)) + "_" + std::to_string(index); }

std::string text_of(const std::vector<std::int64_t>& extents) {
  std::string s = "(";
  for (std::size_t i = 0; i < extents.size(); ++i) s += (i ? ", " : "") + std::to_string(extents[i]);
  return s + ")";
}

std::string_view name_of(TensorReordering r) noexcept { return r == TensorReordering::f8_128x4 ? "f8_128x4" : "none"; }
std::optional<TensorReordering> reordering_from_name(std::string_view name) noexcept {
  if (name == "none" || name == "NONE") return TensorReordering::none;
  if (name == "f8_128x4" || name == "F8_128x4") return TensorReordering::f8_128x4;
  return std::nullopt;
}

void assign_uids(GraphData& g) {
  std::unordered_set<std::int64_t> taken;
  for (const TensorData& t : g.tensors) taken.insert(t.uid);
  std::int64_t next = 1;
  for (TensorData& t : g.tensors) {
    if (t.uid != 0 || t.uid_is_users) continue;
    while (taken.contains(next)) ++next;
    t.uid = next;
    taken.insert(next);
  }
}

}  // namespace verglas::graph
