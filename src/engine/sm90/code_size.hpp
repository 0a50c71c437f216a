#pragma once
#include "chain/chain.hpp"
#include "engine/sm90/configuration.hpp"

namespace verglas::sm90 {

/// Instructions of the kernel, about. A drain is unrolled, so its code grows with the tile and the chain, and compiling takes as
/// long as there is code: 0.2 ms of a processor for each instruction.
int instructions_of(const chain::FusionChain& chain, const KernelConfig& config);

/// More than these take above a second.
inline constexpr int kMostInstructions = 4800;
/// The same beside a reduction for tiles of more than 128 accumulators a thread, which take longer; not as long where rows are
/// reduced and an operand of D's size arrives where D will lie: three quarters of the time for an instruction.
inline constexpr int kMostBesideReduction = 3500, kMostBesideTile = 4500;
/// Where else one consumer would have the tiles, which take up to 1.9 times as long on the device.
inline constexpr int kMostAtAll = 6700;

}  // namespace verglas::sm90
