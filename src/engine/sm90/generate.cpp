#include "engine/sm90/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "numeric/convert.hpp"

namespace verglas::sm90 {
namespace {

using chain::FusionChain;
using chain::ValueKind;

std::string literal(double v) {
  return fmt::format("__uint_as_float(0x{:08x}u)", std::bit_cast<std::uint32_t>(static_cast<float>(v)));
}

std::string_view slot_name(DataType t) {
  switch (t) {
    case DataType::fp32: return "F32";
    case DataType::bf16: return "Bf16";
    case DataType::fp16: return "F16";
    case DataType::int8: return "I8";
    case DataType::uint8: return "U8";
    case DataType::boolean: return "Bool";
    case DataType::int32: return "I32";
    default: return {};
  }
}

/// What a mode is in CUDA C++: x, y, z are its operands.
std::string expression(PointwiseMode mode, const PointwiseParameters& p) {
  using enum PointwiseMode;
  const std::string slope = literal(p.negative_slope.value_or(0.0F));
  const std::string alpha = literal(p.alpha), beta = literal(p.beta);
  const std::string lower = literal(p.lower_clip.value_or(0.0F));
  switch (mode) {
    case identity: return "x";
    case add: return "x + y";
    case sub: return "x - y";
    case mul: return "x * y";
    case div: return "x / y";
    case max: return "max_nan(x, y)";
    case min: return "min_nan(x, y)";
    case pow: return "powf(x, y)";
    case mod: return "fmodf(x, y)";
    case add_square: return "x + y * y";
    case abs: return "fabsf(x)";
    case neg: return "-x";
    case ceil: return "ceilf(x)";
    case floor: return "floorf(x)";
    case sqrt: return "sqrtf(x)";
    case rsqrt: return "1.0f / sqrtf(x)";
    case reciprocal: return "1.0f / x";
    case exp: return "expf(x)";
    case log: return "logf(x)";
    case sin: return "sinf(x)";
    case cos: return "cosf(x)";
    case tan: return "tanf(x)";
    case erf: return "erff(x)";
    case relu: {
      std::string t = p.negative_slope ? fmt::format("leaky(x, {})", slope) : fmt::format("max_nan(x, {})", lower);
      if (p.negative_slope && p.lower_clip) t = fmt::format("max_nan({}, {})", t, lower);
      return p.upper_clip ? fmt::format("min_nan({}, {})", t, literal(*p.upper_clip)) : t;
    }
    case leaky_relu: return fmt::format("leaky(x, {})", slope);
    case elu: return fmt::format("(x > 0.0f ? x : {} * expm1f(x))", alpha);
    case gelu: return "gelu(x)";
    case gelu_approx_tanh: return "gelu_tanh(x)";
    case sigmoid: return "sigmoid(x)";
    case swish: return fmt::format("swish(x, {})", beta);
    case softplus: return fmt::format("softplus(x, {})", beta);
    case tanh: return "tanhf(x)";
    case cmp_eq: return "(x == y ? 1.0f : 0.0f)";
    case cmp_neq: return "(x != y ? 1.0f : 0.0f)";
    case cmp_gt: return "(x > y ? 1.0f : 0.0f)";
    case cmp_ge: return "(x >= y ? 1.0f : 0.0f)";
    case cmp_lt: return "(x < y ? 1.0f : 0.0f)";
    case cmp_le: return "(x <= y ? 1.0f : 0.0f)";
    case logical_and: return "(x != 0.0f && y != 0.0f ? 1.0f : 0.0f)";
    case logical_or: return "(x != 0.0f || y != 0.0f ? 1.0f : 0.0f)";
    case logical_not: return "(x == 0.0f ? 1.0f : 0.0f)";
    case binary_select: return "(z != 0.0f ? x : y)";
    case gen_index:
      return p.axis == 0   ? "static_cast<float>(at.batch)"
             : p.axis == 1 ? "static_cast<float>(at.row + 8 * (i / 2 % 2))"
                           : "static_cast<float>(at.col + 8 * (i / 4) + i % 2)";
    case relu_bwd: {
      const std::string inside = fmt::format("(y > {} ? x : x * {})", lower, slope);
      const std::string clipped = p.upper_clip ? fmt::format("(y < {} ? {} : x * 0.0f)", literal(*p.upper_clip), inside) : inside;
      return fmt::format("(y != y ? y : {})", clipped);
    }
    case leaky_relu_bwd: return fmt::format("(y > 0.0f ? x : (y <= 0.0f ? x * {} : y))", slope);
    case sigmoid_bwd: return "x * sigmoid_slope(y)";
    case tanh_bwd: return "x * (4.0f * sigmoid_slope(2.0f * y))";
    case elu_bwd: return fmt::format("(y > 0.0f ? x : x * ({} * expf(y)))", alpha);
    case gelu_bwd: return "gelu_bwd(x, y)";
    case gelu_approx_tanh_bwd: return "gelu_tanh_bwd(x, y)";
    case softplus_bwd: return fmt::format("x * sigmoid({} * y)", beta);
    case swish_bwd: return fmt::format("swish_bwd(x, y, {})", beta);
  }
  return "x";
}

bool is_held(DataType t) { return t == DataType::fp32 || t == DataType::bf16 || t == DataType::fp16; }
std::string rounded(DataType t, const std::string& e) {
  if (t == DataType::bf16) return "round_bf16(" + e + ")";
  if (t == DataType::fp16) return "round_f16(" + e + ")";
  return e;
}

class Generator {
 public:
  explicit Generator(const FusionChain& c) : c_(c), made_(c.values.size(), false) {}

