#include "oracle/judge.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace oracle {

namespace {

using Dims = std::vector<std::int64_t>;

/// How a tensor takes part. One tensor may have several roles.
/// groups, experts, rows: operands of one axis, of that length. scores: (rows of the result, slots).
enum class Role { first, second, groups, experts, rows, scores, aux, dense, reduction, scale, made_scale };

struct Part {
  int tensor;
  Role role;
  int node = -1;  // of scales: the node that reads or makes them
};

int maker_of(const Graph& graph, int tensor) {
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (graph.nodes[n].output == tensor || graph.nodes[n].scale == tensor) return static_cast<int>(n);
  return -1;
}

bool all_ones(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](std::int64_t d) { return d == 1; });
}

Dims three(Dims dims) {
  while (dims.size() < 3) dims.insert(dims.begin(), 1);
  return dims;
}

bool is_grouped(const Node& node) { return node.kind == NodeKind::grouped || node.kind == NodeKind::grouped_gradient; }
bool is_product(const Node& node) { return node.kind == NodeKind::matmul || is_grouped(node); }
bool is_vector(Role role) { return role == Role::groups || role == Role::experts || role == Role::rows || role == Role::scores; }

std::int64_t product_of(const Dims& dims) {
  std::int64_t n = 1;
  for (const std::int64_t d : dims)
    if (d != 1) n = n == 1 ? d : std::max(n, d);
  return n;
}

/// Tokens of scores (tokens, slots); of extents that are none any number.
std::int64_t tokens_of(const Dims& scores, std::int64_t slots) {
  std::int64_t n = 1;
  for (const std::int64_t d : scores)
    if (__builtin_mul_overflow(n, d, &n)) return -1;
  return n / slots;
}

/// What a call passes for a tensor, as declared.
struct Declared {
  Format format;
  Dims dims, strides;
};
Declared declaration(const Tensor& t) {
  if (t.is_table) return {Format::int64, {t.dims[0]}, {1}};
  return {t.format, t.dims, t.strides};
}

bool is_input(const Graph& graph, int tensor) { return maker_of(graph, tensor) < 0; }

/// The graph input at the root of an operand's prologue: back along the operand that is no scalar.
int root_of(const Graph& graph, int tensor, std::set<int>& scalars) {
  for (std::size_t guard = 0; guard <= graph.nodes.size(); ++guard) {
    const int maker = maker_of(graph, tensor);
    if (maker >= 0 && graph.nodes[static_cast<std::size_t>(maker)].kind == NodeKind::dequantize)
      return graph.nodes[static_cast<std::size_t>(maker)].inputs[0];
    if (maker < 0 || graph.nodes[static_cast<std::size_t>(maker)].kind != NodeKind::pointwise) return tensor;
    const std::vector<int>& inputs = graph.nodes[static_cast<std::size_t>(maker)].inputs;
    int next = inputs[0];
    for (int i : inputs)
      if (!all_ones(graph.tensors[static_cast<std::size_t>(i)].dims)) next = i;
    for (int i : inputs)
      if (i != next && is_input(graph, i)) scalars.insert(i);
    tensor = next;
  }
  return tensor;
}

