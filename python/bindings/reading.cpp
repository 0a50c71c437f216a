#include "reading.hpp"

#include <algorithm>
#include <limits>

#include "chain/chain.hpp"

namespace verglas::python {
namespace {

std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

std::int64_t elements_of(const TensorView& v) noexcept {
  std::int64_t n = 1;
  for (int i = 0; i < v.rank; ++i)
    if (__builtin_mul_overflow(n, v.extent[at(i)], &n)) return -1;
  return n;
}

/// The strides of unit axes, and of tensors without elements, mean nothing.
bool is_declaration(const TensorView& v, const OperandInfo& o) noexcept {
  if (at(v.rank) != o.dim.size()) return false;
  for (int i = 0; i < v.rank; ++i)
    if (v.extent[at(i)] != o.dim[at(i)] || (v.extent[at(i)] > 1 && v.stride[at(i)] != o.stride[at(i)])) return false;
  return true;
}

bool is_row_major(const TensorView& v) noexcept {
  std::int64_t run = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    if (v.extent[at(i)] > 1 && v.stride[at(i)] != run) return false;
    if (__builtin_mul_overflow(run, v.extent[at(i)], &run)) return false;
  }
  return true;
}

/// A shape that cannot be what the operand is, live extents or not: a flat run, batch and rows in one axis, a scalar of rank 0.
bool has_other_rank(const TensorView& v, const OperandInfo& o, const Reading& r) noexcept {
  if (r.is_scores) return false;
  if (!r.is_matrix) {
    const auto real = std::count_if(v.extent.begin(), v.extent.begin() + v.rank, [](std::int64_t e) { return e != 1; });
    return r.is_list ? real > 1 : real != r.real_axes;
  }
  if (v.rank == 2) return o.dim.size() == 3 && o.dim[0] != 1;
  if (v.rank == 3) return o.dim.size() == 2 && v.extent[0] != 1;
  return true;
}

void describe_by_graph(TensorView& v, const OperandInfo& o) noexcept {
  v.rank = static_cast<std::int8_t>(o.dim.size());
  v.dtype = o.dtype;
  std::copy(o.dim.begin(), o.dim.end(), v.extent.begin());
  std::copy(o.stride.begin(), o.stride.end(), v.stride.begin());
}

/// An operand of the epilogue whose extents, but for those that are 1, are what the matrices of the call ask of it.
bool fits(const TensorView& v, const Reading& r, const LiveExtents& live) noexcept {
  int axis = 0;
  const auto skip_ones = [&] {
    while (axis < v.rank && v.extent[at(axis)] == 1) ++axis;
  };
  for (const chain::Symbol s : r.symbol) {
    const std::int64_t want = live.of(s);
    if (want == 1) continue;
    skip_ones();
    if (want < 0 || axis == v.rank || v.extent[at(axis++)] != want) return false;
  }
  skip_ones();
  return axis == v.rank;
}

/// Row 3' of the rules. Where extents tell the two readings apart they decide; at N = K the contiguous axis does.
AxisOrder order_of_b(const TensorView& v, const Reading& r, std::int64_t live_k) noexcept {
  if (v.rank != 2 && v.rank != 3) return AxisOrder::declared;
  const std::size_t first = at(v.rank - 2);   // K as declared, N as kernels allocate
  const std::size_t second = at(v.rank - 1);  // N as declared, K as kernels allocate
  if (v.extent[first] != v.extent[second]) {
    if (v.extent[first] == live_k) return AxisOrder::declared;
    if (v.extent[second] == live_k) return AxisOrder::kernel;
  }
  if (!r.has_major) return AxisOrder::declared;
  const std::size_t declared = r.k_major ? first : second;
  const std::size_t kernel = r.k_major ? second : first;
  return v.stride[declared] == 1 && v.stride[kernel] != 1 ? AxisOrder::declared : AxisOrder::kernel;
}

/// Of fp4 in bytes: matrices are packed along K, outputs along N, both the last axis but for a B in declared order. Where K is
/// one byte, the axis beside it has stride 1 too.
int packed_axis_of(const TensorView& v, const Reading& r, std::int64_t live_k) noexcept {
  const int last = v.rank - 1;
  if (!r.is_b || v.rank < 2) return last;
  if (live_k == 2) return v.extent[at(last)] == 1 && v.extent[at(last - 1)] != 1 ? last : last - 1;
  return packed_axis(v, last - 1);
}

}  // namespace

