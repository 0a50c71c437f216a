#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/rules.hpp"
#include "graph/json.hpp"
#include "graph/json_limits.hpp"
#include "verglas/graph.hpp"

namespace verglas {
namespace graph {
namespace {

using Json = nlohmann::json;

/// At most 60 bytes of it, cut between characters; what is not printable is a question mark.
std::string shown(std::string text) {
  constexpr std::size_t kMost = 60;
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "…";
}
std::string shown(const Json& j) {
  if (j.is_object()) return fmt::format("an object of {} keys", j.size());
  if (j.is_array()) return fmt::format("an array of {}", j.size());
  return shown(j.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// A place in the file is a JSON pointer: "/tensors/3/dim".
std::string below(const std::string& place, std::string_view key) {
  std::string s = place + "/";
  for (const char c : key) s += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return s;
}
std::string below(const std::string& place, std::size_t index) { return place + "/" + std::to_string(index); }
std::string who(const std::string& place) { return place.empty() ? "graph file" : "graph file, " + shown(place); }

/// Listens to the parser: refuses deep nesting and keys that stand twice, which a tree of values would not show.
class Structure {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxFileDepth)
          throw broken(Rule::file_limit, who(place()), fmt::format("a level below level {}", kMaxFileDepth),
                       fmt::format("{} levels at most", kMaxFileDepth));
        open_.push_back({.is_array = event == Json::parse_event_t::array_start, .index = 0, .key = {}, .keys = {}});
        break;
      case Json::parse_event_t::key: {
        Open& here = open_.back();
        here.key = parsed.get_ref<const std::string&>();
        if (!here.keys.insert(here.key).second) throw broken(Rule::file_duplicate_key, who(place()), "it twice", "it once");
        break;
      }
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end: open_.pop_back(); [[fallthrough]];
      case Json::parse_event_t::value:
        if (!open_.empty() && open_.back().is_array) ++open_.back().index;
        break;
    }
    return true;
  }