std::vector<Part> parts_of(const Graph& graph) {
  std::vector<Part> parts;
  const auto put = [&](int tensor, Role role, int node = -1) {
    for (const Part& p : parts)
      if (p.tensor == tensor && p.role == role && p.node == node) return;
    parts.push_back({tensor, role, node});
  };
  std::set<int> prologue, scalars;
  for (const Node& node : graph.nodes) {
    if (!is_product(node)) continue;
    for (std::size_t i = 2; i < node.inputs.size(); ++i)
      put(node.inputs[i], i == 2 ? Role::groups : i == 5 ? Role::scores : Role::rows);
    for (std::size_t side = 0; side < 2; ++side) {
      if (graph.tensors[static_cast<std::size_t>(node.inputs[side])].is_table) {
        put(node.inputs[side], Role::experts);
        continue;
      }
      const int root = root_of(graph, node.inputs[side], scalars);
      put(root, side == 0 ? Role::first : Role::second);
      for (int t = node.inputs[side]; t != root;) {
        prologue.insert(t);
        const Node& maker = graph.nodes[static_cast<std::size_t>(maker_of(graph, t))];
        int next = maker.inputs[0];
        for (int i : maker.inputs)
          if (maker.kind == NodeKind::pointwise && !all_ones(graph.tensors[static_cast<std::size_t>(i)].dims)) next = i;
        t = next;
      }
    }
  }
  for (int t : scalars) put(t, Role::aux);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (graph.nodes[n].kind == NodeKind::dequantize) put(graph.nodes[n].inputs[1], Role::scale, static_cast<int>(n));
  for (const Node& node : graph.nodes) {
    if (is_product(node) || prologue.count(node.output)) continue;
    for (int i : node.inputs)
      if (node.kind == NodeKind::reduction && i != node.inputs[0])
        continue;
      else if (is_input(graph, i) && !graph.tensors[static_cast<std::size_t>(i)].value)
        put(i, Role::aux);
  }
  for (const Node& node : graph.nodes)
    if (graph.tensors[static_cast<std::size_t>(node.output)].is_output)
      put(node.output, node.kind == NodeKind::reduction ? Role::reduction : Role::dense);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (graph.nodes[n].kind == NodeKind::quantize) put(graph.nodes[n].scale, Role::made_scale, static_cast<int>(n));
  std::erase_if(parts, [&](const Part& p) { return graph.tensors[static_cast<std::size_t>(p.tensor)].value.has_value(); });
  return parts;
}

bool multiply(std::int64_t a, std::int64_t b, std::int64_t& out) { return !__builtin_mul_overflow(a, b, &out); }

/// Bytes from the first to behind the last element; nothing when it passes int64.
std::optional<std::int64_t> bytes_reached(const Buffer& b) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < b.dims.size(); ++i) {
    std::int64_t step = 0;
    if (b.dims[i] == 1) continue;
    if (!multiply(b.dims[i] - 1, b.strides[i], step) || __builtin_add_overflow(last, step, &last)) return {};
  }
  if (__builtin_add_overflow(last, 1, &last)) return {};
  const int bits = bits_of(b.format);
  if (bits < 8) return last / 2 + last % 2;
  std::int64_t bytes = 0;
  return multiply(last, bits / 8, bytes) ? std::optional<std::int64_t>(bytes) : std::nullopt;
}

bool is_empty(const Buffer& b) { return std::find(b.dims.begin(), b.dims.end(), 0) != b.dims.end(); }

bool count_fits(const Dims& dims) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return true;
  std::int64_t count = 1;
  for (std::int64_t d : dims)
    if (!multiply(count, d, count)) return false;
  return true;
}

bool is_byte_carrier(Format declared, Format given) {
  return given == Format::uint8 && (declared == Format::e4m3 || declared == Format::e5m2 || declared == Format::e8m0);
}

/// A matrix with its axes as (batch, M or N, K), an output as (batch, M, N).
struct Layout {
  Dims dims, strides;
};

Layout layout_of(Role role, const Dims& dims, const Dims& strides, bool kernel_order) {
  Layout v{three(dims), strides};
  while (v.strides.size() < 3) v.strides.insert(v.strides.begin(), 0);
  if (role == Role::second && !kernel_order) {
    std::swap(v.dims[1], v.dims[2]);
    std::swap(v.strides[1], v.strides[2]);
  }
  return v;
}

struct Pieces {
  std::size_t axis = 2;    // the contiguous one
  std::int64_t bytes = 0;  // 0: single elements, which ask for nothing
  bool is_limited = false;
};

constexpr std::int64_t kStrideLimit = std::int64_t{1} << 40;

