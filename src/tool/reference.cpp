#include "tool/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tool/formulas.hpp"
#include "tool/progress.hpp"

namespace verglas::tool {
namespace {

using graph::GraphData;
using graph::NodeData;
using graph::NodeKind;
using graph::TensorData;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kUnit = 0x1p-24;  // half an ulp of 1 in fp32

/// Every value within `radius` of `value` is right; radius 0 means exactly this one, radius infinite that all are.
struct Ball {
  double value = 0, radius = 0;
  bool exact() const { return radius == 0; }
};
constexpr Ball kAnything{0, kInf};

struct Format {
  int digits;  ///< of the significand, the hidden one included
  int lowest;  ///< exponent of the last bit of subnormals
  double largest;
  bool saturates = false;
};
Format format_of(DataType t) {
  if (t == DataType::fp8_e4m3) return {4, -9, 448, true};
  if (t == DataType::fp8_e5m2) return {3, -16, 57344, true};
  if (t == DataType::fp16) return {11, -24, 65504};
  if (t == DataType::bf16) return {8, -133, 0x1.FEp127};
  return {24, -149, 0x1.FFFFFEp127};
}
double ulp(DataType t, double v) {
  const Format f = format_of(t);
  return std::ldexp(1.0, v == 0 ? f.lowest : std::max(std::ilogb(v) - f.digits + 1, f.lowest));
}
/// The power of two that is not below v, within those of e8m0.
double round_up(double v) {
  if (std::isnan(v)) return v;
  if (!(v > 0x1p-127)) return 0x1p-127;
  if (v >= 0x1p127) return 0x1p127;
  const double below = std::ldexp(1.0, std::ilogb(v));
  return v > below ? 2 * below : below;
}
/// To nearest even, of a finite or infinite number.
double round_to(DataType t, double v) {
  if (t == DataType::fp8_e8m0) return round_up(v);
  const Format f = format_of(t);
  if (std::isinf(v) && f.saturates) return std::copysign(f.largest, v);
  if (std::isnan(v) || std::isinf(v)) return is_integer(t) && std::isnan(v) ? 0 : v;
  const double unit = ulp(t, v);
  const double r = std::nearbyint(v / unit) * unit;
  return std::abs(r) > f.largest ? std::copysign(f.saturates ? f.largest : kInf, v) : r == 0 ? std::copysign(0.0, v) : r;
}
double saturate(DataType t, double v) {
  if (t == DataType::boolean) return v != 0;
  const double bits = bits_of(t);
  const double low = t == DataType::uint8 ? 0 : -std::ldexp(1.0, static_cast<int>(bits) - 1);
  const double high = std::ldexp(1.0, static_cast<int>(bits) - (t == DataType::uint8 ? 0 : 1)) - 1;
  return std::isnan(v) ? 0 : std::clamp(std::nearbyint(v), low, high);
}

Ball rounded(DataType t, Ball b) {
  if (std::isinf(b.radius)) return b;
  if (is_integer(t)) {
    const double v = saturate(t, b.value);
    if (b.exact()) return {v, 0};
    return {v, std::max(std::abs(saturate(t, b.value + b.radius) - v), std::abs(saturate(t, b.value - b.radius) - v))};
  }
  if (b.exact()) return {round_to(t, b.value), 0};
  if (is_fp8(t)) {  // monotone: the ends say how far it goes
    const double v = round_to(t, b.value);
    const double up = round_to(t, b.value + b.radius) - v, down = v - round_to(t, b.value - b.radius);
    return std::isnan(v) ? Ball{v, 0} : Ball{v, std::max(up, down)};
  }
  const double far = std::abs(b.value) + b.radius;
  if (far >= format_of(t).largest) return kAnything;
  return {b.value, b.radius + ulp(t, far) / 2};
}

/// What a set of ends says about a function on intervals: the middle, and how far the ends go.
class Hull {
 public:
  explicit Hull(double middle) : middle_(middle) {}
  void add(double v) {
    radius_ = std::isnan(v) != std::isnan(middle_) ? kInf : std::isnan(v) ? radius_ : std::max(radius_, std::abs(v - middle_));
  }
  Ball ball() const { return std::isnan(radius_) ? kAnything : Ball{middle_, radius_}; }

