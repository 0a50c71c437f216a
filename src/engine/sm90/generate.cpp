#include "engine/sm90/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/sm90/expression.hpp"
#include "engine/sm90/prologue.hpp"
#include "numeric/convert.hpp"

namespace verglas::sm90 {
namespace {

using chain::FusionChain;
using chain::ValueKind;

std::string_view mode_name(ReductionMode mode) {
  using enum ReductionMode;
  switch (mode) {
    case add: return "Add";
    case mul: return "Mul";
    case min: return "Min";
    case max: return "Max";
    case amax: return "Amax";
    case avg: return "Avg";
    case norm1: return "Norm1";
    case norm2: return "Norm2";
    case mul_no_zeros: return "MulNoZeros";
  }
  return "Add";
}

class Generator {
 public:
  explicit Generator(const FusionChain& c) : c_(c), made_(c.values.size(), false) {}

  EpiloguePlan run() {
    for (std::size_t g = 0; g < c_.gemms.size(); ++g) {
      const int v = c_.gemms[g].value;
      const bool integer = c_.gemms[g].accumulate == DataType::int32;
      declare(v);
      loop(fmt::format("v{}[i] = {};", v,
                       rounded(c_.values[static_cast<std::size_t>(v)].dtype, integer,
                               fmt::format("{}(r[{}][i])", integer ? "__float_as_int" : "", g))));
      made_[static_cast<std::size_t>(v)] = true;
    }
    for (const chain::Step& s : c_.steps) step(s);
    for (const chain::Store& s : c_.stores) need(s.value);
    for (std::size_t i = 1; i < c_.stores.size(); ++i) {
      const chain::Store& s = c_.stores[i];
      const chain::Role& role = c_.roles[static_cast<std::size_t>(s.role)];
      line(fmt::format("store_output<{}>(a.aux[{}], v{}, p, at);",
                       slot_name(c_.operands[static_cast<std::size_t>(role.operand)].dtype), slot_in(plan_.aux, s.role),
                       s.value));
    }
    for (const chain::Reduction& r : c_.reductions) reduction(r);
    loop(fmt::format("r[0][i] = {}(v{}[i]);", is_int(c_.stores[0].value) ? "__int_as_float" : "", c_.stores[0].value));
    plan_.text.prologues = prologues_text(c_, plan_);
    write_text();
    return std::move(plan_);
  }

 private:
  void line(const std::string& s) { body_ += "    " + s + "\n"; }
  void loop(const std::string& s) { line("_Pragma(\"unroll\") for (int i = 0; i < 8; ++i) " + s); }

  bool is_int(int v) const { return c_.values[static_cast<std::size_t>(v)].dtype == DataType::int32; }
  void declare(int v) { line(fmt::format("{} v{}[8];", is_int(v) ? "int" : "float", v)); }

  /// Loads what a step reads, when it is first read.
  void need(int v) {
    if (made_[static_cast<std::size_t>(v)]) return;
    made_[static_cast<std::size_t>(v)] = true;
    const chain::Value& value = c_.values[static_cast<std::size_t>(v)];
    declare(v);
    if (value.kind == ValueKind::constant) {
      const std::string text =
          is_int(v) ? std::to_string(static_cast<std::int32_t>(std::clamp(value.constant, -2147483647.0, 2147483647.0)))
                    : literal(numeric::round_to(static_cast<float>(value.constant), value.dtype));
      loop(fmt::format("v{}[i] = {};", v, text));
      return;
    }
    const chain::Role& role = c_.roles[static_cast<std::size_t>(value.source)];
    if (role.kind == chain::RoleKind::host_scalar) {
      loop(fmt::format("v{}[i] = {}(a.scalar[{}]);", v, is_int(v) ? "__float_as_int" : "", slot_in(plan_.scalars, value.source)));
      return;
    }
    line(fmt::format("load_aux<{}, {}, {}>(v{}, a.aux[{}], p, at);", slot_name(value.dtype), value.varies[1], value.varies[2], v,
                     slot_in(plan_.aux, value.source)));
  }