Pieces pieces_along(std::size_t axis, const Layout& declared, std::int64_t element) {
  Pieces p;
  p.axis = axis;
  const auto whole = [&](std::int64_t unit) {
    for (std::size_t i = 0; i < 3; ++i)
      if (i != p.axis && declared.dims[i] > 1 && declared.strides[i] * element % unit != 0) return false;
    return true;
  };
  for (const std::int64_t unit : {16, 8, 4})
    if (p.bytes == 0 && unit > element && whole(unit)) p.bytes = unit;
  p.is_limited = p.bytes == 16;
  for (std::size_t i = 0; i < 3; ++i)
    if (i != p.axis && declared.dims[i] > 1 &&
        (declared.strides[i] * element >= kStrideLimit || (i > 0 && declared.strides[i] == 0)))
      p.is_limited = false;
  return p;
}

Pieces pieces_of(const Layout& declared, Role role, std::int64_t element) {
  if (declared.dims[1] == 0 || declared.dims[2] == 0) return {};
  const auto runs = [&](std::size_t axis) { return declared.dims[axis] == 1 || declared.strides[axis] == 1; };
  const Pieces along_2 = runs(2) ? pieces_along(2, declared, element) : Pieces{};
  const Pieces along_1 = runs(1) ? pieces_along(1, declared, element) : Pieces{};
  if (role == Role::dense) return !along_2.is_limited && along_1.is_limited ? along_1 : along_2;
  return runs(2) ? along_2 : along_1;
}

struct Domain {
  std::optional<std::int64_t> l, m, n, k;
  std::optional<std::int64_t> g, e, t;  // of grouped products: groups, experts, rows of tokens where these are not M
};

class Court {
 public:
  Court(const Graph& graph, const std::vector<Binding>& call, const JudgeOptions& options)
      : graph_(graph), options_(options), parts_(parts_of(graph)) {
    bind(call);
  }

  Verdict decide() {
    std::set<int> seen;
    for (const Part& p : parts_)
      if (buffers_.count(p.tensor) && seen.insert(p.tensor).second) look_at(p);
    declared_domain_ = find_declared_domain();
    const Domain live = find_live_domain();
    for (const Part& p : parts_)
      if (sound_.count(p.tensor)) fit(p, live);
    if (options_.moves_pieces)
      for (const Part& p : parts_)
        if (ranked_.count(p.tensor)) travel(p);
    if (options_.current_device_id >= 0 && options_.current_device_id != options_.device_id)
      verdict_.faults.push_back({"current_device", "call"});
    if (options_.tile_m > 0 && live.l && live.m && live.n) {
      const auto tiles = [](std::int64_t extent, std::int64_t tile) { return static_cast<double>((extent - 1) / tile + 1); };
      const bool none = *live.l == 0 || *live.m == 0 || *live.n == 0;  // doubles are exact where it matters: near 2^31
      if (!none && tiles(*live.m, options_.tile_m) * tiles(*live.n, options_.tile_n) * static_cast<double>(*live.l) >= 0x1p31)
        verdict_.faults.push_back({"grid", "call"});
    }
    for (const Part& p : parts_)
      if (is_output(p) && sound_.count(p.tensor)) keep_apart(p);
    return verdict_;
  }

 private:
  static bool is_output(const Part& p) {
    return p.role == Role::dense || p.role == Role::reduction || p.role == Role::made_scale;
  }
  static bool is_scale(const Part& p) { return p.role == Role::scale || p.role == Role::made_scale; }
  bool is_blob(const Part& p) const { return is_scale(p) && tensor(p.tensor).is_interleaved; }
  const Tensor& tensor(int i) const { return graph_.tensors[static_cast<std::size_t>(i)]; }
  void fault(const std::string& rule, int i) {
    const Tensor& t = tensor(i);
    Fault f{rule, t.name.empty() ? "uid " + std::to_string(t.uid) : t.name};
    if (std::find(verdict_.faults.begin(), verdict_.faults.end(), f) == verdict_.faults.end()) verdict_.faults.push_back(f);
  }

