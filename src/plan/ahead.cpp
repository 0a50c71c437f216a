#include "plan/ahead.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/file.hpp"
#include "base/rules.hpp"
#include "chain/analyse.hpp"
#include "cuda/device.hpp"
#include "cuda/driver_table.hpp"
#include "plan/plan_state.hpp"

namespace verglas {
namespace plan {
namespace {

std::string json_of(const Knobs& knobs) { return nlohmann::json(knobs).dump(); }

std::optional<Knobs> knobs_from(const std::string& text) {
  const auto j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) return std::nullopt;
  Knobs knobs;
  for (const auto& [name, value] : j.items()) {
    if (!value.is_number_integer()) return std::nullopt;
    knobs[name] = value.get<std::int64_t>();
  }
  return knobs;
}

}  // namespace

jit::PlanFile compile_ahead(Graph& graph, const engine::AheadTarget& target, Knobs& knobs) {
  graph.validate();
  const Result<chain::FusionChain> chain = chain::analyse(graph.data());
  if (!chain) throw broken(chain.error().rule, chain.error().text);
  std::optional<Decline> said;
  for (const engine::Engine* e : engine::engine_list()) {
    jit::PlanFile file;
    std::optional<Decline> declined = e->compile_ahead(*chain, target, knobs, file);
    if (!declined) {
      file.graph = graph.to_json();
      file.configuration = json_of(knobs);
      return file;
    }
    if (!said) said = std::move(declined);  // the best engine's reason is the one that counts
  }
  throw broken(said->rule, said->text);
}

}  // namespace plan

namespace {

/// here   what the bytes are called in messages
CompiledPlan load(std::string_view bytes, const std::string& here, Device device) {
  if (device.type != DeviceType::cuda)
    throw broken(Rule::plan_file_arch, here, "a plan for " + jit::read_plan_file(bytes, "", here).arch,
                 "a CUDA device to run it on; the host was named");
  const jit::PlanFile file = jit::read_plan_file(bytes, "", here);  // what is wrong with it is so without a driver too
  const auto driver = cuda::driver();
  if (!driver) throw broken(driver.error().rule, driver.error().text);
  const int count = cuda::device_count(**driver);
  if (device.id < 0 || device.id >= count)
    throw broken(Rule::engine_device, here, "device cuda:" + std::to_string(device.id), "one of " + std::to_string(count));
  jit::require_arch(file, cuda::device_facts(**driver, device.id).arch(), here);
  const std::optional<Knobs> knobs = plan::knobs_from(file.configuration);
  if (!knobs) throw broken(Rule::plan_file_damaged, here, "knobs that read " + file.configuration, "integers by name");
  Graph graph = Graph::from_json(file.graph);
  graph.validate();
  Result<chain::FusionChain> analysed = chain::analyse(graph.data());
  if (!analysed) throw broken(analysed.error().rule, here + ": " + analysed.error().text);
  const auto chain = std::make_shared<const chain::FusionChain>(std::move(*analysed));
  for (const engine::Engine* e : engine::engine_list())
    if (e->name() == file.engine) return plan::make_compiled(chain, *e, *knobs, e->load(*chain, *knobs, device, file, here));
  throw broken(Rule::plan_file_version, here, "a plan of engine " + file.engine, "one of an engine of this build");
}

}  // namespace

CompiledPlan load_plan(const std::string& path, Device device) {
  return load(read_file(path, jit::kMaxPlanFileBytes), "plan '" + path + "'", device);
}

CompiledPlan load_plan(std::span<const std::byte> bytes, Device device) {
  return load({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "plan", device);
}

}  // namespace verglas
