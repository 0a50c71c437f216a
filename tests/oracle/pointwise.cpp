#include "oracle/pointwise.hpp"

#include <algorithm>
#include <numbers>
#include <stdexcept>
#include <vector>

#include "oracle/curve.hpp"

namespace oracle {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kUnit = std::ldexp(1.0, -24);
const double kSmallestNormal = std::ldexp(1.0, -126);
const double kSmallest = std::ldexp(1.0, -149);

/// The ends of x and those of `interior` that lie between them.
std::vector<double> candidates(const Bound& x, std::initializer_list<double> interior = {-0.0, 0.0}) {
  std::vector<double> points{x.lo};
  if (x.is_exact()) return points;
  for (double p : interior)
    if (before(x.lo, p) && before(p, x.hi)) points.push_back(p);
  points.push_back(x.hi);
  return points;
}

/// Hull of an operation that is one fp32 rounding of a function monotone between the candidates.
template <class F>
Bound over(const Bound& a, const Bound& b, F f) {
  Bound r = Bound::nothing();
  r.nan = a.nan || b.nan;
  if (!a.number || !b.number) return r;
  for (double x : candidates(a))
    for (double y : candidates(b)) r.include(fl32(f(x, y)));
  return r;
}

template <class F>
Bound over(const Bound& x, std::initializer_list<double> interior, F f) {
  Bound r = Bound::nothing();
  r.nan = x.nan;
  if (!x.number) return r;
  for (double p : candidates(x, interior)) r.include(fl32(f(p)));
  return r;
}

Bound loosened(Bound r, double ulps) {
  if (!r.number) return r;
  Bound w = r;
  w.include(r.lo, ulps * ulp32(r.lo));
  w.include(r.hi, ulps * ulp32(r.hi));
  return {fl32(w.lo), fl32(w.hi), true, w.nan};
}

Bound flushed(Bound r) {
  if (r.number && r.lo > 0 && r.lo < kSmallestNormal) r.lo = 0;
  if (r.number && r.hi < 0 && r.hi > -kSmallestNormal) r.hi = -0.0;
  return r;
}

/// A zero result whose sign the contract leaves open.
Bound unsigned_zero(Bound r) {
  if (r.number && r.lo == 0) r.lo = -0.0;
  if (r.number && r.hi == 0) r.hi = 0.0;
  return r;
}

/// The most that a formula may lose anywhere in x; what it loses is no monotone function, so a wide x is sampled.
double worst_slack(const Curve& curve, const Bound& x, const std::vector<double>& points) {
  if (!curve.slack) return 0;
  double worst = 0;
  for (double p : points)
    if (std::isfinite(p)) worst = std::max(worst, curve.slack(p));
  const double lo = std::max(x.lo, -100.0), hi = std::min(x.hi, 100.0);
  if (hi - lo <= 1e-3) return x.is_exact() ? worst : 1.01 * worst;
  const int steps = hi - lo < 0.1 ? 4 : 64;
  for (int i = 0; i <= steps; ++i) worst = std::max(worst, curve.slack(lo + (hi - lo) * i / steps));
  return 1.1 * worst;
}

/// Not yet rounded to fp32.
Bound on_curve(const Curve& curve, const Bound& x, const Options& options) {
  Bound r = Bound::nothing();
  r.nan = x.nan;
  if (!x.number) return r;
  std::vector<double> points = candidates(x);
  for (double p : curve.turning)
    if (before(x.lo, p) && before(p, x.hi)) points.push_back(p);
  const double slack = kUnit * worst_slack(curve, x, points);
  for (double p : points) {
    const double v = curve.f(p);
    const bool special = x.is_exact() && ((p == 0 && curve.exact_at_zero) || std::isinf(p));
    r.include(v, special ? 0 : options.ulps * (ulp32(v) + slack));
    // Where an exponential underflows, a formula in fp32 may give anything down to 0.
    const double reach = std::fabs(p) * std::max(1.0, std::fabs(curve.pace));
    const double under = kSmallestNormal * (1 + std::min(reach, 1e6));
    if (!special && reach >= 1 && std::fabs(v) < under) {
      r.include(std::copysign(0.0, v));
      r.include(v + std::copysign(under, v));
    }
  }
  return r;
}

Bound stored(const Bound& r) { return r.number ? Bound{fl32(r.lo), fl32(r.hi), true, r.nan} : r; }

/// The part of x where a function of non-negative numbers is defined; the rest is NaN.
Bound non_negative(Bound x) {
  if (!x.number || x.lo >= 0) return x;
  x.nan = true;
  if (x.hi < 0) {
    x.number = false;
  } else {
    x.lo = -0.0;
  }
  return x;
}

/// sin, cos: extremes at the multiples of π/2.
Bound wave(const Bound& x, const Options& options, double (*f)(double)) {
  Bound r = Bound::nothing();
  r.nan = x.nan;
  if (!x.number) return r;
  const bool infinite = std::isinf(x.lo) || std::isinf(x.hi);
  r.nan = r.nan || infinite;
  if (infinite && x.lo == x.hi) return r;
  if (infinite || x.hi - x.lo > 6.3) {
    r.include(-1, options.ulps * ulp32(1));
    r.include(1, options.ulps * ulp32(1));
    return stored(r);
  }
  const auto put = [&](double p) {
    const double v = f(p);
    r.include(v, p == 0 && x.is_exact() ? 0 : options.ulps * ulp32(v));
  };
  put(x.lo);
  if (!x.is_exact()) {
    put(x.hi);
    const double step = std::numbers::pi / 2;
    for (double k = std::ceil(x.lo / step); k * step < x.hi; ++k) put(k * step);
  }
  return stored(r);
}

Bound tangent(const Bound& x, const Options& options) {
  if (!x.number || x.is_exact()) {
    if (!x.number || std::isinf(x.lo)) return Bound::only_nan();
    const double v = std::tan(x.lo);
    Bound r = Bound::nothing();
    r.include(v, x.lo == 0 ? 0 : options.ulps * ulp32(v));
    return stored(r);
  }
  const double branch = std::floor(x.lo / std::numbers::pi + 0.5);
  if (!std::isfinite(x.lo) || !std::isfinite(x.hi) || std::floor(x.hi / std::numbers::pi + 0.5) != branch)
    return Bound::anything();
  Bound r = Bound::nothing();
  r.nan = x.nan;
  for (double p : {x.lo, x.hi}) r.include(std::tan(p), options.ulps * ulp32(std::tan(p)));
  return stored(r);
}

Bound power(const Bound& a, const Bound& b, const Options& options) {
  // 1^NaN and NaN^0 are 1, as in C.
  const bool one = a.number && a.lo <= 1 && a.hi >= 1;
  const bool zero = b.can_be_zero();
  Bound r = Bound::nothing();
  if (a.nan && zero) r.include(1);
  if (b.nan && one) r.include(1);
  if (a.nan && b.can_be_nonzero()) r.nan = true;
  if (b.nan && !(a.is_exact() && one)) r.nan = true;
  if (!a.number || !b.number) return r;
  if (std::signbit(a.lo) && !b.is_exact()) return Bound::anything();  // −0 too: an odd power of it is negative
  if (a.lo < 0 && b.lo != std::trunc(b.lo)) r.nan = true;
  for (double x : candidates(a))
    for (double y : candidates(b)) {
      const double v = std::pow(x, y);
      const bool special = x == 0 || y == 0 || y == 1 || std::fabs(x) == 1 || std::isinf(x) || std::isinf(y);
      const bool plain = special && a.is_exact() && b.is_exact();
      r.include(v, plain || !std::isfinite(v) ? 0 : options.ulps * ulp32(v));
    }
  return stored(r);
}

Bound remainder(const Bound& a, const Bound& b) {
  Bound r = Bound::nothing();
  r.nan = a.nan || b.nan;
  if (!a.number || !b.number) return r;
  if (a.is_exact() && b.is_exact()) {
    r.include(std::fmod(a.lo, b.lo));
    return r;
  }
  if (b.can_be_zero() || std::isinf(a.lo) || std::isinf(a.hi)) r.nan = true;
  if (b.is_exact() && std::isfinite(b.lo) && b.lo != 0 && std::isfinite(a.lo) && std::isfinite(a.hi) &&
      std::trunc(a.lo / b.lo) == std::trunc(a.hi / b.lo)) {
    r.include(std::fmod(a.lo, b.lo));
    r.include(std::fmod(a.hi, b.lo));
    return r;
  }
  const double most = std::min(std::max(std::fabs(b.lo), std::fabs(b.hi)), std::max(std::fabs(a.lo), std::fabs(a.hi)));
  r.include(before(a.lo, 0.0) ? -most : 0.0);
  r.include(before(a.hi, 0.0) ? -0.0 : most);
  return r;
}

/// {0, 1} as far as each may be.
Bound truth(bool can_hold, bool can_fail) {
  Bound r = Bound::nothing();
  if (can_fail) r.include(0);
  if (can_hold) r.include(1);
  return r;
}

Bound compared(Pointwise mode, const Bound& a, const Bound& b) {
  const bool nan = a.nan || b.nan;  // every comparison with NaN fails, except ≠
  const bool both = a.number && b.number;
  switch (mode) {
    case Pointwise::cmp_gt: return truth(both && a.hi > b.lo, nan || (both && a.lo <= b.hi));
    case Pointwise::cmp_ge: return truth(both && a.hi >= b.lo, nan || (both && a.lo < b.hi));
    case Pointwise::cmp_lt: return truth(both && a.lo < b.hi, nan || (both && a.hi >= b.lo));
    case Pointwise::cmp_le: return truth(both && a.lo <= b.hi, nan || (both && a.hi > b.lo));
    default: break;
  }
  const bool can_equal = both && a.lo <= b.hi && b.lo <= a.hi;
  const bool can_differ = nan || (both && !(a.lo == a.hi && b.lo == b.hi && a.lo == b.lo));
  return mode == Pointwise::cmp_eq ? truth(can_equal, can_differ) : truth(can_differ, can_equal);
}

/// dy · m for a factor m that is exact; a factor 0 may also be a selection, which lets no inf or NaN of dy through.
Bound masked(const Bound& dy, double m) {
  Bound r = over(dy, Bound::exact(m), [](double x, double y) { return x * y; });
  if (m == 0) r.include(0);
  return m == 0 ? unsigned_zero(r) : r;
}

Bound relu_backward(const Bound& dy, const Bound& x, double lower, std::optional<double> upper, double slope) {
  Bound r = Bound::nothing();
  r.nan = x.nan;
  const bool can_inside = x.number && x.hi > lower && !(upper && x.lo >= *upper);
  const bool can_below = x.nan || (x.number && x.lo <= lower);
  const bool can_above = x.number && upper && x.hi >= *upper;
  if (can_inside) r.include(masked(dy, 1));
  if (can_below) r.include(masked(dy, slope));
  if (can_above) r.include(masked(dy, 0));
  return r;
}

}  // namespace

