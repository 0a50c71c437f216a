#include "tool/extents.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>

#include "base/rules.hpp"
#include "chain/analyse.hpp"

namespace verglas::tool {
namespace {

/// Packed, with the axes in memory as before; axes that were broadcast stay so.
std::vector<std::int64_t> packed_like(const std::vector<std::int64_t>& before, const std::vector<std::int64_t>& dim) {
  std::vector<std::size_t> axes(dim.size());
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  std::stable_sort(axes.begin(), axes.end(), [&](std::size_t x, std::size_t y) { return before[x] > before[y]; });
  std::vector<std::int64_t> stride(dim.size(), 0);
  std::int64_t next = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (before[*axis] == 0) continue;
    stride[*axis] = next;
    next *= std::max<std::int64_t>(dim[*axis], 1);
  }
  return stride;
}

}  // namespace

std::vector<Extents> shapes_of(const std::string& text) {
  std::vector<Extents> all;
  const auto wrong = [&] { return CLI::ValidationError("--shapes", "'" + text + "' is not MxNxK or LxMxNxK, joined by commas"); };
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find(',', from), text.size());
    std::vector<std::int64_t> numbers;
    for (const char* at = text.data() + from; at < text.data() + to;) {
      const auto read = std::from_chars(at, text.data() + to, numbers.emplace_back());
      if (read.ec != std::errc() || numbers.back() < 1 || (read.ptr != text.data() + to && *read.ptr != 'x')) throw wrong();
      at = read.ptr + 1;
    }
    if (numbers.size() == 3) numbers.insert(numbers.begin(), 1);
    if (numbers.size() != 4 || text[to - 1] == 'x') throw wrong();
    all.push_back({numbers[0], numbers[1], numbers[2], numbers[3]});
    from = to + 1;
  }
  return all;
}

Graph with_extents(const Graph& graph, const Extents& extents) {
  Json j = Json::parse(graph.to_json());
  Graph checked = Graph::from_json(graph.to_json());
  checked.validate();
  const auto chain = chain::analyse(checked.data());
  if (!chain) throw broken(Rule::tool_shape, "graph", chain.error().text, "a graph that is one chain");
  std::map<std::int64_t, std::vector<std::int64_t>> dims;
  std::array<bool, 4> followed{};
  for (const chain::Role& r : chain->roles) {
    const chain::Operand& o = chain->operands[static_cast<std::size_t>(r.operand)];
    if (r.block > 0)
      throw broken(Rule::tool_shape, label_of(*chain, r), "scales of blocks", "operands that follow M, N and K alone");
    std::vector<std::int64_t>& dim = dims.try_emplace(o.uid, o.dim.size(), -1).first->second;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (r.axis[axis] < 0) continue;
      if (r.symbol[axis] == chain::Symbol::r) {
        dim[static_cast<std::size_t>(r.axis[axis])] = fixed_extent(*chain);
        continue;
      }
      const bool is_one = r.symbol[axis] == chain::Symbol::one;
      const bool is_half = r.symbol[axis] == chain::Symbol::h;
      const std::size_t which = is_one ? 0 : is_half ? 2 : static_cast<std::size_t>(r.symbol[axis]) - 1;
      if (which >= extents.size())
        throw broken(Rule::tool_shape, label_of(*chain, r), "an axis of groups", "operands that follow L, M, N and K alone");
      const std::int64_t e = is_one ? 1 : is_half ? extents[which] / 2 : extents[which];
      followed[which] = followed[which] || !is_one;
      std::int64_t& held = dim[static_cast<std::size_t>(r.axis[axis])];
      if (held >= 0 && held != e)
        throw broken(Rule::tool_shape, label_of(*chain, r), fmt::format("{} and {} on one axis", held, e), "one extent");
      held = e;
    }
  }
  for (std::size_t i = 0; i < 4; ++i)
    if (extents[i] != 1 && !followed[i])
      throw broken(Rule::tool_shape, "graph", fmt::format("no axis of {} in any operand", "LMNK"[i]),
                   fmt::format("one that can be {}", extents[i]));
  for (Json& t : j["tensors"]) {
    const auto it = dims.find(t.value("uid", std::int64_t{-1}));
    if (it == dims.end()) {  // inside: inferred anew
      if (!t.value("output", false) && !t.contains("value")) {
        const bool is_computed = std::any_of(j["nodes"].begin(), j["nodes"].end(), [&](const Json& n) {
          return n.value("output", Json()) == t.value("uid", Json()) || n.value("output", Json()) == t.value("name", Json());
        });
        if (is_computed) {
          t.erase("dim");
          t.erase("stride");
        }
      }
      continue;
    }
    for (std::int64_t& e : it->second) e = std::max<std::int64_t>(e, 1);
    if (t.contains("stride")) t["stride"] = packed_like(t["stride"].get<std::vector<std::int64_t>>(), it->second);
    if (t.contains("dim")) t["dim"] = it->second;
  }
  return Graph::from_json(j.dump());
}

void for_each_graph(const std::string& file, const std::string& shapes, const std::function<void(Graph)>& use) {
  if (shapes.empty()) return use(load_graph(file));
  for (const Extents& e : shapes_of(shapes)) use(with_extents(load_graph(file), e));
}

}  // namespace verglas::tool
