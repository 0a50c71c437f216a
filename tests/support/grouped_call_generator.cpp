#include <algorithm>
#include <limits>
#include <numeric>

#include "oracle/grouped.hpp"
#include "support/grouped_generator.hpp"

namespace support {
namespace {

using oracle::Format;
using oracle::Routing;
using Dims = std::vector<std::int64_t>;

constexpr std::size_t at(Axis a) { return static_cast<std::size_t>(a); }

const oracle::Node& product_of(const Case& c) {
  for (const oracle::Node& n : c.reference.nodes)
    if (n.kind == oracle::NodeKind::grouped || n.kind == oracle::NodeKind::grouped_gradient) return n;
  return c.reference.nodes.front();
}

/// Along which offsets lie.
Axis rows_of(const oracle::Node& n) {
  return n.kind == oracle::NodeKind::grouped_gradient ? Axis::k : n.routing == Routing::combine ? Axis::t : Axis::m;
}

bool has_table(const Case& c) {
  return std::any_of(c.operands.begin(), c.operands.end(), [](const CaseOperand& o) { return o.duty == Duty::table; });
}

Extents draw_live(const Case& c, Random& r) {
  Extents live = c.declared;
  if (r.chance(30)) return live;
  const bool fixed = has_table(c);
  for (const Axis a : {Axis::m, Axis::n, Axis::k, Axis::t}) {
    if (r.chance(40) || (fixed && (a == Axis::n || a == Axis::k))) continue;
    const std::int64_t unit = c.unit[at(a)], drawn = r.chance(6) ? 0 : r.between(1, 50);
    live[at(a)] = unit > 1 ? (drawn + unit - 1) / unit * unit : drawn;
  }
  const oracle::Node& n = product_of(c);
  if (n.kind != oracle::NodeKind::grouped_gradient && r.chance(10)) live[at(rows_of(n))] = r.between(200, 700);
  if (c.declared[at(Axis::g)] != 1) live[at(Axis::g)] = r.chance(5) ? 0 : r.chance(10) ? r.between(1, 90) : r.between(1, 8);
  if (c.declared[at(Axis::e)] != 1) live[at(Axis::e)] = r.between(1, 8);
  return live;
}

/// Sizes 0 … 300 where there are as many rows, skewed or even, with rows before the first or behind the last that nobody owns.
struct Groups {
  Dims offsets, index, slot;
  bool has_faults = false;
};

std::int64_t& some(Dims& v, Random& r) {
  return v[static_cast<std::size_t>(r.between(0, static_cast<std::int64_t>(v.size()) - 1))];
}

Groups draw_groups(const Case& c, const Extents& live, Random& r) {
  const oracle::Node& n = product_of(c);
  const std::int64_t rows = live[at(rows_of(n))];
  const std::int64_t groups = live[at(Axis::g)];
  Groups g;
  const int shape = static_cast<int>(r.between(0, 4));
  for (std::int64_t i = 0; i < groups; ++i) {
    std::int64_t o = r.between(0, rows);
    if (shape == 1) o = rows - rows / (i + 2);    // skewed
    if (shape == 2) o = r.chance(50) ? 0 : rows;  // nearly all empty
    if (shape == 3) o = (i + (n.are_ends ? 1 : 0)) * rows / groups;
    g.offsets.push_back(o);
  }
  std::sort(g.offsets.begin(), g.offsets.end());
  if (!n.are_ends && groups > 0 && r.chance(50)) g.offsets[0] = 0;
  if (n.are_ends && groups > 0 && r.chance(50)) g.offsets.back() = rows;
  if (groups > 0 && r.chance(8))
    for (std::int64_t i = r.between(1, 3); i > 0; --i)
      some(g.offsets, r) =
          r.pick({std::int64_t{-1}, std::int64_t{-1000}, rows + 1, std::int64_t{2000000000}, r.between(0, rows)});
  std::int64_t before = 0;
  for (const std::int64_t o : g.offsets) {
    g.has_faults |= o < before || o > rows;
    before = std::clamp(o, before, rows);
  }
  const std::vector<int> owner = oracle::owners(g.offsets, n.are_ends, rows);
  if (n.routing == Routing::gather)
    for (std::int64_t i = 0; i < rows; ++i) g.index.push_back(live[at(Axis::t)] > 0 ? r.between(0, live[at(Axis::t)] - 1) : -1);
  std::int64_t tokens = live[at(Axis::t)];
  if (n.routing == Routing::scatter) {
    tokens = rows / n.top_k;
    Dims target(static_cast<std::size_t>(rows));
    std::iota(target.begin(), target.end(), 0);
    r.shuffle(target);
    for (const std::int64_t t : target) {
      g.index.push_back(t < tokens * n.top_k ? t / n.top_k : -1);
      g.slot.push_back(t % n.top_k);
    }
  }
  if (n.routing == Routing::combine) {
    tokens = live[at(Axis::m)];
    for (std::int64_t i = 0; i < rows; ++i) {
      g.index.push_back(tokens > 0 ? r.between(0, tokens - 1) : -1);
      g.slot.push_back(r.between(0, n.top_k - 1));
    }
  }
  for (std::int64_t i = r.chance(15) && !g.index.empty() ? r.between(1, 4) : 0; i > 0; --i) {
    std::int64_t& one = some(r.chance(30) && !g.slot.empty() ? g.slot : g.index, r);
    one = r.pick({std::int64_t{-1}, std::int64_t{-1}, std::int64_t{-2}, rows + 100, std::int64_t{2000000000}});
  }
  for (std::size_t i = 0; i < g.index.size(); ++i) {
    if (owner[i] < 0 || g.index[i] == -1) continue;
    g.has_faults |= g.index[i] < 0 || g.index[i] >= tokens;
    g.has_faults |= !g.slot.empty() && (g.slot[i] < 0 || g.slot[i] >= n.top_k);
  }
  return g;
}

/// Rows of a matrix of tokens that the call reads.
std::vector<bool> read_rows(const Case& c, const Groups& g, std::int64_t rows) {
  const oracle::Node& n = product_of(c);
  std::vector<bool> read(static_cast<std::size_t>(rows), false);
  const bool gathers = n.routing == Routing::gather;
  const auto count = gathers ? static_cast<std::int64_t>(g.index.size()) : rows;
  const std::vector<int> owner = oracle::owners(g.offsets, n.are_ends, count);
  for (std::size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] < 0) continue;
    const std::int64_t row = gathers ? g.index[i] : static_cast<std::int64_t>(i);
    if (row >= 0 && row < rows) read[static_cast<std::size_t>(row)] = true;
  }
  return read;
}

