#include "oracle/curve.hpp"

#include <algorithm>
#include <cmath>

namespace oracle {

namespace {

constexpr double kRootHalf = 0.70710678118654752440;
constexpr double kTanhScale = 0.7978845608028654;  // √(2/π)
constexpr double kTanhCubic = 0.044715;
constexpr double kNormal = 0.3989422804014327;  // 1/√(2π)
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kAboveZero = std::ldexp(1.0, -149);

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double inner(double x) { return kTanhScale * (x + kTanhCubic * x * x * x); }

double gelu(double x) {
  if (x == -kInf) return -0.0;
  return 0.5 * x * std::erfc(-x * kRootHalf);
}

double gelu_tanh(double x) {
  if (x == -kInf) return -0.0;
  return x / (1 + std::exp(-2 * inner(x)));
}

double swish(double x, double beta) {
  const double s = sigmoid(beta * x);
  return s == 0 ? std::copysign(0.0, x) : x * s;
}

double softplus(double x, double beta) {
  const double y = beta * x;
  return (std::max(y, 0.0) + std::log1p(std::exp(-std::fabs(y)))) / beta;
}

double gelu_slope(double x) {
  if (std::isinf(x)) return x > 0 ? 1 : 0;
  return 0.5 * std::erfc(-x * kRootHalf) + x * std::exp(-0.5 * x * x) * kNormal;
}

double gelu_tanh_slope(double x) {
  if (std::isinf(x)) return x > 0 ? 1 : 0;
  const double u = inner(x);
  const double c = std::cosh(u);
  return 1 / (1 + std::exp(-2 * u)) + 0.5 * x / (c * c) * kTanhScale * (1 + 3 * kTanhCubic * x * x);
}

double swish_slope(double x, double beta) {
  const double s = sigmoid(beta * x);
  if (s == 0 || s == 1) return s;
  return s + beta * x * s * (1 - s);
}

}  // namespace

Curve curve_of(Pointwise mode, const Attributes& attributes, const Options& options) {
  const double alpha = fl32(attributes.alpha);
  const double beta = fl32(attributes.beta);
  // e^y of a rounded y: relative error |y|·2⁻²⁴.
  const bool inexact_exponent = options.approximate || beta != 1;
  Curve c;
  switch (mode) {
    case Pointwise::rsqrt: c.f = [](double x) { return 1 / std::sqrt(x); }; break;
    case Pointwise::exp:
      c.f = [](double x) { return std::exp(x); };
      if (options.approximate) c.slack = [](double x) { return std::fabs(x) * std::exp(x); };
      break;
    case Pointwise::log: c.f = [](double x) { return std::log(x); }; break;
    case Pointwise::erf: c.f = [](double x) { return std::erf(x); }; break;
    case Pointwise::tanh: c.f = [](double x) { return std::tanh(x); }; break;
    case Pointwise::elu:
      c.f = [=](double x) { return x > 0 ? x : alpha * std::expm1(x); };
      c.turning = {-0.0, 0.0, kAboveZero};
      break;
    case Pointwise::gelu:
      c.f = gelu;
      c.slack = [](double x) { return x < 0 ? 0.5 * std::fabs(x) : 0; };
      c.turning = {-0.751791524676667};
      break;
    case Pointwise::gelu_approx_tanh:
      c.f = gelu_tanh;
      c.slack = [](double x) {
        const double t = std::tanh(inner(x));
        return 0.5 * std::fabs(x) * ((x < 0 ? 1 : 0) + (1 - t * t) * std::min(std::fabs(inner(x)), 100.0));
      };
      c.turning = {-0.7524614221183763};
      break;
    case Pointwise::sigmoid:
      c.f = sigmoid;
      if (options.approximate) c.slack = [](double x) { return std::fabs(x) * sigmoid(x) * sigmoid(-x); };
      break;
    case Pointwise::swish:
      c.f = [=](double x) { return swish(x, beta); };
      c.pace = beta;
      if (inexact_exponent) c.slack = [=](double x) { return x * x * std::fabs(beta) * sigmoid(beta * x) * sigmoid(-beta * x); };
      c.turning = {-1.2784645426555545 / beta};
      break;
    case Pointwise::softplus:
      c.f = [=](double x) { return softplus(x, beta); };
      c.pace = beta;
      if (inexact_exponent) c.slack = [=](double x) { return std::fabs(x) * sigmoid(beta * x); };
      c.exact_at_zero = false;
      break;
    case Pointwise::sigmoid_backward:
      c.f = [](double x) { return sigmoid(x) * sigmoid(-x); };
      c.slack = [](double x) { return sigmoid(x) * (1 + std::min(std::fabs(x), 1e6) * sigmoid(-x)); };
      c.turning = {0};
      break;
    case Pointwise::tanh_backward:
      c.f = [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); };
      c.slack = [](double) { return 2.0; };
      c.turning = {0};
      break;
    case Pointwise::elu_backward:
      c.f = [=](double x) { return x > 0 ? 1 : alpha * std::exp(x); };
      if (options.approximate) c.slack = [=](double x) { return x > 0 ? 0 : std::fabs(alpha * x) * std::exp(x); };
      c.turning = {-0.0, 0.0, kAboveZero};
      break;
    case Pointwise::gelu_backward:
      c.f = gelu_slope;
      c.slack = [](double) { return 1.0; };
      c.turning = {-1.4142135623730951, 1.4142135623730951};
      break;
    case Pointwise::gelu_approx_tanh_backward:
      c.f = gelu_tanh_slope;
      c.slack = [](double x) {
        const double t = std::tanh(inner(x));
        const double u = std::min(std::fabs(inner(x)), 100.0);
        // 1 + t and 1 − t² each lose a unit, the second scaled by what multiplies it; beyond 8 every tanh is ±1.
        const double factor = 0.5 * std::fabs(x) * kTanhScale * (1 + 3 * kTanhCubic * x * x);
        return 1 + (std::fabs(x) < 8 ? factor * (2 + 4 * u * (1 - t * t)) : 0);
      };
      c.turning = {-1.4185040086, 1.4185040086};
      break;
    case Pointwise::softplus_backward:
      c.f = [=](double x) { return sigmoid(beta * x); };
      c.pace = beta;
      if (inexact_exponent) c.slack = [=](double x) { return std::fabs(beta * x) * sigmoid(beta * x) * sigmoid(-beta * x); };
      break;
    case Pointwise::swish_backward:
      c.f = [=](double x) { return swish_slope(x, beta); };
      c.pace = beta;
      c.slack = [=](double x) {
        const double y = std::min(std::fabs(beta * x), 1e6);
        const double s = sigmoid(beta * x);
        return s + y * s + (inexact_exponent ? y * y * s * (1 - s) : 0);
      };
      c.turning = {-2.39935728 / beta, 2.39935728 / beta};
      break;
    default: break;
  }
  return c;
}

}  // namespace oracle