 private:
  double middle_, radius_ = 0;
};

Ball pointwise_fp32(const NodeData& n, std::array<Ball, 3> in) {
  using enum PointwiseMode;
  const auto f = [&](double x, double y, double z) { return formula(n.pointwise, n.parameters, x, y, z); };
  const double middle = f(in[0].value, in[1].value, in[2].value);
  const bool exact = in[0].exact() && in[1].exact() && in[2].exact();
  for (const Ball& b : in)
    if (std::isinf(b.radius)) return kAnything;
  Hull hull(middle);
  if (!exact) {
    for (const double sx : {-1.0, 1.0})
      for (const double sy : {-1.0, 1.0})
        for (const double sz : {-1.0, 1.0})
          hull.add(f(in[0].value + sx * in[0].radius, in[1].value + sy * in[1].radius, in[2].value + sz * in[2].radius));
    const bool meet = std::abs(in[0].value - in[1].value) <= in[0].radius + in[1].radius;
    if ((n.pointwise == cmp_eq || n.pointwise == cmp_neq) && meet) hull.add(1 - middle);
    if ((n.pointwise == div || n.pointwise == mod) && std::abs(in[1].value) <= in[1].radius) return kAnything;
    if (n.pointwise == mod && in[1].exact() && in[0].radius >= std::abs(in[1].value)) return kAnything;
    if ((n.pointwise == sin || n.pointwise == cos) && in[0].radius > 0.5) return {0, 1 + 1e-6};
    if (n.pointwise == tan && in[0].radius > 0.5) return kAnything;
  }
  Ball out = hull.ball();
  if (is_correctly_rounded(n.pointwise)) return rounded(DataType::fp32, out);
  // Formulas of several operations: 32 units of the result and of the operands that enter it.
  out.radius += 32 * kUnit * (std::abs(middle) + std::abs(in[0].value) * (n.pointwise < exp || n.pointwise > log)) + 0x1p-140;
  return std::isnan(middle) || std::isinf(middle) ? Ball{middle, std::isnan(out.radius) || std::isinf(middle) ? 0 : out.radius}
                                                  : rounded(DataType::fp32, out);
}

Ball pointwise_int32(const NodeData& n, std::array<Ball, 3> in) {
  for (const Ball& b : in)
    if (!b.exact()) return kAnything;
  const auto as_int = [](Ball b) { return static_cast<std::int64_t>(saturate(DataType::int32, b.value)); };
  return {static_cast<double>(formula_int(n.pointwise, as_int(in[0]), as_int(in[1]), as_int(in[2]))), 0};
}

/// A sum of n terms in fp32, in any order; exact where all are integers and no partial sum can round.
class Sum {
 public:
  void add(Ball b) {
    value_ += b.value;
    radius_ += b.radius;
    magnitude_ += std::abs(b.value) + b.radius;
    integers_ = integers_ && b.exact() && b.value == std::trunc(b.value);
    ++terms_;
  }
  Ball ball(bool int32) const {
    if (int32) return integers_ && magnitude_ < 0x1p31 ? Ball{value_, 0} : kAnything;
    if (integers_ && magnitude_ <= 0x1p24) return {value_, 0};
    if (!std::isfinite(magnitude_))
      return std::isnan(radius_) || radius_ > 0 ? kAnything : Ball{value_, std::isfinite(value_) ? kInf : 0};
    return rounded(DataType::fp32, {value_, radius_ + static_cast<double>(terms_ + 2) * kUnit * magnitude_ +
                                                static_cast<double>(terms_) * 0x1p-149});
  }

 private:
  double value_ = 0, radius_ = 0, magnitude_ = 0;
  bool integers_ = true;
  std::int64_t terms_ = 0;
};

class Evaluator {
 public:
  Evaluator(const GraphData& g, const std::map<std::int64_t, const HostArray*>& given) : g_(g), values_(g.tensors.size()) {
    for (std::size_t i = 0; i < g.tensors.size(); ++i) {
      const TensorData& t = g.tensors[i];
      if (t.producer >= 0) continue;
      std::vector<Ball>& v = values_[i];
      if (t.value) {
        v.push_back(rounded(t.dtype, {*t.value, 0}));
      } else if (const auto it = given.find(t.uid); it != given.end()) {
        const std::int64_t n = it->second->elements();
        for (std::int64_t k = 0; k < n; ++k) v.push_back({it->second->value(k), 0});
      }
    }
  }

