#pragma once
#include <nanobind/nanobind.h>

#include "buffers.hpp"

namespace verglas::python {

/// An object with __dlpack__ and __dlpack_device__; its capsule is kept, not consumed, and asks for no synchronisation.
void read_dlpack(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep);

}  // namespace verglas::python
