#include "engine/cpu/pointwise.hpp"

#include <cmath>
#include <limits>

#include "engine/cpu/vector_math.hpp"

namespace verglas::engine::cpu {
namespace {

#if defined(__x86_64__)
const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
const bool kHasAvx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
#define VERGLAS_AVX2 __attribute__((target("avx2,fma")))
#define VERGLAS_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw")))
#else
constexpr bool kHasAvx2 = false, kHasAvx512 = false;
#define VERGLAS_AVX2
#define VERGLAS_AVX512
#endif

// One loop in three instruction sets, chosen at run time; without contraction (see CMakeLists.txt) all give the same bits.
template <class F>
inline __attribute__((always_inline)) void map_lanes(const float* x, const float* y, float* out, std::int64_t n, F f) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_invocable_v<F, float>)
      out[i] = f(x[i]);
    else
      out[i] = f(x[i], y[i]);
  }
}
template <class F>
VERGLAS_AVX2 void map_avx2(const float* x, const float* y, float* out, std::int64_t n, F f) noexcept {
  map_lanes(x, y, out, n, f);
}
template <class F>
VERGLAS_AVX512 void map_avx512(const float* x, const float* y, float* out, std::int64_t n, F f) noexcept {
  map_lanes(x, y, out, n, f);
}
template <class F>
void map(const float* x, const float* y, float* out, std::int64_t n, F f) noexcept {
  if (kHasAvx512)
    map_avx512(x, y, out, n, f);
  else if (kHasAvx2)
    map_avx2(x, y, out, n, f);
  else
    map_lanes(x, y, out, n, f);
}

/// Every lane is a number of modest size.
inline __attribute__((always_inline)) bool all_modest_lanes(const float* x, std::int64_t n) noexcept {
  unsigned wild = 0;
  for (std::int64_t i = 0; i < n; ++i) wild |= __builtin_fabsf(x[i]) < vm::kModest ? 0U : 1U;
  return wild == 0;
}
VERGLAS_AVX2 bool all_modest_avx2(const float* x, std::int64_t n) noexcept { return all_modest_lanes(x, n); }
VERGLAS_AVX512 bool all_modest_avx512(const float* x, std::int64_t n) noexcept { return all_modest_lanes(x, n); }
bool all_modest(const float* x, std::int64_t n) noexcept {
  return kHasAvx512 ? all_modest_avx512(x, n) : kHasAvx2 ? all_modest_avx2(x, n) : all_modest_lanes(x, n);
}

inline float narrow(double v) noexcept { return static_cast<float>(v); }

/// Loss times slope. An infinite loss meets the slope as fp32 has it, where a tiny one is 0, and gives NaN then.
inline float lost(float dy, double slope) noexcept {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool gone = __builtin_fabsf(dy) == kInfinity && __builtin_fabs(slope) < 0x1p-150;
  return narrow(dy * (gone ? 0.0 : slope));
}

// NaN in either operand comes out: every comparison with NaN is false, so the sum carries it.
inline float max_nan(float a, float b) noexcept { return a > b ? a : (b >= a ? b : a + b); }
inline float min_nan(float a, float b) noexcept { return a < b ? a : (b <= a ? b : a + b); }

constexpr double kSqrtHalf = 0.70710678118654752;
constexpr double kTanhScale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kGelu3 = 0.044715;
constexpr double kInvSqrt2Pi = 0.3989422804014327;

inline double gelu_argument(double x) noexcept { return kTanhScale * (x + kGelu3 * x * x * x); }

inline float relu_of(float x, float lower) noexcept { return max_nan(x, lower); }
inline float leaky_of(float x, float slope) noexcept { return x > 0.0F ? x : (x <= 0.0F ? slope * x : x); }

