#include "engine/sm90/prologue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/sm90/expression.hpp"
#include "engine/sm90/problem.hpp"

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
    // The stage is packed in that type by pairs; single roundings have an eighth of their rate.
    const bool is_packed = i + 1 == in.prologue.size() && !integer && s.dtype == in.dtype &&
                           (s.dtype == DataType::bf16 || s.dtype == DataType::fp16);
    steps += fmt::format("        v{} = {};\n      }}\n", i + 1, rounded(is_packed ? DataType::fp32 : s.dtype, integer, result));
  }
  // Bytes along K, which a Decoder converts.
  const char* decoding = pieces_decoded(c, in) == 0 ? ""
                                                    : "    using Pieces = BytePieces;\n    static constexpr int BLOCK = 0;\n"
                                                      "    static constexpr bool INTERLEAVED = false;\n"
                                                      "    VG_DEVICE Aux scales(int) const { return {}; }\n"
                                                      "    VG_DEVICE static constexpr int scale_step(int) { return 0; }\n";
  return fmt::format(
      "  struct {} {{\n    static constexpr bool CONVERTS = true;\n{}    using Stored = {};\n    using Stage = {};\n{}"
      "    VG_DEVICE explicit {}(const EpilogueArguments& a) {{\n{}    }}\n"
      "    VG_DEVICE float operator()({} v0) const {{\n{}      return v{};\n    }}\n  }};\n",
      name, decoding, slot_name(stored), slot_name(in.dtype), scalars.members, name, scalars.loads,
      stored == DataType::int32 ? "int" : "float", steps, in.prologue.size());
}

/// Scales of one matrix may serve all batches. Its strides do not tell: one of 0 may stand beside scales of each batch.
bool has_batches(const FusionChain& c, const MatrixInput& in) {
  return in.scale_table < 0 && c.roles[static_cast<std::size_t>(in.scale_role)].symbol[0] != chain::Symbol::one;
}

/// The scales of an input as an Aux; those whose addresses a table holds are the expert's.
std::string scales_of(const FusionChain& c, const MatrixInput& in, const std::string& expert, EpiloguePlan& plan) {
  const std::string aux = fmt::format("arguments.aux[{}]", slot_in(plan.aux, in.scale_role));
  if (in.scale_table < 0) return aux;
  const chain::PointerTable& t = c.tables[static_cast<std::size_t>(in.scale_table)];
  return fmt::format("scales_of_expert({}, {}, {}, {})", aux, expert, t.stride[0], t.stride[1]);
}

/// The same but for the address.
std::string of_any_expert(const FusionChain& c, const MatrixInput& in, EpiloguePlan& plan) {
  if (in.scale_table < 0) return scales_of(c, in, "", plan);
  const chain::PointerTable& t = c.tables[static_cast<std::size_t>(in.scale_table)];
  return fmt::format("Aux{{nullptr, 0, {}, {}}}", t.stride[0], t.stride[1]);
}

/// `lacks_scales`: does an expert have none, since the address in a table is null?
std::string lacks_text(const FusionChain& c, EpiloguePlan& plan) {
  std::string text;
  for (const MatrixInput& in : c.inputs)
    if (in.scale_table >= 0) text += (text.empty() ? "" : " || ") + scales_of(c, in, "expert", plan) + ".address == nullptr";
  return text.empty() ? "" : "  VG_DEVICE bool lacks_scales(int expert) const { return " + text + "; }\n";
}

