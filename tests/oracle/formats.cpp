#include "oracle/formats.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oracle {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Sign, `exponent` bits of exponent, `mantissa` bits of mantissa; value 1.m · 2^(e − bias), subnormals below.
struct Layout {
  int exponent;
  int mantissa;
  int bias;
  double max;
  bool ieee;  // all-ones exponent is inf and NaN; else e4m3 (0x7F is NaN) and e2m1 (no NaN)
};

bool layout_of(Format format, Layout& l) {
  switch (format) {
    case Format::fp32: l = {8, 23, 127, 3.4028234663852886e38, true}; return true;
    case Format::tf32: l = {8, 10, 127, 3.4011621342146535e38, true}; return true;
    case Format::fp16: l = {5, 10, 15, 65504, true}; return true;
    case Format::bf16: l = {8, 7, 127, 3.3895313892515355e38, true}; return true;
    case Format::e4m3: l = {4, 3, 7, 448, false}; return true;
    case Format::e5m2: l = {5, 2, 15, 57344, true}; return true;
    case Format::e2m1: l = {2, 1, 1, 6, false}; return true;
    default: return false;
  }
}

bool saturates(Format format) { return format == Format::e4m3 || format == Format::e5m2 || format == Format::e2m1; }

/// Half to even, whatever the machine's rounding mode; exact below 2^52.
double nearest_even(double v) {
  const double below = std::floor(v);
  const double rest = v - below;
  if (rest < 0.5) return below;
  if (rest > 0.5) return below + 1;
  return std::fmod(below, 2) == 0 ? below : below + 1;
}

double round_integer(double v, double lowest, double highest) {
  if (std::isnan(v)) return 0;
  return std::clamp(nearest_even(std::clamp(v, lowest, highest)), lowest, highest) + 0.0;
}

double round_e8m0(double v) {
  if (std::isnan(v)) return kNan;
  const double low = std::ldexp(1.0, -127), high = std::ldexp(1.0, 127);
  if (v <= low) return low;
  if (v >= high) return high;
  const int exponent = std::ilogb(v);
  const double below = std::ldexp(1.0, exponent);
  return v > below ? 2 * below : below;  // a scale is never below what it scales
}

double round_float(const Layout& l, bool saturate, double v) {
  if (std::isnan(v) || v == 0) return v;
  if (std::isinf(v)) return saturate ? std::copysign(l.max, v) : v;
  const int exponent = std::max(std::ilogb(v), 1 - l.bias);
  const double step = std::ldexp(1.0, exponent - l.mantissa);
  const double r = nearest_even(std::fabs(v) / step) * step;
  return std::copysign(r > l.max ? (saturate ? l.max : kInf) : r, v);
}

}  // namespace

std::string name_of(Format format) {
  static const char* const kNames[] = {"not_set",  "fp32",     "tf32", "fp16",  "bf16",  "fp8_e4m3", "fp8_e5m2",
                                       "fp8_e8m0", "fp4_e2m1", "int8", "uint8", "int32", "int64",    "boolean"};
  return kNames[static_cast<int>(format)];
}

int bits_of(Format format) {
  switch (format) {
    case Format::fp32:
    case Format::tf32:
    case Format::int32: return 32;
    case Format::int64: return 64;
    case Format::fp16:
    case Format::bf16: return 16;
    case Format::e2m1: return 4;
    case Format::not_set: return 0;
    default: return 8;
  }
}

bool is_integer(Format format) { return format >= Format::int8; }