  void reduction(const chain::Reduction& r) {
    const std::size_t j = plan_.reductions.size();
    plan_.reductions.push_back(r);
    need(r.value);
    const std::string value = is_int(r.value) ? fmt::format("f{}", j) : fmt::format("v{}", r.value);
    if (is_int(r.value)) {
      line(fmt::format("float f{}[8];", j));
      loop(fmt::format("f{}[i] = static_cast<float>(v{}[i]);", j, r.value));
    }
    const std::string_view mode = mode_name(r.mode);
    const std::string reducer = fmt::format("Reducer<Config, {}, {}, {}, {}>", mode, r.reduces[1], r.reduces[2], r.reduces[0]);
    const std::string argument = fmt::format("a.reduction[{}]", j), words = fmt::format("words + {}", 32 * j);
    if (!r.reduces[1]) {
      state_ += fmt::format("  float rows{}[2];\n", j);
      begin_rows_ += fmt::format("    rows{0}[0] = rows{0}[1] = {1}::identity();\n", j, mode);
      line(fmt::format("absorb_rows<{}>(rows{}, {}, p, at);", mode, j, value));
      end_rows_ += fmt::format("    {}::store_rows({}, p, piece, block, rows{});\n", reducer, argument, j);
    } else if (r.reduces[2]) {
      state_ += fmt::format("  float all{};\n", j);
      begin_ += fmt::format("    all{} = {}::identity();\n", j, mode);
      line(fmt::format("absorb_all<{}>(all{}, {}, p, at);", mode, j, value));
      fold_ += fmt::format("    {}::fold_warp(all{}, {});\n", reducer, j, words);
      arrive_ += fmt::format("      *{0}::partial({1}, group_of<Config, true, true, {2}>(p, piece)) = {0}::folded({3});\n",
                             reducer, argument, r.reduces[0], words);
    } else {
      const std::string rows = fmt::format("piece.scratch + {} * 16 * Config::BLOCK_N", columns_++);
      line(fmt::format("absorb_columns<{}, Config::BLOCK_N>({}, {}, p, at);", mode, rows, value));
      columns_text_ += fmt::format("    {}::store_columns({}, p, piece, {});\n", reducer, argument, rows);
    }
    arrive_ += fmt::format("      store_float({} + 16, {}::arrive({}, p, piece) ? 1.0f : 0.0f);\n", words, reducer, argument);
    finish_ +=
        fmt::format("    if (load_float({} + 16) != 0.0f) {}::finish({}, p, piece, {});\n", words, reducer, argument, words);
    clear_ += fmt::format("    {}::clear({}, p);\n", reducer, argument);
  }

  void write_text() {
    std::string members;
    if (!plan_.aux.empty()) members += fmt::format(" Aux aux[{}];", plan_.aux.size());
    if (!plan_.reductions.empty()) members += fmt::format(" Reduction reduction[{}];", plan_.reductions.size());
    if (!plan_.scalars.empty()) members += fmt::format(" float scalar[{}];", plan_.scalars.size());
    plan_.text.arguments = "struct EpilogueArguments {" + members + " };";
    std::string end;
    if (!plan_.reductions.empty())
      end = fmt::format(
          "    const uint32 words = piece.scratch + {} * 16 * Config::BLOCK_N;\n{}    consumer_sync(piece.consumer);\n{}"
          "    consumer_sync(piece.consumer);\n    if (threadIdx.x % 128 == 0) {{\n{}    }}\n    "
          "consumer_sync(piece.consumer);\n{}",
          columns_, fold_, columns_text_, arrive_, finish_);
    plan_.text.body = fmt::format(
        "struct Epilogue {{\n  const Parameters& p;\n  const EpilogueArguments& a;\n  TilePiece piece;\n{}"
        "  VG_DEVICE Epilogue(const Parameters& parameters, const EpilogueArguments& arguments) : p(parameters), a(arguments) "
        "{{}}\n"
        "  VG_DEVICE void begin(const TilePiece& t) {{\n    piece = t;\n{}  }}\n"
        "  VG_DEVICE void begin_rows() {{\n{}  }}\n"
        "  VG_DEVICE void unit(float (&r)[{}][8], const Position& at) {{\n{}  }}\n"
        "  VG_DEVICE void end_rows(int block) {{\n{}  }}\n"
        "  VG_DEVICE void end() {{\n{}  }}\n"
        "  VG_DEVICE void clear() {{\n{}  }}\n}};",
        state_, begin_, begin_rows_, c_.gemms.size(), body_, end_rows_, end, clear_);
  }

  void step(const chain::Step& s) {
    for (const int input : s.input)
      if (input >= 0 && s.mode != PointwiseMode::gen_index) need(input);
    const DataType type = c_.values[static_cast<std::size_t>(s.value)].dtype;
    const bool integer = s.compute == DataType::int32;
    std::string operands;
    constexpr std::string_view names = "xyz";
    for (std::size_t k = 0; k < 3 && s.input[k] >= 0 && s.mode != PointwiseMode::gen_index; ++k)
      operands += integer && !is_int(s.input[k]) ? fmt::format("const int {} = nearest_int(v{}[i]); ", names[k], s.input[k])
                  : integer                      ? fmt::format("const int {} = v{}[i]; ", names[k], s.input[k])
                  : is_int(s.input[k]) ? fmt::format("const float {} = static_cast<float>(v{}[i]); ", names[k], s.input[k])
                                       : fmt::format("const float {} = v{}[i]; ", names[k], s.input[k]);
    declare(s.value);
    const std::string result = integer ? int_expression(s.mode, s.parameters) : float_expression(s.mode, s.parameters);
    loop(fmt::format("{{ {}v{}[i] = {}; }}", operands, s.value, rounded(type, integer, result)));
    made_[static_cast<std::size_t>(s.value)] = true;
  }

