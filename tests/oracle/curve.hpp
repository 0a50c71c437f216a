#pragma once
#include <functional>
#include <vector>

#include "oracle/pointwise.hpp"

namespace oracle {

/// A function of one number, as far as intervals need it.
struct Curve {
  std::function<double(double)> f;  ///< in double
  std::function<double(double)>
      slack;                    ///< size of what cancels or is rounded inside the formula, in units of 1 = |value|; may be empty
  std::vector<double> turning;  ///< where it is not monotone or jumps; both sides of a jump
  double pace = 1;              ///< exponentials inside are of the argument times this; where they underflow depends on it
  bool exact_at_zero = true;    ///< f(±0) is one fp32 number that every formula reaches
};

/// The curve of a unary transcendental mode, or of the factor that a backward mode multiplies the loss with.
Curve curve_of(Pointwise mode, const Attributes& attributes, const Options& options);

}  // namespace oracle