  void bind(const std::vector<Binding>& call) {
    for (const Binding& b : call) {
      int found = -1;
      for (const Part& p : parts_)
        if (tensor(p.tensor).uid == b.uid) found = p.tensor;
      if (found < 0) {
        verdict_.faults.push_back({"unknown", "uid " + std::to_string(b.uid)});
      } else if (!buffers_.emplace(found, b.buffer).second) {
        fault("duplicate", found);
      }
    }
    for (const Part& p : parts_) {
      const auto at = buffers_.find(p.tensor);
      if (at == buffers_.end()) {
        fault("missing", p.tensor);
      } else if (at->second.bare) {
        Buffer& b = at->second;
        bare_.insert(p.tensor);
        b = {.address = b.address,
             .format = declaration(tensor(p.tensor)).format,
             .dims = declaration(tensor(p.tensor)).dims,
             .strides = declaration(tensor(p.tensor)).strides,
             .read_only = b.read_only,
             .device = DeviceKind::unknown};
      }
    }
  }

  /// What can be said of a buffer alone.
  void look_at(const Part& p) {
    Buffer& b = buffers_.at(p.tensor);
    const Tensor& t = tensor(p.tensor);
    const DeviceKind home = t.is_host_scalar ? DeviceKind::cpu : options_.device;
    const bool at_home = b.device == home && (home == DeviceKind::cpu || b.device_id == options_.device_id);
    if (b.device != DeviceKind::unknown && !at_home) fault("device", p.tensor);
    const Format format = declaration(t).format;
    if (b.format != format && !is_byte_carrier(format, b.format)) fault("dtype", p.tensor);
    bool sound = true;
    bool walks_back = false;
    bool only_aux = true;
    for (const Part& q : parts_)
      if (q.tensor == p.tensor && q.role != Role::aux && !is_vector(q.role) && !is_scale(q)) only_aux = false;
    if (!only_aux && b.dims.size() != 2 && b.dims.size() != 3) {
      fault("rank", p.tensor);
      sound = false;
    } else {
      ranked_.insert(p.tensor);
    }
    for (std::size_t i = 0; i < b.dims.size(); ++i) {
      if (b.dims[i] < 0) {
        fault("extent.negative", p.tensor);
        sound = false;
      }
      if (b.dims[i] > options_.max_extent && !is_scale(p)) fault("extent.large", p.tensor);
    }
    const bool empty = is_empty(b);
    for (std::size_t i = 0; i < b.dims.size(); ++i)
      if (!empty && b.dims[i] > 1 && b.strides[i] < 0) {
        fault("stride.negative", p.tensor);
        walks_back = true;
      }
    if (!empty && b.address == 0) fault("null", p.tensor);
    if (b.read_only && maker_of(graph_, p.tensor) >= 0) fault("read_only", p.tensor);
    if (!sound) return;
    sound_.insert(p.tensor);
    if (is_blob(p)) return;  // what counts are its bytes, which follow from the live extents
    if (empty || walks_back) return;
    if (t.format == Format::e2m1 && !is_paired(p, b)) fault("packed", p.tensor);
    if (!count_fits(b.dims) || !bytes_reached(b)) {
      fault("overflow", p.tensor);
      return;
    }
    sized_.insert(p.tensor);
    const auto width = static_cast<std::uint64_t>(std::max(1, bits_of(format) / 8));
    if (b.address % width != 0) fault("alignment", p.tensor);
    if (b.observed_bytes >= 0 && *bytes_reached(b) > b.observed_bytes) fault("span", p.tensor);
  }

  /// fp4: K of a matrix and N of an output hold whole bytes, and every other step is one of whole bytes.
  static bool is_paired(const Part& p, const Buffer& b) {
    std::size_t axis = b.dims.size() - 1;
    if (p.role == Role::second && !b.kernel_order) --axis;
    if (b.dims[axis] % 2 != 0 || (b.dims[axis] > 1 && b.strides[axis] != 1)) return false;
    for (std::size_t i = 0; i < b.dims.size(); ++i)
      if (i != axis && b.dims[i] > 1 && b.strides[i] % 2 != 0) return false;
    return true;
  }