inline float swish_of(float x, double beta) noexcept {
  const double wide = x;
  const double held = vm::at_most(vm::at_least(wide, -1e30), 1e30);
  const double s = vm::sigmoid(beta * held);
  return narrow((s < 1e-300 ? held : wide) * s);  // −∞ · 0 is −0, not NaN
}
inline float swish_narrow(float x) noexcept { return vm::narrow_sigmoid(x, x < -120.0F ? -120.0F : x); }
inline float exp_narrow(float x) noexcept {
  const vm::Narrow e = vm::narrow_exp(x < -120.0F ? -120.0F : (x > 100.0F ? 100.0F : x));
  return e.mantissa * e.half * e.rest;
}
inline float gelu_of(float x) noexcept {
  const double v = vm::at_least(x, -50.0);
  return narrow(0.5 * v * vm::erfc(-v * kSqrtHalf));
}
inline float gelu_tanh_of(float x) noexcept {
  const double v = vm::at_least(x, -1e4);
  return narrow(v * vm::sigmoid(2.0 * gelu_argument(v)));  // ½(1 + tanh t) = σ(2t)
}
inline float gelu_bwd_of(float dy, float x) noexcept {
  const double v = vm::at_most(vm::at_least(x, -50.0), 50.0);
  return lost(dy, 0.5 * vm::erfc(-v * kSqrtHalf) + v * vm::exp(-0.5 * v * v) * kInvSqrt2Pi);
}
inline float gelu_tanh_bwd_of(float dy, float x) noexcept {
  const double v = vm::at_most(vm::at_least(x, -1e4), 1e4);
  const double t = gelu_argument(v);
  return lost(dy, vm::sigmoid(2.0 * t) + 2.0 * v * vm::sigmoid_slope(2.0 * t) * kTanhScale * (1.0 + 3.0 * kGelu3 * v * v));
}
inline float swish_bwd_of(float dy, float x, double beta) noexcept {
  const double t = vm::at_most(vm::at_least(beta * x, -1e4), 1e4);
  return lost(dy, vm::sigmoid(t) + t * vm::sigmoid_slope(t));
}

float relu_general(float x, const PointwiseParameters& p) noexcept {
  float t = x;
  if (p.negative_slope) {
    t = leaky_of(x, *p.negative_slope);
    if (p.lower_clip) t = max_nan(t, *p.lower_clip);
  } else {
    t = max_nan(x, p.lower_clip.value_or(0.0F));
  }
  return p.upper_clip ? min_nan(t, *p.upper_clip) : t;
}
float relu_bwd_general(float dy, float x, const PointwiseParameters& p) noexcept {
  if (x != x) return x;
  if (p.upper_clip && !(x < *p.upper_clip)) return dy * 0.0F;
  return x > p.lower_clip.value_or(0.0F) ? dy : dy * p.negative_slope.value_or(0.0F);
}

}  // namespace

