#pragma once
#include <span>

#include "oracle/bound.hpp"
#include "oracle/graph.hpp"

namespace oracle {

struct Options {
  double ulps = 4;           ///< of fp32, granted to every transcendental function
  bool approximate = false;  ///< arithmetic of a device: exp by exp2, fused multiply-add, approximate division and root, flushing
};

/// One element of a node in fp32 arithmetic; operands already converted. Not for gen_index.
Bound pointwise_fp32(Pointwise mode, const Attributes& attributes, std::span<const Bound> operands, const Options& options);

/// The same in int32 arithmetic: wraps modulo 2^32; division by zero gives 0, and so does its remainder.
Bound pointwise_int32(Pointwise mode, const Attributes& attributes, std::span<const Bound> operands);

/// Whether the mode has a meaning in int32 arithmetic.
bool defined_in_int32(Pointwise mode);

}  // namespace oracle
