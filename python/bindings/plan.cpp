#include "plan.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <span>

#include "bindings.hpp"
#include "graph.hpp"
#include "verglas/explain.hpp"

namespace verglas::python {

namespace {

/// A path, or the bytes of the file: a plan whose operands are known by name, uid and place, since it has no Python graph.
Plan load(nb::handle source, std::string_view device) {
  const Device where = device_from_text(device);
  const nb::object path = nb::steal(PyObject_HasAttrString(source.ptr(), "__fspath__") == 1 || PyUnicode_Check(source.ptr())
                                        ? PyOS_FSPath(source.ptr())
                                        : Py_NewRef(Py_None));
  if (!path.is_valid()) throw nb::python_error();
  if (PyUnicode_Check(path.ptr()))
    return {.facts = std::make_shared<const PlanFacts>(load_plan(nb::cast<std::string>(path), where), Graph())};
  Keepers keep;
  const Py_buffer* bytes = keep.hold_buffer(source, PyBUF_SIMPLE);
  const std::span<const std::byte> all(static_cast<const std::byte*>(bytes->buf), static_cast<std::size_t>(bytes->len));
  return {.facts = std::make_shared<const PlanFacts>(load_plan(all, where), Graph())};
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<OperandInfo>(m, "Operand", "One buffer that a plan takes, as the graph declares it.")
      .def_ro("name", &OperandInfo::name)
      .def_ro("uid", &OperandInfo::uid)
      .def_ro("roles", &OperandInfo::roles,
              "\"a\", \"b\", \"aux\", \"scalar\", \"output\", \"reduction\", or several joined by \"+\".")
      .def_ro("data_type", &OperandInfo::dtype)
      .def_ro("dim", &OperandInfo::dim)
      .def_ro("stride", &OperandInfo::stride, "In elements.")
      .def_ro("is_output", &OperandInfo::is_output)
      .def_ro("is_pass_by_value", &OperandInfo::is_host_scalar)
      .def("__repr__", [](const OperandInfo& o) { return "<verglas.Operand " + label_of(o) + ">"; });

  nb::class_<BoundCall> bound(m, "BoundCall", nb::type_slots(callable_slots), nb::is_final(),
                              R"(Buffers of a plan that have been read already; calling it checks everything and launches.

``bound(stream=None, workspace=None)``. The buffers are kept alive; one that moves, as a tensor that is resized, has to be set
again. Of one bound call, one thread at a time may change buffers; for several threads bind several.)");
  bound.def("set", &BoundCall::set, nb::arg("operand"), nb::arg("buffer").none(),
            "Changes the buffer of one operand, by its name or its position in ``plan.operands()``.");
  bound.def("__repr__", [](const BoundCall& b) { return "<verglas.BoundCall of " + b.facts->plan.name() + ">"; });
  make_callable(bound, BoundCall());

  nb::class_<Plan> plan(m, "Plan", nb::type_slots(callable_slots), nb::is_final(),
                        R"(A plan that is compiled and ready to run.

``plan(*buffers, stream=None, workspace=None)`` is the shortest way to execute: one buffer for each of `operands`, in order.
Immutable: any number of threads may execute one plan at the same time, each with its own buffers and workspace.)");
  make_callable(plan, Plan());
  plan.def(
          "bind",
          [](const Plan& p, const nb::args& buffers) {
            std::vector<PyObject*> all;
            for (nb::handle b : buffers) all.push_back(b.ptr());
            return BoundCall(p.facts, all.data(), all.size());
          },
          "Reads one buffer for each of `operands`, in order, for calls in which few of them change.")
      .def_prop_ro(
          "name", [](const Plan& p) { return p.facts->plan.name(); }, "Engine and knobs, such as ``cpu[PRODUCT=1]``.")
      .def_prop_ro("engine", [](const Plan& p) { return p.facts->plan.engine(); })
      .def_prop_ro("engine_id", [](const Plan& p) { return p.facts->plan.engine_id(); })
      .def_prop_ro("knobs", [](const Plan& p) { return p.facts->plan.knobs(); })
      .def_prop_ro(
          "workspace_size", [](const Plan& p) { return p.facts->plan.workspace().bytes; }, "In bytes.")
      .def(
          "operands",
          [](const Plan& p) {
            const auto all = p.facts->plan.operands();
            return std::vector<OperandInfo>(all.begin(), all.end());
          },
          "The buffers of a call, in the order in which `execute` takes a sequence.")
      .def(
          "execute",
          [](const Plan& p, nb::handle pack, nb::handle workspace, nb::handle stream, Overrides::Uids uids,
             Overrides::Lists shapes, Overrides::Lists strides) {
            execute(*p.facts, pack, workspace, stream, {std::move(uids), std::move(shapes), std::move(strides)});
          },
          nb::arg("pack").none(), nb::arg("workspace").none() = nb::none(), nb::arg("stream").none() = nb::none(),
          nb::arg("override_uids") = nb::none(), nb::arg("override_shapes") = nb::none(),
          nb::arg("override_strides") = nb::none(),
          R"(Checks everything, then launches; nothing is written for a call that is refused. See `Graph.execute`.)")
      .def(
          "check", [](const Plan& p) { p.facts->plan.check(); },
          "Raises `InvalidCallError` (``call.data``) where calls met offsets or indices that do not fit, and forgets it.")
      .def(
          "describe", [](const Plan& p) { return summary_of(p.facts->plan); }, "What the graph became, in one line.")
      .def(
          "explain", [](const Plan& p) { return verglas::describe(p.facts->plan); },
          "Chain, bytes, operations, and every check of a call in the order in which they are made.")
      .def("__repr__", [](const Plan& p) { return "<verglas.Plan " + p.facts->plan.name() + ">"; });

  m.def("load_plan", load, nb::arg("source"), nb::kw_only(), nb::arg("device") = "cuda",
        R"(A plan that ``verglas compile`` wrote, ready to run. It needs the driver, and no compiler.

Parameters
----------
source : path or bytes
    The file, or what is in it. It is code that will run: load only what you trust.
device : str
    ``cuda`` or ``cuda:1``.

Raises
------
IoError
    When it is no such file, was altered, or was written by another version.
UnsupportedError
    When it is for another architecture, or there is no driver.
)");
}

}  // namespace verglas::python
