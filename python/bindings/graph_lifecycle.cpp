#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/rules.hpp"
#include "chain/chain.hpp"
#include "graph.hpp"
#include "plan.hpp"

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
  using Modes = std::optional<std::vector<nb::object>>;
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
      .def(
          "build_plans",
          [](Lifecycle& g, nb::handle policy) {
            g.build_plans(!policy.is_none() && nb::cast<std::string>(nb::str(policy.attr("name"))) == "ALL");
          },
          nb::arg("policy").none() = nb::none(),
          "Compiles the first plan that compiles, or with ``build_plan_policy.ALL`` all of them; a selected plan stays the one.")
      .def(
          "build", [](Lifecycle& g, const Modes&) { g.build(); }, nb::arg("modes").none() = nb::none(),
          "All stages that are still to do. Plans again at no time, and keeps a selected plan.")
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
          "build_plan_at_index", [](Lifecycle& g, std::int64_t i) { g.built_at(i); }, nb::arg("index"))
      .def(
          "get_workspace_size", [](const Lifecycle& g) { return g.chosen()->plan.workspace().bytes; },
          "In bytes; of a built graph.")
      .def(
          "get_workspace_size_plan_at_index", [](Lifecycle& g, std::int64_t i) { return g.built_at(i)->plan.workspace().bytes; },
          nb::arg("index"))
      .def(
          "execute",
          [](Lifecycle& g, nb::handle pack, nb::handle workspace, nb::handle stream, nb::handle handle) {
            const std::shared_ptr<const PlanFacts> plan = g.chosen_or_build();
            execute(*plan, pack, workspace, stream_or_handle(stream, handle));
          },
          nb::arg("pack"), nb::arg("workspace").none() = nb::none(), nb::arg("stream").none() = nb::none(),
          nb::arg("handle").none() = nb::none(), kExecuteDoc)
      .def(
          "execute_plan_at_index",
          [](Lifecycle& g, nb::handle pack, nb::handle workspace, std::int64_t i, nb::handle stream, nb::handle handle) {
            const std::shared_ptr<const PlanFacts> plan = g.built_at(i);
            execute(*plan, pack, workspace, stream_or_handle(stream, handle));
          },
          nb::arg("pack"), nb::arg("workspace").none(), nb::arg("index"), nb::arg("stream").none() = nb::none(),
          nb::arg("handle").none() = nb::none(), "As `execute`, with the plan of that index.")
      .def_prop_ro(
          "plan", [](const Lifecycle& g) { return Plan{g.chosen()}; }, "The plan that `execute` runs; of a built graph.")
      .def(
          "declines",
          [](const Lifecycle& g) {
            std::vector<std::tuple<std::string, std::string, std::string>> all;
            for (const DeclineRecord& d : g.plans().declines()) all.emplace_back(d.engine, d.rule, d.text);
            return all;
          },
          "(engine, rule, text) for every engine that did not take the graph; of a planned graph.")
      .def(
          "explain",
          [](const Lifecycle& g) {
            const PlanList& plans = g.plans();
            std::string s = plans.chain() ? chain::print(*plans.chain()) : "no chain\n";
            for (std::size_t i = 0; i < plans.size(); ++i) s += "plan " + std::to_string(i) + ": " + plans.name(i) + "\n";
            for (const DeclineRecord& d : plans.declines()) s += "declined " + d.engine + ": [" + d.rule + "] " + d.text + "\n";
            return s;
          },
          "What the graph became, as lines of text; of a planned graph.")
      .def(
          "describe",
          [](const Lifecycle& g) {
            const PlanList& plans = g.plans();
            if (!plans.chain()) return plans.unsupported_text();
            const chain::FusionChain& chain = *plans.chain();
            std::string s;
            for (std::size_t i = 0; i < chain.gemms.size(); ++i) s += i ? "+matmul" : "matmul";
            for (const chain::Step& step : chain.steps) s += "+" + std::string(name_of(step.mode));
            return s + " → " + (plans.size() ? plans.name(0) : plans.unsupported_text());
          },
          "What the graph became, in one line; of a planned graph.");
}

}  // namespace verglas::python
