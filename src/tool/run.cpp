#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "base/rules.hpp"
#include "chain/cost.hpp"
#include "graph/ir.hpp"
#include "plan/operand_sets.hpp"
#include "tool/command.hpp"
#include "tool/device_arrays.hpp"
#include "tool/device_option.hpp"
#include "tool/host_array.hpp"
#include "tool/plan_file.hpp"
#include "tool/reference.hpp"

namespace verglas::tool {
namespace {

struct Options {
  std::string graph;
  std::vector<std::string> inputs, outputs;  ///< "name=file"
  std::uint64_t seed = 0;
  bool random = false;
  std::string values = "integers";
  std::string engine;
  std::string device = "cpu";
  bool device_given = false;
  std::int64_t plan = -1;
  bool check = false, json = false;
  int repeat = 0;
};

struct Operand {
  OperandInfo info;
  HostArray array;
  std::string source;  ///< where an input came from
  std::string target;  ///< where an output goes
};

CompiledPlan choose(const PlanList& plans, const Options& o) {
  if (o.plan >= 0) return plans.compile(static_cast<std::size_t>(o.plan));
  if (o.engine.empty()) return plans.compile();
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (plans.engine(i) == o.engine) return plans.compile(i);
  std::vector<std::string> known;
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (std::find(known.begin(), known.end(), plans.engine(i)) == known.end()) known.push_back(plans.engine(i));
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == o.engine || d.engine == "chain")
      throw broken(Rule::tool_engine, "--engine " + o.engine, d.text, "a graph that it serves");
  throw broken(Rule::tool_engine, "--engine " + o.engine, "no engine of that name",
               known.empty() ? "an engine that serves the graph" : fmt::format("one of {}", fmt::join(known, ", ")));
}

/// The operand of that name, or of that uid written as a number; −1 where there is none.
int operand_named(const CompiledPlan& plan, const std::string& name) {
  const int index = plan.operand_index(std::string_view(name));
  if (index >= 0 || name.size() >= 19 || name.find_first_not_of("0123456789") != std::string::npos) return index;
  return plan.operand_index(std::int64_t{std::stoll(name)});
}

/// Splits "name=file" and finds the operand. Names may have the sign in them, and so may files: the longest name counts.
Operand& find(std::vector<Operand>& all, const CompiledPlan& plan, const std::string& option, const std::string& text,
              bool output, std::string& file) {
  std::size_t at = text.find('=');
  if (at == std::string::npos || at == 0 || text.back() == '=')
    throw CLI::ValidationError(option, "'" + text + "' is not of the form NAME=FILE.npy");
  for (std::size_t last = text.rfind('='); last > at; last = text.rfind('=', last - 1))
    if (operand_named(plan, text.substr(0, last)) >= 0) at = last;
  const std::string name = text.substr(0, at);
  file = text.substr(at + 1);
  const int index = operand_named(plan, name);
  std::vector<std::string> known;
  for (const Operand& o : all)
    if (o.info.is_output == output) known.push_back(o.info.name.empty() ? std::to_string(o.info.uid) : o.info.name);
  const bool fits = index >= 0 && all[static_cast<std::size_t>(index)].info.is_output == output;
  const auto is_it = [&](const Operand& o) { return o.info.name == name; };
  if (const auto same = std::ranges::count_if(all, is_it); index < 0 && same > 1)
    throw broken(Rule::tool_operand, option + " " + name, std::to_string(same) + " operands of that name", "its uid");
  if (!fits)
    throw broken(Rule::tool_operand, option + " " + name, "no operand of that name",
                 fmt::format("one of {}", fmt::join(known, ", ")));
  return all[static_cast<std::size_t>(index)];
}

void read_input(Operand& o, const std::string& option, const std::string& file) {
  if (!o.source.empty()) throw broken(Rule::tool_operand, option + " " + o.info.name, "it twice", "it once");
  NpyArray a = read_npy(file);
  if (a.dtype == DataType::uint8 && is_fp8(o.info.dtype)) a.dtype = o.info.dtype;  // .npy files have no fp8: its bytes
  if (a.dtype != o.info.dtype)
    throw broken(Rule::tool_array, "array '" + file + "'", std::string(name_of(a.dtype)),
                 std::string(name_of(o.info.dtype)) + " as tensor '" + o.info.name + "' is declared");
  const auto without_ones = [](std::vector<std::int64_t> d) {
    while (!d.empty() && d.front() == 1) d.erase(d.begin());
    return d;
  };
  if (without_ones(a.dim) != without_ones(o.info.dim))
    throw broken(Rule::tool_array, "array '" + file + "'", "extents " + graph::text_of(a.dim),
                 graph::text_of(o.info.dim) + " as tensor '" + o.info.name + "' is declared");
  // Leading unit axes change no address.
  if (a.fortran_order && a.dim.size() != o.info.dim.size()) {
    HostArray own{.dtype = a.dtype, .dim = a.dim, .stride = a.strides(), .data = std::move(a.data)};
    own.dim = o.info.dim;
    std::vector<std::int64_t> stride(o.info.dim.size(), 1);
    const std::size_t shared = std::min(stride.size(), own.stride.size());
    std::copy_backward(own.stride.end() - static_cast<std::ptrdiff_t>(shared), own.stride.end(), stride.end());
    own.stride = std::move(stride);
    o.array = std::move(own);
  } else {
    a.dim = o.info.dim;
    o.array = from_npy(std::move(a), o.info.stride);
  }
  o.source = file;
}

/// Offsets of groups, indices of tokens and slots that fit. False where an operand is none of these.
bool fill_routing(const CompiledPlan& plan, std::size_t operand, const OperandInfo& info, HostArray& a) {
  if (info.roles == "b_addresses" || info.roles == "b_scale_addresses")
    throw broken(Rule::tool_operand, "input '" + info.name + "'", "addresses, of which no file and no seed can know",
                 "weights in one array");
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const auto row = plan::routing_element(plan.chain(), operand, i);
    if (!row) return false;
    a.set(i, static_cast<double>(*row));
  }
  return a.elements() > 0;
}

