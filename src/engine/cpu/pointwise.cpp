#include "engine/cpu/pointwise.hpp"

#include <cmath>
#include <limits>

namespace verglas::engine::cpu {
namespace {

template <class F>
void map1(const float* x, float* out, std::int64_t n, F&& f) noexcept {
  for (std::int64_t i = 0; i < n; ++i) out[i] = f(x[i]);
}
template <class F>
void map2(const float* x, const float* y, float* out, std::int64_t n, F&& f) noexcept {
  for (std::int64_t i = 0; i < n; ++i) out[i] = f(x[i], y[i]);
}

// NaN in either operand comes out: a comparison with NaN is false, so the sum carries it.
float max_nan(float a, float b) { return a > b ? a : (b >= a ? b : a + b); }
float min_nan(float a, float b) { return a < b ? a : (b <= a ? b : a + b); }

constexpr float kSqrtHalf = 0.70710678118654752F;
constexpr float kTanhScale = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kGelu3 = 0.044715F;
constexpr float kInvSqrt2Pi = 0.3989422804014327F;

float sigmoid(float x) {
  // e^−|x| never overflows; both branches keep full relative precision.
  const float e = std::exp(-std::fabs(x));
  return (x >= 0 ? 1.0F : e) / (1.0F + e);
}
float swish(float x, float beta) {
  if (std::isinf(x) && std::signbit(x) != std::signbit(beta)) return beta == 0.0F ? 0.5F * x : -0.0F;
  return x * sigmoid(beta * x);
}
float softplus(float x, float beta) {
  const float t = beta * x;
  return (max_nan(t, 0.0F) + std::log1p(std::exp(-std::fabs(t)))) / beta;
}
float gelu(float x) { return std::isinf(x) && x < 0 ? -0.0F : 0.5F * x * std::erfc(-x * kSqrtHalf); }
float tanh_argument(float x) { return kTanhScale * (x + kGelu3 * x * x * x); }
float gelu_tanh(float x) {
  if (std::isinf(x)) return x > 0 ? x : -0.0F;
  // ½(1 + tanh t) = sigmoid(2t): no cancellation for negative x
  return x * sigmoid(2.0F * tanh_argument(x));
}

float relu(float x, const PointwiseParameters& p) {
  if (!p.negative_slope) {
    const float t = max_nan(x, p.lower_clip.value_or(0.0F));
    return p.upper_clip ? min_nan(t, *p.upper_clip) : t;
  }
  float t = x > 0 ? x : (x == x ? *p.negative_slope * x : x);
  if (p.lower_clip) t = max_nan(t, *p.lower_clip);
  if (p.upper_clip) t = min_nan(t, *p.upper_clip);
  return t;
}
float relu_bwd(float dy, float x, const PointwiseParameters& p) {
  if (x != x) return x;
  const float lower = p.lower_clip.value_or(0.0F);
  if (p.upper_clip && !(x < *p.upper_clip)) return dy * 0.0F;
  if (x > lower) return dy;
  return dy * p.negative_slope.value_or(0.0F);
}

float gelu_bwd(float dy, float x) {
  if (std::isinf(x)) return x > 0 ? dy : dy * 0.0F;
  return dy * (0.5F * std::erfc(-x * kSqrtHalf) + x * std::exp(-0.5F * x * x) * kInvSqrt2Pi);
}
float gelu_tanh_bwd(float dy, float x) {
  if (std::isinf(x)) return x > 0 ? dy : dy * 0.0F;
  const float t = std::tanh(tanh_argument(x));
  const float s = sigmoid(2.0F * tanh_argument(x));
  return dy * (s + 0.5F * x * (1.0F - t * t) * kTanhScale * (1.0F + 3.0F * kGelu3 * x * x));
}
float swish_bwd(float dy, float x, float beta) {
  const float t = beta * x;
  if (std::isinf(t)) return t > 0 ? dy : dy * 0.0F;
  const float s = sigmoid(t);
  return dy * (s + t * s * (1.0F - s));
}

}  // namespace

void pointwise_f32(PointwiseMode mode, const PointwiseParameters& p, const float* x, const float* y, const float* z, float* out,
                   std::int64_t n) noexcept {
  using enum PointwiseMode;
  const auto one = [&](auto&& f) { map1(x, out, n, f); };
  const auto two = [&](auto&& f) { map2(x, y, out, n, f); };
  const float slope = p.negative_slope.value_or(0.0F);
  switch (mode) {
    case identity: return one([](float a) { return a; });
    case add: return two([](float a, float b) { return a + b; });
    case sub: return two([](float a, float b) { return a - b; });
    case mul: return two([](float a, float b) { return a * b; });
    case div: return two([](float a, float b) { return a / b; });
    case max: return two(max_nan);
    case min: return two(min_nan);
    case pow: return two([](float a, float b) { return std::pow(a, b); });
    case mod: return two([](float a, float b) { return std::fmod(a, b); });
    case add_square: return two([](float a, float b) { return a + b * b; });
    case abs: return one([](float a) { return std::fabs(a); });
    case neg: return one([](float a) { return -a; });
    case ceil: return one([](float a) { return std::ceil(a); });
    case floor: return one([](float a) { return std::floor(a); });
    case sqrt: return one([](float a) { return std::sqrt(a); });
    case rsqrt: return one([](float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); });
    case reciprocal: return one([](float a) { return 1.0F / a; });
    case exp: return one([](float a) { return std::exp(a); });
    case log: return one([](float a) { return std::log(a); });
    case sin: return one([](float a) { return std::sin(a); });
    case cos: return one([](float a) { return std::cos(a); });
    case tan: return one([](float a) { return std::tan(a); });
    case erf: return one([](float a) { return std::erf(a); });
    case relu: return one([&](float a) { return cpu::relu(a, p); });
    case leaky_relu: return one([=](float a) { return a > 0 ? a : (a == a ? slope * a : a); });
    case elu: return one([&](float a) { return a > 0 ? a : p.alpha * std::expm1(a); });
    case gelu: return one(cpu::gelu);
    case gelu_approx_tanh: return one(gelu_tanh);
    case sigmoid: return one(cpu::sigmoid);
    case swish: return one([&](float a) { return cpu::swish(a, p.beta); });
    case softplus: return one([&](float a) { return cpu::softplus(a, p.beta); });
    case tanh: return one([](float a) { return std::tanh(a); });
    case cmp_eq: return two([](float a, float b) { return a == b ? 1.0F : 0.0F; });
    case cmp_neq: return two([](float a, float b) { return a != b ? 1.0F : 0.0F; });
    case cmp_gt: return two([](float a, float b) { return a > b ? 1.0F : 0.0F; });
    case cmp_ge: return two([](float a, float b) { return a >= b ? 1.0F : 0.0F; });
    case cmp_lt: return two([](float a, float b) { return a < b ? 1.0F : 0.0F; });
    case cmp_le: return two([](float a, float b) { return a <= b ? 1.0F : 0.0F; });
    case logical_and: return two([](float a, float b) { return a != 0 && b != 0 ? 1.0F : 0.0F; });
    case logical_or: return two([](float a, float b) { return a != 0 || b != 0 ? 1.0F : 0.0F; });
    case logical_not: return one([](float a) { return a == 0 ? 1.0F : 0.0F; });
    case binary_select:
      for (std::int64_t i = 0; i < n; ++i) out[i] = z[i] != 0 ? x[i] : y[i];
      return;
    case gen_index: return;  // the evaluator fills the coordinate: only it knows where the row lies
    case relu_bwd: return two([&](float dy, float a) { return cpu::relu_bwd(dy, a, p); });
    case leaky_relu_bwd: return two([=](float dy, float a) { return a > 0 ? dy : (a == a ? dy * slope : a); });
    case sigmoid_bwd:
      return two([](float dy, float a) {
        const float s = cpu::sigmoid(a);
        return dy * (s * (1.0F - s));
      });
    case tanh_bwd:
      return two([](float dy, float a) {
        const float t = std::tanh(a);
        return dy * (1.0F - t * t);
      });
    case elu_bwd: return two([&](float dy, float a) { return a > 0 ? dy : dy * (p.alpha * std::exp(a)); });
    case gelu_bwd: return two(cpu::gelu_bwd);
    case gelu_approx_tanh_bwd: return two(gelu_tanh_bwd);
    case softplus_bwd: return two([&](float dy, float a) { return dy * cpu::sigmoid(p.beta * a); });
    case swish_bwd: return two([&](float dy, float a) { return cpu::swish_bwd(dy, a, p.beta); });
  }
}

