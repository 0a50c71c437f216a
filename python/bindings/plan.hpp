#pragma once
#include <nanobind/nanobind.h>

#include <memory>

#include "callable.hpp"
#include "pack.hpp"

namespace verglas::python {

/// Python's Plan: a compiled plan, shared by the graph that made it and whoever holds it.
struct Plan {
  vectorcallfunc call = call_plan;  ///< first: the interpreter finds it by its place
  std::shared_ptr<const PlanFacts> facts;
};

}  // namespace verglas::python