double draw_token(Format f, Data data, Random& r, bool is_read) {
  if (is_read || oracle::is_integer(f)) return draw_number(f, data, r);
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

Call draw_grouped_call(const Case& c, Random& r) {
  Call call;
  call.live = draw_live(c, r);
  const Groups groups = draw_groups(c, call.live, r);
  call.has_faults = groups.has_faults;
  call.is_bare = call.live == c.declared && r.chance(30);
  for (const CaseOperand& o : c.operands) {
    const oracle::Tensor& t = c.reference.tensors[static_cast<std::size_t>(o.tensor)];
    Dims dims;
    for (const Axis a : o.axes) dims.push_back(call.live[at(a)]);
    if (o.block > 0) dims[o.block_axis] /= o.block;
    const bool as_declared = dims == t.dims && (call.is_bare || r.chance(50));
    const bool bare = as_declared && (call.is_bare || r.chance(15));
    const bool is_vector = o.duty == Duty::offsets || o.duty == Duty::index || o.duty == Duty::slot;
    oracle::Memory memory;
    if (o.duty == Duty::table) {
      Dims strides = t.strides;
      call.matrices.emplace_back(t.format, dims, strides, r.between(0, 3));
      call.matrices.back().fill([&] { return draw_number(t.format, c.data, r); });
      memory.base = call.matrices.back().data();
      memory.dims = dims;
      memory.strides = strides;
      call.buffers.emplace_back(Format::int64, Dims{dims[0]}, Dims{r.chance(70) ? 1 : 2}, r.between(0, 3));
      std::int64_t expert = 0;
      call.buffers.back().paint([&](unsigned char* bytes) {
        for (; expert < dims[0]; ++expert)
          reinterpret_cast<char**>(bytes)[expert * call.buffers.back().strides()[0]] =
              static_cast<char*>(call.matrices.back().data()) + expert * strides[0] * oracle::bits_of(t.format) / 8;
      });
    } else {
      Dims strides = as_declared ? t.strides : o.is_output ? draw_layout(dims, r) : draw_input_layout(dims, r);
      if (is_vector && !as_declared && r.chance(50)) strides = oracle::packed_strides(dims);
      if (is_vector)
        for (std::size_t i = 0; i < dims.size(); ++i)
          if (dims[i] > 1 && strides[i] == 0) strides[i] = 1;  // their numbers differ
      call.buffers.emplace_back(t.format, dims, std::move(strides), r.between(0, 3));
    }
    PoisonedBuffer& buffer = call.buffers.back();
    std::size_t next = 0;
    if (is_vector) {
      const Dims& numbers = o.duty == Duty::offsets ? groups.offsets : o.duty == Duty::index ? groups.index : groups.slot;
      buffer.fill([&] { return static_cast<double>(numbers[next++]); });
    } else if (o.duty == Duty::token) {
      const std::vector<bool> read = read_rows(c, groups, dims[1]);
      const std::size_t columns = std::max<std::size_t>(static_cast<std::size_t>(dims[2]), 1);
      // Rows that share memory share what they hold: only where none do may those that nobody reads be poison.
      const bool apart = oracle::packed_strides(dims) == buffer.strides();
      buffer.fill([&] {
        const bool is_read = !apart || read[next / columns];
        ++next;
        return draw_token(t.format, c.data, r, is_read);
      });
    } else if (!o.is_output && o.duty != Duty::table) {
      buffer.fill([&] { return draw_number(t.format, c.data, r); });
    }
    void* const data = buffer.span_bytes() == 0 && r.chance(50) ? nullptr : buffer.data();
    if (bare) {
      if (o.duty != Duty::table) {
        memory.base = data;
        memory.bare = true;
      }
      if (o.duty == Duty::table && buffer.strides()[0] != 1) return draw_grouped_call(c, r);
      call.views.push_back(verglas::TensorView::address(data));
    } else {
      const bool is_aux = !o.is_output && (t.name[0] == 'x' || is_vector || o.duty == Duty::table);
      const Description d = describe(o, is_aux, buffer, r);
      if (o.duty != Duty::table) {
        memory.base = data;
        memory.dims = d.dims;
        memory.strides = d.strides;
        memory.kernel_order = d.kernel_order;
      }
      call.views.push_back(view_of(d, buffer.format(), data));
      call.views.back().read_only = !o.is_output && r.chance(30);
      if (r.chance(30)) call.views.back().observed_bytes = buffer.span_bytes() + (r.chance(50) ? 0 : r.between(0, 64));
    }
    call.memory.push_back(std::move(memory));
  }
  return call;
}

}  // namespace support