/// `place_a` and `scales_a`, or those of b: where the scales of a row of matrix i of that side lie, and the bytes of four blocks.
std::string scales_text(const FusionChain& c, int side, EpiloguePlan& plan) {
  const char letter = side == 0 ? 'a' : 'b';
  std::string places, loads;
  int i = 0;
  for (const MatrixInput& in : c.inputs) {
    if ((role_of(c, in).kind == chain::RoleKind::a) != (side == 0)) continue;
    std::string place = "nullptr", load = "NO_SCALES";
    if (in.scale_role >= 0) {
      const chain::ScaleFormat format = scale_format(c, in);
      const std::string scales = scales_of(c, in, "batch", plan);
      place = format.is_by_group ? fmt::format("scales_of_row_in_group({}, row, batch, p.m, blocks)", scales)
                                 : fmt::format("scales_of_row<{}>({}, row, {}, p.{}, blocks)", format.is_interleaved, scales,
                                               has_batches(c, in) ? "batch" : "0",
                                               side == 1                 ? "n"
                                               : c.grouping.has_tokens() ? "tokens"
                                                                         : "m");
      load = fmt::format("load_scales<{}>({}, from, first, blocks)", format.is_interleaved, of_any_expert(c, in, plan));
    }
    places += fmt::format("    if (i == {}) return {};\n", i, place);
    loads += fmt::format("    if (i == {}) return {};\n", i++, load);
  }
  return fmt::format(
      "  VG_DEVICE const char* place_{0}(int i, int row, int batch, int blocks, const Parameters& p) const {{\n"
      "{1}    return nullptr;\n  }}\n"
      "  VG_DEVICE uint32 scales_{0}(int i, const char* from, int first, int blocks) const {{\n{2}    return 0;\n  }}\n",
      letter, places, loads);
}

/// What a Decoder of that side does (decode.cuh).
std::string decoding_text(const FusionChain& c, int side, const char* name, EpiloguePlan& plan) {
  const MatrixInput& first = first_input(c, side);
  const DataType stored = stored_type(c, first);
  const chain::ScaleFormat format = scale_format(c, first);
  const bool is_half = decoded_type(c) == DataType::fp16;
  std::string cases, steps;
  int i = 0;
  for (const MatrixInput& in : c.inputs)
    if ((role_of(c, in).kind == chain::RoleKind::a) == (side == 0) && in.scale_role >= 0) {
      if (has_batches(c, in)) steps += fmt::format("      if (i == {}) return 1;\n", i);
      cases += fmt::format("      if (i == {}) return {};\n", i++, scales_of(c, in, "expert", plan));
    }
  return fmt::format(
      "  struct {0} {{\n    using Pieces = {1};\n    using Scale = {2};\n    static constexpr int BLOCK = {3};\n"
      "    static constexpr bool INTERLEAVED = {4}, CONVERTS = false;\n    const EpilogueArguments& arguments;\n"
      "    VG_DEVICE explicit {0}(const EpilogueArguments& a) : arguments(a) {{}}\n"
      "    VG_DEVICE Aux scales(int i, [[maybe_unused]] int expert = 0) const {{\n{5}      return {{}};\n    }}\n"
      "    VG_DEVICE static constexpr int scale_step(int i) {{\n{6}      return 0;\n    }}\n  }};\n",
      name,
      stored == DataType::fp4_e2m1   ? is_half ? "Fp4HalfPieces" : "Fp4Pieces"
      : stored == DataType::fp8_e4m3 ? "Fp8Pieces<true>"
                                     : "Fp8Pieces<false>",
      format.dtype == DataType::fp8_e8m0 ? "E8m0Scale"
      : is_half                          ? "E4m3HalfScale"
                                         : "E4m3Scale",
      format.block, format.is_interleaved, cases, steps);
}

}  // namespace

const MatrixInput& first_input(const FusionChain& c, int side) noexcept {
  return c.inputs[static_cast<std::size_t>(side == 0 ? c.gemms[0].a : c.gemms[0].b)];
}

DataType stored_type(const FusionChain& c, const MatrixInput& in) noexcept {
  return in.table >= 0 ? c.tables[static_cast<std::size_t>(in.table)].dtype
                       : c.operands[static_cast<std::size_t>(role_of(c, in).operand)].dtype;
}

namespace {

bool is_fp8_factor(DataType t) noexcept { return t == DataType::fp8_e4m3 || t == DataType::fp8_e5m2; }

/// In memory, with or without scales, and without a prologue.
bool is_narrow(const FusionChain& c, const MatrixInput& in) noexcept {
  const DataType t = stored_type(c, in);
  return in.prologue.empty() && (t == DataType::fp4_e2m1 || is_fp8_factor(t));
}

bool lies_along_k(const FusionChain& c, const MatrixInput& in) noexcept {
  const chain::Role& r = role_of(c, in);
  return r.axis[2] >= 0 && c.operands[static_cast<std::size_t>(r.operand)].stride[static_cast<std::size_t>(r.axis[2])] == 1;
}

/// Decoded to bf16, with its scales or beside a matrix that has some.
bool is_decoded_narrow(const FusionChain& c, const MatrixInput& in) noexcept {
  return has_scales(c) && !scales_sums(c) && is_narrow(c, in);
}

}  // namespace

