#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "oracle/formats.hpp"

namespace oracle {

/// Order of numbers in which −0 lies before +0, so that an interval can say "a zero of either sign".
inline bool before(double a, double b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }
inline double lesser(double a, double b) { return before(b, a) ? b : a; }
inline double greater(double a, double b) { return before(a, b) ? b : a; }

/// fp32 nearest even of a double.
/// Hazard: out of line on purpose. g++ 12.2 -O2 drops double → float → double where it vectorizes two neighbours (SLP), and an
/// inlined pair {fl32(lo), fl32(hi)} stayed unrounded. OracleFormats.RoundingSurvivesTheOptimizer sees it.
double fl32(double v);

/// Distance of fp32 numbers at |v|: 2^-23 relative, never below the smallest denormal.
double ulp32(double v);

/// All that one element may be: any number in [lo, hi], a NaN, or both.
struct Bound {
  double lo = 0;
  double hi = 0;
  bool number = true;
  bool nan = false;

  static Bound exact(double v);
  static Bound range(double lo, double hi);
  static Bound only_nan();
  static Bound anything();
  static Bound nothing();  ///< start of a hull

  /// One bit pattern only (NaNs count as one).
  bool is_exact() const { return number ? !nan && lo == hi && std::signbit(lo) == std::signbit(hi) : nan; }
  bool can_be_zero() const { return number && lo <= 0 && hi >= 0; }
  bool can_be_nonzero() const { return nan || (number && !(lo == 0 && hi == 0)); }

  /// Widens to hold v, or v ± e.
  void include(double v);
  void include(double v, double e);
  void include(const Bound& other);
  bool contains(double got) const;
};

/// Storing: every value that the element may be, rounded to `format`.
Bound rounded(Format format, const Bound& value);
/// Conversion to the arithmetic of a node: fp32 (tf32 too) nearest even, int32 nearest even and saturating, NaN → 0.
Bound converted(Format compute, const Bound& value);

}  // namespace oracle
