#include <algorithm>
#include <iterator>

#include "recipe/evaluate.hpp"

namespace verglas::recipe {
namespace {

RoleFact fact_of(const chain::FusionChain& c, const chain::Role& role) {
  const chain::Operand& o = c.operands[static_cast<std::size_t>(role.operand)];
  const auto rank = static_cast<int>(o.dim.size());
  RoleFact f;
  f.kind = role.kind;
  f.operand = static_cast<std::uint8_t>(role.operand);
  f.slot_bytes = static_cast<std::uint8_t>(bytes_of(o.dtype));
  f.symbol = role.symbol;
  f.block = role.block;
  f.is_packed = o.dtype == DataType::fp4_e2m1;
  f.is_interleaved = role.is_interleaved;
  f.is_by_group = role.is_by_group;
  for (std::size_t i = 0; i < 3; ++i) {
    const int axis = role.axis[i];
    f.from_end[i] = static_cast<std::int8_t>(axis < 0 ? 3 - static_cast<int>(i) : rank - axis);
    const bool is_void_blob = role.is_interleaved && std::find(o.dim.begin(), o.dim.end(), 0) != o.dim.end();
    f.extent[i] = is_void_blob ? 0 : axis < 0 ? 1 : o.dim[static_cast<std::size_t>(axis)];
    f.stride[i] = axis < 0 ? 0 : o.stride[static_cast<std::size_t>(axis)];
  }
  return f;
}

class Builder {
 public:
  Builder(const chain::FusionChain& c, const Requirements& q)
      : q_(q), has_runs_(std::ranges::any_of(c.steps, [](const chain::Step& s) { return s.run >= 0; })) {
    r_.declared = c.declared;
    r_.head = c.rope.head;
    r_.fixed = chain::fixed_extent(c);
    r_.device = q.device;
    r_.workspace = q.workspace;
    r_.tiles = q.tiles;
    r_.most_groups = q.most_groups;
    for (const chain::Operand& o : c.operands)
      r_.operands.push_back({.dtype = o.dtype,
                             .is_output = o.is_output,
                             .is_host_scalar = o.is_host_scalar,
                             .first_role = 0,
                             .device = o.is_host_scalar ? Device{} : q.device});
    for (const chain::Role& role : c.roles) r_.roles.push_back(fact_of(c, role));
    for (std::size_t i = r_.roles.size(); i-- > 0;) {
      const RoleFact& f = r_.roles[i];
      r_.operands[f.operand].first_role = static_cast<std::uint8_t>(i);
      if (f.kind == RoleKind::a) r_.first_a = static_cast<int>(i);
      if (f.kind == RoleKind::b) r_.first_b = static_cast<int>(i);
      if (f.kind == RoleKind::group_offset) r_.offsets = static_cast<int>(i);
      if (f.kind == RoleKind::b_table || (f.kind == RoleKind::b && f.symbol[0] == Symbol::e)) r_.experts = static_cast<int>(i);
      if (c.grouping.has_tokens() && f.kind == (c.grouping.combines() ? RoleKind::token_score : RoleKind::token_index))
        r_.row_list = static_cast<int>(i);
      if ((f.kind == RoleKind::a || f.kind == RoleKind::b) && f.symbol[0] == Symbol::l) r_.first_l = static_cast<int>(i);
    }
    r_.is_by_table = !c.tables.empty();
    if (r_.is_by_table) find_first_b();
  }

  Recipe run() {
    structure();
    layout();
    extents();
    outputs();
    if (r_.offsets >= 0) add(Rule::call_data, CheckKind::data, 0);
    if (r_.tiles.m > 0) add(Rule::call_grid, CheckKind::grid, 0);
    if (r_.workspace.bytes > 0) add(Rule::call_workspace, CheckKind::workspace, 0);
    add(Rule::internal, CheckKind::end, 0);
    return std::move(r_);
  }

