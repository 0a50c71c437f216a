#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/rules.hpp"
#include "graph.hpp"
#include "graph/ir.hpp"
#include "plan.hpp"
#include "verglas/explain.hpp"

namespace verglas::python {
namespace {

namespace nb = nanobind;

/// The stream of a call by either of its two names.
nb::handle stream_or_handle(nb::handle stream, nb::handle handle) {
  if (!stream.is_none() && !handle.is_none()) throw broken(Rule::pack_stream, "stream", "a stream and a handle", "one of them");
  return stream.is_none() ? handle : stream;
}

constexpr const char* kExecuteDoc = R"(Checks every buffer, then runs the plan; builds it first if that has not been done.

Parameters
----------
pack : dict or sequence
    One buffer for each operand, outputs included: by tensor, uid or unique name, or in the order of ``plan.operands()``.
    A buffer is a NumPy array, anything with DLPack, the CUDA array interface or the buffer protocol, or an address as an int,
    which then is all that the graph declares. ``None`` counts as not given. A scalar passed by value may be a number.
workspace : address or buffer
    Needed when `get_workspace_size` is above 0.
stream, handle : int or object with ``cuda_stream``
    Where a GPU plan runs; the CPU ignores it.
override_uids, override_shapes, override_strides : list
    Extents and strides of operands for this call alone, in elements and in the graph's order of axes, the batch included: one
    entry of each list for an operand. Its buffer gives the memory and no more. Operands not listed are read as ever.

Raises
------
InvalidCallError
    With rule, operand, what was found and what would be right. Nothing has been written.
NotABufferError
    For an object that is no buffer; also a ``TypeError``.

Notes
-----
Live extents rule: M and K are those of the first A, N that of the first B, whatever the graph declared.
docs/python.md says how a buffer is read whose axes could be meant in two ways.
)";

}  // namespace

