#pragma once
#include <optional>

#include "base/result.hpp"
#include "chain/chain.hpp"

namespace verglas::sm90 {

inline constexpr int kRotated = 64;  ///< columns of a head that are rotated, and those of a group, of which all are or none

inline bool has_rope(const chain::FusionChain& chain) noexcept { return chain.rope.rotated != 0; }

/// The rule that forbids it, of chains that rotate columns.
std::optional<Decline> fault_of_rope(const chain::FusionChain& chain);

}  // namespace verglas::sm90