 private:
  /// A matrix among tables says N and K like any; where there is none, the description does, and `live` may read what it likes.
  void find_first_b() {
    r_.first_b = r_.first_a;
    for (std::size_t i = r_.roles.size(); i-- > 0;)
      if (r_.roles[i].kind == RoleKind::b) r_.first_b = static_cast<int>(i);
  }
  static bool is_vector(const RoleFact& f) {
    return f.kind == RoleKind::b_table || f.kind == RoleKind::scale_table || f.kind == RoleKind::group_offset ||
           f.kind == RoleKind::token_index || f.kind == RoleKind::token_slot || f.kind == RoleKind::token_score;
  }
  static bool is_matrix(const RoleFact& f) { return f.kind == RoleKind::a || f.kind == RoleKind::b; }
  /// Bound by its broadcast shape.
  static bool is_aux(const RoleFact& f) { return f.kind == RoleKind::aux || f.kind == RoleKind::host_scalar || is_vector(f); }
  static bool is_scale(const RoleFact& f) { return f.block > 0; }
  static bool is_output_scale(const RoleFact& f) { return f.kind == RoleKind::output_scale; }
  static bool is_dense_output(const RoleFact& f) { return f.kind == RoleKind::output || f.kind == RoleKind::reduction; }
  static bool is_stored(const RoleFact& f) { return is_dense_output(f) || is_output_scale(f); }
  /// Bound before the live extents are known, which are read from them.
  static bool is_early(const RoleFact& f) { return !is_aux(f) && !is_scale(f); }
  static bool is_plain_scale(const RoleFact& f) { return is_scale(f) && !f.is_interleaved; }
  static bool is_blob(const RoleFact& f) { return f.is_interleaved; }

  void add(Rule rule, CheckKind kind, std::size_t role, std::size_t other = 0, int a = 0, int b = 1) {
    if (kind == CheckKind::span) other = r_.roles[role].operand;
    r_.checks.push_back({rule, kind, static_cast<std::uint8_t>(role), static_cast<std::uint8_t>(other),
                         static_cast<std::uint8_t>(a), static_cast<std::uint16_t>(b)});
  }
  template <class Filter>
  void each_role(Filter&& filter, Rule rule, CheckKind kind, int a = 0) {
    for (std::size_t i = 0; i < r_.roles.size(); ++i)
      if (filter(r_.roles[i])) add(rule, kind, i, 0, a);
  }
  int alignment_of(std::size_t role) const {
    for (const auto* list : {&q_.matrix, &q_.aux})
      for (const auto& [r, m] : *list)
        if (static_cast<std::size_t>(r) == role && m.alignment > 0) return m.alignment;
    return r_.roles[role].slot_bytes;
  }

  void structure() {
    add(Rule::call_operand_count, CheckKind::count, 0);
    if (q_.device.type != DeviceType::cpu) add(Rule::call_device, CheckKind::plan_device, 0);
    for (std::size_t i = 0; i < r_.operands.size(); ++i) add(Rule::call_null, CheckKind::present, i);
    for (std::size_t i = 0; i < r_.operands.size(); ++i)
      if (r_.operands[i].is_output) add(Rule::call_read_only, CheckKind::writable, i);
    each_role(is_early, Rule::call_rank, CheckKind::rank);
    for (std::size_t i = 0; i < r_.operands.size(); ++i) add(Rule::call_operand_device, CheckKind::device, i);
    for (std::size_t i = 0; i < r_.operands.size(); ++i) add(Rule::call_dtype, CheckKind::dtype, i);
  }

  void ask_major(const std::vector<std::pair<int, Requirements::Matrix>>& all) {
    for (const auto& [role, m] : all)
      add(Rule::call_major, CheckKind::major, static_cast<std::size_t>(role), 0, m.k_major ? 2 : 1);
  }
  void ask_strides(const std::vector<std::pair<int, Requirements::Matrix>>& all) {
    for (const auto& [role, m] : all)
      if (m.pitch) add(Rule::call_pitch, CheckKind::pitch, static_cast<std::size_t>(role), 0, m.k_major ? 2 : 1);
    for (const auto& [role, m] : all)
      if (m.stride_multiple > 1)
        add(Rule::call_outer_stride, CheckKind::outer_stride, static_cast<std::size_t>(role), m.stride_limit ? 1 : 0,
            m.k_major ? 2 : 1, m.stride_multiple);
  }

