#include "oracle/sum.hpp"

#include <algorithm>

namespace oracle {

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMax32 = 3.4028234663852886e38;
const double kUnit = std::ldexp(1.0, -24);
const double kTiny = std::ldexp(1.0, -149);
}  // namespace

void Sum::add_special(double v) {
  if (std::isnan(v)) {
    may_nan_ = must_nan_ = true;
  } else if (v > 0) {
    may_up_ = must_up_ = true;
  } else {
    may_down_ = must_down_ = true;
  }
}

void Sum::add(const Bound& term) {
  if (term.is_exact()) {
    add(term.number ? term.lo : std::nan(""));
    return;
  }
  ++count_;
  may_nan_ = may_nan_ || term.nan;
  if (!term.number) {
    must_nan_ = true;
    return;
  }
  if (term.lo == 0 && term.hi == 0) return;
  vague_ = true;
  may_up_ = may_up_ || term.hi == kInf;
  may_down_ = may_down_ || term.lo == -kInf;
  must_up_ = must_up_ || term.lo == kInf;
  must_down_ = must_down_ || term.hi == -kInf;
  if (std::isfinite(term.lo)) {
    lo_ += term.lo;
    negative_ += std::max(-term.lo, 0.0);
  }
  if (std::isfinite(term.hi)) {
    hi_ += term.hi;
    positive_ += std::max(term.hi, 0.0);
  }
}

bool Sum::fits(int bits) const { return !vague_ && magnitude() <= std::ldexp(1.0, bits + lowest_); }

bool Sum::is_exact() const {
  if (vague_ || extra_ != 0) return false;
  return magnitude() == 0 || (lowest_ >= -149 && magnitude() <= kMax32 && fits(24));
}

Bound Sum::finish() const {
  if (must_nan_ || (must_up_ && must_down_)) return Bound::only_nan();
  const double magnitude = positive_ + negative_;
  const double k = static_cast<double>(count_) + 8;
  const double e = is_exact() ? 0 : k * (kUnit * magnitude + kTiny) + extra_;
  const bool up = positive_ + e > kMax32;  // a partial sum may pass the largest number
  const bool down = negative_ + e > kMax32;
  Bound r = Bound::nothing();
  r.nan = may_nan_ || (may_up_ && may_down_) || (may_up_ && down) || (may_down_ && up);
  if (must_up_ || must_down_) {
    r.include(must_up_ ? kInf : -kInf);
    return r;
  }
  r.include(may_down_ ? -kInf : fl32(lo_ - e));
  r.include(may_up_ ? kInf : fl32(hi_ + e));
  if (up) r.include(kInf);
  if (down) r.include(-kInf);
  if (up && down) r.nan = true;
  // The sign of a sum that vanishes depends on order and seed.
  if (count_ > 0 && r.lo == 0) r.lo = -0.0;
  if (count_ > 0 && r.hi == 0) r.hi = 0.0;
  return r;
}

void Product::multiply(const Bound& factor) {
  ++count_;
  Bound next = Bound::nothing();
  next.nan = exact_.nan || factor.nan;
  if (exact_.number && factor.number) {
    for (double a : {exact_.lo, exact_.hi})
      for (double b : {factor.lo, factor.hi}) {
        next.include(a * b);
        // Zero times an end at infinity is zero for all that lies before that end.
        if (std::isnan(a * b) && !(exact_.lo == exact_.hi && factor.lo == factor.hi)) next.include(0);
      }
    if ((factor.can_be_zero() && (std::isinf(exact_.lo) || std::isinf(exact_.hi))) ||
        (exact_.can_be_zero() && (std::isinf(factor.lo) || std::isinf(factor.hi))))
      next.nan = true;
  }
  exact_ = next;
  if (!factor.number) return;
  if (!factor.is_exact()) vague_ = true;
  zero_ = zero_ || factor.can_be_zero();
  const double most = std::max(std::fabs(factor.lo), std::fabs(factor.hi));
  const double least = std::min(std::fabs(factor.lo), std::fabs(factor.hi));
  if (std::isfinite(most) && most > 1) grow_ += std::log2(most);
  if (least > 0 && least < 1) shrink_ -= std::log2(least);
  if (factor.is_exact() && std::isfinite(most) && most > 0) odd_ = std::min(odd_ * std::ldexp(most, -lowest_bit(most)), 1e300);
}

Bound Product::finish() const {
  Bound r = exact_;
  if (!r.number) return r;
  const bool overflow = grow_ > 127.9;
  const bool underflow = shrink_ > 125.9;
  if (odd_ <= std::ldexp(1.0, 24) && !vague_ && !overflow && !underflow) return r;
  // A partial product may pass the largest number, or vanish, and then meet a zero, or an infinity.
  if (overflow && (zero_ || underflow)) return Bound::anything();
  if (underflow && (std::isinf(r.lo) || std::isinf(r.hi))) return Bound::anything();
  const double e = (static_cast<double>(count_) + 8) * kUnit;
  const double tiny = underflow ? std::ldexp(1.0, -126) * std::exp2(std::min(grow_, 1000.0)) : 0;
  Bound w = Bound::nothing();
  w.nan = r.nan;
  w.include(r.lo, std::fabs(r.lo) * e + tiny);
  w.include(r.hi, std::fabs(r.hi) * e + tiny);
  if (overflow) {
    if (w.hi > 0) w.hi = kInf;
    if (w.lo < 0) w.lo = -kInf;
  }
  return {fl32(w.lo), fl32(w.hi), true, w.nan};
}

}  // namespace oracle