  /// Scales against the live extents: plain ones by their extents, a blob by its bytes.
  void fit_scale(const Part& p, const Domain& live) {
    const Node& node = graph_.nodes[static_cast<std::size_t>(p.node)];
    const bool reads = p.role == Role::scale;
    const int data = reads ? node.inputs[0] : node.output;
    const std::size_t rank = tensor(data).dims.size();
    std::size_t axis = node.block_axis + 3 - rank;
    if (!live.l || !live.m || !live.n || !live.k) return;
    const std::int64_t batches = three(tensor(data).dims)[0] == 1 ? 1 : *live.l;
    Dims dims{batches, *live.m, *live.n};
    if (reads) dims = enters_as_second(node.output) ? Dims{batches, *live.k, *live.n} : Dims{batches, *live.m, *live.k};
    if (!reads && dims[axis] % node.block != 0) fault("blocks", p.tensor);
    const std::int64_t blocks = dims[axis] / node.block + (dims[axis] % node.block != 0);
    dims[axis] = blocks;
    const Buffer& b = buffers_.at(p.tensor);
    if (!is_blob(p)) {
      Dims got = b.dims, want = dims;
      std::erase(got, 1);
      std::erase(want, 1);
      if (got != want) fault("scale.extent", p.tensor);
      return;
    }
    const double rows = static_cast<double>(axis == 2 ? dims[1] : dims[2]);
    const double need =
        static_cast<double>(batches) * std::ceil(rows / 128) * 128 * std::ceil(static_cast<double>(blocks) / 4) * 4;
    double count = 1, last = 0;
    for (std::size_t i = 0; i < b.dims.size(); ++i) {
      count *= static_cast<double>(b.dims[i]);
      if (b.dims[i] > 1) last += static_cast<double>(b.dims[i] - 1) * static_cast<double>(b.strides[i]);
    }
    if (b.dims.empty() || (count > 0 && (last != count - 1 || count >= 0x1p63))) fault("scale.extent", p.tensor);
    if (!is_trusted(p) && count < need) fault("scale.size", p.tensor);
    if (b.observed_bytes >= 0 && need > static_cast<double>(b.observed_bytes)) fault("span", p.tensor);
    if (need > 0 && need < 0x1p62) {
      sized_.insert(p.tensor);
      blob_bytes_[p.tensor] = static_cast<std::int64_t>(need);
    }
  }

  /// A bare address stands for the declaration, whose blob has the bytes that it needs.
  bool is_trusted(const Part& p) const { return bare_.count(p.tensor) != 0; }

  bool enters_as_second(int tensor) const {
    for (const Node& node : graph_.nodes)
      if (node.kind == NodeKind::matmul && node.inputs[0] != tensor && node.inputs[1] == tensor) return true;
    return false;
  }

  std::int64_t bytes_of(int tensor, const Buffer& b) const {
    const auto blob = blob_bytes_.find(tensor);
    return blob != blob_bytes_.end() ? blob->second : *bytes_reached(b);
  }

  Dims find_declared_domain() const {
    for (const Node& node : graph_.nodes)
      if (is_grouped(node)) {
        const Dims a = three(tensor(node.inputs[0]).dims), b = three(tensor(node.inputs[1]).dims);
        const std::int64_t groups = product_of(tensor(node.inputs[2]).dims);
        if (node.kind == NodeKind::grouped_gradient) return {groups, a[2], b[2]};
        if (node.routing == Routing::combine) return {1, tokens_of(tensor(node.inputs[5]).dims, node.top_k), b[2]};
        return {1, node.routing == Routing::gather ? product_of(tensor(node.inputs[3]).dims) : a[1], b[2]};
      }
    for (const Node& node : graph_.nodes)
      if (node.kind == NodeKind::matmul) {
        const Dims a = three(tensor(node.inputs[0]).dims), b = three(tensor(node.inputs[1]).dims);
        return {std::max(a[0], b[0]), a[1], b[2]};
      }
    return {1, 1, 1};
  }

  /// (batch, M, K) or (batch, K, N), whatever order the buffer has.
  Dims read(const Part& p) const {
    const Buffer& b = buffers_.at(p.tensor);
    Dims dims = three(b.dims);
    if (p.role == Role::second && b.kernel_order) std::swap(dims[1], dims[2]);
    return dims;
  }

  const Node* grouped() const {
    for (const Node& node : graph_.nodes)
      if (is_grouped(node)) return &node;
    return nullptr;
  }