  /// Computes what leads to these results. Other nodes may read tensors that no plan has as operands.
  void run(const std::map<std::int64_t, const HostArray*>& wanted) {
    find_needed(wanted);
    Progress progress("check", work());
    for (const int i : g_.order) {
      if (!needed_[static_cast<std::size_t>(i)]) continue;
      const NodeData& n = g_.nodes[static_cast<std::size_t>(i)];
      std::vector<Ball>& out = values_[static_cast<std::size_t>(n.output)];
      if (n.kind == NodeKind::matmul)
        out = product(n, progress);
      else if (n.kind == NodeKind::pointwise)
        out = pointwise(n);
      else if (n.kind == NodeKind::reduction)
        out = reduce(n);
      else if (n.kind == NodeKind::take_runs)
        out = runs(n);
      else if (n.kind == NodeKind::rope)
        out = rope(n);
      else if (n.kind == NodeKind::moe_grouped_matmul && !tensor(n.inputs[1]).by_pointers)
        out = grouped(n, progress);
      else if (n.kind == NodeKind::moe_grouped_matmul_bwd && !n.accumulate)
        out = grouped_gradient(n, progress);
      else
        open(n);
      for (Ball& b : out) b = rounded(tensor(n.output).dtype, b);
    }
  }

  const std::vector<Ball>& of(std::size_t tensor) const { return values_[tensor]; }

 private:
  const TensorData& tensor(int i) const { return g_.tensors[static_cast<std::size_t>(i)]; }
  static std::int64_t count(const std::vector<std::int64_t>& dim) {
    std::int64_t n = 1;
    for (const std::int64_t e : dim) n *= e;
    return n;
  }

  void find_needed(const std::map<std::int64_t, const HostArray*>& wanted) {
    needed_.assign(g_.nodes.size(), false);
    const auto need = [&](const TensorData& t) {
      if (t.producer >= 0) needed_[static_cast<std::size_t>(t.producer)] = true;
    };
    for (const TensorData& t : g_.tensors)
      if (wanted.contains(t.uid)) need(t);
    for (std::size_t k = g_.order.size(); k-- > 0;)
      if (const auto i = static_cast<std::size_t>(g_.order[k]); needed_[i])
        for (const int input : g_.nodes[i].inputs) need(tensor(input));
  }

  /// Scales of blocks, weights by address and sums onto what an output held are not evaluated: everything behind them is open.
  void open(const NodeData& n) {
    for (const int result : {n.output, n.scale})
      if (result >= 0)
        values_[static_cast<std::size_t>(result)].assign(static_cast<std::size_t>(count(tensor(result).dim)), kAnything);
  }

  std::vector<Ball> runs(const NodeData& n) const {
    const std::vector<Ball>& in = values_[static_cast<std::size_t>(n.inputs[0])];
    const std::int64_t columns = tensor(n.output).dim.back();
    std::vector<Ball> out;
    for (std::int64_t i = 0; i < count(tensor(n.output).dim); ++i) {
      const std::int64_t row = i / columns, at = i % columns, pair = at / n.run;
      out.push_back(in[static_cast<std::size_t>(2 * columns * row + (2 * pair + n.second_runs) * n.run + at % n.run)]);
    }
    return out;
  }

  std::vector<Ball> rope(const NodeData& n) const {
    const auto values = [&](std::size_t i) -> const std::vector<Ball>& { return values_[static_cast<std::size_t>(n.inputs[i])]; };
    const auto compute = [](PointwiseMode mode, Ball x, Ball y) {
      NodeData step;
      step.pointwise = mode;
      return pointwise_fp32(step, {x, y, Ball{0, 0}});
    };
    const std::vector<std::int64_t>& dim = tensor(n.output).dim;
    const std::int64_t columns = dim.back(), rotated = tensor(n.inputs[1]).dim.back(), half = rotated / 2;
    // Column j of a table, beside row `row` of all rows.
    const auto table = [&](std::size_t which, std::int64_t row, std::int64_t j) {
      const std::vector<std::int64_t>& t = tensor(n.inputs[which]).dim;
      std::int64_t at = 0, step = 1;
      for (std::size_t axis = dim.size() - 1; axis-- > 0;) {
        if (t[axis] != 1) at += row % dim[axis] * step;
        step *= t[axis];
        row /= dim[axis];
      }
      return values(which)[static_cast<std::size_t>(at * rotated + j)];
    };
    std::vector<Ball> out = values(0);
    for (std::int64_t row = 0; row < std::ssize(out) / std::max<std::int64_t>(columns, 1); ++row)
      for (std::int64_t first = row * columns + n.head - rotated; first < (row + 1) * columns; first += n.head)
        for (std::int64_t j = 0; j < half; ++j) {
          const Ball even = values(0)[static_cast<std::size_t>(first + 2 * j)];
          const Ball odd = values(0)[static_cast<std::size_t>(first + 2 * j + 1)];
          using enum PointwiseMode;
          out[static_cast<std::size_t>(first + j)] =
              compute(sub, compute(mul, even, table(1, row, j)), compute(mul, odd, table(2, row, j)));
          out[static_cast<std::size_t>(first + half + j)] =
              compute(add, compute(mul, odd, table(1, row, half + j)), compute(mul, even, table(2, row, half + j)));
        }
    return out;
  }

