#pragma once
#include <cstdint>

#include "numeric/formats.hpp"
#include "verglas/dtype.hpp"

/// How a block of elements is quantised: one scale for all of them, and each of them times the reciprocal of that scale.
/// Source: docs/numerics.md, "Block scales". Every step is one fp32 operation, so that all engines give the same bits.
namespace verglas::numeric {

/// The largest magnitude of a type that blocks are quantised to.
constexpr float largest_of(DataType data) noexcept {
  return data == DataType::fp8_e4m3 ? 448.0F : data == DataType::fp8_e5m2 ? 57344.0F : 6.0F;
}

struct BlockScale {
  std::uint8_t stored;  ///< bits of the scale
  float inverse;        ///< factor of the elements; 0 where the scale is 0
};

/// amax  largest magnitude of the block, NaN where an element is one
/// vmax  what it is brought to: `largest_of` the type, or less
/// scale  fp8_e8m0 (the next power of two) or fp8_e4m3 (nearest even, saturating)
constexpr BlockScale block_scale_of(float amax, float vmax, DataType scale) noexcept {
  const float wanted = amax / vmax;
  const bool is_power = scale == DataType::fp8_e8m0;
  const std::uint8_t stored = is_power ? float_to_e8m0(wanted) : float_to_e4m3(wanted);
  const float held = is_power ? e8m0_to_float(stored) : e4m3_to_float(stored);
  if (held == 0.0F) return {stored, 0.0F};
  return {stored, 1.0F / held};  // at most 2^127: the smallest scale is 2^-127
}

}  // namespace verglas::numeric