  void layout() {
    ask_major(q_.matrix);
    for (const auto& [role, m] : q_.matrix)
      if (m.modulus > 1)
        add(Rule::call_modulus, CheckKind::modulus, static_cast<std::size_t>(role), 0, m.k_major ? 2 : 1, m.modulus);
    each_role(is_early, Rule::call_stride, CheckKind::stride_sign);
    ask_strides(q_.matrix);
    each_role(is_early, Rule::call_overflow, CheckKind::reach);
    for (std::size_t i = 0; i < r_.roles.size(); ++i)
      if (is_early(r_.roles[i]) && r_.operands[r_.roles[i].operand].dtype == DataType::fp4_e2m1)
        add(Rule::call_packed, CheckKind::packed, i);
  }

  void extents() {
    each_role(is_vector, Rule::call_aux_extent, CheckKind::vector);
    add(Rule::call_extent_limit, CheckKind::live, 0);
    if (q_.inner) add(Rule::call_inner, CheckKind::inner, 0);
    if (has_runs_) add(Rule::call_runs, CheckKind::runs, 0);
    if (r_.head > 0) add(Rule::call_rope, CheckKind::heads, 0);
    if (r_.offsets >= 0) add(Rule::call_extent_limit, CheckKind::live_groups, 0);
    each_role(is_matrix, Rule::call_batch, CheckKind::batch);
    each_role(is_matrix, Rule::call_extent, CheckKind::extents, 1);
    for (std::size_t i = 0; i < r_.roles.size(); ++i)
      if (is_matrix(r_.roles[i])) add(Rule::call_alignment, CheckKind::alignment, i, 0, 0, alignment_of(i));
    each_role(is_dense_output, Rule::call_output_extent, CheckKind::extents, 0);
    each_role(is_output_scale, Rule::call_block_divides, CheckKind::blocks);
    for (std::size_t i = 0; i < r_.roles.size(); ++i)
      if (is_dense_output(r_.roles[i])) add(Rule::call_alignment, CheckKind::alignment, i, 0, 0, alignment_of(i));
    each_role(is_early, Rule::call_span, CheckKind::span);
    each_role(is_aux, Rule::call_aux_extent, CheckKind::aux);
    ask_major(q_.aux);
    each_role(is_aux, Rule::call_stride, CheckKind::stride_sign);
    ask_strides(q_.aux);
    each_role(is_aux, Rule::call_overflow, CheckKind::reach);
    for (std::size_t i = 0; i < r_.roles.size(); ++i)
      if (is_aux(r_.roles[i])) add(Rule::call_alignment, CheckKind::alignment, i, 0, 0, alignment_of(i));
    each_role(is_aux, Rule::call_span, CheckKind::span);
    each_role(is_scale, Rule::call_scale_extent, CheckKind::scale);
    each_role(is_plain_scale, Rule::call_stride, CheckKind::stride_sign);
    each_role(is_plain_scale, Rule::call_overflow, CheckKind::reach);
    each_role(is_blob, Rule::call_scale_size, CheckKind::scale_size);
    each_role(is_scale, Rule::call_span, CheckKind::span);
  }

  void outputs() {
    for (std::size_t i = 0; i < r_.roles.size(); ++i) {
      if (!is_stored(r_.roles[i])) continue;
      for (std::size_t j = 0; j < i; ++j) {
        const RoleFact& other = r_.roles[j];
        // Host memory and device memory never meet.
        if (other.kind == RoleKind::host_scalar && q_.device.type != DeviceType::cpu) continue;
        if (!is_stored(other) && r_.operands[other.operand].first_role != j) continue;  // one buffer in two roles: one check
        add(Rule::call_overlap, CheckKind::overlap, i, j);
      }
    }
    each_role([](const RoleFact& f) { return is_stored(f) && !f.is_interleaved; }, Rule::call_output_alias, CheckKind::injective);
  }

