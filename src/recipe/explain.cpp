#include <fmt/format.h>

#include "recipe/evaluate.hpp"

namespace verglas::recipe {
namespace detail {
namespace {

std::string joined(const std::int64_t* first, int n) {
  std::string s = "(";
  for (int i = 0; i < n; ++i) s += (i ? ", " : "") + std::to_string(first[i]);
  return s + ")";
}

}  // namespace

std::string extents_text(const TensorView& v) {
  if (v.is_bare()) return "as declared";
  return v.rank < 0 || v.rank > kMaxRank ? fmt::format("of rank {}", v.rank) : joined(v.extent.data(), v.rank);
}
std::string strides_text(const TensorView& v) {
  if (v.is_bare()) return "as declared";
  return v.rank < 0 || v.rank > kMaxRank ? fmt::format("of rank {}", v.rank) : joined(v.stride.data(), v.rank);
}

std::string extents_text(const std::int64_t (&canonical)[3], const RoleFact& f, const TensorView& v) {
  const bool is_matrix = f.kind == RoleKind::a || f.kind == RoleKind::b;
  const bool kernel_order = f.kind == RoleKind::b && v.order == AxisOrder::kernel;
  std::int64_t user[3] = {canonical[0], canonical[1], canonical[2]};
  if (is_matrix && f.from_end[1] < f.from_end[2] && !kernel_order) std::swap(user[1], user[2]);
  const bool without_batch = v.rank == 2 && canonical[0] == 1;
  return without_batch ? joined(user + 1, 2) : joined(user, 3);
}

std::string device_text(Device d) {
  switch (d.type) {
    case DeviceType::cpu: return "the host";
    case DeviceType::cuda: return fmt::format("cuda:{}", d.id);
    case DeviceType::unknown: return "an unknown device";
  }
  return "an unknown device";
}
std::string address_text(const void* p) { return fmt::format("0x{:x}", reinterpret_cast<std::uintptr_t>(p)); }

std::string axis_text(const RoleFact& f, int canonical) {
  if (canonical == 0) return "batch";
  if (f.kind == RoleKind::a) return canonical == 1 ? "M" : "K";
  if (f.kind == RoleKind::b) return canonical == 1 ? "N" : "K";
  return canonical == 1 ? "M" : "N";
}

}  // namespace detail

std::string text_of_faults(std::uint32_t faults) {
  std::string s;
  const auto say = [&](DataFault bit, const char* words) {
    if ((faults & bit) != 0) s += (s.empty() ? "" : ", ") + std::string(words);
  };
  say(kFaultOffsets, "offsets that fall or leave the rows");
  say(kFaultTokenIndex, "token indices outside the tokens");
  say(kFaultTokenSlot, "slots outside top_k");
  say(kFaultBlocks, "offsets within blocks of rows");
  say(kFaultNullWeights, "null addresses of weights");
  return s;
}

std::string operands_of_faults(const chain::FusionChain& chain, std::uint32_t faults) {
  std::string s;
  const auto say = [&](DataFault bit, int role) {
    if ((faults & bit) != 0 && role >= 0)
      s += (s.empty() ? "" : " and ") + label_of(chain, chain.roles[static_cast<std::size_t>(role)]);
  };
  say(kFaultOffsets, chain.grouping.offset_role);
  if ((faults & kFaultOffsets) == 0) say(kFaultBlocks, chain.grouping.offset_role);
  say(kFaultTokenIndex, chain.grouping.index_role);
  say(kFaultTokenSlot, chain.grouping.slot_role);
  for (const chain::MatrixInput& in : chain.inputs)
    if (chain.roles[static_cast<std::size_t>(in.role)].kind != RoleKind::a) say(kFaultNullWeights, in.role);
  return s.empty() ? "call" : s;
}

namespace {

/// Whose fault a check would be: an operand with all its roles, or one role, or the call.
std::string subject_of(const Recipe& r, const chain::FusionChain& chain, const Check& c) {
  switch (c.kind) {
    case CheckKind::count:
    case CheckKind::plan_device:
    case CheckKind::live:
    case CheckKind::inner:
    case CheckKind::runs:
    case CheckKind::heads:
    case CheckKind::live_groups:
    case CheckKind::data:
    case CheckKind::grid: return "call";
    case CheckKind::workspace: return "workspace";
    case CheckKind::present:
    case CheckKind::writable:
    case CheckKind::device:
    case CheckKind::dtype: return label_of(chain, chain.roles[r.operands[c.role].first_role]);
    case CheckKind::overlap: return label_of(chain, chain.roles[c.role]) + " and " + label_of(chain, chain.roles[c.other]);
    default: return label_of(chain, chain.roles[c.role]);
  }
}

std::string_view kind_text(CheckKind k) {
  switch (k) {
    case CheckKind::count: return "one buffer for each operand";
    case CheckKind::plan_device: return "current device is the plan's";
    case CheckKind::present: return "address present";
    case CheckKind::writable: return "writable";
    case CheckKind::rank: return "rank";
    case CheckKind::device: return "device";
    case CheckKind::dtype: return "type";
    case CheckKind::major: return "contiguous axis";
    case CheckKind::modulus: return "contiguous extent";
    case CheckKind::stride_sign: return "no negative stride";
    case CheckKind::pitch: return "lines apart";
    case CheckKind::outer_stride: return "outer strides";
    case CheckKind::reach: return "byte offsets fit";
    case CheckKind::live: return "read L, M, N, K";
    case CheckKind::inner: return "K is not 0";
    case CheckKind::runs: return "whole pairs of runs";
    case CheckKind::heads: return "whole heads";
    case CheckKind::vector: return "one axis";
    case CheckKind::live_groups: return "read groups, experts, rows";
    case CheckKind::batch: return "batch";
    case CheckKind::extents: return "extents";
    case CheckKind::alignment: return "alignment";
    case CheckKind::span: return "inside the buffer";
    case CheckKind::aux: return "broadcast shape";
    case CheckKind::packed: return "pairs";
    case CheckKind::blocks: return "whole blocks";
    case CheckKind::scale: return "extents of scales";
    case CheckKind::scale_size: return "bytes of scales";
    case CheckKind::overlap: return "no shared bytes";
    case CheckKind::injective: return "no two elements in one place";
    case CheckKind::data: return "data of calls before";
    case CheckKind::grid: return "tiles below 2^31";
    case CheckKind::workspace: return "size and alignment";
    case CheckKind::end: break;
  }
  return "?";
}

}  // namespace

Error explain(const Recipe& recipe, const chain::FusionChain& chain, const Launcher& launcher, Status status, const Call& call) {
  if (status.code != ErrorCode::invalid_call) {
    if (status.code == ErrorCode::ok) return broken(Rule::internal, "explain was asked about a call that was served");
    return launcher.failure(status);
  }
  Binding binding;
  int failed = -1;
  Words said;
  evaluate(recipe, recipe.checks.data(), launcher, call, binding, [&](int check, const auto& words) {
    failed = check;
    said = words();
    return Status{ErrorCode::invalid_call, static_cast<std::int16_t>(check), 0};
  });
  if (failed < 0) return broken(Rule::internal, "a refused call passes every check now: its buffers changed in between");
  const Check& c = recipe.checks[static_cast<std::size_t>(failed)];
  const std::string subject =
      c.kind == CheckKind::data ? operands_of_faults(chain, launcher.data_faults()) : subject_of(recipe, chain, c);
  return broken(c.rule, subject, std::move(said.got), std::move(said.want));
}

std::string print_checks(const Recipe& recipe, const chain::FusionChain& chain) {
  std::string s;
  for (std::size_t i = 0; recipe.checks[i].kind != CheckKind::end; ++i) {
    const Check& c = recipe.checks[i];
    s += fmt::format("{:3} {:20} {:28} {}", i, info_of(c.rule).id, kind_text(c.kind), subject_of(recipe, chain, c));
    if (c.kind == CheckKind::alignment) s += fmt::format(" % {}", c.b);
    s += '\n';
  }
  return s;
}

}  // namespace verglas::recipe