  /// Length of an operand of one axis.
  std::optional<std::int64_t> length_of(int index) const {
    if (!sound_.count(index)) return {};
    return product_of(buffers_.at(index).dims);
  }

  Domain find_grouped_domain(const Node& node) const {
    Domain d;
    const bool is_gradient = node.kind == NodeKind::grouped_gradient;
    const bool has_tokens = node.routing == Routing::gather || node.routing == Routing::combine;
    d.g = length_of(node.inputs[2]);
    d.l = is_gradient ? d.g : 1;
    bool by_table = false, first_b = true, first_a = true;
    for (const Part& p : parts_) {
      by_table = by_table || p.role == Role::experts;
      if (p.role == Role::experts && !d.e) d.e = length_of(p.tensor);
      if ((p.role != Role::first && p.role != Role::second)) continue;
      bool& leads = p.role == Role::first ? first_a : first_b;
      if (leads && sound_.count(p.tensor)) {
        const Dims dims = read(p);
        if (p.role == Role::first) {
          (is_gradient ? d.k : has_tokens ? d.t : d.m) = dims[1];
          (is_gradient ? d.m : d.k) = dims[2];
        } else {
          d.n = dims[2];
        }
        if (p.role == Role::second && three(tensor(p.tensor).dims)[0] != 1) d.e = dims[0];
      }
      leads = false;
    }
    if (node.routing == Routing::gather) d.m = length_of(node.inputs[3]);
    if (node.routing == Routing::combine && sound_.count(node.inputs[5]))
      d.m = tokens_of(buffers_.at(node.inputs[5]).dims, node.top_k);
    if (by_table) {
      d.k = three(tensor(node.inputs[0]).dims)[2];
      d.n = declared_domain_[2];
    }
    return d;
  }

  Domain find_live_domain() const {
    if (const Node* node = grouped()) return find_grouped_domain(*node);
    Domain d;
    bool first = true, second = true;
    if (declared_domain_[0] == 1) d.l = 1;
    for (const Part& p : parts_) {
      if (p.role != Role::first && p.role != Role::second) continue;
      bool& leads = p.role == Role::first ? first : second;
      if (sound_.count(p.tensor)) {
        const Dims dims = read(p);
        if (leads && p.role == Role::first) {
          d.m = dims[1];
          d.k = dims[2];
        }
        if (leads && p.role == Role::second) d.n = dims[2];
        if (!d.l && three(tensor(p.tensor).dims)[0] != 1) d.l = dims[0];
      }
      leads = false;
    }
    return d;
  }

  void expect(const std::string& rule, const Part& p, std::int64_t got, std::optional<std::int64_t> want) {
    if (want && got != *want) fault(rule, p.tensor);
  }

  void fit_scores(const Part& p, std::int64_t rows, std::int64_t top_k, Dims got) {
    Dims want{rows, top_k};
    std::erase(want, 1);
    if (got != want) fault("extent.aux", p.tensor);
  }

  void fit_vector(const Part& p, const Domain& live) {
    Dims got = buffers_.at(p.tensor).dims;
    std::erase(got, 1);
    std::optional<std::int64_t> want = p.role == Role::groups ? live.g : p.role == Role::experts ? live.e : live.m;
    if (const Node& node = *grouped(); node.routing == Routing::combine) {
      if (p.role == Role::scores) return fit_scores(p, *live.m, node.top_k, std::move(got));
      if (p.role == Role::rows) want = live.t;
    }
    const Dims declared = declaration(tensor(p.tensor)).dims;
    if (p.role != Role::rows && product_of(declared) == 1) want = 1;  // declared as one, it stays one
    if (got.size() > 1) fault("extent.aux", p.tensor);
    if (want && (*want == 1 ? !got.empty() : got != Dims{*want})) fault("extent.aux", p.tensor);
  }

