#pragma once
#include "engine/engine.hpp"

namespace verglas::cublaslt {

/// NVIDIA's cuBLASLt, opened at run time: for chains that it can express, so that nobody is slower than the vendor's library.
const engine::Engine& engine() noexcept;

}  // namespace verglas::cublaslt