/// Reordered scales that are declared by their logical extents are a flat run of all their atoms' bytes at a call.
void hold_whole_atoms(const CompiledPlan& plan, std::vector<Operand>& all) {
  const std::vector<std::size_t> bytes = plan::operand_bytes(plan.chain());
  for (const chain::Role& role : plan.chain().roles) {
    if (!role.is_interleaved) continue;
    const auto i = static_cast<std::size_t>(role.operand);
    std::int64_t declared = 1;
    for (const std::int64_t e : all[i].info.dim) declared *= e;
    if (declared >= static_cast<std::int64_t>(bytes[i])) continue;
    all[i].info.dim = {static_cast<std::int64_t>(bytes[i])};
    all[i].info.stride = {1};
  }
}

std::vector<Operand> prepare(const CompiledPlan& plan, const Options& options) {
  std::vector<Operand> all;
  for (const OperandInfo& info : plan.operands()) all.push_back({.info = info, .array = {}, .source = {}, .target = {}});
  hold_whole_atoms(plan, all);
  std::string file;
  for (const std::string& text : options.inputs) {
    Operand& o = find(all, plan, "--input", text, false, file);
    read_input(o, "--input", file);
  }
  for (const std::string& text : options.outputs) {
    Operand& o = find(all, plan, "--output", text, true, file);
    if (!o.target.empty()) throw broken(Rule::tool_operand, "--output " + o.info.name, "it twice", "it once");
    o.target = file;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    Operand& o = all[i];
    if (!o.source.empty()) continue;
    if (!o.info.is_output && !options.random)
      throw broken(Rule::tool_operand, "input '" + o.info.name + "'", "no file",
                   fmt::format("--input {}=FILE.npy, or --random SEED", o.info.name));
    o.array = make_array(o.info.dtype, o.info.dim, o.info.stride, "operand '" + o.info.name + "'");
    if (o.info.is_output) continue;
    if (fill_routing(plan, i, o.info, o.array)) {
      o.source = "in turn";
      continue;
    }
    fill(o.array, options.values == "normal" ? Filling::normal : Filling::integers, options.seed, i);
    o.source = fmt::format("random {}, seed {}", options.values, options.seed);
  }
  return all;
}

struct Timing {
  std::vector<double> seconds;  ///< sorted
  double median() const { return seconds[seconds.size() / 2]; }
};