 private:
  struct Open {
    bool is_array;
    std::size_t index;
    std::string key;
    std::set<std::string> keys;
  };
  std::string place() const {
    std::string s;
    for (const Open& o : open_) s = o.is_array ? below(s, o.index) : below(s, o.key);
    return s;
  }
  std::vector<Open> open_;
};

Json parse(std::string_view text) {
  if (text.size() > static_cast<std::size_t>(kMaxFileBytes))
    throw broken(Rule::file_limit, "graph file", fmt::format("{} bytes", text.size()), fmt::format("{} at most", kMaxFileBytes));
  Structure structure;
  const auto listen = [&](int depth, Json::parse_event_t event, Json& parsed) { return structure(depth, event, parsed); };
  try {
    return Json::parse(text.begin(), text.end(), listen);
  } catch (const Json::parse_error& e) {
    std::string why = e.what();
    if (const auto at = why.find("] "); at != std::string::npos) why.erase(0, at + 2);
    for (char& c : why)
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7E) c = '?';
    if (why.size() > 200) why = why.substr(0, 200) + "…";
    throw broken(Rule::file_json, fmt::format("graph file, byte {}", e.byte), std::move(why), "JSON text");
  } catch (const Json::out_of_range&) {
    throw broken(Rule::file_number, "graph file", "a number beyond the range of fp64", "numbers that fp64 holds");
  }
}

Error wrong_type(const Json& j, const std::string& place, std::string want) {
  return broken(Rule::file_type, who(place), shown(j), std::move(want));
}

std::int64_t read_int(const Json& j, const std::string& place) {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool huge = (j.is_number_unsigned() && j.get<std::uint64_t>() > kLargest) ||
                    (j.is_number_float() && std::abs(j.get<double>()) >= 0x1p63);
  if (huge) throw broken(Rule::file_number, who(place), shown(j), "an integer of 64 bits");
  if (!j.is_number_integer()) throw wrong_type(j, place, "an integer");
  return j.get<std::int64_t>();
}

double read_double(const Json& j, const std::string& place) {
  if (j.is_number()) return j.get<double>();
  if (j.is_string()) {
    const auto& s = j.get_ref<const std::string&>();
    if (s == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (s == "-nan") return -std::numeric_limits<double>::quiet_NaN();
    if (s == "inf") return std::numeric_limits<double>::infinity();
    if (s == "-inf") return -std::numeric_limits<double>::infinity();
  }
  throw wrong_type(j, place, R"(a number, "nan", "inf" or "-inf")");
}

float read_float(const Json& j, const std::string& place) {
  const double v = read_double(j, place);
  // From here on a double rounds to infinity.
  if (std::isfinite(v) && std::abs(v) >= 0x1.ffffffp127)
    throw broken(Rule::file_number, who(place), shown(j), "a number that fp32 holds");
  return static_cast<float>(v);
}

bool read_bool(const Json& j, const std::string& place) {
  if (!j.is_boolean()) throw wrong_type(j, place, "true or false");
  return j.get<bool>();
}

const std::string& read_text(const Json& j, const std::string& place) {
  if (!j.is_string()) throw wrong_type(j, place, "a string");
  return j.get_ref<const std::string&>();
}

DataType read_type(const Json& j, const std::string& place) {
  const std::string& name = read_text(j, place);
  const DataType t = dtype_from_name(name);
  if (t == DataType::not_set) throw broken(Rule::file_word, who(place), shown(j), "a data type, such as fp32, bf16 or int8");
  return t;
}

const Json& read_array(const Json& j, const std::string& place, std::size_t most, std::string_view of_what) {
  if (!j.is_array()) throw wrong_type(j, place, fmt::format("an array of {}", of_what));
  if (j.size() > most)
    throw broken(Rule::file_limit, who(place), fmt::format("{} {}", j.size(), of_what), fmt::format("{} at most", most));
  return j;
}

std::vector<std::int64_t> read_ints(const Json& j, const std::string& place) {
  read_array(j, place, kMaxFileList, "integers");
  if (j.empty()) throw wrong_type(j, place, "one integer at least, or no such key");
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < j.size(); ++i) out.push_back(read_int(j[i], below(place, i)));
  return out;
}

/// An object with a known set of keys.
class Object {
 public:
  Object(const Json& j, std::string place) : j_(j), place_(std::move(place)) {
    if (!j.is_object()) throw wrong_type(j, place_, "an object");
  }
  void allow(const std::vector<std::string_view>& known) const {
    for (const auto& [key, value] : j_.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        throw broken(Rule::file_unknown_key, who(below(place_, key)), "a key that is not known here",
                     fmt::format("one of {}", fmt::join(known, ", ")));
  }
  const Json& need(const char* key) const {
    const auto it = j_.find(key);
    if (it == j_.end()) throw broken(Rule::file_missing_key, who(place_), fmt::format("no {}", key), "one");
    return *it;
  }
  /// Reads the value of a key that may be left out.
  template <class F>
  bool with(const char* key, F&& read) const {
    const auto it = j_.find(key);
    if (it == j_.end()) return false;
    read(*it, below(place_, key));
    return true;
  }
  std::string at(std::string_view key) const { return below(place_, key); }

 private:
  const Json& j_;
  std::string place_;
};

TensorData read_tensor(const Json& j, std::string place) {
  const Object o(j, std::move(place));
  o.allow({"name", "uid", "dim", "stride", "data_type", "reordering", "output", "pass_by_value", "value", "by_pointers"});
  TensorData t;
  o.with("name", [&](const Json& v, const std::string& p) { t.name = read_text(v, p); });
  t.uid_is_users = o.with("uid", [&](const Json& v, const std::string& p) { t.uid = read_int(v, p); });
  t.dim_is_users = o.with("dim", [&](const Json& v, const std::string& p) { t.dim = read_ints(v, p); });
  t.stride_is_users = o.with("stride", [&](const Json& v, const std::string& p) { t.stride = read_ints(v, p); });
  t.dtype_is_users = o.with("data_type", [&](const Json& v, const std::string& p) { t.dtype = read_type(v, p); });
  o.with("reordering", [&](const Json& v, const std::string& p) {
    const auto r = reordering_from_name(read_text(v, p));
    if (!r) throw broken(Rule::file_word, who(p), shown(v), "none or f8_128x4");
    t.reordering = *r;
  });
  o.with("value", [&](const Json& v, const std::string& p) { t.value = read_double(v, p); });
  t.by_value = t.value.has_value();
  o.with("pass_by_value", [&](const Json& v, const std::string& p) { t.by_value = read_bool(v, p); });
  o.with("by_pointers", [&](const Json& v, const std::string& p) { t.by_pointers = read_bool(v, p); });
  return t;
}

/// What nodes call the tensors: by uid, or by a name that only one has.
class Directory {
 public:
  void add(const TensorData& t, int index, const std::string& place) {
    if (t.uid_is_users) {
      const auto [it, fresh] = by_uid_.emplace(t.uid, index);
      if (!fresh)
        throw broken(Rule::file_duplicate_uid, who(below(place, "uid")), fmt::format("{}, as in /tensors/{}", t.uid, it->second),
                     "a uid of its own");
    }
    if (t.name.empty()) return;
    const auto [it, fresh] = by_name_.emplace(t.name, index);
    if (!fresh) it->second = kSeveral;
  }
  int find(const Json& j, const std::string& place) const {
    if (j.is_string()) {
      const auto it = by_name_.find(j.get_ref<const std::string&>());
      if (it != by_name_.end() && it->second != kSeveral) return it->second;
      throw broken(Rule::file_reference, who(place), shown(j),
                   it == by_name_.end() ? "the name or uid of a listed tensor" : "a name that only one tensor has, or a uid");
    }
    const auto it = by_uid_.find(read_reference(j, place));
    if (it == by_uid_.end()) throw broken(Rule::file_reference, who(place), shown(j), "the name or uid of a listed tensor");
    return it->second;
  }

