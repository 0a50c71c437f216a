#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/file.hpp"
#include "engine/engine.hpp"
#include "plan/ahead.hpp"
#include "tool/command.hpp"

namespace verglas::tool {
namespace {

struct Options {
  std::string graph, output, knobs;
  engine::AheadTarget target;
  bool json = false;
};

/// "TILE_M=64,PINGPONG=0".
Knobs knobs_from(const std::string& text) {
  Knobs knobs;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    const std::size_t sign = one.find('=');
    std::int64_t value = 0;
    const char* const last = one.data() + one.size();
    const auto read = sign == std::string::npos ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                                                : std::from_chars(one.data() + sign + 1, last, value);
    if (read.ec != std::errc{} || read.ptr != last || sign == 0 || !knobs.emplace(one.substr(0, sign), value).second)
      throw CLI::ValidationError("--knobs", "'" + one + "' is not NAME=NUMBER with a name of its own");
    at = end + 1;
  }
  return knobs;
}

int run(const Options& o) {
  Knobs knobs = knobs_from(o.knobs);
  Graph graph = load_graph(o.graph);
  const jit::PlanFile file = plan::compile_ahead(graph, o.target, knobs);
  const std::string bytes = jit::write_plan_file(file);
  write_file(o.output, bytes);
  const jit::CompiledKernel& kernel = file.kernels.front();
  const jit::ResourceReport& r = kernel.report;
  if (!o.json) {
    fmt::print("{} for {} by {}, NVRTC {}\n", kernel.kernel, file.arch, file.engine, file.nvrtc);
    for (const auto& [name, value] : knobs) fmt::print("  {} = {}\n", name, value);
    fmt::print("{} registers, {} bytes of static shared memory, {} bytes spilled, {:.1f} ms\n{}: {} bytes\n", r.registers,
               r.smem_bytes, r.spill_store_bytes + r.spill_load_bytes, kernel.compile_ms, o.output, bytes.size());
    return kDone;
  }
  Json j{{"output", o.output}, {"bytes", bytes.size()}, {"engine", file.engine}, {"arch", file.arch}, {"nvrtc", file.nvrtc}};
  j["knobs"] = Json::object();
  for (const auto& [name, value] : knobs) j["knobs"][name] = value;
  j["kernel"] = {{"name", kernel.kernel},
                 {"registers", r.registers},
                 {"smem_bytes", r.smem_bytes},
                 {"spill_bytes", r.spill_store_bytes + r.spill_load_bytes},
                 {"cubin_bytes", kernel.cubin.size()},
                 {"compile_ms", kernel.compile_ms}};
  fmt::print("{}\n", text_of(j));
  return kDone;
}

}  // namespace

void add_compile(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("compile", "Compiles a graph file for a GPU that need not be here, into a plan file");
  c->add_option("graph", o->graph, "Graph file, docs/graph-file.md")->required();
  c->add_option("-o,--output", o->output, "The plan file that is written, plan.vgp by custom")->required();
  c->add_option("--arch", o->target.arch, "Architecture of the device")->capture_default_str();
  c->add_option("--sm-count", o->target.sm_count, "Multiprocessors of the device, for the choice of tiles")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  c->add_option("--knobs", o->knobs, "NAME=NUMBER,…: takes the best configuration that has these");
  c->add_flag("--json", o->json, "Prints the report as JSON");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace verglas::tool