  const Requirements& q_;
  const bool has_runs_;
  Recipe r_;
};

/// Looks at an address, a device, a buffer's size or the call itself: all that the layout of the operands does not settle.
bool looks_beyond_layout(CheckKind kind) {
  switch (kind) {
    case CheckKind::count:
    case CheckKind::plan_device:
    case CheckKind::present:
    case CheckKind::writable:
    case CheckKind::device:
    case CheckKind::alignment:
    case CheckKind::span:
    case CheckKind::overlap:
    case CheckKind::data:
    case CheckKind::workspace: return true;
    default: return false;
  }
}

/// A recipe is made before its launcher, and no check of a layout asks one.
class NoLauncher final : public Launcher {
  Status launch(const Binding&, const Call&) const noexcept override { return {ErrorCode::internal, -1, 0}; }
  Error failure(Status) const override { return broken(Rule::internal, "a launch without a launcher"); }
};

/// Runs the checks of the layout on the declaration, and keeps what they establish.
void prepare_declaration(const chain::FusionChain& chain, Recipe& r) {
  std::vector<TensorView> buffers;
  for (const chain::Operand& o : chain.operands) {
    TensorView v;
    v.dtype = o.dtype;
    v.rank = static_cast<std::int8_t>(o.dim.size());
    std::copy(o.dim.begin(), o.dim.end(), v.extent.begin());
    std::copy(o.stride.begin(), o.stride.end(), v.stride.begin());
    buffers.push_back(v);
    DeclaredOperand& d = r.declared_operands.emplace_back();
    d.dtype = v.dtype;
    d.rank = v.rank;
    std::copy_n(v.extent.begin(), std::size(d.extent), d.extent);
    std::copy_n(v.stride.begin(), std::size(d.stride), d.stride);
  }
  for (const RoleFact& f : r.roles) r.operand_of_role.push_back(f.operand);
  std::vector<Check> layout;
  for (const Check& c : r.checks) {
    const bool beyond = looks_beyond_layout(c.kind);
    if (beyond || c.kind == CheckKind::end) r.address_checks.push_back(c);
    if (!beyond) layout.push_back(c);
  }
  Binding b;
  const auto refuse = [](int check, const auto&) { return Status{ErrorCode::invalid_call, static_cast<std::int16_t>(check), 0}; };
  const bool fits = std::all_of(buffers.begin(), buffers.end(),
                                [](const TensorView& v) { return v.rank <= std::ssize(DeclaredOperand{}.extent); });
  r.declaration_passes = fits && evaluate(r, layout.data(), NoLauncher(), {buffers, {}, {}}, b, refuse).ok();
  if (!r.declaration_passes) return;
  r.declared_views.assign(b.role, b.role + r.roles.size());
  std::copy(std::begin(b.live), std::end(b.live), r.declared_live);
}

}  // namespace

std::vector<RoleView> declared_views(const chain::FusionChain& c) {
  std::vector<RoleView> views(c.roles.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    const chain::Role& role = c.roles[i];
    const chain::Operand& o = c.operands[static_cast<std::size_t>(role.operand)];
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const int at = role.axis[axis];
      views[i].extent[axis] = at < 0 ? 1 : o.dim[static_cast<std::size_t>(at)];
      views[i].stride[axis] = at < 0 ? 0 : o.stride[static_cast<std::size_t>(at)];
    }
  }
  return views;
}

Recipe build(const chain::FusionChain& chain, const Requirements& requirements) {
  Recipe r = Builder(chain, requirements).run();
  for (std::size_t i = 0; i < r.checks.size(); ++i) r.checks[i].index = static_cast<std::uint16_t>(i);
  prepare_declaration(chain, r);
  return r;
}

}  // namespace verglas::recipe