bool has_scales(const FusionChain& c) noexcept {
  return std::ranges::any_of(c.inputs, [](const MatrixInput& in) { return in.scale_role >= 0; });
}

bool scales_sums(const FusionChain& c) noexcept {
  return has_scales(c) && std::ranges::all_of(c.inputs, [&](const MatrixInput& in) {
           const chain::ScaleFormat format = scale_format(c, in);
           const bool is_mx = in.scale_role < 0 || (format.dtype == DataType::fp8_e8m0 && format.block == 32);
           return is_fp8_factor(in.scale_role >= 0 ? stored_type(c, in) : in.dtype) && is_mx;
         });
}

int pieces_decoded(const FusionChain& c, const MatrixInput& in) noexcept {
  if (is_decoded_narrow(c, in)) return stored_type(c, in) == DataType::fp4_e2m1 ? 2 : 4;
  // What a prologue makes of bytes that lie along K.
  return c.grouping.axis == chain::GroupedAxis::none && !in.prologue.empty() && bytes_of(stored_type(c, in)) == 1 &&
                 bytes_of(in.dtype) == 2 && lies_along_k(c, in)
             ? 4
             : 0;
}

bool may_be_held(const FusionChain& c) noexcept {
  if (c.gemms.size() != 1 || c.grouping.axis != chain::GroupedAxis::none) return false;
  const MatrixInput &a = first_input(c, 0), &b = first_input(c, 1);
  const auto is_fp4 = [&](const MatrixInput& in) { return is_decoded_narrow(c, in) && stored_type(c, in) == DataType::fp4_e2m1; };
  return is_fp4(a) && (is_fp4(b) || (stored_type(c, b) == DataType::bf16 && b.prologue.empty() && b.scale_role < 0));
}

bool may_be_cast(const FusionChain& c) noexcept {
  if (c.gemms.size() != 1 || c.grouping.axis != chain::GroupedAxis::none) return false;
  const MatrixInput &a = first_input(c, 0), &b = first_input(c, 1);
  const DataType stored = stored_type(c, a);
  const bool is_byte = stored == DataType::int8 || stored == DataType::uint8 || is_fp8_factor(stored);
  if (!is_byte || a.prologue.size() != 1 || !b.prologue.empty() || a.scale_role >= 0 || b.scale_role >= 0) return false;
  PrologueStep cast;
  cast.dtype = a.dtype;
  if (a.prologue[0] != cast || (a.dtype != DataType::bf16 && a.dtype != DataType::fp16) || stored_type(c, b) != a.dtype)
    return false;
  const std::vector<recipe::RoleView> views = declared_views(c);
  const auto goes_by_map = [&](const MatrixInput& in, bool along_k) {
    const recipe::RoleView& v = views[static_cast<std::size_t>(in.role)];
    const int bytes = bytes_of(stored_type(c, in));
    const Matrix x = matrix_of(v, bytes);
    return best_path(x, along_k || major_of(x, v.extent[1], v.extent[2]) == Major::k, v.extent[1], v.extent[2], v.extent[0],
                     bytes) == Path::tma;
  };
  return lies_along_k(c, a) && goes_by_map(a, true) && goes_by_map(b, false);
}

DataType decoded_type(const FusionChain& c) noexcept {
  // A code of fp4 times a scale of e4m3 has six bits between 2^-10 and 2688: in fp16 as in bf16 they are exact.
  const bool fits = std::ranges::all_of(c.inputs, [&](const MatrixInput& in) {
    return !is_narrow(c, in) || (stored_type(c, in) == DataType::fp4_e2m1 && scale_format(c, in).dtype == DataType::fp8_e4m3);
  });
  const bool is_wanted =
      std::ranges::any_of(c.inputs, [&](const MatrixInput& in) { return !is_narrow(c, in) && in.dtype == DataType::fp16; });
  return fits && is_wanted ? DataType::fp16 : DataType::bf16;
}
DataType multiplied_type(const FusionChain& c, const MatrixInput& in) noexcept {
  if (is_decoded_narrow(c, in)) return decoded_type(c);
  return in.scale_role >= 0 ? stored_type(c, in) : in.dtype;
}