  void fit_grouped(const Part& p, const Domain& live, bool is_gradient) {
    const Dims dims = read(p), declared = three(tensor(p.tensor).dims);
    const bool is_first = p.role == Role::first;
    expect("extent.batch", p, dims[0], !is_first && declared[0] != 1 ? live.e : std::optional<std::int64_t>(1));
    if (is_gradient) {
      expect("extent.k", p, dims[1], live.k);
      expect(is_first ? "extent.m" : "extent.n", p, dims[2], is_first ? live.m : live.n);
    } else {
      expect(is_first ? "extent.m" : "extent.k", p, dims[1], is_first ? (live.t ? live.t : live.m) : live.k);
      expect(is_first ? "extent.k" : "extent.n", p, dims[2], is_first ? live.k : live.n);
    }
  }

  void fit(const Part& p, const Domain& live) {
    if (is_scale(p)) return fit_scale(p, live);
    if (is_vector(p.role)) return fit_vector(p, live);
    const Buffer& b = buffers_.at(p.tensor);
    const Dims declared = three(tensor(p.tensor).dims);
    const Node* const product = grouped();
    if (product != nullptr && (p.role == Role::first || p.role == Role::second))
      return fit_grouped(p, live, product->kind == NodeKind::grouped_gradient);
    if (p.role == Role::first || p.role == Role::second) {
      const Dims dims = read(p);
      expect("extent.batch", p, dims[0], declared[0] == 1 ? std::optional<std::int64_t>(1) : live.l);
      expect(p.role == Role::first ? "extent.m" : "extent.k", p, dims[1], p.role == Role::first ? live.m : live.k);
      expect(p.role == Role::first ? "extent.k" : "extent.n", p, dims[2], p.role == Role::first ? live.k : live.n);
      return;
    }
    if (!live.l || !live.m || !live.n) return;
    const Dims domain{*live.l, *live.m, *live.n};
    const std::size_t rank = tensor(p.tensor).dims.size();
    Dims want(3, 1);
    for (std::size_t i = 0; i < 3; ++i) {
      bool full = declared[i] == declared_domain_[i] && i + rank >= 3;
      if (i == 0 || p.role == Role::reduction) full = full && declared[i] != 1;
      if (p.role == Role::aux && all_ones(declared)) full = false;
      if (full) want[i] = domain[i];
    }
    if (product != nullptr && product->kind == NodeKind::grouped && product->routing != Routing::combine && rank == 3 &&
        declared[1] == 1 && declared[0] != 1 &&
        declared[0] == product_of(tensor(product->inputs[2]).dims)) {  // a row for each group
      if (!live.g) return;
      want = {*live.g, 1, want[2]};
    }
    if (p.role == Role::aux) {
      Dims got = b.dims;
      std::erase(got, 1);
      std::erase(want, 1);
      if (got != want) fault("extent.aux", p.tensor);
    } else if (three(b.dims) != want) {
      fault("extent.output", p.tensor);
    }
  }

  void travel(const Part& p) {
    if (p.role != Role::first && p.role != Role::second && p.role != Role::dense) return;
    const Tensor& t = tensor(p.tensor);
    const Buffer& b = buffers_.at(p.tensor);
    const std::int64_t element = bits_of(t.format) / 8;
    const Pieces q = pieces_of(layout_of(p.role, t.dims, t.strides, false), p.role, element);
    if (q.bytes == 0 || is_empty(b)) return;
    const Layout v = layout_of(p.role, b.dims, b.strides, b.kernel_order);
    if (v.dims[q.axis] > 1 && v.strides[q.axis] != 1) fault("major", p.tensor);
    for (std::size_t i = 0; i < 3; ++i) {
      std::int64_t bytes = 0;
      if (i == q.axis || v.dims[i] <= 1) continue;
      if (!multiply(v.strides[i], element, bytes) || bytes % q.bytes != 0 || (q.is_limited && bytes >= kStrideLimit))
        fault("outer_stride", p.tensor);
    }
    if (b.address % static_cast<std::uint64_t>(q.bytes) != 0) fault("alignment", p.tensor);
  }

