#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "verglas/tensor.hpp"

namespace verglas {

/// No two elements lie in one place: each stride passes the reach of the smaller ones. Strides of axes of extent 1 mean nothing,
/// and where an extent is 0 there are no elements.
bool is_injective(std::span<const std::int64_t> extent, std::span<const std::int64_t> stride);

/// Strides of rows one after another, the last axis contiguous. What does not fit is the largest number, which the checks of a
/// graph or of a call refuse.
std::vector<std::int64_t> row_major(std::span<const std::int64_t> extent);
void set_row_major(TensorView& view) noexcept;

}  // namespace verglas
