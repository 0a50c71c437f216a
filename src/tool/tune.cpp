#include <fmt/chrono.h>
#include <fmt/format.h>

#include "plan/tuning_record.hpp"
#include "tool/command.hpp"
#include "tool/device_option.hpp"
#include "tool/extents.hpp"

namespace verglas::tool {
namespace {

struct Options {
  std::string graph, shapes;
  std::string device = "cuda";
  TuneOptions tune;
  bool json = false;
};

std::string date_of(const plan::TuningEntry& e) { return fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(e.when)); }

/// Tunes the graph as it is declared; one object for the report.
Json tune(Graph& graph, const Options& o) {
  PlanList plans = graph.plans({.device = device_of(o.device), .deselect_engines = {}});
  const std::string before = plans.size() > 0 ? plans.name(0) : "";
  const TuneReport report = plans.tune(o.tune);
  const auto& e = plans.chain()->declared;
  Json j{{"l", e[0]},
         {"m", e[1]},
         {"n", e[2]},
         {"k", e[3]},
         {"before", before},
         {"record", report.record},
         {"why_not", report.why_not}};
  j["plans"] = Json::array();
  for (const TuneReport::Plan& p : report.plans)
    j["plans"].push_back({{"index", p.index},
                          {"name", p.name},
                          {"seconds", p.seconds},
                          {"predicted_seconds", plans.predicted_seconds(p.index)},
                          {"failure", p.failure}});
  return j;
}

std::string text_of_one(const Json& j) {
  std::string s = fmt::format("L={} M={} N={} K={}\n", j["l"].get<std::int64_t>(), j["m"].get<std::int64_t>(),
                              j["n"].get<std::int64_t>(), j["k"].get<std::int64_t>());
  for (const Json& p : j["plans"])
    s += p["failure"].get<std::string>().empty()
             ? fmt::format("  {:9.2f} us  (predicted {:9.2f})  {}\n", p["seconds"].get<double>() * 1e6,
                           p["predicted_seconds"].get<double>() * 1e6, p["name"].get<std::string>())
             : fmt::format("  not timed: {}: {}\n", p["name"].get<std::string>(), p["failure"].get<std::string>());
  const auto record = j["record"].get<std::string>();
  return s + (record.empty() ? "  not kept: " + j["why_not"].get<std::string>() : "  kept in " + record) + "\n";
}

int run(const Options& o) {
  Json all = Json::array();
  for_each_graph(o.graph, o.shapes, [&](Graph graph) {
    all.push_back(tune(graph, o));
    if (!o.json) fmt::print("{}", text_of_one(all.back()));
  });
  if (o.json) fmt::print("{}\n", text_of(all));
  return kDone;
}

void list(bool as_json) {
  std::string why_not;
  const std::string folder = plan::tuning_folder(why_not);
  const auto items = plan::list_tuning();
  Json j{{"folder", folder}, {"why_not", why_not}, {"entries", Json::array()}};
  std::string text = folder.empty() ? "nothing is kept: " + why_not + "\n" : folder + "\n";
  for (const plan::TuningItem& item : items) {
    const plan::TuningEntry& e = item.entry;
    Json one{{"file", item.file}, {"bytes", item.bytes}, {"fault", item.fault}};
    if (item.fault.empty()) {
      one["device"] = e.device;
      one["summary"] = e.summary;
      one["extents"] = e.extents;
      one["when"] = date_of(e);
      one["plans"] = e.plans.size();
      one["engine"] = e.plans.front().engine;
      one["seconds"] = e.plans.front().seconds;
      text += fmt::format("{}  {}  L={} M={} N={} K={}  {}  {:.2f} us by {}, of {} plans\n", date_of(e), e.device, e.extents[0],
                          e.extents[1], e.extents[2], e.extents[3], e.summary, e.plans.front().seconds * 1e6,
                          e.plans.front().engine, e.plans.size());
    } else {
      text += fmt::format("{}: ignored: {}\n", item.file, item.fault);
    }
    j["entries"].push_back(std::move(one));
  }
  text += fmt::format("{} entries\n", items.size());
  fmt::print("{}", as_json ? text_of(j) + "\n" : text);
}

}  // namespace

void add_tune(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand(
      "tune", "Measures the plans of a graph on a device, and keeps which is fastest; also `tune list`, `tune clear`");
  c->require_subcommand(0, 1);
  CLI::Option* graph = c->add_option("graph", o->graph, "Graph file, docs/graph-file.md");
  c->add_option("--shapes", o->shapes, "MxNxK or LxMxNxK,…: the graph declared for these extents instead of its own");
  c->add_option("--device", o->device, kDeviceHelp)->capture_default_str();
  c->add_option("--most", o->tune.most, "Plans that are compiled and measured")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  c->add_option("--seconds", o->tune.seconds, "Length of the windows in which a plan is timed")
      ->check(window_seconds())
      ->capture_default_str();
  c->add_flag("--json", o->json, "Prints the report as JSON");
  c->add_subcommand("list", "Lists what is kept, and what is ignored")->callback([o] { list(o->json); });
  c->add_subcommand("clear", "Removes all that is kept")->callback([] {
    fmt::print("{} entries removed\n", plan::clear_tuning());
  });
  c->callback([o, c, graph, &code] {
    code = kDone;
    if (!c->get_subcommands().empty()) return;
    if (graph->count() == 0) throw CLI::RequiredError("graph");
    code = run(*o);
  });
}

}  // namespace verglas::tool