  std::int64_t work() const {
    std::int64_t n = 0;
    for (std::size_t i = 0; i < g_.nodes.size(); ++i) {
      const NodeData& node = g_.nodes[i];
      const bool is_product = node.kind == NodeKind::matmul || node.kind == NodeKind::moe_grouped_matmul ||
                              node.kind == NodeKind::moe_grouped_matmul_bwd;
      const std::vector<std::int64_t>& dim = tensor(node.output).dim;
      if (needed_[i] && is_product) n += node.moe_mode == MoeMode::combine ? tensor(node.inputs[0]).dim[1] * dim[2] : count(dim);
    }
    return n;
  }

  std::int64_t number(int t, std::int64_t i) const {
    return static_cast<std::int64_t>(values_[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)].value);
  }

  /// The group of each row, −1 where none owns it.
  std::vector<int> owners(const NodeData& n, std::int64_t rows) const {
    std::vector<int> owner(static_cast<std::size_t>(rows), -1);
    const std::int64_t groups = graph::groups_of(tensor(n.inputs[2]));
    std::int64_t bound = 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t next = std::clamp(number(n.inputs[2], g), bound, rows);
      const bool are_ends = n.moe_offsets == MoeOffsets::end;
      for (std::int64_t r = are_ends ? bound : next; r < (are_ends ? next : rows); ++r)
        owner[static_cast<std::size_t>(r)] = static_cast<int>(g);
      bound = next;
    }
    return owner;
  }

  static Ball times(Ball a, Ball b) {
    return {a.value * b.value, std::abs(a.value) * b.radius + std::abs(b.value) * a.radius + a.radius * b.radius};
  }

  /// Σ of x(k) · y(k).
  template <class X, class Y>
  static Ball dot(std::int64_t depth, bool int32, X&& x, Y&& y) {
    Sum sum;
    for (std::int64_t k = 0; k < depth; ++k) sum.add(times(x(k), y(k)));
    return sum.ball(int32);
  }

