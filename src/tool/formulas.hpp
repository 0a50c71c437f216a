#pragma once
#include <cstdint>

#include "verglas/pointwise.hpp"

namespace verglas::tool {

/// The formulas of docs/numerics.md in double, for the reference of `verglas run --check`.
double formula(PointwiseMode mode, const PointwiseParameters& p, double x, double y, double z);
/// In int32, wrapping, as an integer of 64 bits.
std::int64_t formula_int(PointwiseMode mode, std::int64_t x, std::int64_t y, std::int64_t z);
/// True where fp32 gives the correctly rounded result, so that exact operands leave nothing open.
bool is_correctly_rounded(PointwiseMode mode);

}  // namespace verglas::tool
