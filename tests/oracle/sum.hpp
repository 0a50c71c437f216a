#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "oracle/bound.hpp"

namespace oracle {

/// Exponent of the lowest set bit of a finite number that is not zero: 6 → 1, 0.75 → −2.
inline int lowest_bit(double v) {
  const auto bits = std::bit_cast<std::uint64_t>(v);
  const int exponent = static_cast<int>((bits >> 52) & 0x7FF);
  std::uint64_t mantissa = bits & 0xFFFFFFFFFFFFFull;
  if (exponent != 0) mantissa |= 1ull << 52;
  return (exponent == 0 ? 1 : exponent) - 1075 + std::countr_zero(mantissa);
}

/// A sum in fp32 whose order is unknown, term by term.
///
/// Exact when every order gives the same bits: all terms are multiples of one 2^q, q ≥ −149, and Σ|term| ≤ 2^(24+q).
/// Otherwise each element has its limit (K + 8) · 2⁻²⁴ · Σ|term|, which also covers the rounding of each product.
class Sum {
 public:
  void add(double v) {
    ++count_;
    if (!std::isfinite(v)) {
      add_special(v);
      return;
    }
    lo_ += v;
    hi_ += v;
    if (v > 0) {
      positive_ += v;
    } else if (v < 0) {
      negative_ -= v;
    } else {
      return;
    }
    const int bit = lowest_bit(v);
    if (bit < lowest_) lowest_ = bit;
  }
  void add(const Bound& term);
  double magnitude() const { return positive_ + negative_; }
  /// Uncertainty that is no rounding of this sum (tf32 operands).
  void widen(double e) { extra_ += e; }
  bool is_exact() const;
  /// All terms are multiples of one 2^q, and Σ|term| ≤ 2^(bits + q).
  bool fits(int bits) const;
  Bound finish() const;

 private:
  void add_special(double v);

  std::int64_t count_ = 0;
  double lo_ = 0, hi_ = 0;              // Σ of the finite ends
  double positive_ = 0, negative_ = 0;  // Σ of what may be added on either side, both ≥ 0
  double extra_ = 0;
  int lowest_ = 2000;
  bool vague_ = false;
  bool may_nan_ = false, must_nan_ = false;
  bool may_up_ = false, must_up_ = false, may_down_ = false, must_down_ = false;  // +inf, −inf among the terms
};

/// A product in fp32 whose order is unknown.
class Product {
 public:
  void multiply(const Bound& factor);
  Bound finish() const;

 private:
  std::int64_t count_ = 0;
  Bound exact_ = Bound::exact(1);  // of the factors' intervals, before rounding
  double odd_ = 1;                 // product of the factors' odd parts, while it says something
  double grow_ = 0, shrink_ = 0;   // Σ log2 of the factors above and below 1: the largest and smallest partial product
  bool vague_ = false;
  bool zero_ = false;
};

}  // namespace oracle
