#pragma once
#include <bit>
#include <cstdint>

/// Functions of the activations, without branches, so that a loop over them vectorises. `Narrow` and what is made of it are fp32,
/// the others double, with relative errors below 1e-9: rounded once to fp32 they are within one unit of the last place. Arguments
/// are clamped where a result would leave the range of its type; NaN goes through, since every comparison with it is false.
/// Products and sums are fused where it is written: so they are in every instruction set.
namespace verglas::engine::cpu::vm {

inline double at_least(double x, double low) noexcept { return x < low ? low : x; }
inline double at_most(double x, double high) noexcept { return x > high ? high : x; }
inline double magnitude(double x) noexcept { return __builtin_fabs(x); }
inline double fused(double x, double y, double z) noexcept { return __builtin_fma(x, y, z); }
/// Horner's rule from the highest power down, without a loop: g++ does not unroll one of fused operations before it vectorises.
template <class... Rest>
inline double polynomial(double x, double highest, Rest... rest) noexcept {
  double p = highest;
  ((p = fused(p, x, rest)), ...);
  return p;
}

/// x = n·ln 2 + r with |r| ≤ ½ ln 2. Adding 1.5·2^52 leaves n in the low bits of the sum.
struct Reduced {
  double r, power;  ///< power = 2^n
};
inline Reduced reduce(double x) noexcept {
  constexpr double kShift = 0x1.8p52;
  const double shifted = fused(x, 1.4426950408889634, kShift);
  const double n = shifted - kShift;
  const double r = fused(n, -0.69314718055994531, x);
  const double power = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) << 52) + 0x3FF0000000000000ULL);
  return {r, power};
}
/// (e^r − 1) / r, by its series: the first term left out is below 3e-10 of e^r.
inline double expm1_over(double r) noexcept {
  return polynomial(r, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0);
}

/// e^x = mantissa · 2^n in fp32, 0.7 < mantissa < 1.42; the low bits of `shifted` are n. Relative error 2^-23.
struct NarrowParts {
  float mantissa, shifted;
};
inline constexpr float kNarrowShift = 0x1.8p23F;
inline NarrowParts narrow_parts(float x) noexcept {
  const float shifted = __builtin_fmaf(x, 1.44269504F, kNarrowShift);
  const float n = shifted - kNarrowShift;
  const float r = __builtin_fmaf(n, 2.12194440e-4F, __builtin_fmaf(n, -0.693359375F, x));  // ln 2 in two parts
  float p = 1.0F / 5040;
  p = __builtin_fmaf(p, r, 1.0F / 720);
  p = __builtin_fmaf(p, r, 1.0F / 120);
  p = __builtin_fmaf(p, r, 1.0F / 24);
  p = __builtin_fmaf(p, r, 1.0F / 6);
  p = __builtin_fmaf(p, r, 0.5F);
  return {1.0F + __builtin_fmaf(r * r, p, r), shifted};
}
/// mantissa · half · rest, half and rest powers of two: for −120 ≤ x ≤ 100, so that a product with both leaves fp32's range where
/// e^x does, and is rounded once where it is subnormal.
struct Narrow {
  float mantissa, half, rest;
};
inline Narrow narrow_exp(float x) noexcept {
  const NarrowParts e = narrow_parts(x);
  const std::int32_t whole = std::bit_cast<std::int32_t>(e.shifted) - std::bit_cast<std::int32_t>(kNarrowShift);
  const std::int32_t half = whole >> 1;
  const auto power = [](std::int32_t n) { return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23); };
  return {e.mantissa, power(half), power(whole - half)};
}
/// Below this size nothing of e^x, σ(x) and x · σ(x) is subnormal or infinite, and the exponent can be added to the mantissa's.
inline constexpr float kModest = 80.0F;
inline float modest_exp(float x) noexcept {
  const NarrowParts e = narrow_parts(x);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(e.mantissa) + (std::bit_cast<std::uint32_t>(e.shifted) << 23));
}
/// top(e^−|x|'s mantissa or 1) / (1 + e^−|x|) for the two signs of x: σ(x) when top is 1, x · σ(x) when it is x.
inline float narrow_sigmoid(float x, float top) noexcept {
  const float size = __builtin_fabsf(x);
  const Narrow e = narrow_exp(-(size > 120.0F ? 120.0F : size));
  const bool below = x < 0.0F;
  const float q = (below ? top * e.mantissa : top) / (1.0F + e.mantissa * e.half * e.rest);
  return q * (below ? e.half : 1.0F) * (below ? e.rest : 1.0F);
}
/// The same bits for modest x.
inline float modest_sigmoid(float x, float top) noexcept {
  const float e = modest_exp(-__builtin_fabsf(x));
  return (x < 0.0F ? top * e : top) / (1.0F + e);
}