std::optional<Decline> fault_of_scales(const FusionChain& c) {
  const auto fault = [&](int role, std::string what) {
    return Decline{Rule::sm90_block_scale, label_of(c, c.roles[static_cast<std::size_t>(role)]) + what};
  };
  if (!has_scales(c)) return std::nullopt;
  for (const MatrixInput& in : c.inputs) {
    const bool is_nvfp4 = stored_type(c, in) == DataType::fp4_e2m1 && scale_format(c, in).dtype == DataType::fp8_e4m3;
    if (in.scale_role >= 0 && in.dtype == DataType::fp16 && !is_nvfp4)
      return fault(in.role, " is rounded to fp16 with its scales");
    if (scales_sums(c)) continue;
    if (c.grouping.mode == MoeMode::gather && role_of(c, in).kind == chain::RoleKind::a && is_decoded_narrow(c, in))
      return fault(in.role, " is decoded, and its rows are gathered");
    if (multiplied_type(c, in) != decoded_type(c))
      return fault(in.role, " is " + std::string(name_of(in.dtype)) + " beside what is decoded to bf16");
    // Matrices of a side are decoded by one way.
    const MatrixInput& first = first_input(c, role_of(c, in).kind == chain::RoleKind::a ? 0 : 1);
    const auto way = [&](const MatrixInput& x) {
      const chain::ScaleFormat f = scale_format(c, x);
      return std::tuple(!is_decoded_narrow(c, x) ? DataType::not_set : stored_type(c, x), f.dtype, f.block, f.is_interleaved);
    };
    if (way(in) != way(first)) return fault(in.role, " has other blocks than " + label_of(c, role_of(c, first)));
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
    for (const PrologueStep& s : in.prologue) {
      if (slot_name(s.dtype).empty())
        return Decline{Rule::sm90_prologue, label + " becomes " + std::string(name_of(s.dtype)) + " on its way"};
      if (s.scalar_role < 0) continue;
      const chain::Role& scalar = c.roles[static_cast<std::size_t>(s.scalar_role)];
      const DataType type = c.operands[static_cast<std::size_t>(scalar.operand)].dtype;
      if (slot_name(type).empty())
        return Decline{Rule::sm90_prologue, label_of(c, scalar) + " beside " + label + " is " + std::string(name_of(type))};
    }
  }
  return std::nullopt;
}

std::string prologues_text(const FusionChain& c, EpiloguePlan& plan) {
  std::string text = "struct Prologues {\n";
  const auto way = [&](int side, const char* name) {
    const MatrixInput& in = first_input(c, side);
    const bool decodes = is_decoded_narrow(c, in);
    if (decodes) text += decoding_text(c, side, name, plan);
    if (!in.prologue.empty()) text += struct_text(c, in, name, plan);
    return decodes || !in.prologue.empty();
  };
  const bool a = way(0, "A"), b = way(1, "B");
  const auto made = [](const char* member) { return fmt::format("{}(arguments)", member); };
  std::string members = fmt::format("  {} a;\n  {} b;\n", a ? "A" : "NoPrologue", b ? "B" : "NoPrologue");
  std::string makes = a && b ? " : " + made("a") + ", " + made("b") : a ? " : " + made("a") : b ? " : " + made("b") : "";
  if (scales_sums(c)) {
    members += scales_text(c, 0, plan) + scales_text(c, 1, plan);
  }
  const std::string lacks = lacks_text(c, plan);
  if (scales_sums(c) || !lacks.empty()) {
    members += "  const EpilogueArguments& arguments;\n" + lacks;
    makes += makes.empty() ? " : arguments(arguments)" : ", arguments(arguments)";
  }
  return text + members + "  VG_DEVICE explicit Prologues(const EpilogueArguments& arguments)" + makes + " {}\n};";
}

}  // namespace verglas::sm90
