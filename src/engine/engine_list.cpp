#include <array>

#include "engine/cpu/engine.hpp"
#include "engine/cublaslt/engine.hpp"
#include "engine/engine.hpp"
#include "engine/sm90/engine.hpp"

namespace verglas::engine {

std::span<const Engine* const> engine_list() noexcept {
  static const std::array<const Engine*, 3> engines{&sm90::engine(), &cublaslt::engine(), &cpu::engine()};
  return engines;
}

std::optional<Decline> Engine::compile_ahead(const chain::FusionChain&, const AheadTarget& target, Knobs&, jit::PlanFile&) const {
  return Decline{Rule::engine_arch, std::string(name()) + " compiles nothing ahead of time, for " + target.arch + " or other"};
}

Compiled Engine::load(const chain::FusionChain&, const Knobs&, Device, const jit::PlanFile&, const std::string& path) const {
  throw broken(Rule::plan_file_format, path, "a plan of engine " + std::string(name()), "one of an engine that compiles ahead");
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
