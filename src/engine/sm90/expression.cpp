#include "engine/sm90/expression.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>

namespace verglas::sm90 {

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
    case DataType::fp8_e4m3: return "E4m3";
    case DataType::fp8_e5m2: return "E5m2";
    default: return {};
  }
}

std::string float_expression(PointwiseMode mode, const PointwiseParameters& p) {
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
      std::string t = p.negative_slope ? fmt::format("leaky(x, {})", slope) : fmt::format("larger(x, {})", lower);
      if (p.negative_slope && p.lower_clip) t = fmt::format("larger({}, {})", t, lower);
      return p.upper_clip ? fmt::format("smaller({}, {})", t, literal(*p.upper_clip)) : t;
    }
    case leaky_relu: return fmt::format("leaky(x, {})", slope);
    case elu: return fmt::format("(x > 0.0f ? x : {} * expm1f(x))", alpha);
    case gelu: return "gelu(x)";
    case gelu_approx_tanh: return "gelu_tanh(x)";
    case sigmoid: return "sigmoid(x)";
    case swish: return fmt::format("swish(x, {})", beta);
    case softplus: return fmt::format("softplus(x, {})", beta);
    case tanh: return "tanhf(x)";
    case cmp_eq: return "truth(x == y)";
    case cmp_neq: return "truth(x != y)";
    case cmp_gt: return "truth(x > y)";
    case cmp_ge: return "truth(x >= y)";
    case cmp_lt: return "truth(x < y)";
    case cmp_le: return "truth(x <= y)";
    case logical_and: return "truth(x != 0.0f && y != 0.0f)";
    case logical_or: return "truth(x != 0.0f || y != 0.0f)";
    case logical_not: return "truth(x == 0.0f)";
    case binary_select: return "(z != 0.0f ? x : y)";
    case gen_index:
      return p.axis == 0   ? "static_cast<float>(at.batch)"
             : p.axis == 1 ? "static_cast<float>(at.row + at.down * (i / 2 % 2))"
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

std::string int_expression(PointwiseMode mode, const PointwiseParameters& p) {
  using enum PointwiseMode;
  switch (mode) {
    case add: return "add_int(x, y)";
    case sub: return "sub_int(x, y)";
    case mul: return "mul_int(x, y)";
    case div: return "div_int(x, y)";
    case mod: return "mod_int(x, y)";
    case max: return "(x > y ? x : y)";
    case min: return "(x < y ? x : y)";
    case add_square: return "add_int(x, mul_int(y, y))";
    case abs: return "abs_int(x)";
    case neg: return "sub_int(0, x)";
    case relu: return "(x > 0 ? x : 0)";
    case cmp_eq: return "(x == y ? 1 : 0)";
    case cmp_neq: return "(x != y ? 1 : 0)";
    case cmp_gt: return "(x > y ? 1 : 0)";
    case cmp_ge: return "(x >= y ? 1 : 0)";
    case cmp_lt: return "(x < y ? 1 : 0)";
    case cmp_le: return "(x <= y ? 1 : 0)";
    case logical_and: return "(x != 0 && y != 0 ? 1 : 0)";
    case logical_or: return "(x != 0 || y != 0 ? 1 : 0)";
    case logical_not: return "(x == 0 ? 1 : 0)";
    case binary_select: return "(z != 0 ? x : y)";
    case gen_index:
      return p.axis == 0 ? "at.batch" : p.axis == 1 ? "at.row + at.down * (i / 2 % 2)" : "at.col + 8 * (i / 4) + i % 2";
    default: return "x";
  }
}

std::string rounded(DataType t, bool is_int, const std::string& e) {
  if (t == DataType::int32) return is_int ? e : "nearest_int(" + e + ")";
  if (t == DataType::int8 || t == DataType::uint8 || t == DataType::boolean)
    return std::string(slot_name(t)) + "::round(" + e + ")";
  const std::string f = is_int ? "static_cast<float>(" + e + ")" : e;
  if (t == DataType::bf16) return "round_bf16(" + f + ")";
  if (t == DataType::fp16) return "round_f16(" + f + ")";
  if (t == DataType::fp8_e4m3 || t == DataType::fp8_e5m2) return std::string(slot_name(t)) + "::round(" + f + ")";
  return f;
}

}  // namespace verglas::sm90
