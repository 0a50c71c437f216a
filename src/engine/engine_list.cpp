#include <array>

#include "engine/cpu/engine.hpp"
#include "engine/engine.hpp"
#include "engine/sm90/engine.hpp"

namespace verglas::engine {

std::span<const Engine* const> engine_list() noexcept {
  static const std::array<const Engine*, 2> engines{&sm90::engine(), &cpu::engine()};
  return engines;
}

std::string plan_name(const Engine& engine, const Knobs& knobs) {
  std::string s(engine.name());
  if (knobs.empty()) return s;
  char separator = '[';
  for (const auto& [key, value] : knobs) {
    s += separator + key + "=" + std::to_string(value);
    separator = ',';
  }
  return s + "]";
}

}  // namespace verglas::engine
