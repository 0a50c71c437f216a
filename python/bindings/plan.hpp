#pragma once
#include <nanobind/nanobind.h>

#include <memory>

#include "pack.hpp"

namespace verglas::python {

/// Python's Plan: a compiled plan, shared by the graph that made it and whoever holds it.
struct Plan {
  std::shared_ptr<const PlanFacts> facts;
};

}  // namespace verglas::python