std::vector<Reading> readings_of(const CompiledPlan& plan) {
  std::vector<Reading> all;
  for (const OperandInfo& o : plan.operands()) {
    Reading r;
    r.is_scalar = o.is_host_scalar;
    std::int64_t reach = 1;
    for (std::size_t i = 0; i < o.dim.size(); ++i) {
      r.elements *= o.dim[i];
      r.real_axes += o.dim[i] != 1;
      reach += std::max<std::int64_t>(o.dim[i] - 1, 0) * o.stride[i];
    }
    r.reach_bytes = r.elements == 0 ? 0 : o.dtype == DataType::fp4_e2m1 ? (reach + 1) / 2 : reach * bytes_of(o.dtype);
    all.push_back(r);
  }
  for (const chain::Role& role : plan.chain().roles) {
    using enum chain::RoleKind;
    Reading& r = all[at(role.operand)];
    const OperandInfo& o = plan.operands()[at(role.operand)];
    r.is_blob |= role.is_interleaved;
    if (role.kind == aux) r.symbol = role.symbol;
    r.is_list |= role.kind == group_offset || role.kind == token_index || role.kind == token_slot || role.kind == b_table;
    r.is_scores |= role.kind == token_score;
    const bool is_scale = role.kind == scale_a || role.kind == scale_b || role.kind == output_scale;
    r.is_matrix |= is_scale || role.kind == a || role.kind == b || role.kind == output || role.kind == reduction;
    // Rows are what a gradient sums over, and nobody passes them in another order.
    if (role.kind != b || plan.chain().grouping.axis == chain::GroupedAxis::k) continue;
    r.is_b = true;
    r.k_major = o.stride[at(role.axis[2])] == 1;
    r.has_major = r.k_major || o.stride[at(role.axis[1])] == 1;
  }
  return all;
}

std::int64_t live_k_of(const TensorView& first, const OperandInfo& operand) noexcept {
  if (first.is_bare()) return operand.dim.back();
  return first.rank < 1 ? -1 : first.extent[at(first.rank - 1)];
}

std::int64_t LiveExtents::of(chain::Symbol symbol) const noexcept {
  using enum chain::Symbol;
  if (symbol == one) return 1;
  if (symbol == chain::Symbol::r) return recipe.fixed;
  const bool is_plain = recipe.offsets < 0 && (symbol == l || symbol == m || symbol == n);
  const int role = symbol == l ? recipe.first_l : symbol == m ? recipe.first_a : recipe.first_b;
  if (!is_plain) return -1;
  if (role < 0) return 1;
  const recipe::RoleFact& f = recipe.roles[at(role)];
  const int axis = symbol == l ? 0 : 1;  // canonical: A (L, M, K), B (L, N, K)
  const TensorView& v = views[f.operand];
  if (v.is_bare()) return f.extent[at(axis)];
  if (v.rank != 2 && v.rank != 3) return -1;
  if (symbol == l) return v.rank == 3 ? v.extent[0] : 1;
  const bool swapped = symbol == n && v.order == AxisOrder::kernel;
  return v.extent[at(v.rank - (swapped ? 2 : f.from_end[at(axis)]))];
}

void settle(TensorView& v, const OperandInfo& o, const Reading& r, std::int64_t live_k, const LiveExtents& live) noexcept {
  if (v.is_bare() || r.is_blob) return;
  const bool in_slots = o.dtype == DataType::fp4_e2m1 && v.dtype == DataType::uint8;
  if (!in_slots && is_declaration(v, o)) return;
  const bool may_hold_bytes = v.dtype == DataType::uint8 && v.rank == 1;
  if (has_other_rank(v, o, r) && (v.dtype == o.dtype || may_hold_bytes) && is_row_major(v)) {
    if (!r.is_matrix && !r.is_list && fits(v, r, live)) return;
    std::int64_t bytes = 0;
    const bool over = __builtin_mul_overflow(elements_of(v), std::int64_t{bytes_of(v.dtype)}, &bytes);
    if (v.dtype == DataType::fp4_e2m1) bytes /= 2;
    // Of one element no more than its bytes: several are no scalar.
    if (!over && (r.elements == 1 ? bytes == r.reach_bytes : bytes >= r.reach_bytes) && bytes > 0) {
      if (v.observed_bytes < 0) v.observed_bytes = bytes;
      describe_by_graph(v, o);
      return;
    }
  }
  if (in_slots) {
    count_elements(v, packed_axis_of(v, r, live_k));
    if (is_declaration(v, o)) return;
  }
  if (r.is_b) v.order = order_of_b(v, r, live_k);
}

int packed_axis(const TensorView& v, int preferred) noexcept {
  int packed = preferred;
  for (int i = 0; i < v.rank; ++i)
    if (v.stride[at(i)] == 1 && v.extent[at(i)] != 1) packed = i;
  return packed;
}

void count_elements(TensorView& v, int packed) noexcept {
  const bool is_axis = packed >= 0 && packed < v.rank;
  const bool is_apart = is_axis && v.extent[at(packed)] > 1 && v.stride[at(packed)] != 1;  // bytes with others between them
  v.dtype = DataType::fp4_e2m1;
  for (int i = 0; i < v.rank; ++i) {
    std::int64_t& step = i == packed ? v.extent[at(i)] : v.stride[at(i)];
    // What does not fit stays too large for the checks of the call.
    if (__builtin_mul_overflow(step, std::int64_t{2}, &step)) step = std::numeric_limits<std::int64_t>::max() / 2;
  }
  if (is_axis && !is_apart) v.stride[at(packed)] = 1;
}

}  // namespace verglas::python
