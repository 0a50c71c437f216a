#pragma once
#include <memory>

#include "engine/cublaslt/heuristic.hpp"

namespace verglas::cublaslt {

/// Calls of cublasLtMatmul. At the declared extents with the plan's algorithm; at others with the library's first choice for
/// them, which is asked for once and kept. Workspace belongs to the plan, a piece for each stream. Throws cublaslt.call,
/// driver.call.
std::unique_ptr<recipe::Launcher> make_launcher(std::shared_ptr<const Library> library, const Product& product,
                                                const Geometry& declared, const Algorithm& algorithm, Device device);

}  // namespace verglas::cublaslt
