#include "oracle/grouped.hpp"

#include <algorithm>
#include <stdexcept>

#include "oracle/memory.hpp"
#include "oracle/nodes.hpp"
#include "oracle/sum.hpp"

namespace oracle {

namespace {

using Dims = std::vector<std::int64_t>;

const Tensor& operand(const Graph& graph, const Node& node, std::size_t i) {
  return graph.tensors[static_cast<std::size_t>(node.inputs.at(i))];
}

/// Some rows of a (1, rows, columns), as a matrix; turned: (columns, rows).
Result picked(const Result& from, const std::vector<std::int64_t>& rows, bool turned = false) {
  const Dims dims = padded(from.dims, 3);
  const std::int64_t columns = dims[2], count = static_cast<std::int64_t>(rows.size());
  Result r;
  r.dims = turned ? Dims{1, columns, count} : Dims{1, count, columns};
  r.elements.resize(static_cast<std::size_t>(columns * count));
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t k = 0; k < columns; ++k)
      r.elements[static_cast<std::size_t>(turned ? k * count + i : i * columns + k)] =
          from.elements[static_cast<std::size_t>(rows[static_cast<std::size_t>(i)] * columns + k)];
  return r;
}

/// Matrix number `at` of a batch.
Result slice(const Result& from, std::int64_t at) {
  const Dims dims = padded(from.dims, 3);
  Result r;
  r.dims = {1, dims[1], dims[2]};
  r.kernel_order = from.kernel_order;
  const auto size = static_cast<std::ptrdiff_t>(dims[1] * dims[2]);
  r.elements.assign(from.elements.begin() + at * size, from.elements.begin() + (at + 1) * size);
  return r;
}

/// Of the products of all rows those of each token, times their scores and added up: a product of its scores with its rows.
Result combined(const Result& products, const Result& scores, const std::vector<std::int64_t>& index,
                const std::vector<std::int64_t>& slot, std::int64_t top_k) {
  const std::int64_t tokens = static_cast<std::int64_t>(scores.elements.size()) / top_k;
  Result r;
  r.dims = {1, tokens, products.dims[2]};
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::int64_t> rows;
    Result weights;
    for (std::size_t i = 0; i < index.size(); ++i) {
      if (index[i] != t || products.group[i] < 0) continue;
      rows.push_back(static_cast<std::int64_t>(i));
      weights.elements.push_back(scores.elements[static_cast<std::size_t>(t * top_k + slot[i])]);
    }
    weights.dims = {1, 1, static_cast<std::int64_t>(rows.size())};
    const Result sum = multiplied(weights, picked(products, rows), Format::fp32);
    r.elements.insert(r.elements.end(), sum.elements.begin(), sum.elements.end());
  }
  return r;
}

}  // namespace

std::vector<std::int64_t> numbers_of(const Tensor& tensor) {
  if (!tensor.memory) throw std::invalid_argument("input " + tensor.name + " has no memory");
  Memory m = *tensor.memory;
  if (m.bare) {
    m.dims = tensor.dims;
    m.strides = tensor.strides;
  }
  std::vector<std::int64_t> all;
  for (Walk w(m.dims); w.more(); w.next())
    all.push_back(static_cast<std::int64_t>(value_at(tensor.format, m.base, w.offset(m.strides))));
  return all;
}

std::int64_t groups_of(const Graph& graph, const Node& node) {
  const Tensor& t = operand(graph, node, 2);
  return count_of(t.memory && !t.memory->bare ? t.memory->dims : t.dims);
}

std::vector<int> owners(const std::vector<std::int64_t>& offsets, bool are_ends, std::int64_t rows) {
  std::vector<int> owner(static_cast<std::size_t>(rows), -1);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t greatest = 0;
    int passed = 0;  // offsets at or before this row
    for (const std::int64_t o : offsets) {
      greatest = std::max(greatest, o);
      if (std::min(greatest, rows) > r) break;
      ++passed;
    }
    const int group = are_ends ? passed : passed - 1;
    if (group < static_cast<int>(offsets.size())) owner[static_cast<std::size_t>(r)] = group;
  }
  return owner;
}

Result grouped_product(const Graph& graph, const Node& node, const std::vector<Result>& done) {
  const Result& token = done[static_cast<std::size_t>(node.inputs[0])];
  const Result& weight = done[static_cast<std::size_t>(node.inputs[1])];
  const std::int64_t tokens = padded(token.dims, 3)[1];
  const Dims matrices = padded(weight.dims, 3);
  std::vector<std::int64_t> index, slot;
  if (node.routing != Routing::plain) index = numbers_of(operand(graph, node, 3));
  const bool combines = node.routing == Routing::combine;
  if (node.routing == Routing::scatter || combines) slot = numbers_of(operand(graph, node, 4));
  const std::int64_t rows = node.routing == Routing::gather ? static_cast<std::int64_t>(index.size()) : tokens;
  const std::vector<int> owner = owners(numbers_of(operand(graph, node, 2)), node.are_ends, rows);
  const std::int64_t columns = weight.kernel_order ? matrices[1] : matrices[2];
  const Result* const scores = combines ? &done[static_cast<std::size_t>(node.inputs.at(5))] : nullptr;
  const std::int64_t places = combines ? static_cast<std::int64_t>(scores->elements.size()) : rows;
  Result r;
  r.dims = {1, rows, columns};
  r.elements.assign(static_cast<std::size_t>(rows * columns), Bound::exact(0));
  r.has_groups = true;
  r.group.assign(static_cast<std::size_t>(rows), -1);
  for (std::int64_t g = 0; g < groups_of(graph, node); ++g) {
    std::vector<std::int64_t> from, to;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (owner[at] != g) continue;
      std::int64_t source = i, target = i;
      if (node.routing == Routing::gather) source = index[at];
      if (!slot.empty()) {
        const bool has_place = index[at] >= 0 && index[at] < places / node.top_k && slot[at] >= 0 && slot[at] < node.top_k;
        target = !has_place ? -1 : combines ? i : index[at] * node.top_k + slot[at];
      }
      if (source < 0 || source >= tokens || target < 0) continue;
      from.push_back(source);
      to.push_back(target);
    }
    if (from.empty()) continue;
    const Result product = multiplied(picked(token, from), slice(weight, g % matrices[0]), node.compute);
    for (std::size_t i = 0; i < to.size(); ++i) {
      r.group[static_cast<std::size_t>(to[i])] = static_cast<int>(g);
      std::copy_n(product.elements.begin() + static_cast<std::ptrdiff_t>(i) * columns, columns,
                  r.elements.begin() + to[i] * columns);
    }
  }
  return combines ? combined(r, *scores, index, slot, node.top_k) : r;
}

