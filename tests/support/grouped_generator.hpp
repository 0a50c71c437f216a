#pragma once
#include "support/graph_generator.hpp"

namespace support {

/// A graph around grouped products, forward or of the weights' gradient, in all their modes.
Case draw_grouped_case(std::uint64_t seed);
/// A legal call of it: sizes of groups from none to all rows, offsets and indices that fit or, now and then, do not.
Call draw_grouped_call(const Case& c, Random& random);

}  // namespace support
