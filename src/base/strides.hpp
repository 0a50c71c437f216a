#pragma once
#include <cstdint>
#include <span>

namespace verglas {

/// No two elements lie in one place: each stride passes the reach of the smaller ones. Strides of axes of extent 1 mean nothing,
/// and where an extent is 0 there are no elements.
bool is_injective(std::span<const std::int64_t> extent, std::span<const std::int64_t> stride);

}  // namespace verglas
