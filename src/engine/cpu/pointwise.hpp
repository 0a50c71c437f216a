#pragma once
#include <cstdint>

#include "verglas/pointwise.hpp"

namespace verglas::engine::cpu {

/// out[i] = mode(x[i], y[i], z[i]) for n lanes, in fp32, one rounding for each arithmetic operation of the formula in
/// docs/numerics.md. y and z are read only by modes that take them; out may be any of the operands.
void pointwise_f32(PointwiseMode mode, const PointwiseParameters& p, const float* x, const float* y, const float* z, float* out,
                   std::int64_t n) noexcept;
/// The same in int32: arithmetic wraps, x / 0 and x mod 0 are 0.
void pointwise_i32(PointwiseMode mode, const PointwiseParameters& p, const std::int32_t* x, const std::int32_t* y,
                   const std::int32_t* z, std::int32_t* out, std::int64_t n) noexcept;

}  // namespace verglas::engine::cpu