  /// Rows that nobody owns are open.
  std::vector<Ball> grouped(const NodeData& n, Progress& progress) {
    const auto& dim = tensor(n.output).dim;
    const auto& weight = tensor(n.inputs[1]).dim;
    const auto& x = values_[static_cast<std::size_t>(n.inputs[0])];
    const auto& w = values_[static_cast<std::size_t>(n.inputs[1])];
    const bool combines = n.moe_mode == MoeMode::combine;
    const std::int64_t tokens = tensor(n.inputs[0]).dim[1], columns = dim[2], depth = weight[1];
    const std::int64_t rows = combines ? tokens : dim[1], places = combines ? dim[1] * n.top_k : rows;
    const std::vector<int> owner = owners(n, rows);
    std::vector<Ball> out(static_cast<std::size_t>(count(dim)), kAnything);
    std::vector<Sum> sums(combines ? out.size() : 0);
    group_.assign(static_cast<std::size_t>(combines ? 0 : rows), -1);
    for (std::int64_t r = 0; r < rows; ++r) {
      const int g = owner[static_cast<std::size_t>(r)];
      std::int64_t from = r, to = r;
      if (g >= 0 && n.moe_mode == MoeMode::gather) from = number(n.inputs[3], r);
      if (g >= 0 && n.moe_mode >= MoeMode::scatter) {
        const std::int64_t t = number(n.inputs[3], r), slot = number(n.inputs[4], r);
        to = t < 0 || t >= places / n.top_k || slot < 0 || slot >= n.top_k ? -1 : t * n.top_k + slot;
      }
      progress.advance(columns);
      if (g < 0 || from < 0 || from >= tokens || to < 0) continue;
      if (!combines) group_[static_cast<std::size_t>(to)] = g;
      const Ball* matrix = w.data() + g % weight[0] * depth * columns;
      for (std::int64_t c = 0; c < columns; ++c) {
        const Ball product = dot(
            depth, n.compute == DataType::int32, [&](std::int64_t k) { return x[static_cast<std::size_t>(from * depth + k)]; },
            [&](std::int64_t k) { return matrix[k * columns + c]; });
        if (combines)
          sums[static_cast<std::size_t>(to / n.top_k * columns + c)].add(
              times(product, values_[static_cast<std::size_t>(n.inputs[5])][static_cast<std::size_t>(to)]));
        else
          out[static_cast<std::size_t>(to * columns + c)] = product;
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) out[i] = sums[i].ball(false);
    return out;
  }

  std::vector<Ball> grouped_gradient(const NodeData& n, Progress& progress) const {
    const auto& dim = tensor(n.output).dim;
    const auto& x = values_[static_cast<std::size_t>(n.inputs[0])];
    const auto& d = values_[static_cast<std::size_t>(n.inputs[1])];
    const std::vector<int> owner = owners(n, tensor(n.inputs[0]).dim[1]);
    std::vector<Ball> out;
    for (std::int64_t g = 0; g < dim[0]; ++g) {
      std::vector<std::int64_t> rows;
      for (std::size_t r = 0; r < owner.size(); ++r)
        if (owner[r] == g) rows.push_back(static_cast<std::int64_t>(r));
      for (std::int64_t m = 0; m < dim[1]; ++m)
        for (std::int64_t c = 0; c < dim[2]; ++c)
          out.push_back(dot(
              static_cast<std::int64_t>(rows.size()), n.compute == DataType::int32,
              [&](std::int64_t k) { return x[static_cast<std::size_t>(rows[static_cast<std::size_t>(k)] * dim[1] + m)]; },
              [&](std::int64_t k) { return d[static_cast<std::size_t>(rows[static_cast<std::size_t>(k)] * dim[2] + c)]; }));
      progress.advance(dim[1] * dim[2]);
    }
    return out;
  }

  std::vector<Ball> product(const NodeData& n, Progress& progress) const {
    const TensorData& a = tensor(n.inputs[0]);
    const TensorData& b = tensor(n.inputs[1]);
    const auto& dim = tensor(n.output).dim;
    const std::size_t r = dim.size();
    const std::int64_t rows = dim[r - 2], columns = dim[r - 1], inner = a.dim[r - 1];
    const std::int64_t batches = r == 3 ? dim[0] : 1;
    const bool int32 = n.compute == DataType::int32;
    const double operand_loss = n.compute == DataType::tf32 ? 0x1p-10 : 0;  // each operand may lose 2^-11 of itself
    std::vector<Ball> out;
    std::vector<Sum> sums;
    for (std::int64_t l = 0; l < batches; ++l) {
      const Ball* pa = values_[static_cast<std::size_t>(n.inputs[0])].data() + (r == 3 && a.dim[0] > 1 ? l * rows * inner : 0);
      const Ball* pb = values_[static_cast<std::size_t>(n.inputs[1])].data() + (r == 3 && b.dim[0] > 1 ? l * inner * columns : 0);
      for (std::int64_t m = 0; m < rows; ++m) {
        sums.assign(static_cast<std::size_t>(columns), {});
        for (std::int64_t k = 0; k < inner; ++k) {
          const Ball x = pa[m * inner + k];
          for (std::int64_t c = 0; c < columns; ++c) {
            const Ball y = pb[k * columns + c];
            const double p = x.value * y.value;
            const double lost = operand_loss > 0 && p != std::trunc(p) ? operand_loss * std::abs(p) : 0;
            sums[static_cast<std::size_t>(c)].add(
                {p, std::abs(x.value) * y.radius + std::abs(y.value) * x.radius + x.radius * y.radius + lost});
          }
        }
        for (const Sum& sum : sums) out.push_back(sum.ball(int32));
        progress.advance(columns);
      }
    }
    return out;
  }

  /// Row-major place in an operand of the element with this place in the result, by NumPy's rule.
  static std::int64_t place(const std::vector<std::int64_t>& dim, const std::vector<std::int64_t>& of, std::int64_t index) {
    std::int64_t at = 0, run = 1;
    for (std::size_t k = 0; k < of.size() && k < dim.size(); ++k) {
      const std::int64_t full = dim[dim.size() - 1 - k], own = of[of.size() - 1 - k];
      if (own != 1) at += index % full * run;
      run *= own;
      index /= full;
    }
    return at;
  }
  static std::int64_t coordinate(const std::vector<std::int64_t>& dim, std::int64_t index, int axis) {
    for (std::size_t i = dim.size() - 1; i > static_cast<std::size_t>(axis); --i) index /= dim[i];
    return index % dim[static_cast<std::size_t>(axis)];
  }

  /// The element of a (groups, 1, N) that belongs to an element of rows of groups.
  Ball of_group(const TensorData& t, const std::vector<Ball>& values, std::int64_t index,
                const std::vector<std::int64_t>& dim) const {
    const std::int64_t row = index / dim[2] % dim[1];
    const int g = group_.empty() ? -1 : group_[static_cast<std::size_t>(row)];
    return g < 0 ? kAnything : values[static_cast<std::size_t>(g * t.dim[2] + (t.dim[2] == 1 ? 0 : index % dim[2]))];
  }

  std::vector<Ball> pointwise(const NodeData& n) const {
    const auto& dim = tensor(n.output).dim;
    std::vector<Ball> out(static_cast<std::size_t>(count(dim)));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      if (n.pointwise == PointwiseMode::gen_index) {
        out[i] = {static_cast<double>(coordinate(dim, index, n.parameters.axis)), 0};
        continue;
      }
      std::array<Ball, 3> in{};
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        const auto& values = values_[static_cast<std::size_t>(n.inputs[k])];
        const TensorData& t = tensor(n.inputs[k]);
        const bool by_group = tensor(n.output).grouped_by >= 0 && t.grouped_by < 0 && t.dim.size() == 3 && t.dim[0] > 1;
        in[k] = by_group ? of_group(t, values, index, dim) : values[static_cast<std::size_t>(place(dim, t.dim, index))];
        in[k] = rounded(n.compute == DataType::int32 ? DataType::int32 : DataType::fp32, in[k]);
      }
      out[i] = n.compute == DataType::int32 ? pointwise_int32(n, in) : pointwise_fp32(n, in);
    }
    return out;
  }

  std::vector<Ball> reduce(const NodeData& n) const {
    const auto& dim = tensor(n.inputs[0]).dim;
    const auto& to = tensor(n.output).dim;
    std::vector<std::vector<Ball>> groups(static_cast<std::size_t>(count(to)));
    const auto& values = values_[static_cast<std::size_t>(n.inputs[0])];
    const DataType compute = n.compute == DataType::int32 ? DataType::int32 : DataType::fp32;
    const bool of_rows = tensor(n.inputs[0]).grouped_by >= 0 && !group_.empty();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int g = of_rows ? group_[i / static_cast<std::size_t>(dim[2]) % static_cast<std::size_t>(dim[1])] : 0;
      if (g < 0 && to[1] == 1) continue;  // nobody owns that row
      const bool by_group = n.inputs.size() == 2 && to[0] > 1;
      const std::int64_t of_group = by_group ? g * to[2] + (to[2] == 1 ? 0 : static_cast<std::int64_t>(i) % to[2]) : 0;
      groups[static_cast<std::size_t>(by_group ? of_group : place(dim, to, static_cast<std::int64_t>(i)))].push_back(
          rounded(compute, values[i]));
    }
    std::vector<Ball> out;
    for (const auto& group : groups) out.push_back(combine(n.reduction, group, n.compute == DataType::int32));
    return out;
  }

  static Ball combine(ReductionMode mode, const std::vector<Ball>& group, bool int32) {
    using enum ReductionMode;
    if (mode == max || mode == min || mode == amax) {
      const double sign = mode == min ? -1 : 1;
      double low = mode == amax ? 0 : int32 ? -0x1p31 : -kInf, high = low;
      if (int32 && mode == min) low = high = -(0x1p31 - 1);
      for (const Ball& b : group) {
        if (std::isnan(b.value)) return b;
        if (std::isinf(b.radius)) return kAnything;
        const double v = mode == amax ? std::abs(b.value) : sign * b.value;
        low = std::max(low, v - b.radius);
        high = std::max(high, v + b.radius);
      }
      return low == high ? Ball{sign * high, 0} : Ball{sign * (low + high) / 2, (high - low) / 2};
    }
    if (mode == mul || mode == mul_no_zeros) {
      double value = 1, magnitude = 1, far = 1;
      bool integers = true;
      for (const Ball& b : group) {
        if (mode == mul_no_zeros && b.value == 0 && b.exact()) continue;
        if (mode == mul_no_zeros && std::abs(b.value) <= b.radius) return kAnything;
        value *= b.value;
        magnitude *= std::abs(b.value);
        far *= std::abs(b.value) + b.radius;
        integers = integers && b.exact() && b.value == std::trunc(b.value);
      }
      if (integers && far <= 0x1p24) return {value, 0};
      if (!(far < 0x1p127)) return std::isnan(value) ? Ball{value, 0} : kAnything;
      const auto n = static_cast<double>(group.size());
      return rounded(DataType::fp32, {value, far * std::expm1((n + 1) * 2 * kUnit) + (far - magnitude) + n * 0x1p-126});
    }
    Sum sum;
    for (const Ball& b : group) {
      if (mode == norm1)
        sum.add({std::abs(b.value), b.radius});
      else if (mode == norm2)
        sum.add({b.value * b.value, 2 * std::abs(b.value) * b.radius + b.radius * b.radius});
      else
        sum.add(b);
    }
    const Ball total = sum.ball(int32);
    if (mode == avg && group.empty()) return {0, 0};
    if (mode == avg)
      return rounded(DataType::fp32,
                     {total.value / static_cast<double>(group.size()), total.radius / static_cast<double>(group.size())});
    if (mode != norm2 || std::isinf(total.radius)) return total;
    Hull hull(std::sqrt(total.value));
    hull.add(std::sqrt(std::max(0.0, total.value - total.radius)));
    hull.add(std::sqrt(total.value + total.radius));
    return rounded(DataType::fp32, hull.ball());
  }

  const GraphData& g_;
  std::vector<std::vector<Ball>> values_;
  std::vector<bool> needed_;  // by node
  std::vector<int> group_;    // of grouped products: whose each row of the result is
};