Bound pointwise_fp32(Pointwise mode, const Attributes& attributes, std::span<const Bound> operands, const Options& options) {
  const Bound& x = operands[0];
  const Bound none = Bound::exact(0);
  const Bound& y = operands.size() > 1 ? operands[1] : none;
  const double lower = fl32(attributes.relu_lower.value_or(0));
  const double slope = fl32(attributes.slope.value_or(0));
  switch (mode) {
    case Pointwise::identity: return x;
    case Pointwise::add: return over(x, y, [](double a, double b) { return a + b; });
    case Pointwise::sub: return over(x, y, [](double a, double b) { return a - b; });
    case Pointwise::mul: return over(x, y, [](double a, double b) { return a * b; });
    case Pointwise::div: {
      Bound r = over(x, y, [](double a, double b) { return a / b; });
      return options.approximate ? flushed(loosened(r, 2)) : r;
    }
    case Pointwise::max:
    case Pointwise::min: {
      Bound r = Bound::nothing();
      r.nan = x.nan || y.nan;
      if (!x.number || !y.number) return r;
      const bool most = mode == Pointwise::max;
      r.include(most ? greater(x.lo, y.lo) : lesser(x.lo, y.lo));
      r.include(most ? greater(x.hi, y.hi) : lesser(x.hi, y.hi));
      return x.can_be_zero() && y.can_be_zero() ? unsigned_zero(r) : r;
    }
    case Pointwise::pow: return power(x, y, options);
    case Pointwise::mod: return remainder(x, y);
    case Pointwise::add_square: {
      const auto plain = [](double a, double b) { return a + fl32(b * b); };
      Bound r = over(x, y, plain);
      if (options.approximate) r.include(over(x, y, [](double a, double b) { return a + b * b; }));
      return r;
    }
    case Pointwise::abs: return over(x, {-0.0, 0.0}, [](double a) { return std::fabs(a); });
    case Pointwise::neg: return over(x, {}, [](double a) { return -a; });
    case Pointwise::ceil: return over(x, {}, [](double a) { return std::ceil(a); });
    case Pointwise::floor: return over(x, {}, [](double a) { return std::floor(a); });
    case Pointwise::sqrt: {
      Bound r = over(non_negative(x), {}, [](double a) { return std::sqrt(a); });
      return options.approximate ? flushed(loosened(r, 2)) : r;
    }
    case Pointwise::reciprocal: {
      Bound r = over(x, {-0.0, 0.0}, [](double a) { return 1 / a; });
      if (!options.approximate) return r;
      if (x.number && x.lo < kSmallestNormal && x.hi > 0) r.include(kInf);
      if (x.number && x.hi > -kSmallestNormal && x.lo < 0) r.include(-kInf);
      return flushed(loosened(r, 2));
    }
    case Pointwise::sin: return wave(x, options, [](double a) { return std::sin(a); });
    case Pointwise::cos: return wave(x, options, [](double a) { return std::cos(a); });
    case Pointwise::tan: return tangent(x, options);
    case Pointwise::relu: {
      const bool sloped = attributes.slope.has_value();
      const bool has_lower = attributes.relu_lower.has_value();
      const double upper = attributes.relu_upper ? fl32(*attributes.relu_upper) : kInf;
      const auto f = [=](double a) {
        double t = sloped ? (a > 0 ? a : fl32(slope * a)) : std::max(a, lower);
        if (sloped && has_lower) t = std::max(t, lower);
        return std::min(t, upper);
      };
      return unsigned_zero(over(x, {-0.0, 0.0}, f));
    }
    case Pointwise::leaky_relu: return unsigned_zero(over(x, {-0.0, 0.0}, [=](double a) { return a > 0 ? a : slope * a; }));
    case Pointwise::cmp_eq:
    case Pointwise::cmp_neq:
    case Pointwise::cmp_gt:
    case Pointwise::cmp_ge:
    case Pointwise::cmp_lt:
    case Pointwise::cmp_le: return compared(mode, x, y);
    case Pointwise::logical_and: return truth(x.can_be_nonzero() && y.can_be_nonzero(), x.can_be_zero() || y.can_be_zero());
    case Pointwise::logical_or: return truth(x.can_be_nonzero() || y.can_be_nonzero(), x.can_be_zero() && y.can_be_zero());
    case Pointwise::logical_not: return truth(x.can_be_zero(), x.can_be_nonzero());
    case Pointwise::binary_select: {
      Bound r = Bound::nothing();
      if (operands[2].can_be_nonzero()) r.include(x);
      if (operands[2].can_be_zero()) r.include(y);
      return r;
    }
    case Pointwise::relu_backward: {
      std::optional<double> upper = attributes.relu_upper;
      if (upper) upper = fl32(*upper);
      return relu_backward(x, y, lower, upper, slope);
    }
    case Pointwise::leaky_relu_backward: {
      Bound r = Bound::nothing();
      if (y.number && y.hi > 0) r.include(masked(x, 1));
      if (y.nan || (y.number && y.lo <= 0)) r.include(masked(x, slope));
      r.nan = r.nan || y.nan;
      return r;
    }
    case Pointwise::gen_index: throw std::invalid_argument("gen_index has no value of its operand");
    default: break;
  }
  const Curve curve = curve_of(mode, attributes, options);
  const bool rooted = mode == Pointwise::log || mode == Pointwise::rsqrt;
  if (arity_of(mode) == 1) {
    Bound r = stored(on_curve(curve, rooted ? non_negative(x) : x, options));
    if (mode == Pointwise::swish && attributes.beta < 0) r = unsigned_zero(r);
    // βx may overflow although log(1 + e^βx)/β does not.
    if (mode == Pointwise::softplus && x.number && fl32(std::max(x.lo * attributes.beta, x.hi * attributes.beta)) == kInf)
      r.include(attributes.beta > 0 ? kInf : -kInf);
    return options.approximate ? flushed(r) : r;
  }
  // Backward: the loss times a factor; the factor's own error first, then two roundings of the product.
  const Bound factor = stored(on_curve(curve, y, options));
  Bound r = over(x, factor, [](double a, double b) { return a * b; });
  if (!factor.is_exact()) r = loosened(r, 2);
  if (y.number && (std::isinf(y.lo) || std::isinf(y.hi))) {
    r = unsigned_zero(r);
    r.nan = true;  // inf · 0 inside a formula
  }
  return options.approximate ? flushed(r) : r;
}

}  // namespace oracle
