#pragma once
#include <array>
#include <cstdint>

#include "chain/chain.hpp"
#include "engine/sm90/configuration.hpp"

namespace verglas::sm90 {

/// Seconds of one launch: the largest of tensor, memory and L2 time, and what does not overlap.
/// extents   L, M, N, K
/// drain     cycles that a chain adds to the drain of a unit of 64 rows by 16 columns, see drain_of
/// groups    of rows, where the configuration has them
/// Source    the model and its constants are explained in docs/gpu.md
double predict_seconds(const KernelConfig& config, const std::array<std::int64_t, 4>& extents, int sm_count, double drain = 0,
                       std::int64_t groups = 0);
/// What the sums of tokens take behind these products (combine.cuh).
double combining_seconds(const chain::FusionChain& chain, const KernelConfig& config, int sm_count);

/// L, M, N, K of the description; where parts of K are groups, a part of middling length for each.
std::array<std::int64_t, 4> extents_of(const chain::FusionChain& chain);
double drain_of(const chain::FusionChain& chain);

}  // namespace verglas::sm90
