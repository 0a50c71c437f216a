#include "oracle/compare.hpp"

#include <algorithm>
#include <cstdio>

#include "oracle/block_scale.hpp"
#include "oracle/memory.hpp"

namespace oracle {

namespace {

std::string number(double v) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g (%a)", v, v);
  return text;
}

std::string listed(const std::vector<std::int64_t>& values) {
  std::string text = "(";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + ")";
}

std::string described(const Bound& b) {
  std::string text;
  if (b.number) text = b.lo == b.hi && b.is_exact() ? number(b.lo) : "between " + number(b.lo) + " and " + number(b.hi);
  if (b.nan) text += text.empty() ? "nan" : " or nan";
  return text;
}

std::vector<std::int64_t> without_leading_units(std::vector<std::int64_t> dims) {
  while (!dims.empty() && dims.front() == 1) dims.erase(dims.begin());
  return dims;
}

}  // namespace

std::string Comparison::text() const {
  if (!problem.empty()) return tensor + ": " + problem;
  if (wrong == 0) return tensor + ": all " + std::to_string(count) + " elements right";
  return tensor + ": " + std::to_string(wrong) + " of " + std::to_string(count) + " elements wrong, first at " + listed(first) +
         ": got " + number(got) + ", wanted " + described(want);
}

Comparison compare(const std::string& name, Format format, const Memory& memory, const Result& want,
                   const CompareOptions& options) {
  Comparison r;
  r.tensor = name;
  if (without_leading_units(memory.dims) != without_leading_units(want.dims)) {
    r.problem = "got extents " + listed(memory.dims) + ", wanted " + listed(want.dims);
    return r;
  }
  std::size_t at = 0;
  for (Walk w(memory.dims); w.more(); w.next(), ++at) {
    // Of a row that no group owns nothing is known here; `unowned_fault` looks at those.
    if (want.has_groups && want.group[static_cast<std::size_t>(w.at()[memory.dims.size() - 2])] < 0) continue;
    Bound bound = rounded(format, want.elements[at]);
    if (!options.zero_sign && bound.number) {
      if (bound.lo == 0) bound.lo = -0.0;
      if (bound.hi == 0) bound.hi = 0.0;
    }
    const double got = value_at(format, memory.base, w.offset(memory.strides));
    ++r.count;
    if (want.elements[at].is_exact()) ++r.exact;
    if (bound.contains(got)) continue;
    if (r.wrong++ == 0) {
      r.first = w.at();
      r.got = got;
      r.want = bound;
    }
  }
  return r;
}

std::vector<Comparison> compare_outputs(const Graph& graph, const std::vector<Result>& results, const CompareOptions& how) {
  std::vector<Comparison> all;
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& t = graph.tensors[i];
    if (!t.is_output || !t.memory) continue;
    Memory memory = *t.memory;
    if (t.is_interleaved) {
      Comparison c;
      c.tensor = t.name;
      for (const Node& node : graph.nodes)
        if (node.scale == static_cast<int>(i)) {
          const std::size_t rank = graph.tensors[static_cast<std::size_t>(node.output)].dims.size();
          c.problem = blob_fault(t, results.at(i), node.block_axis + results.at(i).dims.size() - rank);
        }
      all.push_back(std::move(c));
      continue;
    }
    if (memory.bare) {
      memory.dims = t.dims;
      memory.strides = t.strides;
    }
    all.push_back(compare(t.name, t.format, memory, results.at(i), how));
  }
  return all;
}

std::vector<Comparison> compare_outputs(const Graph& graph, const Options& options, const CompareOptions& how) {
  return compare_outputs(graph, evaluate(graph, options), how);
}

std::string failures(const std::vector<Comparison>& comparisons) {
  std::string text;
  for (const Comparison& c : comparisons)
    if (!c.ok()) text += c.text() + "\n";
  return text;
}

std::int64_t first_stray_write(std::span<const std::byte> before, std::span<const std::byte> after, std::int64_t offset,
                               Format format, const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides) {
  std::vector<bool> owned(before.size(), false);
  const std::int64_t bits = bits_of(format);
  for (Walk w(dims); w.more(); w.next()) {
    const std::int64_t first = offset * 8 + w.offset(strides) * bits;
    for (std::int64_t byte = first / 8; byte <= (first + bits - 1) / 8; ++byte)
      if (byte >= 0 && byte < static_cast<std::int64_t>(owned.size())) owned[static_cast<std::size_t>(byte)] = true;
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    if (!owned[i] && before[i] != after[i]) return static_cast<std::int64_t>(i);
  return -1;
}

}  // namespace oracle