void bind_lifecycle(GraphClass& c) {
  using Modes = std::optional<std::vector<HeurMode>>;
  c.def(
       "validate", [](Lifecycle& g) { g.graph().validate(); },
       "Checks the description and infers what was left out; may be called again after changes.")
      .def(
          "build_operation_graph", [](Lifecycle& g) { g.graph().validate(); },
          "There is no backend to lower to: the same as `validate`.")
      .def(
          "create_execution_plans", [](Lifecycle& g, const Modes&) { g.create_plans(); }, nb::arg("modes").none() = nb::none(),
          R"(Asks every engine once and ranks what they offer; freezes the graph.

Parameters
----------
modes : list of heur_mode
    Accepted for the vocabulary's sake: there is one ranking, whichever modes are named.

Raises
------
UnsupportedError
    When no engine serves the graph; the text has every reason.
FrozenError
    When the plans have been made already.
)")
      .def("create_execution_plan", &Lifecycle::append_plan, nb::arg("engine_id"), nb::arg("knobs"),
           "Adds the plan of a record, as `get_engine_and_knobs_at_index` gave it; freezes the graph.")
      .def("check_support", &Lifecycle::check_support, "Raises `UnsupportedError` when every plan is deselected.")
      .def("build_plans", &Lifecycle::build_plans, nb::arg("policy") = BuildPlanPolicy::heuristics_choice,
           "Compiles the first plan that compiles, or with ``build_plan_policy.ALL`` all of them; a selected plan stays the one.")
      .def(
          "build", [](Lifecycle& g, const Modes&) { g.build(); }, nb::arg("modes").none() = nb::none(),
          "All stages that are still to do. Plans again at no time, and keeps a selected plan.")
      .def(
          "tune",
          [](Lifecycle& g, int most, double seconds) {
            const TuneReport report = g.tune({.most = most, .seconds = seconds});
            std::vector<std::tuple<std::int64_t, std::string, double, std::string>> plans;
            for (const TuneReport::Plan& p : report.plans)
              plans.emplace_back(static_cast<std::int64_t>(p.index), p.name, p.seconds, p.failure);
            return plans;
          },
          nb::arg("most") = TuneOptions{}.most, nb::arg("seconds") = TuneOptions{}.seconds,
          R"(Measures the most promising plans on the graph's device and builds the fastest; plans the graph if that is to do.

What is measured is kept for this device and chain, and ranks the plans of every later graph like it (docs/tuning.md).

Parameters
----------
most : int
    Plans that are compiled and measured; three at least of each engine.
seconds : float
    Length of the windows in which a plan is timed.

Returns
-------
list of (index, name, seconds, failure)
    Fastest first; plans that failed come last, with the reason.
)")
      .def("select_plan", &Lifecycle::select, nb::arg("index"), "Pins one plan: only it is compiled and run from now on.")
      .def("deselect_engines", &Lifecycle::deselect_engines, nb::arg("names"),
           "Bars plans whose name contains one of these; indices stay as they are.")
      .def("deselect_workspace_greater_than", &Lifecycle::deselect_workspace_above, nb::arg("workspace"),
           "Bars plans that need more bytes than this.")
      .def("get_execution_plan_count", [](const Lifecycle& g) { return g.plans().size(); })
      .def(
          "get_plan_name_at_index", [](const Lifecycle& g, std::int64_t i) { return g.plans().name(g.index(i)); },
          nb::arg("index"))
      .def(
          "get_engine_and_knobs_at_index",
          [](const Lifecycle& g, std::int64_t i) {
            const std::size_t at = g.index(i);
            return std::make_pair(g.plans().engine_id(at), g.plans().knobs(at));
          },
          nb::arg("index"), "A record of the plan, for `create_execution_plan`; it survives JSON.")
      .def(
          "build_plan_at_index", [](Lifecycle& g, std::int64_t i) { g.built_at(i); }, nb::arg("index"),
          "Compiles one plan of the list, for `execute_plan_at_index`.")
      .def(
          "get_workspace_size",
          [](const Lifecycle& g, Overrides::Uids uids, Overrides::Lists shapes, Overrides::Lists strides) {
            const CompiledPlan& plan = g.chosen()->plan;
            (void)Overrides{std::move(uids), std::move(shapes), std::move(strides)}.operands_of(plan);
            return plan.workspace().bytes;
          },
          nb::arg("override_uids") = nb::none(), nb::arg("override_shapes") = nb::none(),
          nb::arg("override_strides") = nb::none(),
          "In bytes; of a built graph. It is the same for all extents, so that overrides are checked and change nothing.")
      .def(
          "get_workspace_size_plan_at_index", [](Lifecycle& g, std::int64_t i) { return g.built_at(i)->plan.workspace().bytes; },
          nb::arg("index"))
      .def(
          "execute",
          [](Lifecycle& g, nb::handle pack, nb::handle workspace, nb::handle stream, nb::handle handle, Overrides::Uids uids,
             Overrides::Lists shapes, Overrides::Lists strides) {
            const std::shared_ptr<const PlanFacts> plan = g.chosen_or_build();
            execute(*plan, pack, workspace, stream_or_handle(stream, handle),
                    {std::move(uids), std::move(shapes), std::move(strides)});
          },
          nb::arg("pack").none(), nb::arg("workspace").none() = nb::none(), nb::arg("stream").none() = nb::none(),
          nb::arg("handle").none() = nb::none(), nb::arg("override_uids") = nb::none(), nb::arg("override_shapes") = nb::none(),
          nb::arg("override_strides") = nb::none(), kExecuteDoc)
      .def(
          "execute_plan_at_index",
          [](Lifecycle& g, nb::handle pack, nb::handle workspace, std::int64_t i, nb::handle stream, nb::handle handle,
             Overrides::Uids uids, Overrides::Lists shapes, Overrides::Lists strides) {
            const std::shared_ptr<const PlanFacts> plan = g.built_at(i);
            execute(*plan, pack, workspace, stream_or_handle(stream, handle),
                    {std::move(uids), std::move(shapes), std::move(strides)});
          },
          nb::arg("pack").none(), nb::arg("workspace").none(), nb::arg("index"), nb::arg("stream").none() = nb::none(),
          nb::arg("handle").none() = nb::none(), nb::arg("override_uids") = nb::none(), nb::arg("override_shapes") = nb::none(),
          nb::arg("override_strides") = nb::none(), "As `execute`, with the plan of that index.")
      .def(
          "check", [](const Lifecycle& g) { g.chosen()->plan.check(); },
          "Raises `InvalidCallError` (``call.data``) where calls of a grouped product met offsets or indices that do not fit, "
          "and\n"
          "forgets it; until then the next call is refused. On a GPU synchronise before: it says what is known now.")
      .def_prop_ro(
          "plan", [](const Lifecycle& g) { return Plan{.facts = g.chosen()}; }, "The plan that `execute` runs; of a built graph.")
      .def(
          "declines",
          [](const Lifecycle& g) {
            std::vector<std::tuple<std::string, std::string, std::string>> all;
            for (const DeclineRecord& d : g.plans().declines()) all.emplace_back(d.engine, d.rule, d.text);
            return all;
          },
          "(engine, rule, text) for every engine that did not take the graph; of a planned graph.")
      .def(
          "explain", [](const Lifecycle& g) { return verglas::describe(g.plans()); },
          "Everything about what the graph became: chain, bytes, operations, plans, and what each engine said that declined.")
      .def(
          "describe", [](const Lifecycle& g) { return summary_of(g.plans()); },
          "What the graph became, in one line; of a planned graph.")
      .def(
          "to_json", [](const Lifecycle& g) { return g.graph().to_json(); },
          "The description as text, docs/graph-file.md; `from_json` makes the same graph of it.")
      .def_static(
          "from_json",
          [](std::string_view text, std::string_view device) {
            return Lifecycle(Graph::from_json(text), device_from_text(device));
          },
          nb::arg("text"), nb::kw_only(), nb::arg("device") = "cpu", R"(The graph that `to_json` described.

Raises
------
IoError
    When the text is no graph file, or of another version.
InvalidGraphError
    When what it describes is wrong in itself.
)")
      .def(
          "tensor_by_name",
          [](Lifecycle& g, std::string_view name) {
            std::optional<Tensor> found;
            for (std::size_t i = 0; i < g.graph().tensor_count(); ++i) {
              const Tensor t = g.graph().tensor_at(i);
              if (t.name() != name) continue;
              if (found)
                throw broken(Rule::pack_ambiguous, "graph", "the name '" + std::string(name) + "' of several tensors", "one");
              found = t;
            }
            if (!found) throw broken(Rule::pack_unknown, "graph", "the name '" + std::string(name) + "'", "that of a tensor");
            return *found;
          },
          nb::arg("name"), "The tensor of that name: of a graph that was read from a file.")
      .def("__repr__", [](const Lifecycle& g) {
        const graph::GraphData& d = g.graph().data();
        const std::string name = d.name.empty() ? "" : " '" + d.name + "'";
        return "<verglas.Graph" + name + ", " + std::to_string(d.nodes.size()) + " nodes" + (d.frozen ? ", planned>" : ">");
      });
}

}  // namespace verglas::python
