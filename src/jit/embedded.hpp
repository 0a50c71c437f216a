#pragma once
#include <span>
#include <string_view>

namespace verglas::jit {

/// A device source that travels inside the library, so that a cold compile opens no file.
struct EmbeddedSource {
  std::string_view name;  ///< as device code includes it: "mainloop.cuh"
  std::string_view text;
  std::string_view digest = {};  ///< SHA-256 of the text in hexadecimal, which the build has worked out; empty: nobody has
};

/// Every src/engine/sm90/kernels/*.cuh, sorted by name. The definition is written by cmake/embed.cmake at build time.
std::span<const EmbeddedSource> embedded_sources() noexcept;

}  // namespace verglas::jit