  EpiloguePlan run() {
    const chain::Gemm& g = c_.gemms[0];
    const chain::Value& product = c_.values[static_cast<std::size_t>(g.value)];
    line(fmt::format("float v{}[8];", g.value));
    loop(fmt::format("v{}[i] = {};", g.value, rounded(product.dtype, "r[i]")));
    made_[static_cast<std::size_t>(g.value)] = true;
    for (const chain::Step& s : c_.steps) step(s);
    loop(fmt::format("r[i] = v{}[i];", c_.stores[0].value));
    if (plan_.aux.empty() && plan_.scalars.empty())
      plan_.text.arguments = "struct EpilogueArguments {};";
    else
      plan_.text.arguments = fmt::format("struct EpilogueArguments {{ {}{} }};",
                                         plan_.aux.empty() ? "" : fmt::format("Aux aux[{}]; ", plan_.aux.size()),
                                         plan_.scalars.empty() ? "" : fmt::format("float scalar[{}];", plan_.scalars.size()));
    plan_.text.body =
        "struct Epilogue {\n  const Parameters& p;\n  const EpilogueArguments& a;\n"
        "  VG_DEVICE Epilogue(const Parameters& parameters, const EpilogueArguments& arguments) : p(parameters), a(arguments) "
        "{}\n"
        "  VG_DEVICE void unit(float (&r)[8], const Position& at) {\n" +
        body_ + "  }\n};";
    return std::move(plan_);
  }

 private:
  void line(const std::string& s) { body_ += "    " + s + "\n"; }
  void loop(const std::string& s) { line("_Pragma(\"unroll\") for (int i = 0; i < 8; ++i) " + s); }

  static int slot_in(std::vector<int>& roles, int role) {
    const auto it = std::find(roles.begin(), roles.end(), role);
    if (it != roles.end()) return static_cast<int>(it - roles.begin());
    roles.push_back(role);
    return static_cast<int>(roles.size()) - 1;
  }