/// `launch` once, and then `repeat` times by the clock; `wait` ends when the work has.
template <class Launch, class Wait>
Timing timed(int repeat, Launch&& launch, Wait&& wait) {
  launch();
  wait();
  Timing t;
  for (int i = 0; i < repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    launch();
    wait();
    t.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(t.seconds.begin(), t.seconds.end());
  return t;
}

Timing execute_on_host(const CompiledPlan& plan, std::vector<Operand>& operands, int repeat) {
  std::vector<TensorView> views;
  for (Operand& o : operands) views.push_back(o.array.view());
  std::vector<std::byte> scratch(static_cast<std::size_t>(plan.workspace().bytes + plan.workspace().alignment));
  void* begin = scratch.data();
  std::size_t room = scratch.size();
  std::align(static_cast<std::size_t>(plan.workspace().alignment), static_cast<std::size_t>(plan.workspace().bytes), begin, room);
  const Workspace workspace{begin, plan.workspace().bytes};
  return timed(repeat, [&] { plan.run(views, {}, workspace); }, [] {});
}

Timing execute_on_gpu(const CompiledPlan& plan, std::vector<Operand>& operands, int repeat) {
  DeviceArrays there(plan.device().id);
  std::vector<TensorView> views;
  for (Operand& o : operands) views.push_back(o.info.is_host_scalar ? o.array.view() : there.place(o.array));
  const Workspace workspace{there.scratch(plan.workspace().bytes), plan.workspace().bytes};
  Timing t = timed(repeat, [&] { plan.run(views, {}, workspace); }, [&] { there.wait(); });
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (operands[i].info.is_output) there.fetch(views[i], operands[i].array);
  return t;
}

struct Summary {
  double sum = 0, least = std::nan(""), largest = std::nan("");
  std::int64_t nans = 0;
};
Summary summary_of(const HostArray& a) {
  Summary s;
  const std::int64_t n = a.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = a.value(i);
    s.nans += std::isnan(v);
    if (std::isnan(v)) continue;
    s.sum += v;
    s.least = std::fmin(s.least, v);
    s.largest = std::fmax(s.largest, v);
  }
  return s;
}

/// JSON has no NaN and no infinities.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json(fmt::format("{}", v)); }

std::vector<Mismatch> check(const Graph& graph, const std::vector<Operand>& operands) {
  std::map<std::int64_t, const HostArray*> given;
  for (const Operand& o : operands)
    if (!o.info.is_output) given[o.info.uid] = &o.array;
  std::map<std::int64_t, const HostArray*> got;
  for (const Operand& o : operands)
    if (o.info.is_output) got[o.info.uid] = &o.array;
  return compare_with_reference(graph.data(), given, got);
}

int report(const Options& options, const Graph& graph, const CompiledPlan& plan, const std::vector<Operand>& operands,
           const Timing& timing) {
  const double operations = chain::cost_of(plan.chain()).product_operations;
  std::vector<Mismatch> verdicts;
  if (options.check) verdicts = check(graph, operands);
  const bool right = std::all_of(verdicts.begin(), verdicts.end(), [](const Mismatch& m) { return m.wrong == 0; });
  Json j;
  std::string text = fmt::format("{}\n", verglas::summary_of(plan));
  j["graph"] = graph.data().name;
  j["summary"] = verglas::summary_of(plan);
  j["engine"] = plan.engine();
  j["plan"] = plan.name();
  for (const Operand& o : operands) {
    Json one{{"name", o.info.name}, {"uid", o.info.uid}, {"data_type", name_of(o.info.dtype)}, {"dim", o.info.dim}};
    text += fmt::format("{:6} {:12} {:7} {:18}", o.info.is_output ? "output" : "input", o.info.name, name_of(o.info.dtype),
                        graph::text_of(o.info.dim));
    if (o.info.is_output) {
      const Summary s = summary_of(o.array);
      one["sum"] = number(s.sum);
      one["min"] = number(s.least);
      one["max"] = number(s.largest);
      one["nans"] = s.nans;
      text += fmt::format(" sum {:.9g}, min {:.9g}, max {:.9g}", s.sum, s.least, s.largest);
      if (s.nans > 0) text += fmt::format(", {} NaN", s.nans);
      if (!o.target.empty()) {
        one["file"] = o.target;
        text += " → " + o.target;
      }
      j["outputs"].push_back(std::move(one));
    } else {
      one["source"] = o.source;
      text += " " + o.source;
      j["inputs"].push_back(std::move(one));
    }
    text += '\n';
  }
  if (!timing.seconds.empty()) {
    const double median = timing.median();
    j["seconds"] = {
        {"min", timing.seconds.front()}, {"median", median}, {"max", timing.seconds.back()}, {"runs", timing.seconds.size()}};
    j["operations_per_second"] = median > 0 ? number(operations / median) : Json(nullptr);
    text +=
        fmt::format("time   median {:.4g} ms, min {:.4g}, max {:.4g} of {} runs; {:.4g} GFLOP/s in products\n", median * 1e3,
                    timing.seconds.front() * 1e3, timing.seconds.back() * 1e3, timing.seconds.size(), operations / median / 1e9);
  }
  for (const Mismatch& m : verdicts) {
    j["check"].push_back({{"output", m.name},
                          {"elements", m.elements},
                          {"exact", m.exact},
                          {"open", m.open},
                          {"wrong", m.wrong},
                          {"first", m.text}});
    text += fmt::format("check  {}: {} elements, {} of them exact, {} open, {} wrong{}\n", m.name, m.elements, m.exact, m.open,
                        m.wrong, m.text.empty() ? "" : "; " + m.text);
  }
  if (options.check) j["right"] = right;
  fmt::print("{}{}", options.json ? text_of(j) : text, options.json ? "\n" : "");
  return right ? kDone : kRefused;
}

