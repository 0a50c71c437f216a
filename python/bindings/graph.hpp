#pragma once
#include <nanobind/nanobind.h>

#include "lifecycle.hpp"

namespace verglas::python {

using GraphClass = nanobind::class_<Lifecycle>;

void bind_products(GraphClass& c);  ///< matmul and reduction
void bind_pointwise(GraphClass& c);
void bind_grouped(GraphClass& c);
void bind_lifecycle(GraphClass& c);

/// "cpu", "cuda" or "cuda:1"; throws graph.device.
Device device_from_text(std::string_view text);

}  // namespace verglas::python