  /// Loads what a step reads, when it is first read.
  void need(int v) {
    if (made_[static_cast<std::size_t>(v)]) return;
    made_[static_cast<std::size_t>(v)] = true;
    const chain::Value& value = c_.values[static_cast<std::size_t>(v)];
    line(fmt::format("float v{}[8];", v));
    if (value.kind == ValueKind::constant) {
      loop(fmt::format("v{}[i] = {};", v, literal(numeric::round_to(static_cast<float>(value.constant), value.dtype))));
      return;
    }
    const chain::Role& role = c_.roles[static_cast<std::size_t>(value.source)];
    if (role.kind == chain::RoleKind::host_scalar) {
      loop(fmt::format("v{}[i] = a.scalar[{}];", v, slot_in(plan_.scalars, value.source)));
      return;
    }
    line(fmt::format("load_aux<{}, {}, {}>(v{}, a.aux[{}], p, at);", slot_name(value.dtype), value.varies[1], value.varies[2], v,
                     slot_in(plan_.aux, value.source)));
  }

  void step(const chain::Step& s) {
    for (const int input : s.input)
      if (input >= 0 && s.mode != PointwiseMode::gen_index) need(input);
    const DataType type = c_.values[static_cast<std::size_t>(s.value)].dtype;
    std::string operands;
    constexpr std::string_view names = "xyz";
    for (std::size_t k = 0; k < 3 && s.input[k] >= 0 && s.mode != PointwiseMode::gen_index; ++k)
      operands += fmt::format("const float {} = v{}[i]; ", names[k], s.input[k]);
    line(fmt::format("float v{}[8];", s.value));
    loop(fmt::format("{{ {}v{}[i] = {}; }}", operands, s.value, rounded(type, expression(s.mode, s.parameters))));
    made_[static_cast<std::size_t>(s.value)] = true;
  }

  const FusionChain& c_;
  EpiloguePlan plan_;
  std::vector<bool> made_;
  std::string body_;
};

}  // namespace

Result<EpiloguePlan> epilogue_of(const FusionChain& c) {
  if (!c.reductions.empty()) return decline(Rule::sm90_epilogue, "a reduction after the matmul");
  if (c.stores.size() != 1) return decline(Rule::sm90_epilogue, std::to_string(c.stores.size()) + " outputs");
  for (const chain::Step& s : c.steps)
    if (s.compute != DataType::fp32)
      return decline(Rule::sm90_epilogue, "step '" + s.name + "' computes in " + std::string(name_of(s.compute)));
  for (const chain::Value& v : c.values) {
    const bool fits = v.kind == ValueKind::aux ? !slot_name(v.dtype).empty() : v.kind == ValueKind::constant || is_held(v.dtype);
    if (!fits) return decline(Rule::sm90_epilogue, "tensor '" + v.name + "' is " + std::string(name_of(v.dtype)));
  }
  if (c.steps.empty()) return EpiloguePlan{};
  return Generator(c).run();
}

std::size_t argument_bytes(const EpiloguePlan& plan) noexcept { return plan.aux.size() * 32 + plan.scalars.size() * 4; }

void write_arguments(const EpiloguePlan& plan, const FusionChain& chain, const recipe::Binding& binding, std::byte* to) noexcept {
  for (const int role : plan.aux) {
    const recipe::RoleView& v = binding.role[role];
    const std::uint64_t words[4] = {reinterpret_cast<std::uint64_t>(v.data),
                                    static_cast<std::uint64_t>(v.extent[0] > 1 ? v.stride[0] : 0),
                                    static_cast<std::uint64_t>(v.extent[1] > 1 ? v.stride[1] : 0),
                                    static_cast<std::uint64_t>(v.extent[2] > 1 ? v.stride[2] : 0)};
    std::memcpy(to, words, sizeof words);
    to += sizeof words;
  }
  for (const int role : plan.scalars) {
    const auto operand = static_cast<std::size_t>(chain.roles[static_cast<std::size_t>(role)].operand);
    const float v = numeric::to_float(binding.role[role].data, chain.operands[operand].dtype);
    std::memcpy(to, &v, sizeof v);
    to += sizeof v;
  }
}

}  // namespace verglas::sm90