inline double exp(double x) noexcept {
  const Reduced q = reduce(at_most(at_least(x, -708.0), 709.0));
  return fused(q.r, expm1_over(q.r), 1.0) * q.power;
}
inline double expm1(double x) noexcept {
  const Reduced q = reduce(at_most(at_least(x, -708.0), 709.0));
  const double v = fused(q.power, q.r * expm1_over(q.r), q.power - 1.0);
  return x == 0.0 ? x : v;  // −0 keeps its sign
}

/// log(1 + e) for 0 ≤ e ≤ 1, as 2 artanh(e / (2 + e)).
inline double log1p_unit(double e) noexcept {
  const double s = e / (2.0 + e);
  const double q = s * s;
  const double p =
      polynomial(q, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0);
  return 2.0 * s * p;
}

/// Complementary error function of z ≥ 0: e^(−z²) · t · P(t), t = 2 / (2 + z). P is a Chebyshev fit of erfcx(z) / t on 0 ≤ t ≤ 1
/// (relative error 2e-10), made with mpmath by bench/cpu/fit_erfc.py.
inline double erfc_positive(double z) noexcept {
  const double t = 2.0 / (2.0 + z);
  const double p =
      polynomial(t, 0.01894471339411804, -0.11143576173450996, 0.24191850428485662, -0.16042301710660145, -0.23572381382398927,
                 0.5147394190853983, -0.3321412844352014, 0.0867775982009021, -0.09560339424589082, 0.002620344595869102,
                 0.08294249392831063, 0.17636353573477473, 0.2468310530345619, 0.2820948174227292, 0.28209479171673096);
  return exp(-z * z) * t * p;
}
inline double erfc(double x) noexcept {
  const double e = erfc_positive(magnitude(x));
  return x < 0.0 ? 2.0 - e : e;
}
inline double erf(double x) noexcept {
  // Near 0 the series keeps the relative accuracy that 1 − erfc would lose.
  const double q = x * x;
  const double p =
      polynomial(q, 1.0 / 685440, -1.0 / 75600, 1.0 / 9360, -1.0 / 1320, 1.0 / 216, -1.0 / 42, 1.0 / 10, -1.0 / 3, 1.0);
  const double near = 1.1283791670955126 * x * p;
  const double far = 1.0 - erfc_positive(magnitude(x));
  return magnitude(x) < 0.5 ? near : (x < 0.0 ? -far : far);
}

inline double sigmoid(double x) noexcept {
  const double e = exp(-magnitude(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
/// σ(x)·(1 − σ(x)), without the cancellation.
inline double sigmoid_slope(double x) noexcept {
  const double e = exp(-magnitude(x));
  return e / ((1.0 + e) * (1.0 + e));
}
inline double tanh(double x) noexcept {
  const double e = expm1(2.0 * at_most(at_least(x, -30.0), 30.0));
  return e / (e + 2.0);
}
inline double softplus(double t) noexcept { return (t > 0.0 ? t : 0.0) + log1p_unit(exp(-magnitude(t))); }

/// Natural logarithm of an fp32 value held in double: never a subnormal one.
inline double log(double x) noexcept {
  constexpr std::uint64_t kMantissa = 0x000FFFFFFFFFFFFFULL, kOne = 0x3FF0000000000000ULL;
  // The exponent is taken so that the mantissa lies around 1: from √½ to √2.
  const std::uint64_t u = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t lifted = u + (kOne - 0x3FE6A09E667F3BCDULL);
  const double m = std::bit_cast<double>((lifted & kMantissa) + 0x3FE6A09E667F3BCDULL);
  // Exponent as a number without an integer conversion, which AVX2 does not have for 64 bits.
  const double n = std::bit_cast<double>((lifted >> 52) | 0x4330000000000000ULL) - (0x1p52 + 1023.0);
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  const double p = polynomial(q, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0);
  const double r = fused(n, 0.69314718055994531, 2.0 * s * p);
  const double nan = __builtin_nan("");
  const double positive = x > 1.7e308 ? x : r;
  return x > 0.0 ? positive : (x == 0.0 ? -__builtin_inf() : nan);
}

}  // namespace verglas::engine::cpu::vm