void pointwise_i32(PointwiseMode mode, const PointwiseParameters&, const std::int32_t* x, const std::int32_t* y,
                   const std::int32_t* z, std::int32_t* out, std::int64_t n) noexcept {
  using enum PointwiseMode;
  using U = std::uint32_t;
  constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
  const auto wrap = [](U v) { return static_cast<std::int32_t>(v); };
  const auto one = [&](auto&& f) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(x[i]);
  };
  const auto two = [&](auto&& f) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(x[i], y[i]);
  };
  switch (mode) {
    case identity: return one([](std::int32_t a) { return a; });
    case add: return two([&](std::int32_t a, std::int32_t b) { return wrap(U(a) + U(b)); });
    case sub: return two([&](std::int32_t a, std::int32_t b) { return wrap(U(a) - U(b)); });
    case mul: return two([&](std::int32_t a, std::int32_t b) { return wrap(U(a) * U(b)); });
    case div:
      return two([&](std::int32_t a, std::int32_t b) { return b == 0 ? 0 : (a == kLowest && b == -1 ? kLowest : a / b); });
    case mod: return two([&](std::int32_t a, std::int32_t b) { return b == 0 || b == -1 ? 0 : a % b; });
    case max: return two([](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
    case min: return two([](std::int32_t a, std::int32_t b) { return a < b ? a : b; });
    case add_square: return two([&](std::int32_t a, std::int32_t b) { return wrap(U(a) + U(b) * U(b)); });
    case abs: return one([&](std::int32_t a) { return a < 0 ? wrap(U(0) - U(a)) : a; });
    case neg: return one([&](std::int32_t a) { return wrap(U(0) - U(a)); });
    case relu: return one([](std::int32_t a) { return a > 0 ? a : 0; });
    case cmp_eq: return two([](std::int32_t a, std::int32_t b) { return a == b ? 1 : 0; });
    case cmp_neq: return two([](std::int32_t a, std::int32_t b) { return a != b ? 1 : 0; });
    case cmp_gt: return two([](std::int32_t a, std::int32_t b) { return a > b ? 1 : 0; });
    case cmp_ge: return two([](std::int32_t a, std::int32_t b) { return a >= b ? 1 : 0; });
    case cmp_lt: return two([](std::int32_t a, std::int32_t b) { return a < b ? 1 : 0; });
    case cmp_le: return two([](std::int32_t a, std::int32_t b) { return a <= b ? 1 : 0; });
    case logical_and: return two([](std::int32_t a, std::int32_t b) { return a != 0 && b != 0 ? 1 : 0; });
    case logical_or: return two([](std::int32_t a, std::int32_t b) { return a != 0 || b != 0 ? 1 : 0; });
    case logical_not: return one([](std::int32_t a) { return a == 0 ? 1 : 0; });
    case binary_select:
      for (std::int64_t i = 0; i < n; ++i) out[i] = z[i] != 0 ? x[i] : y[i];
      return;
    default: return;  // the analysis lets no other mode compute in int32
  }
}

}  // namespace verglas::engine::cpu
