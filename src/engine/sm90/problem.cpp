#include "engine/sm90/problem.hpp"

#include <algorithm>

namespace verglas::sm90 {
namespace {

/// Any multiple of every alignment that a path asks for; never read through.
constexpr std::uintptr_t kAnyAddress = 4096;

/// The smallest stride of whole 16-byte pieces that clears a run of n elements.
std::int64_t clear_stride(std::int64_t n, int bytes) noexcept {
  const std::int64_t piece = 16 / bytes;
  return (std::max<std::int64_t>(n, 1) + piece - 1) / piece * piece;
}

}  // namespace

Matrix matrix_of(const recipe::RoleView& v, int bytes) noexcept {
  Matrix m;
  m.address = reinterpret_cast<std::uint64_t>(v.data);
  m.row_stride = v.stride[1];
  m.col_stride = v.stride[2];
  m.batch_stride = v.extent[0] > 1 ? v.stride[0] : 0;
  if (v.extent[2] <= 1) m.col_stride = v.extent[1] > 1 && m.row_stride == 1 ? clear_stride(v.extent[1], bytes) : 1;
  if (v.extent[1] <= 1) m.row_stride = m.col_stride == 1 ? clear_stride(v.extent[2], bytes) : 1;
  return m;
}

ProductRoles product_roles(const chain::FusionChain& c) noexcept {
  ProductRoles r;
  if (c.grouping.mode == MoeMode::gather) r.row_list = c.grouping.index_role;
  if (c.grouping.combines()) r.scores = c.grouping.score_role;
  r.has_experts = c.grouping.axis == chain::GroupedAxis::m;
  if (!c.stores.empty()) r.d = c.stores[0].role;
  for (const chain::MatrixInput& in : c.inputs) {
    const bool is_a = c.roles[static_cast<std::size_t>(in.role)].kind == chain::RoleKind::a;
    if (in.table >= 0) {
      r.addressed |= 1 << r.b_count;
      r.tables[static_cast<std::size_t>(r.b_count)] = c.tables[static_cast<std::size_t>(in.table)];
    }
    (is_a ? r.a : r.b)[static_cast<std::size_t>(is_a ? r.a_count++ : r.b_count++)] = in.role;
  }
  return r;
}

bool is_read(const chain::FusionChain& c, int value) {
  const auto is_value = [value](const auto& reader) { return reader.value == value; };
  return std::ranges::any_of(c.steps,
                             [value](const chain::Step& s) { return std::ranges::find(s.input, value) != s.input.end(); }) ||
         std::ranges::any_of(c.reductions, is_value) || std::ranges::any_of(c.quantised, is_value);
}
bool is_free(const chain::FusionChain& c, const chain::Step& s) {
  if (s.mode != PointwiseMode::identity) return false;
  const DataType from = c.values[static_cast<std::size_t>(s.input[0])].dtype,
                 to = c.values[static_cast<std::size_t>(s.value)].dtype;
  return from == to || (to != DataType::int32 && from != DataType::int32 && !is_read(c, s.value));
}

Problem problem_of(const ProductRoles& r, const recipe::RoleView* views, int input_bytes, int output_bytes) noexcept {
  Problem p;
  if (r.d >= 0) {
    const recipe::RoleView& d = views[r.d];
    p.batches = d.extent[0];
    p.m = d.extent[1];
    p.n = d.extent[2];
    p.d = matrix_of(d, output_bytes);
  } else {
    p.m = r.row_list >= 0 ? std::max(views[r.row_list].extent[0], views[r.row_list].extent[1]) : views[r.a[0]].extent[1];
    if (r.scores >= 0) p.m = views[r.scores].extent[1];
    p.n = (r.addressed & 1) != 0 ? r.tables[0].extent[0] : views[r.b[0]].extent[1];
    const auto batch = [&](int role) {
      if (views[role].extent[0] != 1) p.batches = views[role].extent[0];
    };
    std::for_each_n(r.a.begin(), r.a_count, batch);
    if (!r.has_experts) std::for_each_n(r.b.begin(), r.b_count, batch);
  }
  p.tokens = views[r.a[0]].extent[1];
  if (r.has_experts)
    for (int i = 0; i < r.b_count; ++i)
      p.experts = std::max<std::int64_t>({p.experts, 1, views[r.b[static_cast<std::size_t>(i)]].extent[0]});
  p.k = views[r.a[0]].extent[2];
  for (std::size_t i = 0; i < static_cast<std::size_t>(r.a_count); ++i) p.a[i] = matrix_of(views[r.a[i]], input_bytes);
  p.addressed = r.addressed;
  for (std::size_t i = 0; i < static_cast<std::size_t>(r.b_count); ++i) {
    const recipe::RoleView& v = views[r.b[i]];
    if ((r.addressed >> i & 1) == 0) {
      p.b[i] = matrix_of(v, input_bytes);
      continue;
    }
    const chain::PointerTable& t = r.tables[i];
    p.b[i] = matrix_of({v.data, {1, t.extent[0], t.extent[1]}, {0, t.stride[0], t.stride[1]}, 0}, input_bytes);
    p.b[i].batch_stride = v.extent[0] > 1 ? v.stride[0] : 0;
  }
  return p;
}

StagedRoles staged_roles(const chain::FusionChain& c) {
  StagedRoles s;
  if (c.stores.empty()) return s;
  const std::vector<recipe::RoleView> views = declared_views(c);
  const auto type_of = [&](int role) {
    return c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(role)].operand)].dtype;
  };
  const auto fit = [&](int role) {
    const recipe::RoleView& v = views[static_cast<std::size_t>(role)];
    return fit_output(matrix_of(v, bytes_of(type_of(role))), v.extent[1], v.extent[2], v.extent[0], bytes_of(type_of(role)));
  };
  const int d = c.stores[0].role;
  const OutputFit first = fit(d);
  const auto is_like_d = [&](int role) {
    const DataType t = type_of(role);
    return (t == DataType::fp32 || t == DataType::bf16 || t == DataType::fp16) && bytes_of(t) == bytes_of(type_of(d));
  };
  const auto is_packed = [](DataType t) { return t == DataType::bf16 || t == DataType::fp16 || is_fp8(t); };
  const bool is_grouped = c.grouping.has_group_rows();
  if (first.path != Path::tma) return s;
  for (const chain::Value& v : c.values) {
    const bool is_tile = c.grouping.mode != MoeMode::scatter && v.kind == chain::ValueKind::aux && v.varies[1] && v.varies[2] &&
                         is_like_d(v.source);
    if (!is_tile || s.tile.role >= 0) continue;
    if (const OutputFit f = fit(v.source); f.path == Path::tma && f.along_m == first.along_m && !(f.along_m && is_grouped))
      s.tile = {v.source, type_of(v.source), f.along_m, false};
  }
  if (is_grouped) return s;  // threads write what ends with a group
  for (std::size_t i = 1; i < c.stores.size() && s.further_count < StagedRoles::kMaxFurther; ++i) {
    const int role = c.stores[i].role;
    const DataType t = type_of(role);
    const bool is_half = is_packed(t) && 2 * bytes_of(t) == bytes_of(type_of(d));
    if (!is_like_d(role) && !is_half) continue;
    if (const OutputFit f = fit(role); f.path == Path::tma)
      s.further[static_cast<std::size_t>(s.further_count++)] = {role, t, f.along_m, true, is_half ? 2 : 1};
  }
  return s;
}

std::vector<recipe::RoleView> declared_views(const chain::FusionChain& c) {
  std::vector<recipe::RoleView> views = recipe::declared_views(c);
  for (recipe::RoleView& v : views) v.data = reinterpret_cast<char*>(kAnyAddress);
  return views;
}

}  // namespace verglas::sm90