void pointwise_f32(PointwiseMode mode, const PointwiseParameters& p, const float* x, const float* y, const float* z, float* out,
                   std::int64_t n) noexcept {
  using enum PointwiseMode;
  const auto on = [&](auto f) { map(x, y, out, n, f); };
  const float slope = p.negative_slope.value_or(0.0F);
  const double alpha = p.alpha;
  const double beta = p.beta;
  switch (mode) {
    case identity: return on([](float a) { return a; });
    case add: return on([](float a, float b) { return a + b; });
    case sub: return on([](float a, float b) { return a - b; });
    case mul: return on([](float a, float b) { return a * b; });
    case div: return on([](float a, float b) { return a / b; });
    case max: return on([](float a, float b) { return max_nan(a, b); });
    case min: return on([](float a, float b) { return min_nan(a, b); });
    case pow: return on([](float a, float b) { return narrow(std::pow(static_cast<double>(a), static_cast<double>(b))); });
    case mod: return on([](float a, float b) { return std::fmod(a, b); });
    case add_square: return on([](float a, float b) { return a + b * b; });
    case abs: return on([](float a) { return __builtin_fabsf(a); });
    case neg: return on([](float a) { return -a; });
    case ceil: return on([](float a) { return __builtin_ceilf(a); });
    case floor: return on([](float a) { return __builtin_floorf(a); });
    case sqrt: return on([](float a) { return __builtin_sqrtf(a); });
    case rsqrt: return on([](float a) { return narrow(1.0 / __builtin_sqrt(static_cast<double>(a))); });
    case reciprocal: return on([](float a) { return 1.0F / a; });
    case exp:
      if (all_modest(x, n)) return on([](float a) { return vm::modest_exp(a); });
      return on([](float a) { return exp_narrow(a); });
    case log: return on([](float a) { return narrow(vm::log(a)); });
    case sin: return on([](float a) { return narrow(std::sin(static_cast<double>(a))); });
    case cos: return on([](float a) { return narrow(std::cos(static_cast<double>(a))); });
    case tan: return on([](float a) { return narrow(std::tan(static_cast<double>(a))); });
    case erf: return on([](float a) { return narrow(vm::erf(a)); });
    case relu:
      if (p.negative_slope || p.upper_clip) return on([&](float a) { return relu_general(a, p); });
      return on([lower = p.lower_clip.value_or(0.0F)](float a) { return relu_of(a, lower); });
    case leaky_relu: return on([=](float a) { return leaky_of(a, slope); });
    case elu: return on([=](float a) { return a > 0.0F ? a : narrow(alpha * vm::expm1(a)); });
    case gelu: return on([](float a) { return gelu_of(a); });
    case gelu_approx_tanh: return on([](float a) { return gelu_tanh_of(a); });
    case sigmoid:
      if (all_modest(x, n)) return on([](float a) { return vm::modest_sigmoid(a, 1.0F); });
      return on([](float a) { return vm::narrow_sigmoid(a, 1.0F); });
    case swish:
      if (p.beta == 1.0F && all_modest(x, n)) return on([](float a) { return vm::modest_sigmoid(a, a); });
      if (p.beta == 1.0F) return on([](float a) { return swish_narrow(a); });
      return on([=](float a) { return swish_of(a, beta); });
    case softplus: return on([=](float a) { return narrow(vm::softplus(beta * a) / beta); });
    case tanh: return on([](float a) { return narrow(vm::tanh(a)); });
    case cmp_eq: return on([](float a, float b) { return a == b ? 1.0F : 0.0F; });
    case cmp_neq: return on([](float a, float b) { return a != b ? 1.0F : 0.0F; });
    case cmp_gt: return on([](float a, float b) { return a > b ? 1.0F : 0.0F; });
    case cmp_ge: return on([](float a, float b) { return a >= b ? 1.0F : 0.0F; });
    case cmp_lt: return on([](float a, float b) { return a < b ? 1.0F : 0.0F; });
    case cmp_le: return on([](float a, float b) { return a <= b ? 1.0F : 0.0F; });
    case logical_and: return on([](float a, float b) { return a != 0.0F && b != 0.0F ? 1.0F : 0.0F; });
    case logical_or: return on([](float a, float b) { return a != 0.0F || b != 0.0F ? 1.0F : 0.0F; });
    case logical_not: return on([](float a) { return a == 0.0F ? 1.0F : 0.0F; });
    case binary_select:
      for (std::int64_t i = 0; i < n; ++i) out[i] = z[i] != 0.0F ? x[i] : y[i];
      return;
    case gen_index: return;  // the launcher fills the coordinate: only it knows where the row lies
    case relu_bwd: return on([&](float dy, float a) { return relu_bwd_general(dy, a, p); });
    case leaky_relu_bwd: return on([=](float dy, float a) { return a > 0.0F ? dy : (a <= 0.0F ? dy * slope : a); });
    case sigmoid_bwd: return on([](float dy, float a) { return lost(dy, vm::sigmoid_slope(a)); });
    case tanh_bwd: return on([](float dy, float a) { return lost(dy, 4.0 * vm::sigmoid_slope(2.0 * a)); });
    case elu_bwd: return on([=](float dy, float a) { return a > 0.0F ? dy : lost(dy, alpha * vm::exp(a)); });
    case gelu_bwd: return on([](float dy, float a) { return gelu_bwd_of(dy, a); });
    case gelu_approx_tanh_bwd: return on([](float dy, float a) { return gelu_tanh_bwd_of(dy, a); });
    case softplus_bwd: return on([=](float dy, float a) { return lost(dy, vm::sigmoid(beta * a)); });
    case swish_bwd: return on([=](float dy, float a) { return swish_bwd_of(dy, a, beta); });
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