double decode(Format format, std::uint64_t bits) {
  switch (format) {
    case Format::int8: return static_cast<double>(static_cast<std::int8_t>(bits));
    case Format::uint8: return static_cast<double>(static_cast<std::uint8_t>(bits));
    case Format::int32: return static_cast<double>(static_cast<std::int32_t>(bits));
    case Format::int64: return static_cast<double>(static_cast<std::int64_t>(bits));
    case Format::boolean: return (bits & 0xFF) != 0 ? 1 : 0;
    case Format::e8m0: return (bits & 0xFF) == 0xFF ? kNan : std::ldexp(1.0, static_cast<int>(bits & 0xFF) - 127);
    default: break;
  }
  Layout l{};
  if (!layout_of(format, l)) return kNan;
  const int shift = format == Format::tf32 ? 13 : 0;  // tf32 lies in the high bits of an fp32
  bits >>= shift;
  const std::uint64_t mantissa = bits & ((1ull << l.mantissa) - 1);
  const int exponent = static_cast<int>((bits >> l.mantissa) & ((1ull << l.exponent) - 1));
  const bool negative = (bits >> (l.mantissa + l.exponent)) & 1;
  const int ones = (1 << l.exponent) - 1;
  double v;
  if (l.ieee && exponent == ones) {
    v = mantissa == 0 ? kInf : kNan;
  } else if (format == Format::e4m3 && exponent == ones && mantissa == 7) {
    v = kNan;
  } else if (exponent == 0) {
    v = std::ldexp(static_cast<double>(mantissa), 1 - l.bias - l.mantissa);
  } else {
    v = std::ldexp(static_cast<double>(mantissa | 1ull << l.mantissa), exponent - l.bias - l.mantissa);
  }
  return negative ? -v : v;
}

double round_to(Format format, double v) {
  switch (format) {
    case Format::int8: return round_integer(v, -128, 127);
    case Format::uint8: return round_integer(v, 0, 255);
    case Format::int32: return round_integer(v, -2147483648.0, 2147483647.0);
    case Format::int64: return round_integer(v, -9223372036854775808.0, 9223372036854775808.0);
    case Format::boolean: return v != 0 ? 1 : 0;
    case Format::e8m0: return round_e8m0(v);
    case Format::not_set: return v;
    default: break;
  }
  Layout l{};
  layout_of(format, l);
  if (format == Format::e2m1 && std::isnan(v)) return 6;
  return round_float(l, saturates(format), v);
}

std::uint64_t encode(Format format, double v) {
  v = round_to(format, v);
  switch (format) {
    case Format::int8:
    case Format::uint8:
    case Format::boolean: return static_cast<std::uint64_t>(static_cast<std::int64_t>(v)) & 0xFF;
    case Format::int32: return static_cast<std::uint64_t>(static_cast<std::int64_t>(v)) & 0xFFFFFFFF;
    case Format::int64:
      return v >= 9223372036854775808.0 ? 0x7FFFFFFFFFFFFFFFull : static_cast<std::uint64_t>(static_cast<std::int64_t>(v));
    case Format::e8m0: return std::isnan(v) ? 0xFF : static_cast<std::uint64_t>(std::ilogb(v) + 127);
    default: break;
  }
  Layout l{};
  if (!layout_of(format, l)) return 0;
  const std::uint64_t ones = (1ull << l.exponent) - 1;
  const std::uint64_t sign = std::signbit(v) && !std::isnan(v) ? 1ull << (l.exponent + l.mantissa) : 0;
  std::uint64_t bits;
  if (std::isnan(v)) {
    bits = format == Format::e4m3 || format == Format::e5m2 ? 0x7F : ones << l.mantissa | 1ull << (l.mantissa - 1);
  } else if (std::isinf(v)) {
    bits = ones << l.mantissa;
  } else {
    const double size = std::fabs(v);
    const int exponent = size == 0 ? 1 - l.bias : std::max(std::ilogb(size), 1 - l.bias);
    const auto whole = static_cast<std::uint64_t>(std::ldexp(size, l.mantissa - exponent));
    // Subnormals have no hidden bit, so that their exponent field comes out as 0.
    bits = (static_cast<std::uint64_t>(exponent + l.bias - 1) << l.mantissa) + whole;
  }
  return (sign | bits) << (format == Format::tf32 ? 13 : 0);
}

}  // namespace oracle
