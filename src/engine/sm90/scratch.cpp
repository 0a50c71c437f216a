#include "engine/sm90/scratch.hpp"

#include <algorithm>

namespace verglas::sm90 {
namespace {

constexpr std::uint64_t kAlignment = 128;

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
std::uint64_t ceil_div(std::int64_t x, int y) { return static_cast<std::uint64_t>((x + y - 1) / y); }

}  // namespace

ScratchNeed scratch_need(const KernelConfig& c, std::span<const chain::Reduction> reductions, const std::int64_t* live,
                         std::int64_t top_k, int blocks) noexcept {
  using chain::Symbol;
  const auto extent = [live](Symbol s) { return live[static_cast<std::size_t>(s)]; };
  const int shares = c.schedule == Schedule::pingpong ? 1 : c.consumers;
  const bool of_rows = has_group_rows(c);
  // A group that has rows may end with a piece of its own.
  const std::int64_t more = of_rows ? std::min(extent(Symbol::g), extent(Symbol::m)) : 0;
  const std::uint64_t pieces[3] = {
      static_cast<std::uint64_t>(extent(c.depth_groups ? Symbol::g : Symbol::l)),
      (ceil_div(extent(Symbol::m), c.block_m) + static_cast<std::uint64_t>(more)) * static_cast<std::uint64_t>(shares),
      ceil_div(extent(Symbol::n), c.block_n)};
  ScratchNeed need;
  need.zeroed = meets(c) ? 2 * kAlignment : c.claims ? kAlignment : 0;
  need.products = need.plain = static_cast<std::uint64_t>(blocks) * static_cast<std::uint64_t>(map_bytes(c));
  const auto rows_of_result = static_cast<std::uint64_t>(extent(Symbol::m));
  if (c.combines) {
    const auto rows = static_cast<std::uint64_t>(extent(Symbol::t)), columns = pieces[2] * static_cast<std::uint64_t>(c.block_n);
    need.plain += round_up(4 * rows * (static_cast<std::uint64_t>(c.gemms) * columns + 1));
    need.zeroed += round_up(4 * (rows_of_result * static_cast<std::uint64_t>(top_k) + pieces[1]));
  } else if (meets(c)) {
    need.zeroed += round_up(4 * rows_of_result);
  }
  for (std::size_t j = 0; j < reductions.size(); ++j) {
    const chain::Reduction& r = reductions[j];
    const std::uint64_t length = static_cast<std::uint64_t>(!r.reduces[1] ? c.block_m / shares : r.reduces[2] ? 1 : c.block_n);
    std::uint64_t groups = 1;
    for (std::size_t axis = 0; axis < 3; ++axis) groups *= r.reduces[axis] ? 1 : pieces[axis];
    if (of_rows && !r.reduces[0]) groups *= static_cast<std::uint64_t>(extent(Symbol::g));
    // One partial result of each piece, or of each consumer where it takes no part in an order (Reducer::LASTS).
    const std::uint64_t consumers = static_cast<std::uint64_t>(blocks) * static_cast<std::uint64_t>(c.consumers);
    need.reduction[j].partials = need.zeroed;
    need.zeroed += round_up(std::max(pieces[0] * pieces[1] * pieces[2], consumers) * length * sizeof(float));
    need.reduction[j].counters = need.zeroed;
    need.zeroed += round_up(groups * sizeof(std::uint32_t));
  }
  return need;
}

}  // namespace verglas::sm90
