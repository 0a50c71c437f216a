#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace verglas {

/// Choices inside an engine, by name. They never change the function that is computed; with the engine's id they identify a plan.
using Knobs = std::map<std::string, std::int64_t>;

/// A CUDA stream handle as the driver knows it; ignored by the CPU engine. 0 is the legacy default stream, 1 and 2 are the
/// driver's own names for legacy and per-thread default.
struct Stream {
  void* handle = nullptr;
};

/// Scratch memory of one call; needed only when `CompiledPlan::workspace()` asks for some. bytes = −1: capacity unknown, trusted.
struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

struct WorkspaceSize {
  std::int64_t bytes = 0;
  std::int64_t alignment = 1;  ///< in bytes
};

}  // namespace verglas
