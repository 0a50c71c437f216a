#include "engine/sm90/prologue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/sm90/expression.hpp"

namespace verglas::sm90 {
namespace {

using chain::FusionChain;
using chain::MatrixInput;
using chain::PrologueStep;

const chain::Role& role_of(const FusionChain& c, const MatrixInput& in) { return c.roles[static_cast<std::size_t>(in.role)]; }

/// A scalar operand of a step, as the type in which the step computes.
class Scalars {
 public:
  Scalars(const FusionChain& c, EpiloguePlan& plan) : c_(c), plan_(plan) {}

  /// The expression that a step reads.
  std::string of(const PrologueStep& s) {
    const bool integer = s.compute == DataType::int32;
    if (s.constant && integer)
      return std::to_string(static_cast<std::int32_t>(std::clamp(std::nearbyint(*s.constant), -2147483647.0, 2147483647.0)));
    if (s.constant) return literal(*s.constant);
    const chain::Role& role = c_.roles[static_cast<std::size_t>(s.scalar_role)];
    const DataType type = c_.operands[static_cast<std::size_t>(role.operand)].dtype;
    const bool is_int = type == DataType::int32;
    const std::string name = fmt::format("s{}", count_++);
    members += fmt::format("    {} {};\n", is_int ? "int" : "float", name);
    if (role.kind == chain::RoleKind::host_scalar) {
      loads += fmt::format("      {} = {}(a.scalar[{}]);\n", name, is_int ? "__float_as_int" : "",
                           slot_in(plan_.scalars, s.scalar_role));
    } else {
      loads += fmt::format("      {0} = {1}::value({1}::load(a.aux[{2}].address, true));\n", name, slot_name(type),
                           slot_in(plan_.aux, s.scalar_role));
    }
    if (integer && !is_int) return "nearest_int(" + name + ")";
    return !integer && is_int ? "static_cast<float>(" + name + ")" : name;
  }

  std::string members, loads;

