#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/rules.hpp"
#include "graph/json.hpp"
#include "graph/json_limits.hpp"
#include "verglas/graph.hpp"

namespace verglas {
namespace graph {
namespace {

std::string quoted(const std::string& text, const char* whose) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw broken(Rule::file_text, whose, "bytes that are no UTF-8", "UTF-8");
  }
}

/// JSON has no NaN and no infinities: they are strings.
std::string number(double v) {
  if (std::isnan(v)) return std::signbit(v) ? "\"-nan\"" : "\"nan\"";
  if (std::isinf(v)) return v > 0 ? "\"inf\"" : "\"-inf\"";
  return nlohmann::json(v).dump();
}
/// 0.1F is written 0.1, as it was meant.
std::string number(float v) {
  if (!std::isfinite(v)) return number(static_cast<double>(v));
  const double short_form = std::strtod(fmt::format("{}", v).c_str(), nullptr);
  const bool same = std::bit_cast<std::uint32_t>(static_cast<float>(short_form)) == std::bit_cast<std::uint32_t>(v);
  return number(same ? short_form : static_cast<double>(v));
}

/// One object on one line.
class Line {
 public:
  void add(std::string_view key, std::string_view value) {
    text_ += fmt::format("{}\"{}\": {}", text_.empty() ? "" : ", ", key, value);
  }
  void add_word(std::string_view key, std::string_view word) { add(key, fmt::format("\"{}\"", word)); }
  void add_list(std::string_view key, const std::vector<std::int64_t>& list) {
    if (list.size() > kMaxFileList)
      throw broken(Rule::file_limit, std::string(key), fmt::format("{} numbers", list.size()),
                   fmt::format("{} at most", kMaxFileList));
    add(key, fmt::format("[{}]", fmt::join(list, ", ")));
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

std::string tensor_line(const TensorData& t) {
  Line line;
  if (!t.name.empty()) line.add("name", quoted(t.name, "name of a tensor"));
  line.add("uid", std::to_string(t.uid));
  if (t.dim_is_users) line.add_list("dim", t.dim);
  if (t.stride_is_users) line.add_list("stride", t.stride);
  if (t.dtype_is_users) line.add_word("data_type", name_of(t.dtype));
  if (t.reordering != TensorReordering::none) line.add_word("reordering", name_of(t.reordering));
  const bool computed = t.producer >= 0;
  if (t.is_virtual != computed) line.add("output", t.is_virtual ? "false" : "true");
  if (t.by_value != t.value.has_value()) line.add("pass_by_value", t.by_value ? "true" : "false");
  if (t.value) line.add("value", number(*t.value));
  if (t.by_pointers) line.add("by_pointers", "true");
  return line.text();
}

class Names {
 public:
  explicit Names(const GraphData& g) : g_(g) {
    for (const TensorData& t : g.tensors) ++uses_[t.name];
  }
  /// How a node refers to a tensor: by name where it is the only one of that name, else by uid.
  std::string reference(int index) const {
    const TensorData& t = g_.tensors[static_cast<std::size_t>(index)];
    return t.name.empty() || uses_.at(t.name) > 1 ? std::to_string(t.uid) : quoted(t.name, "name of a tensor");
  }

 private:
  const GraphData& g_;
  std::unordered_map<std::string_view, int> uses_;
};

std::string node_line(const NodeData& n, const Names& names) {
  Line line;
  line.add_word("op", kind_of(n));
  line.add("name", quoted(n.name, "name of a node"));
  if (n.kind == NodeKind::reduction) line.add_word("mode", name_of(n.reduction));
  if (n.inputs.size() > kMaxFileList)
    throw broken(Rule::file_limit, "node " + label_of(n), fmt::format("{} operands", n.inputs.size()),
                 fmt::format("{} at most", kMaxFileList));
  std::vector<std::string> inputs;
  for (const int i : n.inputs) inputs.push_back(names.reference(i));
  line.add("inputs", fmt::format("[{}]", fmt::join(inputs, ", ")));
  line.add("output", names.reference(n.output));
  if (n.scale >= 0) line.add("scale", names.reference(n.scale));
  if (n.compute_is_users) line.add_word("compute_data_type", name_of(n.compute));
  if (n.kind == NodeKind::matmul) {
    if (n.padding != 0.0 || std::signbit(n.padding)) line.add("padding", number(n.padding));
    if (n.fast_accumulation) line.add("fast_accumulation", "true");
  } else if (n.kind == NodeKind::block_scale_dequantize) {
    line.add_list("block_size", n.block_size);
    if (n.is_negative_scale) line.add("is_negative_scale", "true");
  } else if (n.kind == NodeKind::block_scale_quantize) {
    line.add("block_size", std::to_string(n.block_size.empty() ? 0 : n.block_size.front()));
    if (n.axis) line.add("axis", std::to_string(*n.axis));
    if (n.transpose) line.add("transpose", "true");
    if (n.vmax != 0.0) line.add("vmax", number(n.vmax));
  } else if (n.kind == NodeKind::take_runs) {
    line.add("length", std::to_string(n.run));
    if (n.second_runs) line.add("second", "true");
  } else if (n.kind == NodeKind::rope) {
    line.add("head", std::to_string(n.head));
  } else if (n.kind == NodeKind::moe_grouped_matmul) {
    if (n.moe_mode != MoeMode::none) line.add_word("mode", name_of(n.moe_mode));
    if (n.moe_offsets != MoeOffsets::first_token) line.add_word("offsets", name_of(n.moe_offsets));
    if (n.top_k != 1) line.add("top_k", std::to_string(n.top_k));
    if (n.zero_fill) line.add("zero_fill", "true");
  } else if (n.kind == NodeKind::moe_grouped_matmul_bwd) {
    if (n.moe_offsets != MoeOffsets::first_token) line.add_word("offsets", name_of(n.moe_offsets));
    if (n.accumulate) line.add("accumulate", "true");
  } else if (n.kind == NodeKind::pointwise) {
    const PointwiseParameters& p = n.parameters;
    if (p.lower_clip) line.add("lower_clip", number(*p.lower_clip));
    if (p.upper_clip) line.add("upper_clip", number(*p.upper_clip));
    if (p.negative_slope) line.add("negative_slope", number(*p.negative_slope));
    if (p.alpha != 1.0F) line.add("alpha", number(p.alpha));
    if (p.beta != 1.0F) line.add("beta", number(p.beta));
    if (p.axis != -1) line.add("axis", std::to_string(p.axis));
  }
  return line.text();
}

std::string list_of(const std::vector<std::string>& lines) {
  return lines.empty() ? "[]" : fmt::format("[\n    {}\n  ]", fmt::join(lines, ",\n    "));
}

}  // namespace

std::string save(const GraphData& g) {
  const auto limit = [](std::string_view what, std::size_t count, std::size_t most) {
    if (count > most) throw broken(Rule::file_limit, "graph", fmt::format("{} {}", count, what), fmt::format("{} at most", most));
  };
  limit("tensors", g.tensors.size(), kMaxFileTensors);
  limit("nodes", g.nodes.size(), kMaxFileNodes);
  std::string s = "{\n  \"verglas_graph\": 1,\n";
  if (!g.name.empty()) s += fmt::format("  \"name\": {},\n", quoted(g.name, "name of the graph"));
  const auto type = [&](std::string_view key, DataType t) {
    if (t != DataType::not_set) s += fmt::format("  \"{}\": \"{}\",\n", key, name_of(t));
  };
  type("io_data_type", g.io);
  type("intermediate_data_type", g.intermediate);
  type("compute_data_type", g.compute);
  std::vector<std::string> lines;
  for (const TensorData& t : g.tensors) lines.push_back(tensor_line(t));
  s += fmt::format("  \"tensors\": {},\n", list_of(lines));
  lines.clear();
  const Names names(g);
  for (const NodeData& n : g.nodes) lines.push_back(node_line(n, names));
  s += fmt::format("  \"nodes\": {}\n}}\n", list_of(lines));
  limit("bytes of text", s.size(), static_cast<std::size_t>(kMaxFileBytes));
  return s;
}

}  // namespace graph

std::string Graph::to_json() const { return graph::save(*data_); }

}  // namespace verglas
