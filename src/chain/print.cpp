#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "chain/chain.hpp"
#include "numeric/block_scale.hpp"

namespace verglas::chain {
namespace {

constexpr std::string_view kAxisNames = "LMN";

std::string symbol_text(const Role& role) {
  constexpr std::string_view names[] = {"1", "L", "M", "N", "K", "G", "E", "T", "H", "R"};
  return fmt::format("({}, {}, {})", names[static_cast<int>(role.symbol[0])], names[static_cast<int>(role.symbol[1])],
                     names[static_cast<int>(role.symbol[2])]);
}

std::string block_text(const Role& role) {
  return role.block == 0 ? ""
                         : fmt::format(" in blocks of {}{}", role.block,
                                       role.is_by_group      ? ", interleaved by groups"
                                       : role.is_interleaved ? ", interleaved"
                                                             : "");
}

std::string parameter_text(PointwiseMode mode, const PointwiseParameters& p) {
  std::string s;
  if (p.lower_clip) s += fmt::format(" lower={}", *p.lower_clip);
  if (p.upper_clip) s += fmt::format(" upper={}", *p.upper_clip);
  if (p.negative_slope) s += fmt::format(" slope={}", *p.negative_slope);
  if (p.alpha != 1.0F) s += fmt::format(" alpha={}", p.alpha);
  if (p.beta != 1.0F) s += fmt::format(" beta={}", p.beta);
  if (mode == PointwiseMode::gen_index) s += fmt::format(" axis={}", p.axis);
  return s;
}

std::string prologue_text(const MatrixInput& in) {
  std::string s;
  for (const PrologueStep& p : in.prologue) {
    std::string other;
    if (p.constant) other = fmt::format(" with {}", *p.constant);
    if (p.scalar_role >= 0) other = fmt::format(" with r{}", p.scalar_role);
    s += fmt::format(" → {}{}{}{} in {} : {}", name_of(p.mode), parameter_text(p.mode, p.parameters), other,
                     p.scalar_first ? " (first)" : "", name_of(p.compute), name_of(p.dtype));
  }
  return s;
}

std::string axes_text(const std::array<bool, 3>& axes) {
  std::string s;
  for (std::size_t i = 0; i < 3; ++i)
    if (axes[i]) s += kAxisNames[i];
  return s;
}

}  // namespace

std::string_view name_of(RoleKind kind) noexcept {
  switch (kind) {
    case RoleKind::a: return "a";
    case RoleKind::b: return "b";
    case RoleKind::b_table: return "b_addresses";
    case RoleKind::scale_table: return "b_scale_addresses";
    case RoleKind::group_offset: return "group_offset";
    case RoleKind::token_index: return "token_index";
    case RoleKind::token_slot: return "token_ks";
    case RoleKind::token_score: return "top_k_scores";
    case RoleKind::scale_a: return "a_scale";
    case RoleKind::scale_b: return "b_scale";
    case RoleKind::aux: return "aux";
    case RoleKind::host_scalar: return "scalar";
    case RoleKind::output: return "output";
    case RoleKind::reduction: return "reduction";
    case RoleKind::output_scale: return "output_scale";
  }
  return "?";
}

std::string label_of(const FusionChain& chain, const Role& role) {
  const Operand& o = chain.operands[static_cast<std::size_t>(role.operand)];
  return o.name.empty() ? fmt::format("{} #{}", name_of(role.kind), o.uid) : fmt::format("{} '{}'", name_of(role.kind), o.name);
}

ScaleFormat scale_format(const FusionChain& c, const MatrixInput& in) noexcept {
  if (in.scale_role < 0) return {};
  if (in.scale_table >= 0) {
    const PointerTable& t = c.tables[static_cast<std::size_t>(in.scale_table)];
    return {t.dtype, t.block, t.is_interleaved, false};
  }
  const Role& r = c.roles[static_cast<std::size_t>(in.scale_role)];
  return {c.operands[static_cast<std::size_t>(r.operand)].dtype, r.block, r.is_interleaved, r.is_by_group};
}

std::int64_t declared_extent(const FusionChain& c, Symbol symbol) noexcept {
  switch (symbol) {
    case Symbol::one: return 1;
    case Symbol::l:
    case Symbol::m:
    case Symbol::n:
    case Symbol::k: return c.declared[static_cast<std::size_t>(symbol) - 1];
    case Symbol::g: return c.grouping.groups;
    case Symbol::e: return c.grouping.experts;
    case Symbol::t: return c.grouping.tokens;
    case Symbol::h: return c.declared[2] / 2;
    case Symbol::r: return fixed_extent(c);
  }
  return 1;
}

std::int64_t unit_of_bounds(const FusionChain& c) noexcept {
  std::int64_t unit = 1;
  for (const Quantise& q : c.quantised)
    if (q.along_m && c.grouping.has_group_rows())
      unit = std::max<std::int64_t>(
          unit, q.block * (c.roles[static_cast<std::size_t>(q.scale_role)].is_interleaved ? numeric::kScaleAtomColumns : 1));
  return unit;
}
std::int64_t fixed_extent(const FusionChain& c) noexcept { return c.grouping.combines() ? c.grouping.top_k : c.rope.rotated; }

std::string print(const FusionChain& c) {
  std::string s = fmt::format("chain L={} M={} N={} K={}\n", c.declared[0], c.declared[1], c.declared[2], c.declared[3]);
  if (const Grouping& g = c.grouping; g.axis != GroupedAxis::none) {
    s += fmt::format("  groups along {} by r{} ({}), G={} E={}, {}", g.axis == GroupedAxis::m ? "M" : "K", g.offset_role,
                     verglas::name_of(g.offsets), g.groups, g.experts, verglas::name_of(g.mode));
    if (g.index_role >= 0) s += fmt::format(" r{} of T={}", g.index_role, g.tokens);
    if (g.slot_role >= 0) s += fmt::format(" r{}, top_k {}", g.slot_role, g.top_k);
    if (g.score_role >= 0) s += fmt::format(", scores r{}", g.score_role);
    s += g.zero_fill ? ", zero fill\n" : "\n";
  }
  for (std::size_t i = 0; i < c.tables.size(); ++i)
    s += fmt::format("  matrices {} of {} ({}, {}) strides ({}, {}){}{}\n", i, name_of(c.tables[i].dtype), c.tables[i].extent[0],
                     c.tables[i].extent[1], c.tables[i].stride[0], c.tables[i].stride[1],
                     c.tables[i].block > 0 ? fmt::format(", blocks of {}", c.tables[i].block) : "",
                     c.tables[i].is_interleaved ? " in atoms" : "");
  for (std::size_t i = 0; i < c.operands.size(); ++i) {
    const Operand& o = c.operands[i];
    s += fmt::format("  operand {} '{}' uid={} {} ({}) strides ({}){}\n", i, o.name, o.uid, name_of(o.dtype),
                     fmt::join(o.dim, ", "), fmt::join(o.stride, ", "),
                     o.is_output        ? " output"
                     : o.is_host_scalar ? " host scalar"
                                        : "");
  }
  for (std::size_t i = 0; i < c.roles.size(); ++i)
    s += fmt::format("  r{} = {} of operand {}, axes {}{}\n", i, name_of(c.roles[i].kind), c.roles[i].operand,
                     symbol_text(c.roles[i]), block_text(c.roles[i]));
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const MatrixInput& in = c.inputs[i];
    const std::string scales = in.scale_table >= 0 ? fmt::format(" to matrices {}", in.scale_table) : "";
    const std::string scaled = in.scale_role >= 0 ? fmt::format(" · r{}{}", in.scale_role, scales) : "";
    const std::string table = in.table >= 0 ? fmt::format(" to matrices {}", in.table) : "";
    s += fmt::format("  x{} = r{}{}{}{} as {}\n", i, in.role, table, scaled, prologue_text(in), name_of(in.dtype));
  }
  for (std::size_t i = 0; i < c.values.size(); ++i) {
    const Value& v = c.values[i];
    s += fmt::format("  v{} : {} [{}] = ", i, name_of(v.dtype), axes_text(v.varies));
    switch (v.kind) {
      case ValueKind::product: {
        const Gemm& g = c.gemms[static_cast<std::size_t>(v.source)];
        s += fmt::format("x{} · x{} in {}{}", g.a, g.b, name_of(g.accumulate), g.is_fast ? ", fast" : "");
        break;
      }
      case ValueKind::aux: s += fmt::format("r{}", v.source); break;
      case ValueKind::constant: s += fmt::format("{}", v.constant); break;
      case ValueKind::step: {
        const Step& t = c.steps[static_cast<std::size_t>(v.source)];
        if (t.is_rope)
          s += fmt::format("rope {} of {} by r{}, r{}", c.rope.rotated, c.rope.head, c.rope.cos_role, c.rope.sin_role);
        else
          s += t.run >= 0 ? fmt::format("runs {}", t.run) : std::string(name_of(t.mode)) + parameter_text(t.mode, t.parameters);
        for (const int input : t.input)
          if (input >= 0) s += fmt::format(" v{}", input);
        s += fmt::format(" in {}", name_of(t.compute));
        break;
      }
    }
    s += '\n';
  }
  for (const Store& st : c.stores) s += fmt::format("  {} v{} → r{}\n", st.accumulate ? "add" : "store", st.value, st.role);
  for (const Reduction& r : c.reductions)
    s += fmt::format("  reduce {} of v{} over {} in {} → r{}\n", name_of(r.mode), r.value, axes_text(r.reduces),
                     name_of(r.compute), r.role);
  for (const Quantise& q : c.quantised)
    if (q.scale_role < 0)
      s += fmt::format("  store v{} in pairs → r{}\n", q.value, q.role);
    else
      s += fmt::format("  quantise v{} in blocks of {} along {}, up to {} → r{}, r{}\n", q.value, q.block, q.along_m ? "M" : "N",
                       q.vmax, q.role, q.scale_role);
  return s;
}

}  // namespace verglas::chain