bool is_right(double got, const Ball& want) {
  if (std::isinf(want.radius)) return true;
  if (std::isnan(want.value)) return std::isnan(got);
  return want.exact() || std::isinf(want.value) ? got == want.value : std::abs(got - want.value) <= want.radius;
}

std::string place_text(std::vector<std::int64_t> dim, std::int64_t index) {
  for (std::size_t i = dim.size(); i-- > 0;) {
    const std::int64_t e = dim[i];
    dim[i] = index % e;
    index /= e;
  }
  return graph::text_of(dim);
}

}  // namespace

std::vector<Mismatch> compare_with_reference(const GraphData& g, const std::map<std::int64_t, const HostArray*>& given,
                                             const std::map<std::int64_t, const HostArray*>& got) {
  Evaluator evaluator(g, given);
  evaluator.run(got);
  std::vector<Mismatch> all;
  for (std::size_t i = 0; i < g.tensors.size(); ++i) {
    const auto it = got.find(g.tensors[i].uid);
    if (it == got.end()) continue;
    const std::vector<Ball>& want = evaluator.of(i);
    Mismatch m{.name = g.tensors[i].name,
               .elements = static_cast<std::int64_t>(want.size()),
               .exact = 0,
               .open = 0,
               .wrong = 0,
               .text = {}};
    for (std::size_t k = 0; k < want.size(); ++k) {
      const double v = it->second->value(static_cast<std::int64_t>(k));
      m.exact += want[k].exact();
      m.open += std::isinf(want[k].radius);
      if (is_right(v, want[k])) continue;
      if (m.wrong++ == 0)
        m.text = fmt::format("at {}: got {:.9g}, wanted {:.9g} ± {:.3g}",
                             place_text(g.tensors[i].dim, static_cast<std::int64_t>(k)), v, want[k].value, want[k].radius);
    }
    all.push_back(std::move(m));
  }
  return all;
}

}  // namespace verglas::tool
