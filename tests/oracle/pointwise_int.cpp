#include <stdexcept>
#include <vector>

#include "oracle/pointwise.hpp"

namespace oracle {

namespace {

constexpr double kLowest = -2147483648.0;
constexpr double kHighest = 2147483647.0;

double wrapped(std::int64_t v) { return static_cast<double>(static_cast<std::int32_t>(static_cast<std::uint32_t>(v))); }

std::int64_t integer(double v) { return static_cast<std::int64_t>(v); }

/// The operation without the wrap; operands in the range of int32, so that no result passes int64.
std::int64_t unwrapped(Pointwise mode, const Attributes& attributes, std::int64_t x, std::int64_t y, std::int64_t z) {
  const auto parameter = [](double v) { return integer(round_to(Format::int32, v)); };
  const std::int64_t lower = parameter(attributes.relu_lower.value_or(0));
  const std::int64_t slope = parameter(attributes.slope.value_or(0));
  const std::int64_t quotient = y == 0 ? 0 : x / y;
  switch (mode) {
    case Pointwise::identity:
    case Pointwise::ceil:
    case Pointwise::floor: return x;
    case Pointwise::add: return x + y;
    case Pointwise::sub: return x - y;
    case Pointwise::mul: return x * y;
    case Pointwise::div: return quotient;
    case Pointwise::mod: return y == 0 ? 0 : x - y * quotient;
    case Pointwise::max: return x > y ? x : y;
    case Pointwise::min: return x < y ? x : y;
    case Pointwise::add_square: return x + integer(wrapped(y * y));
    case Pointwise::abs: return x < 0 ? -x : x;
    case Pointwise::neg: return -x;
    case Pointwise::relu: {
      std::int64_t t = x;
      if (attributes.slope) {
        t = x > 0 ? x : integer(wrapped(slope * x));
        if (attributes.relu_lower && t < lower) t = lower;
      } else if (t < lower) {
        t = lower;
      }
      if (attributes.relu_upper && t > parameter(*attributes.relu_upper)) t = parameter(*attributes.relu_upper);
      return t;
    }
    case Pointwise::leaky_relu: return x > 0 ? x : slope * x;
    case Pointwise::cmp_eq: return x == y;
    case Pointwise::cmp_neq: return x != y;
    case Pointwise::cmp_gt: return x > y;
    case Pointwise::cmp_ge: return x >= y;
    case Pointwise::cmp_lt: return x < y;
    case Pointwise::cmp_le: return x <= y;
    case Pointwise::logical_and: return x != 0 && y != 0;
    case Pointwise::logical_or: return x != 0 || y != 0;
    case Pointwise::logical_not: return x == 0;
    case Pointwise::binary_select: return z != 0 ? x : y;
    case Pointwise::relu_backward:
      if (y <= lower) return x * slope;
      return attributes.relu_upper && y >= parameter(*attributes.relu_upper) ? 0 : x;
    case Pointwise::leaky_relu_backward: return y > 0 ? x : x * slope;
    default: throw std::invalid_argument(name_of(mode) + " is not defined in int32");
  }
}

bool is_truth(Pointwise mode) {
  return (mode >= Pointwise::cmp_eq && mode <= Pointwise::cmp_le) ||
         (mode >= Pointwise::logical_and && mode <= Pointwise::logical_not);
}

bool is_hull_of_ends(Pointwise mode) {
  return mode == Pointwise::identity || mode == Pointwise::ceil || mode == Pointwise::floor || mode == Pointwise::add ||
         mode == Pointwise::sub || mode == Pointwise::mul || mode == Pointwise::max || mode == Pointwise::min ||
         mode == Pointwise::neg;
}

}  // namespace

bool defined_in_int32(Pointwise mode) {
  switch (mode) {
    case Pointwise::gen_index: return true;
    case Pointwise::relu_backward:
    case Pointwise::leaky_relu_backward:
    case Pointwise::abs:
    case Pointwise::div:
    case Pointwise::mod:
    case Pointwise::add_square:
    case Pointwise::relu:
    case Pointwise::leaky_relu:
    case Pointwise::binary_select: return true;
    default: return is_truth(mode) || is_hull_of_ends(mode);
  }
}

Bound pointwise_int32(Pointwise mode, const Attributes& attributes, std::span<const Bound> operands) {
  bool exact = true;
  for (const Bound& operand : operands) exact = exact && operand.is_exact();
  const auto low = [&](std::size_t i) { return i < operands.size() ? operands[i].lo : 0; };
  const auto high = [&](std::size_t i) { return i < operands.size() ? operands[i].hi : 0; };
  const auto at = [&](double x, double y, double z) { return unwrapped(mode, attributes, integer(x), integer(y), integer(z)); };
  if (exact) return Bound::exact(wrapped(at(low(0), low(1), low(2))));
  if (is_truth(mode)) return Bound::range(0, 1);
  if (is_hull_of_ends(mode)) {
    Bound r = Bound::nothing();
    for (double x : {low(0), high(0)})
      for (double y : {low(1), high(1)}) {
        const double v = static_cast<double>(at(x, y, 0));
        if (v < kLowest || v > kHighest) return Bound::range(kLowest, kHighest);
        r.include(v);
      }
    return r;
  }
  if (mode == Pointwise::binary_select) {
    Bound r = Bound::nothing();
    if (operands[2].can_be_nonzero()) r.include(operands[0]);
    if (operands[2].can_be_zero()) r.include(operands[1]);
    return r;
  }
  return Bound::range(kLowest, kHighest);
}

}  // namespace oracle
