#include "tool/formulas.hpp"

#include <cmath>

namespace verglas::tool {
namespace {

double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b); }
double smaller(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmin(a, b); }
double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double softplus(double x, double beta) { return (larger(beta * x, 0) + std::log1p(std::exp(-std::abs(beta * x)))) / beta; }
/// The limit of x · f(x) where f vanishes: −0.
double times_vanishing(double x, double f) { return std::isinf(x) && f == 0 ? -0.0 : x * f; }
double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double normal_pdf(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); }
double tanh_argument(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
double slope_factor(double x) { return std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x); }

double relu(double x, const PointwiseParameters& p) {
  double t = p.negative_slope ? (x > 0 ? x : *p.negative_slope * x) : larger(x, p.lower_clip.value_or(0.0F));
  if (p.negative_slope && p.lower_clip) t = larger(t, *p.lower_clip);
  return p.upper_clip ? smaller(t, *p.upper_clip) : t;
}

/// Derivative of the activation at x; what `loss` is multiplied with.
double derivative(PointwiseMode mode, const PointwiseParameters& p, double x) {
  const double slope = p.negative_slope.value_or(0.0F);
  switch (mode) {
    case PointwiseMode::relu_bwd:
      if (std::isnan(x)) return x;
      if (p.upper_clip && x >= *p.upper_clip) return 0;
      return x > p.lower_clip.value_or(0.0F) ? 1 : slope;
    case PointwiseMode::leaky_relu_bwd: return std::isnan(x) ? x : x > 0 ? 1 : slope;
    case PointwiseMode::sigmoid_bwd: return sigmoid(x) * sigmoid(-x);
    case PointwiseMode::tanh_bwd: return 1 / (std::cosh(x) * std::cosh(x));
    case PointwiseMode::elu_bwd: return x > 0 ? 1 : p.alpha * std::exp(x);
    case PointwiseMode::gelu_bwd: return std::isinf(x) ? (x > 0 ? 1 : 0) : normal_cdf(x) + x * normal_pdf(x);
    case PointwiseMode::gelu_approx_tanh_bwd: {
      if (std::isinf(x)) return x > 0 ? 1 : 0;
      const double s = tool::sigmoid(2 * tanh_argument(x));
      return s + 2 * x * s * (1 - s) * slope_factor(x);
    }
    case PointwiseMode::softplus_bwd: return sigmoid(p.beta * x);
    case PointwiseMode::swish_bwd: {
      const double t = p.beta * x;
      if (std::isinf(t)) return t > 0 ? 1 : 0;
      return sigmoid(t) + t * sigmoid(t) * sigmoid(-t);
    }
    default: return 0;
  }
}

}  // namespace

double formula(PointwiseMode mode, const PointwiseParameters& p, double x, double y, double z) {
  using enum PointwiseMode;
  switch (mode) {
    case identity: return x;
    case add: return x + y;
    case sub: return x - y;
    case mul: return x * y;
    case div: return x / y;
    case max: return larger(x, y);
    case min: return smaller(x, y);
    case pow: return std::pow(x, y);
    case mod: return std::fmod(x, y);
    case add_square: return x + y * y;
    case abs: return std::abs(x);
    case neg: return -x;
    case ceil: return std::ceil(x);
    case floor: return std::floor(x);
    case sqrt: return std::sqrt(x);
    case rsqrt: return 1 / std::sqrt(x);
    case reciprocal: return 1 / x;
    case exp: return std::exp(x);
    case log: return std::log(x);
    case sin: return std::sin(x);
    case cos: return std::cos(x);
    case tan: return std::tan(x);
    case erf: return std::erf(x);
    case relu: return tool::relu(x, p);
    case leaky_relu: return x > 0 ? x : p.negative_slope.value_or(0.0F) * x;
    case elu: return x > 0 ? x : p.alpha * std::expm1(x);
    case gelu: return times_vanishing(x, normal_cdf(x));
    case gelu_approx_tanh: return times_vanishing(x, tool::sigmoid(2 * tanh_argument(x)));
    case sigmoid: return tool::sigmoid(x);
    case swish: return times_vanishing(x, tool::sigmoid(p.beta * x));
    case softplus: return tool::softplus(x, p.beta);
    case tanh: return std::tanh(x);
    case cmp_eq: return x == y;
    case cmp_neq: return x != y;
    case cmp_gt: return x > y;
    case cmp_ge: return x >= y;
    case cmp_lt: return x < y;
    case cmp_le: return x <= y;
    case logical_and: return x != 0 && y != 0;
    case logical_or: return x != 0 || y != 0;
    case logical_not: return x == 0;
    case binary_select: return z != 0 ? x : y;
    case gen_index: return 0;  // the caller knows the place
    default: {
      // An infinite loss meets the slope as fp32 has it, where a tiny one is 0.
      const double slope = derivative(mode, p, y);
      return x * (std::isinf(x) && std::abs(slope) < 0x1p-150 ? 0 : slope);
    }
  }
}

std::int64_t formula_int(PointwiseMode mode, std::int64_t x, std::int64_t y, std::int64_t z) {
  using enum PointwiseMode;
  const auto wrap = [](std::int64_t v) { return std::int64_t{static_cast<std::int32_t>(static_cast<std::uint32_t>(v))}; };
  switch (mode) {
    case add: return wrap(x + y);
    case sub: return wrap(x - y);
    case mul: return wrap(x * y);
    case div: return y == 0 ? 0 : wrap(x / y);
    case mod: return y == 0 ? 0 : wrap(x % y);
    case max: return x > y ? x : y;
    case min: return x < y ? x : y;
    case add_square: return wrap(x + wrap(y * y));
    case abs: return wrap(x < 0 ? -x : x);
    case neg: return wrap(-x);
    case cmp_eq: return x == y;
    case cmp_neq: return x != y;
    case cmp_gt: return x > y;
    case cmp_ge: return x >= y;
    case cmp_lt: return x < y;
    case cmp_le: return x <= y;
    case logical_and: return x != 0 && y != 0;
    case logical_or: return x != 0 || y != 0;
    case logical_not: return x == 0;
    case binary_select: return z != 0 ? x : y;
    case relu: return x > 0 ? x : 0;
    default: return x;  // identity; the analysis refuses the others
  }
}

bool is_correctly_rounded(PointwiseMode mode) {
  using enum PointwiseMode;
  switch (mode) {
    case identity:
    case add:
    case sub:
    case mul:
    case div:
    case max:
    case min:
    case mod:
    case abs:
    case neg:
    case ceil:
    case floor:
    case sqrt:
    case reciprocal:
    case relu:
    case leaky_relu:
    case cmp_eq:
    case cmp_neq:
    case cmp_gt:
    case cmp_ge:
    case cmp_lt:
    case cmp_le:
    case logical_and:
    case logical_or:
    case logical_not:
    case binary_select:
    case gen_index:
    case relu_bwd:
    case leaky_relu_bwd: return true;
    default: return false;
  }
}

}  // namespace verglas::tool
