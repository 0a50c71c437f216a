#pragma once
#include <nanobind/nanobind.h>

/// One function a file: each adds its part of the module.
namespace verglas::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_enums(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_tensor(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_operations(nb::module_& m);
void bind_operation_calls(nb::module_& m);
void bind_xla(nb::module_& m);

}  // namespace verglas::python