  void keep_apart(const Part& p) {
    const Buffer& b = buffers_.at(p.tensor);
    if (is_empty(b) && !is_blob(p)) return;
    bool zero = false;
    for (std::size_t i = 0; i < b.dims.size(); ++i) zero = zero || (b.dims[i] > 1 && b.strides[i] == 0);
    if (!sized_.count(p.tensor)) return;
    if (!is_blob(p) && !is_injective(b.dims, b.strides)) fault(zero ? "zero_stride_output" : "alias_output", p.tensor);
    if (b.address == 0) return;
    for (const auto& [other, o] : buffers_) {
      if (other == p.tensor || !sized_.count(other) || o.address == 0) continue;
      const std::uint64_t end = b.address + static_cast<std::uint64_t>(bytes_of(p.tensor, b));
      const std::uint64_t other_end = o.address + static_cast<std::uint64_t>(bytes_of(other, o));
      if (b.address < other_end && o.address < end && !are_interleaved(p.tensor, other)) fault("overlap", p.tensor);
    }
  }

  bool is_stored(int index) const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [&](const Part& p) { return p.tensor == index && (p.role == Role::dense || p.role == Role::reduction); });
  }

  /// Two outputs that are the two halves of one tensor, whose axes besides that one they share.
  bool are_interleaved(int one, int two) const {
    if (!is_stored(one) || !is_stored(two) || bits_of(tensor(one).format) != bits_of(tensor(two).format)) return false;
    if (bits_of(tensor(one).format) < 8) return false;  // pairs share bytes
    const auto padded = [](const Buffer& b) {
      std::vector<std::pair<std::int64_t, std::int64_t>> axes(3 - b.dims.size(), {1, 0});
      for (std::size_t i = 0; i < b.dims.size(); ++i) axes.emplace_back(b.dims[i], b.dims[i] > 1 ? b.strides[i] : 0);
      return axes;
    };
    const Buffer& x = buffers_.at(one);
    const Buffer& y = buffers_.at(two);
    if (padded(x) != padded(y)) return false;
    const std::int64_t element = bits_of(tensor(one).format) / 8;
    const auto apart = static_cast<std::int64_t>(std::max(x.address, y.address) - std::min(x.address, y.address));
    if (apart % element != 0) return false;
    Dims dims = x.dims, strides = x.strides;
    dims.push_back(2);
    strides.push_back(apart / element);
    return is_injective(dims, strides);
  }

  const Graph& graph_;
  const JudgeOptions& options_;
  std::vector<Part> parts_;
  std::map<int, Buffer> buffers_;
  std::set<int> ranked_;                    // tensors whose axes have names
  std::set<int> sound_;                     // tensors whose extents and strides may be read
  std::set<int> sized_;                     // of these, the ones with elements and an end in memory
  std::set<int> bare_;                      // passed as an address alone
  std::map<int, std::int64_t> blob_bytes_;  // of blobs of scales: all their atoms
  Dims declared_domain_;
  Verdict verdict_;
};

}  // namespace

bool Verdict::breaks(const std::string& rule) const {
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& f) { return f.rule == rule; });
}

bool Verdict::breaks(const std::string& rule, const std::string& operand) const {
  return std::find(faults.begin(), faults.end(), Fault{rule, operand}) != faults.end();
}

std::set<std::string> Verdict::rules() const {
  std::set<std::string> all;
  for (const Fault& f : faults) all.insert(f.rule);
  return all;
}

std::string Verdict::text() const {
  if (legal()) return "legal";
  std::string all;
  for (const Fault& f : faults) all += (all.empty() ? "" : ", ") + f.rule + " (" + f.operand + ")";
  return all;
}

bool is_injective(const Dims& dims, const Dims& strides) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride, extent
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (dims[i] > 1) axes.emplace_back(strides[i], dims[i]);
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (stride <= reach) return false;
    reach += (extent - 1) * stride;
  }
  return true;
}

Buffer as_declared(const Tensor& tensor, std::uint64_t address) {
  Buffer b;
  b.address = address;
  b.format = tensor.format;
  b.dims = tensor.dims;
  b.strides = tensor.strides;
  return b;
}

Verdict judge(const Graph& graph, const std::vector<Binding>& call, const JudgeOptions& options) {
  return Court(graph, call, options).decide();
}

}  // namespace oracle
