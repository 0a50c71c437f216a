#include <fmt/format.h>

#include <algorithm>

#include "chain/chain.hpp"
#include "plan/measure.hpp"
#include "tool/command.hpp"
#include "tool/device_option.hpp"
#include "tool/extents.hpp"

namespace verglas::tool {
namespace {

struct Options {
  std::string graph, shapes;
  std::string device = "cuda";
  std::size_t most = 4;
  plan::Windows windows{.rounds = 10, .window_seconds = 0.03, .settle_seconds = 0.2};
  bool json = false;
};

/// The first plan twice, so that its spread against itself is seen, and the best of what else there is: one of each engine first.
std::vector<std::size_t> contenders(const PlanList& plans, std::size_t most) {
  std::vector<std::size_t> chosen{0, 0};
  std::vector<std::string> engines{plans.engine(0)};
  for (std::size_t i = 1; i < plans.size(); ++i)
    if (std::find(engines.begin(), engines.end(), plans.engine(i)) == engines.end()) {
      engines.push_back(plans.engine(i));
      chosen.push_back(i);
    }
  for (std::size_t i = 1; i < plans.size() && chosen.size() < most + 1; ++i)
    if (std::find(chosen.begin(), chosen.end(), i) == chosen.end()) chosen.push_back(i);
  return chosen;
}

Json bench(Graph graph, const Options& o) {
  const Device device = device_of(o.device);
  const PlanList plans = graph.plans({.device = device, .deselect_engines = {}});
  if (plans.size() == 0) static_cast<void>(plans.compile());  // throws every reason
  const std::vector<std::size_t> which = contenders(plans, o.most);
  std::vector<CompiledPlan> compiled;
  for (const std::size_t i : which) compiled.push_back(plans.compile(i));
  const auto samples = plan::make_meter(*plans.chain(), device)->measure(compiled, o.windows);
  const auto& e = plans.chain()->declared;
  Json j{{"l", e[0]}, {"m", e[1]}, {"n", e[2]}, {"k", e[3]}, {"summary", summary_of(plans)}, {"tuning", plans.tuning_note()}};
  j["plans"] = Json::array();
  const double ours = samples[0].median();
  for (std::size_t i = 0; i < which.size(); ++i) {
    const std::vector<double>& w = samples[i].windows;
    Json one{{"plan", compiled[i].name()}, {"again", i == 1}, {"failure", samples[i].failure}};
    if (!w.empty()) {
      one["seconds"] = samples[i].median();
      one["least"] = *std::min_element(w.begin(), w.end());
      one["most"] = *std::max_element(w.begin(), w.end());
      one["ratio"] = samples[i].median() / ours;
    }
    j["plans"].push_back(std::move(one));
  }
  return j;
}

std::string text_of_one(const Json& j) {
  std::string s = fmt::format("L={} M={} N={} K={}  {}\n     median       least        most   ratio to the first\n",
                              j["l"].get<std::int64_t>(), j["m"].get<std::int64_t>(), j["n"].get<std::int64_t>(),
                              j["k"].get<std::int64_t>(), j["summary"].get<std::string>());
  for (const Json& p : j["plans"])
    s += p.contains("seconds")
             ? fmt::format("{:9.2f} us {:9.2f} us {:9.2f} us  {:6.3f}  {}{}\n", p["seconds"].get<double>() * 1e6,
                           p["least"].get<double>() * 1e6, p["most"].get<double>() * 1e6, p["ratio"].get<double>(),
                           p["plan"].get<std::string>(), p["again"].get<bool>() ? " again: its ratio is the noise" : "")
             : fmt::format("not timed: {}: {}\n", p["plan"].get<std::string>(), p["failure"].get<std::string>());
  return s;
}

int run(const Options& o) {
  Json all = Json::array();
  for_each_graph(o.graph, o.shapes, [&](Graph graph) {
    all.push_back(bench(std::move(graph), o));
    if (!o.json) fmt::print("{}", text_of_one(all.back()));
  });
  if (o.json) fmt::print("{}\n", text_of(all));
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("bench", "Times the best plans of a graph beside each other, the first against itself too");
  c->add_option("graph", o->graph, "Graph file, docs/graph-file.md")->required();
  c->add_option("--shapes", o->shapes, "MxNxK or LxMxNxK,…: the graph declared for these extents instead of its own");
  c->add_option("--device", o->device, kDeviceHelp)->capture_default_str();
  c->add_option("--most", o->most, "Plans that are timed; one of each engine in any case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  c->add_option("--rounds", o->windows.rounds, "Windows of each plan")->check(CLI::Range(1, 1000))->capture_default_str();
  c->add_option("--seconds", o->windows.window_seconds, "Length of a window")->check(window_seconds())->capture_default_str();
  c->add_flag("--json", o->json, "Prints the report as JSON");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace verglas::tool
