#pragma once
#include "engine/cublaslt/product.hpp"

namespace verglas::cublaslt {

/// Seconds of one call; rank: place in the library's own order, of which nothing more is known.
double predict_seconds(const Product& product, const Geometry& geometry, int sm_count, int rank) noexcept;

}  // namespace verglas::cublaslt