 private:
  const FusionChain& c_;
  EpiloguePlan& plan_;
  int count_ = 0;
};

std::string struct_text(const FusionChain& c, const MatrixInput& in, const char* name, EpiloguePlan& plan) {
  Scalars scalars(c, plan);
  const DataType stored = stored_type(c, in);
  bool held_int = stored == DataType::int32;
  std::string steps;
  for (std::size_t i = 0; i < in.prologue.size(); ++i) {
    const PrologueStep& s = in.prologue[i];
    const bool integer = s.compute == DataType::int32;
    const char* lane = integer ? "int" : "float";
    std::string x = fmt::format("v{}", i), y;
    if (integer && !held_int) x = "nearest_int(" + x + ")";
    if (!integer && held_int) x = "static_cast<float>(" + x + ")";
    if (s.constant || s.scalar_role >= 0) y = scalars.of(s);
    if (s.scalar_first) std::swap(x, y);
    held_int = s.dtype == DataType::int32;
    const std::string result = integer ? int_expression(s.mode, s.parameters) : float_expression(s.mode, s.parameters);
    steps += fmt::format("      {} v{};\n      {{\n        const {} x = {};\n", held_int ? "int" : "float", i + 1, lane, x);
    if (!y.empty()) steps += fmt::format("        const {} y = {};\n", lane, y);
    steps += fmt::format("        v{} = {};\n      }}\n", i + 1, rounded(s.dtype, integer, result));
  }
  return fmt::format(
      "  struct {} {{\n    static constexpr bool CONVERTS = true;\n    using Stored = {};\n    using Stage = {};\n{}"
      "    VG_DEVICE explicit {}(const EpilogueArguments& a) {{\n{}    }}\n"
      "    VG_DEVICE float operator()({} v0) const {{\n{}      return v{};\n    }}\n  }};\n",
      name, slot_name(stored), slot_name(in.dtype), scalars.members, name, scalars.loads,
      stored == DataType::int32 ? "int" : "float", steps, in.prologue.size());
}

/// `scales_a` or `scales_b`: the bytes of four blocks of a row of matrix i of that side.
std::string scales_text(const FusionChain& c, int side, EpiloguePlan& plan) {
  const char letter = side == 0 ? 'a' : 'b';
  std::string cases;
  int i = 0;
  for (const MatrixInput& in : c.inputs) {
    if ((role_of(c, in).kind == chain::RoleKind::a) != (side == 0)) continue;
    std::string load = "no_scales()";
    if (in.scale_role >= 0)
      load = fmt::format("load_scales<{}>(arguments.aux[{}], row, first, p.{}_batch_step[{}] != 0 ? batch : 0, p.{}, blocks)",
                         c.roles[static_cast<std::size_t>(in.scale_role)].is_interleaved, slot_in(plan.aux, in.scale_role),
                         letter, i, side == 0 ? 'm' : 'n');
    cases += fmt::format("    if (i == {}) return {};\n", i++, load);
  }
  return fmt::format(
      "  VG_DEVICE uint32 scales_{}(int i, int row, int first, int batch, int blocks, const Parameters& p) const {{\n"
      "{}    return no_scales();\n  }}\n",
      letter, cases);
}

}  // namespace

const MatrixInput& first_input(const FusionChain& c, int side) noexcept {
  return c.inputs[static_cast<std::size_t>(side == 0 ? c.gemms[0].a : c.gemms[0].b)];
}

DataType stored_type(const FusionChain& c, const MatrixInput& in) noexcept {
  return c.operands[static_cast<std::size_t>(role_of(c, in).operand)].dtype;
}

DataType multiplied_type(const FusionChain& c, const MatrixInput& in) noexcept {
  return in.scale_role >= 0 ? stored_type(c, in) : in.dtype;
}

bool has_scales(const FusionChain& c) noexcept {
  return std::ranges::any_of(c.inputs, [](const MatrixInput& in) { return in.scale_role >= 0; });
}

std::optional<Decline> fault_of_scales(const FusionChain& c) {
  for (const chain::Role& r : c.roles)
    if (r.kind == chain::RoleKind::output_scale)
      return Decline{Rule::sm90_block_scale, label_of(c, r) + " holds scales of blocks of " + std::to_string(r.block)};
  if (!has_scales(c)) return std::nullopt;
  for (const MatrixInput& in : c.inputs) {
    const DataType type = multiplied_type(c, in);
    if (type != DataType::fp8_e4m3 && type != DataType::fp8_e5m2)
      return Decline{Rule::sm90_block_scale, label_of(c, role_of(c, in)) + " is " + std::string(name_of(type))};
    if (in.scale_role >= 0 && in.dtype == DataType::fp16)
      return Decline{Rule::sm90_block_scale, label_of(c, role_of(c, in)) + " is rounded to fp16 with its scales"};
  }
  return std::nullopt;
}

std::optional<Decline> fault_of_prologues(const FusionChain& c) {
  for (const MatrixInput& in : c.inputs) {
    const std::string label = label_of(c, role_of(c, in));
    const MatrixInput& first = first_input(c, role_of(c, in).kind == chain::RoleKind::a ? 0 : 1);
    if (in.prologue != first.prologue || (!in.prologue.empty() && stored_type(c, in) != stored_type(c, first)))
      return Decline{Rule::sm90_prologue, label + " takes another way than " + label_of(c, role_of(c, first))};
    if (!in.prologue.empty() && slot_name(stored_type(c, in)).empty())
      return Decline{Rule::sm90_prologue, label + " is " + std::string(name_of(stored_type(c, in)))};
    for (const PrologueStep& s : in.prologue)
      if (slot_name(s.dtype).empty())
        return Decline{Rule::sm90_prologue, label + " becomes " + std::string(name_of(s.dtype)) + " on its way"};
  }
  return std::nullopt;
}

std::string prologues_text(const FusionChain& c, EpiloguePlan& plan) {
  const bool a = !first_input(c, 0).prologue.empty(), b = !first_input(c, 1).prologue.empty();
  std::string text = "struct Prologues {\n";
  if (a) text += struct_text(c, first_input(c, 0), "A", plan);
  if (b) text += struct_text(c, first_input(c, 1), "B", plan);
  const auto made = [](const char* member) { return fmt::format("{}(arguments)", member); };
  std::string members = fmt::format("  {} a;\n  {} b;\n", a ? "A" : "NoPrologue", b ? "B" : "NoPrologue");
  std::string makes = a && b ? " : " + made("a") + ", " + made("b") : a ? " : " + made("a") : b ? " : " + made("b") : "";
  if (has_scales(c)) {
    members += "  const EpilogueArguments& arguments;\n" + scales_text(c, 0, plan) + scales_text(c, 1, plan);
    makes += makes.empty() ? " : arguments(arguments)" : ", arguments(arguments)";
  }
  return text + members + "  VG_DEVICE explicit Prologues(const EpilogueArguments& arguments)" + makes + " {}\n};";
}

}  // namespace verglas::sm90
