#pragma once
#include "engine/engine.hpp"

namespace verglas::engine::cpu {

/// Serves every chain on any machine: the default without a GPU, and what GPU results are compared with.
const Engine& engine() noexcept;

}  // namespace verglas::engine::cpu
