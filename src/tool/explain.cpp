#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/file.hpp"
#include "chain/cost.hpp"
#include "engine/engine.hpp"
#include "graph/ir.hpp"
#include "recipe/recipe.hpp"
#include "tool/command.hpp"
#include "tool/device_option.hpp"
#include "tool/drawing.hpp"
#include "tool/plan_file.hpp"

namespace verglas::tool {
namespace {

struct Options {
  std::string graph, svg, dot;
  std::string device = "cpu";
  std::int64_t plan = 0;
  bool json = false, device_given = false;
};

/// How each engine that takes the chain says that it will serve it.
std::vector<std::pair<std::string, std::string>> notes_of(const PlanList& plans, Device device) {
  std::vector<std::pair<std::string, std::string>> notes;
  for (const engine::Engine* e : engine::engine_list())
    if (plans.chain())
      if (const auto claim = e->claim(*plans.chain(), device)) notes.emplace_back(e->name(), claim->note);
  return notes;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string graph_text(const graph::GraphData& g) {
  std::string s = fmt::format("graph '{}' io {} intermediate {} compute {}\n", g.name, name_of(g.io), name_of(g.intermediate),
                              name_of(g.compute));
  for (const graph::TensorData& t : g.tensors) {
    const char* what = t.producer < 0 ? (t.value      ? "constant"
                                         : t.by_value ? "scalar"
                                                      : "input")
                       : t.is_virtual ? "inside"
                                      : "output";
    s += fmt::format("  {:8} {} #{} {} {} strides {}", what, label_of(t), t.uid, name_of(t.dtype), graph::text_of(t.dim),
                     graph::text_of(t.stride));
    if (t.reordering != TensorReordering::none) s += fmt::format(" {}", graph::name_of(t.reordering));
    s += t.value ? fmt::format(" = {}\n", *t.value) : "\n";
  }
  for (const int i : g.order) {
    const graph::NodeData& n = g.nodes[static_cast<std::size_t>(i)];
    s += fmt::format("  {}", label_of(g.tensors[static_cast<std::size_t>(n.output)]));
    if (n.scale >= 0) s += fmt::format(", {}", label_of(g.tensors[static_cast<std::size_t>(n.scale)]));
    s += " = ";
    s += n.kind == graph::NodeKind::reduction ? fmt::format("reduction {}(", name_of(n.reduction))
                                              : fmt::format("{}(", kind_of(n));
    for (std::size_t k = 0; k < n.inputs.size(); ++k)
      s += (k ? ", " : "") + label_of(g.tensors[static_cast<std::size_t>(n.inputs[k])]);
    if (n.block > 0) s += fmt::format(", blocks of {} along axis {}", n.block, n.block_axis);
    s += fmt::format(") in {}\n", name_of(n.compute));
  }
  return s;
}

std::string text_report(const Graph& g, const PlanList& plans, const CompiledPlan& plan, Device device) {
  std::string s = graph_text(g.data()) + describe(plans);
  for (const auto& [engine, note] : notes_of(plans, device)) s += fmt::format("{}: {}\n", engine, note);
  if (!plan.valid()) return s;
  if (!plan.flaw().empty()) s += fmt::format("flaw of {}: {}\n", plan.name(), plan.flaw());
  return s + fmt::format("checks of a call of {}\n{}", plan.name(), recipe::print_checks(plan.recipe(), plan.chain()));
}

Json json_report(const Graph& graph, const PlanList& plans, const CompiledPlan& plan, Device device) {
  const graph::GraphData& g = graph.data();
  Json j{{"graph", g.name}, {"summary", summary_of(plans)}, {"served", plans.size() > 0}};
  for (const graph::TensorData& t : g.tensors) {
    Json one{{"name", t.name},         {"uid", t.uid},       {"data_type", name_of(t.dtype)},
             {"dim", t.dim},           {"stride", t.stride}, {"virtual", t.is_virtual},
             {"input", t.producer < 0}};
    j["tensors"].push_back(std::move(one));
  }
  for (const int i : g.order) {
    const graph::NodeData& n = g.nodes[static_cast<std::size_t>(i)];
    Json one{{"name", n.name}, {"op", kind_of(n)}, {"compute_data_type", name_of(n.compute)}};
    for (const int input : n.inputs) one["inputs"].push_back(g.tensors[static_cast<std::size_t>(input)].uid);
    one["output"] = g.tensors[static_cast<std::size_t>(n.output)].uid;
    if (n.scale >= 0) one["scale"] = g.tensors[static_cast<std::size_t>(n.scale)].uid;
    if (n.block > 0) one["block"] = {{"size", n.block}, {"axis", n.block_axis}};
    j["nodes"].push_back(std::move(one));
  }
  j["chain"] = nullptr;
  if (const chain::FusionChain* c = plans.chain()) {
    const chain::Cost cost = chain::cost_of(*c);
    j["chain"] = {{"l", c->declared[0]},
                  {"m", c->declared[1]},
                  {"n", c->declared[2]},
                  {"k", c->declared[3]},
                  {"text", lines_of(chain::print(*c))}};
    j["cost"] = {{"bytes_read", cost.bytes_read},
                 {"bytes_written", cost.bytes_written},
                 {"product_operations", cost.product_operations},
                 {"elementwise_operations", cost.elementwise_operations},
                 {"operations_per_byte", cost.intensity()}};
  }
  j["plans"] = Json::array();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    Json knobs = Json::object();
    for (const auto& [name, value] : plans.knobs(i)) knobs[name] = value;
    j["plans"].push_back({{"index", i},
                          {"name", plans.name(i)},
                          {"engine", plans.engine(i)},
                          {"engine_id", plans.engine_id(i)},
                          {"knobs", knobs},
                          {"predicted_seconds", plans.predicted_seconds(i)},
                          {"measured_seconds", plans.measured_seconds(i)}});
  }
  for (const auto& [engine, note] : notes_of(plans, device)) j["claims"].push_back({{"engine", engine}, {"note", note}});
  j["tuning"] = plans.tuning_note();
  j["declines"] = Json::array();
  for (const DeclineRecord& d : plans.declines())
    j["declines"].push_back({{"engine", d.engine}, {"rule", d.rule}, {"text", d.text}});
  j["recipe"] = nullptr;
  if (plan.valid())
    j["recipe"] = {{"plan", plan.name()},
                   {"flaw", plan.flaw()},
                   {"workspace_bytes", plan.workspace().bytes},
                   {"checks", lines_of(recipe::print_checks(plan.recipe(), plan.chain()))}};
  return j;
}

/// A plan file with its checks, or with the reason why it is not loaded here, which is no failure: it is for another machine.
int explain_file(const Options& o, const jit::PlanFile& file) {
  Graph graph = Graph::from_json(file.graph);
  graph.validate();
  CompiledPlan plan;
  std::string reason;
  try {
    plan = load_plan(o.graph, device_of(o.device_given ? o.device : "cuda"));
  } catch (const Error& e) {
    reason = e.what();
  }
  if (!o.json) {
    fmt::print("{}{}{}", text_of(file), graph_text(graph.data()),
               plan.valid() ? describe(plan) : fmt::format("not loaded here: {}\n", reason));
    return kDone;
  }
  Json j{{"graph", graph.data().name}, {"file", json_of(file)}, {"loaded", plan.valid()}};
  if (plan.valid())
    j["plan"] = {{"name", plan.name()},
                 {"summary", summary_of(plan)},
                 {"chain", lines_of(chain::print(plan.chain()))},
                 {"checks", lines_of(recipe::print_checks(plan.recipe(), plan.chain()))}};
  else
    j["reason"] = reason;
  fmt::print("{}\n", text_of(j));
  return kDone;
}

int run(const Options& o) {
  if (const std::optional<jit::PlanFile> file = plan_file_at(o.graph)) {
    if (!o.svg.empty() || !o.dot.empty()) throw CLI::ValidationError("--svg, --dot", "a graph file is drawn, not a plan file");
    return explain_file(o, *file);
  }
  Graph graph = load_graph(o.graph);
  const Device device = device_of(o.device);
  const PlanList plans = graph.plans({.device = device, .deselect_engines = {}});
  CompiledPlan plan;
  if (plans.size() > 0) plan = plans.compile(static_cast<std::size_t>(o.plan));
  const std::string dot = o.dot.empty() && o.svg.empty() ? "" : draw(graph.data(), plans);
  if (!o.dot.empty() && o.dot != "-") write_file(o.dot, dot);
  if (!o.svg.empty()) write_svg(dot, o.svg);
  if (o.dot == "-")
    fmt::print("{}", dot);
  else
    fmt::print("{}", o.json ? text_of(json_report(graph, plans, plan, device)) + "\n" : text_report(graph, plans, plan, device));
  return plans.size() > 0 ? kDone : kRefused;
}

}  // namespace

void add_explain(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand(
      "explain", "Says what a graph file becomes: chain, plans, who declined and why, checks, bytes and operations");
  c->add_option("graph", o->graph, "Graph file, docs/graph-file.md, or a plan file of `verglas compile`")->required();
  c->add_option("--plan", o->plan, "The plan whose checks are shown")->check(whole_number())->capture_default_str();
  CLI::Option* device = c->add_option("--device", o->device, kDeviceHelp)->capture_default_str();
  c->add_flag("--json", o->json, "Prints the report as JSON");
  c->add_option("--svg", o->svg, "Draws the graph into this file, by Graphviz");
  c->add_option("--dot", o->dot, "Writes the drawing in Graphviz's language into this file; - is standard output");
  c->callback([o, device, &code] {
    o->device_given = device->count() > 0;
    code = run(*o);
  });
}

}  // namespace verglas::tool