 private:
  static constexpr int kSeveral = -1;
  static std::int64_t read_reference(const Json& j, const std::string& place) {
    if (!j.is_number()) throw wrong_type(j, place, "a name or a uid");
    return read_int(j, place);
  }
  std::map<std::int64_t, int> by_uid_;
  std::map<std::string, int> by_name_;
};

std::vector<std::string_view> node_keys(std::initializer_list<std::string_view> more) {
  std::vector<std::string_view> keys = {"op", "name", "inputs", "output", "compute_data_type"};
  keys.insert(keys.end(), more);
  return keys;
}

int read_axis(const Json& v, const std::string& place) {
  const std::int64_t axis = read_int(v, place);
  if (axis < std::numeric_limits<int>::min() || axis > std::numeric_limits<int>::max())
    throw broken(Rule::file_number, who(place), shown(v), "an axis");
  return static_cast<int>(axis);
}

void read_grouped(const Object& o, NodeData& n) {
  o.with("offsets", [&](const Json& v, const std::string& p) {
    const auto offsets = moe_offsets_from_name(read_text(v, p));
    if (!offsets) throw broken(Rule::file_word, who(p), shown(v), "first_token or end");
    n.moe_offsets = *offsets;
  });
  if (n.kind == NodeKind::moe_grouped_matmul_bwd) {
    o.allow(node_keys({"offsets", "accumulate"}));
    o.with("accumulate", [&](const Json& v, const std::string& p) { n.accumulate = read_bool(v, p); });
    return;
  }
  o.allow(node_keys({"mode", "offsets", "top_k", "zero_fill"}));
  o.with("mode", [&](const Json& v, const std::string& p) {
    const auto mode = moe_mode_from_name(read_text(v, p));
    if (!mode) throw broken(Rule::file_word, who(p), shown(v), "none, gather, scatter or combine");
    n.moe_mode = *mode;
  });
  o.with("top_k", [&](const Json& v, const std::string& p) { n.top_k = read_int(v, p); });
  o.with("zero_fill", [&](const Json& v, const std::string& p) { n.zero_fill = read_bool(v, p); });
}

void read_op(const Object& o, NodeData& n) {
  const std::string& op = read_text(o.need("op"), o.at("op"));
  if (op == "matmul") {
    n.kind = NodeKind::matmul;
    o.allow(node_keys({"padding", "fast_accumulation"}));
    o.with("padding", [&](const Json& v, const std::string& p) { n.padding = read_double(v, p); });
    o.with("fast_accumulation", [&](const Json& v, const std::string& p) { n.fast_accumulation = read_bool(v, p); });
  } else if (op == "reduction") {
    n.kind = NodeKind::reduction;
    o.allow(node_keys({"mode"}));
    const auto mode = reduction_from_name(read_text(o.need("mode"), o.at("mode")));
    if (!mode) throw broken(Rule::file_word, who(o.at("mode")), shown(o.need("mode")), "a reduction mode, such as add or max");
    n.reduction = *mode;
  } else if (op == "block_scale_dequantize") {
    n.kind = NodeKind::block_scale_dequantize;
    o.allow(node_keys({"block_size", "is_negative_scale"}));
    n.block_size = read_ints(o.need("block_size"), o.at("block_size"));
    o.with("is_negative_scale", [&](const Json& v, const std::string& p) { n.is_negative_scale = read_bool(v, p); });
  } else if (op == "block_scale_quantize") {
    n.kind = NodeKind::block_scale_quantize;
    o.allow(node_keys({"block_size", "axis", "transpose", "vmax", "scale"}));
    n.block_size = {read_int(o.need("block_size"), o.at("block_size"))};
    o.with("axis", [&](const Json& v, const std::string& p) { n.axis = read_axis(v, p); });
    o.with("transpose", [&](const Json& v, const std::string& p) { n.transpose = read_bool(v, p); });
    o.with("vmax", [&](const Json& v, const std::string& p) { n.vmax = read_double(v, p); });
  } else if (op == "take_runs") {
    n.kind = NodeKind::take_runs;
    o.allow(node_keys({"length", "second"}));
    n.run = read_int(o.need("length"), o.at("length"));
    o.with("second", [&](const Json& v, const std::string& p) { n.second_runs = read_bool(v, p); });
  } else if (op == "rope") {
    n.kind = NodeKind::rope;
    o.allow(node_keys({"head"}));
    n.head = read_int(o.need("head"), o.at("head"));
  } else if (op == "moe_grouped_matmul" || op == "moe_grouped_matmul_bwd") {
    n.kind = op == "moe_grouped_matmul" ? NodeKind::moe_grouped_matmul : NodeKind::moe_grouped_matmul_bwd;
    read_grouped(o, n);
  } else {
    const auto mode = pointwise_from_name(op);
    if (!mode)
      throw broken(Rule::file_word, who(o.at("op")), shown(o.need("op")),
                   "matmul, moe_grouped_matmul, moe_grouped_matmul_bwd, reduction, block_scale_dequantize, block_scale_quantize, "
                   "take_runs, rope or a pointwise mode");
    n.pointwise = *mode;
    o.allow(node_keys({"lower_clip", "upper_clip", "negative_slope", "alpha", "beta", "axis"}));
    PointwiseParameters& q = n.parameters;
    o.with("lower_clip", [&](const Json& v, const std::string& p) { q.lower_clip = read_float(v, p); });
    o.with("upper_clip", [&](const Json& v, const std::string& p) { q.upper_clip = read_float(v, p); });
    o.with("negative_slope", [&](const Json& v, const std::string& p) { q.negative_slope = read_float(v, p); });
    o.with("alpha", [&](const Json& v, const std::string& p) { q.alpha = read_float(v, p); });
    o.with("beta", [&](const Json& v, const std::string& p) { q.beta = read_float(v, p); });
    o.with("axis", [&](const Json& v, const std::string& p) { q.axis = read_axis(v, p); });
  }
}

NodeData read_node(const Json& j, std::string place, const Directory& directory, std::size_t index) {
  const Object o(j, std::move(place));
  NodeData n;
  read_op(o, n);
  o.with("name", [&](const Json& v, const std::string& p) { n.name = read_text(v, p); });
  if (n.name.empty()) n.name = default_name(n, index);
  n.compute_is_users = o.with("compute_data_type", [&](const Json& v, const std::string& p) { n.compute = read_type(v, p); });
  const std::string inputs = o.at("inputs");
  const Json& list = read_array(o.need("inputs"), inputs, kMaxFileList, "names or uids");
  for (std::size_t i = 0; i < list.size(); ++i) n.inputs.push_back(directory.find(list[i], below(inputs, i)));
  n.output = directory.find(o.need("output"), o.at("output"));
  if (n.kind == NodeKind::block_scale_quantize) n.scale = directory.find(o.need("scale"), o.at("scale"));
  return n;
}

void read_version(const Object& o) {
  const Json& version = o.need("verglas_graph");
  if (!version.is_number_integer()) throw wrong_type(version, o.at("verglas_graph"), "the version, an integer");
  if (version != 1) throw broken(Rule::file_version, who(o.at("verglas_graph")), "version " + shown(version), "1");
}

}  // namespace

GraphData load(std::string_view text) {
  const Json root = parse(text);
  const Object o(root, "");
  read_version(o);  // first: a later version may have other keys
  o.allow({"verglas_graph", "name", "io_data_type", "intermediate_data_type", "compute_data_type", "tensors", "nodes"});
  GraphData g;
  o.with("name", [&](const Json& v, const std::string& p) { g.name = read_text(v, p); });
  o.with("io_data_type", [&](const Json& v, const std::string& p) { g.io = read_type(v, p); });
  o.with("intermediate_data_type", [&](const Json& v, const std::string& p) { g.intermediate = read_type(v, p); });
  o.with("compute_data_type", [&](const Json& v, const std::string& p) { g.compute = read_type(v, p); });

  Directory directory;
  const Json& tensors = read_array(o.need("tensors"), o.at("tensors"), kMaxFileTensors, "tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string place = below(o.at("tensors"), i);
    g.tensors.push_back(read_tensor(tensors[i], place));
    directory.add(g.tensors.back(), static_cast<int>(i), place);
  }
  const Json& nodes = read_array(o.need("nodes"), o.at("nodes"), kMaxFileNodes, "nodes");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    g.nodes.push_back(read_node(nodes[i], below(o.at("nodes"), i), directory, i));
    for (const int result : {g.nodes.back().output, g.nodes.back().scale})
      if (result >= 0) g.tensors[static_cast<std::size_t>(result)].producer = static_cast<int>(i);
  }
  // What a node computes stays inside unless the file says otherwise; an input is never virtual unless it says so.
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorData& t = g.tensors[i];
    t.is_virtual = t.producer >= 0;
    if (const auto it = tensors[i].find("output"); it != tensors[i].end())
      t.is_virtual = !read_bool(*it, below(below(o.at("tensors"), i), "output"));
  }
  assign_uids(g);
  return g;
}

}  // namespace graph

Graph Graph::from_json(std::string_view text) { return Graph(std::make_shared<graph::GraphData>(graph::load(text))); }

}  // namespace verglas