  const FusionChain& c_;
  EpiloguePlan plan_;
  std::vector<bool> made_;
  std::string body_;
  int columns_ = 0;  ///< reductions that lie in shared memory
  std::string state_, begin_, begin_rows_, end_rows_, fold_, columns_text_, arrive_, finish_, clear_;
};

}  // namespace

int slot_in(std::vector<int>& roles, int role) {
  const auto it = std::find(roles.begin(), roles.end(), role);
  if (it != roles.end()) return static_cast<int>(it - roles.begin());
  roles.push_back(role);
  return static_cast<int>(roles.size()) - 1;
}

Result<EpiloguePlan> epilogue_of(const FusionChain& c) {
  if (c.reductions.size() > kMaxReductions)
    return decline(Rule::sm90_epilogue, std::to_string(c.reductions.size()) + " reductions");
  for (const chain::Reduction& r : c.reductions) {
    const std::string name = label_of(c, c.roles[static_cast<std::size_t>(r.role)]);
    if (r.compute != DataType::fp32)
      return decline(Rule::sm90_epilogue, name + " computes in " + std::string(name_of(r.compute)));
    if (!r.reduces[1] && !r.reduces[2]) return decline(Rule::sm90_epilogue, name + " keeps both rows and columns");
  }
  if (auto fault = fault_of_prologues(c)) return tl::unexpected<Decline>(*std::move(fault));
  for (const chain::Store& s : c.stores) {
    const DataType t = c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(s.role)].operand)].dtype;
    if (!is_output_type(t)) return decline(Rule::sm90_types, "an output is " + std::string(name_of(t)));
  }
  for (const chain::Value& v : c.values) {
    if (v.kind != ValueKind::constant && slot_name(v.dtype).empty())
      return decline(Rule::sm90_epilogue, "tensor '" + v.name + "' is " + std::string(name_of(v.dtype)));
  }
  const bool as_summed = (c.gemms[0].accumulate == DataType::int32) ==
                         (c.values[static_cast<std::size_t>(c.stores[0].value)].dtype == DataType::int32);
  const bool plain = c.steps.empty() && c.gemms.size() == 1 && c.stores.size() == 1 && c.reductions.empty() && as_summed &&
                     first_input(c, 0).prologue.empty() && first_input(c, 1).prologue.empty();
  if (plain) return EpiloguePlan{};
  return Generator(c).run();
}

std::size_t argument_bytes(const EpiloguePlan& plan) noexcept {
  return plan.aux.size() * 32 + plan.reductions.size() * 56 + plan.scalars.size() * 4;
}

void write_arguments(const EpiloguePlan& plan, const FusionChain& chain, const recipe::Binding& binding, const ScratchNeed& need,
                     const Scratch& scratch, std::byte* to) noexcept {
  const auto stride = [](const recipe::RoleView& v, int axis) {
    return static_cast<std::uint64_t>(v.extent[axis] > 1 ? v.stride[axis] : 0);
  };
  const auto put = [&to](const auto& value) {
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  };
  for (const int role : plan.aux) {
    const recipe::RoleView& v = binding.role[role];
    put(std::array{reinterpret_cast<std::uint64_t>(v.data), stride(v, 0), stride(v, 1), stride(v, 2)});
  }
  for (std::size_t j = 0; j < plan.reductions.size(); ++j) {
    const chain::Reduction& r = plan.reductions[j];
    const recipe::RoleView& v = binding.role[r.role];
    put(std::array{scratch.partials + need.reduction[j].partials, scratch.counters + need.reduction[j].counters,
                   reinterpret_cast<std::uint64_t>(v.data), stride(v, 0), stride(v, 1), stride(v, 2)});
    double count = 1;
    for (int axis = 0; axis < 3; ++axis)
      if (r.reduces[static_cast<std::size_t>(axis)]) count *= static_cast<double>(binding.live[axis + 1]);
    put(static_cast<float>(count));
    put(0.0F);
  }
  for (const int role : plan.scalars) {
    const auto operand = static_cast<std::size_t>(chain.roles[static_cast<std::size_t>(role)].operand);
    if (chain.operands[operand].dtype == DataType::int32) {
      std::memcpy(to, binding.role[role].data, 4);
      to += 4;
    } else {
      put(numeric::to_float(binding.role[role].data, chain.operands[operand].dtype));
    }
  }
}

}  // namespace verglas::sm90