Result grouped_gradient(const Graph& graph, const Node& node, const std::vector<Result>& done) {
  const Result& token = done[static_cast<std::size_t>(node.inputs[0])];
  const Result& other = done[static_cast<std::size_t>(node.inputs[1])];
  const Tensor& out = graph.tensors[static_cast<std::size_t>(node.output)];
  const Dims dims = padded(token.dims, 3);
  Dims columns = padded(other.dims, 3);
  Result turned_other = other;
  turned_other.kernel_order = false;
  if (other.kernel_order) {  // (1, N, rows)
    turned_other.dims = {1, columns[2], columns[1]};
    for (std::int64_t i = 0; i < columns[1]; ++i)
      for (std::int64_t k = 0; k < columns[2]; ++k)
        turned_other.elements[static_cast<std::size_t>(k * columns[1] + i)] =
            other.elements[static_cast<std::size_t>(i * columns[2] + k)];
    columns = turned_other.dims;
  }
  const std::int64_t groups = groups_of(graph, node);
  const std::vector<int> owner = owners(numbers_of(operand(graph, node, 2)), node.are_ends, dims[1]);
  Result r;
  r.dims = {groups, dims[2], columns[2]};
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < dims[1]; ++i)
      if (owner[static_cast<std::size_t>(i)] == g) rows.push_back(i);
    Result product = multiplied(picked(token, rows, true), picked(turned_other, rows), node.compute);
    for (Bound& v : product.elements) v = rounded(out.format == Format::int32 ? Format::int32 : Format::fp32, v);
    if (node.accumulate) {
      const Result held = load(out.format, *out.held);
      for (std::size_t i = 0; i < product.elements.size(); ++i) {
        const Bound& before = held.elements[static_cast<std::size_t>(g) * product.elements.size() + i];
        Sum sum;
        sum.add(before);
        sum.add(product.elements[i]);
        product.elements[i] = rows.empty() ? before : sum.finish();
      }
    }
    r.elements.insert(r.elements.end(), product.elements.begin(), product.elements.end());
  }
  return r;
}

Result spread_over_groups(const Result& source, const std::vector<int>& group) {
  const std::int64_t columns = source.dims[2];
  Result r;
  r.dims = {1, static_cast<std::int64_t>(group.size()), columns};
  for (const int g : group)
    for (std::int64_t n = 0; n < columns; ++n)
      r.elements.push_back(g < 0 ? Bound::exact(0) : source.elements[static_cast<std::size_t>(g * columns + n)]);
  return r;
}

Result reduced_rows(const Result& source, Reduction mode, const std::vector<bool>& kept, Format compute, bool by_groups,
                    std::int64_t groups) {
  if (kept[1]) {
    Result r = reduced(source, mode, kept, compute);
    r.group = source.group;
    r.has_groups = true;
    return r;
  }
  Result all;
  for (std::int64_t g = 0; g < (by_groups ? groups : 1); ++g) {
    std::vector<std::int64_t> rows;
    for (std::size_t i = 0; i < source.group.size(); ++i)
      if (by_groups ? source.group[i] == g : source.group[i] >= 0) rows.push_back(static_cast<std::int64_t>(i));
    const Result part = reduced(picked(source, rows), mode, {false, false, bool{kept[2]}}, compute);
    all.dims = part.dims;
    all.elements.insert(all.elements.end(), part.elements.begin(), part.elements.end());
  }
  if (all.dims.empty()) all.dims = {0, 1, kept[2] ? source.dims[2] : 1};
  if (by_groups) all.dims[0] = groups;
  return all;
}

std::string unowned_fault(const Tensor& tensor, const Result& want, bool zero_fill) {
  Memory m = *tensor.memory;
  if (m.bare) {
    m.dims = tensor.dims;
    m.strides = tensor.strides;
  }
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - bits_of(tensor.format));
  for (Walk w(m.dims); w.more(); w.next()) {
    const std::int64_t row = w.at()[m.dims.size() - 2];
    if (want.group[static_cast<std::size_t>(row)] >= 0) continue;
    if (bits_at(tensor.format, m.base, w.offset(m.strides)) != (zero_fill ? 0 : all))
      return tensor.name + ": row " + std::to_string(row) + ", which no group owns, " +
             (zero_fill ? "is not zero" : "was written");
  }
  return {};
}

}  // namespace oracle
