#include "oracle/bound.hpp"

#include <algorithm>

namespace oracle {

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
}

[[gnu::noinline]] double fl32(double v) { return static_cast<double>(static_cast<float>(v)); }

double ulp32(double v) {
  if (!std::isfinite(v)) return 0;
  if (v == 0) return std::ldexp(1.0, -149);
  return std::ldexp(1.0, std::max(std::ilogb(v) - 23, -149));
}

Bound Bound::exact(double v) { return std::isnan(v) ? only_nan() : Bound{v, v, true, false}; }
Bound Bound::range(double lo, double hi) { return {lo, hi, true, false}; }
Bound Bound::only_nan() { return {0, 0, false, true}; }
Bound Bound::anything() { return {-kInf, kInf, true, true}; }
Bound Bound::nothing() { return {0, 0, false, false}; }

void Bound::include(double v) {
  if (std::isnan(v)) {
    nan = true;
  } else if (!number) {
    lo = hi = v;
    number = true;
  } else {
    lo = lesser(lo, v);
    hi = greater(hi, v);
  }
}

void Bound::include(double v, double e) {
  if (e == 0 || !std::isfinite(v)) {
    include(v);
  } else {
    include(v - e);
    include(v + e);
  }
}

void Bound::include(const Bound& other) {
  nan = nan || other.nan;
  if (other.number) {
    include(other.lo);
    include(other.hi);
  }
}

bool Bound::contains(double got) const {
  if (std::isnan(got)) return nan;
  return number && !before(got, lo) && !before(hi, got);
}

Bound rounded(Format format, const Bound& value) {
  Bound r = Bound::nothing();
  if (value.nan) r.include(round_to(format, std::nan("")));
  if (value.number) {
    r.include(round_to(format, value.lo));
    r.include(round_to(format, value.hi));
    // The one conversion that is not monotone.
    if (format == Format::boolean) {
      if (value.can_be_zero()) r.include(0);
      if (value.lo != value.hi) r.include(1);
    }
  }
  return r;
}

Bound converted(Format compute, const Bound& value) {
  return rounded(compute == Format::int32 ? Format::int32 : Format::fp32, value);
}

}  // namespace oracle