/// A plan file has its graph, its engine and its knobs with it.
CompiledPlan plan_of_file(const Options& o) {
  if (o.plan >= 0 || !o.engine.empty())
    throw CLI::ValidationError(o.plan >= 0 ? "--plan" : "--engine", "a plan file holds one plan of one engine");
  return load_plan(o.graph, device_of(o.device_given ? o.device : "cuda"));
}

int run(const Options& options) {
  const std::optional<jit::PlanFile> file = plan_file_at(options.graph);
  Graph graph = file ? Graph::from_json(file->graph) : load_graph(options.graph);
  CompiledPlan plan;
  if (file) {
    graph.validate();
    plan = plan_of_file(options);
  } else {
    plan = choose(graph.plans({.device = device_of(options.device), .deselect_engines = {}}), options);
  }
  std::vector<Operand> operands = prepare(plan, options);
  const Timing timing = plan.device().type == DeviceType::cuda ? execute_on_gpu(plan, operands, options.repeat)
                                                               : execute_on_host(plan, operands, options.repeat);
  plan.check();
  for (const Operand& o : operands)
    if (!o.target.empty()) save(o.array, o.target);
  return report(options, graph, plan, operands, timing);
}

}  // namespace

void add_run(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("run", "Runs a graph file on arrays from .npy files, or on random numbers");
  c->add_option("graph", o->graph, "Graph file, docs/graph-file.md, or a plan file of `verglas compile`")->required();
  c->add_option("-i,--input", o->inputs, "NAME=FILE.npy: an input, by name or uid")->allow_extra_args(false);
  c->add_option("-o,--output", o->outputs, "NAME=FILE.npy: where an output is written")->allow_extra_args(false);
  CLI::Option* random =
      c->add_option("--random", o->seed, "Seed of the numbers that fill the inputs not given")->check(whole_number());
  c->add_option("--values", o->values, "integers: from -4 to 4, so that sums are exact; normal: mean 0, deviation 1")
      ->check(CLI::IsMember({"integers", "normal"}))
      ->needs(random)
      ->capture_default_str();
  CLI::Option* device = c->add_option("--device", o->device, kDeviceHelp)->capture_default_str();
  CLI::Option* engine = c->add_option("--engine", o->engine, "Takes the best plan of this engine");
  c->add_option("--plan", o->plan, "Takes the plan with this number, as `verglas explain` lists them")
      ->check(whole_number())
      ->excludes(engine);
  c->add_flag("--check", o->check, "Compares the outputs with an evaluation in double precision; exit code 1 if any is wrong");
  c->add_option("--repeat", o->repeat, "Runs so many times more, and reports times")->check(CLI::Range(1, 1000000));
  c->add_flag("--json", o->json, "Prints the report as JSON");
  c->callback([o, random, device, &code] {
    o->random = random->count() > 0;
    o->device_given = device->count() > 0;
    code = run(*o);
  });
}

}  // namespace verglas::tool
