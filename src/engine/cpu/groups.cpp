#include "engine/cpu/groups.hpp"

#include <algorithm>

#include "engine/cpu/arena.hpp"

namespace verglas::engine::cpu {
namespace {

using recipe::Binding;
using recipe::RoleView;

/// Elements of an operand of one axis, of int32 or int64.
class Vector {
 public:
  Vector(const chain::FusionChain& c, const Binding& b, int role) noexcept
      : view_(b.role[role]),
        is_wide_(c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(role)].operand)].dtype == DataType::int64),
        stride_(view_.extent[0] > 1   ? view_.stride[0]
                : view_.extent[1] > 1 ? view_.stride[1]
                                      : 0) {}

  std::int64_t operator[](std::int64_t i) const noexcept {
    return is_wide_ ? reinterpret_cast<const std::int64_t*>(view_.data)[i * stride_]
                    : reinterpret_cast<const std::int32_t*>(view_.data)[i * stride_];
  }

 private:
  const RoleView& view_;
  bool is_wide_;
  std::int64_t stride_;
};

/// begin[0 … groups]: bounds that do not fall and stay within the rows, whatever the offsets are.
void read_bounds(const chain::FusionChain& c, const Binding& b, std::int64_t rows, std::int64_t* begin, Groups& to) noexcept {
  const Vector offsets(c, b, c.grouping.offset_role);
  const bool are_ends = c.grouping.offsets == MoeOffsets::end;
  std::int64_t* bound = begin;
  std::int64_t before = 0;
  if (are_ends) *bound++ = 0;
  for (std::int64_t g = 0; g < to.count; ++g) {
    const std::int64_t given = offsets[g];
    if (given < before || given > rows) to.faults |= recipe::kFaultOffsets;
    before = std::clamp(given, before, rows);
    *bound++ = before;
  }
  if (!are_ends) *bound = rows;
}

/// Lists of rows for the indices of a call; a row without a place, or without a token, is in no list. The token −1 is no fault.
bool read_rows(const chain::FusionChain& c, const Binding& b, std::int64_t rows, std::int64_t* begin, Groups& to) noexcept {
  thread_local Arena arena;
  auto* const indices =
      reinterpret_cast<std::int64_t*>(arena.take(static_cast<std::size_t>(4 * std::max<std::int64_t>(rows, 1))));
  if (!indices) return false;
  std::int64_t* const own = indices + rows;  // rows by position; `indices` is where each comes from, or goes
  const chain::Grouping& g = c.grouping;
  const bool scatters = g.mode == MoeMode::scatter;
  const std::int64_t tokens = scatters ? rows / g.top_k : b.live[static_cast<int>(chain::Symbol::t)];
  const Vector token(c, b, g.index_role);
  const Vector slot(c, b, scatters ? g.slot_role : g.index_role);
  std::int64_t position = begin[0];
  for (std::int64_t group = 0; group < to.count; ++group) {
    const std::int64_t first = begin[group], end = begin[group + 1];
    if (group > 0) begin[group] = position;
    for (std::int64_t r = first; r < end; ++r) {
      const std::int64_t t = token[r];
      if (t < 0 || t >= tokens) {
        if (t != -1) to.faults |= recipe::kFaultTokenIndex;
        continue;
      }
      if (scatters && (slot[r] < 0 || slot[r] >= g.top_k)) {
        to.faults |= recipe::kFaultTokenSlot;
        continue;
      }
      own[position] = r;
      indices[position++] = scatters ? t * g.top_k + slot[r] : t;
    }
  }
  const bool is_whole = position == begin[to.count];
  begin[to.count] = position;
  to.matrix_row = scatters ? (is_whole ? nullptr : own) : indices;
  to.chain_row = scatters ? indices : (is_whole ? nullptr : own);
  return true;
}

/// Whether there is no expert, or its weights are addresses and one of them is null.
bool lacks_weights(const chain::FusionChain& c, const Binding& b, std::int64_t expert) noexcept {
  if (b.live[static_cast<int>(chain::Symbol::e)] == 0) return true;
  for (const chain::MatrixInput& in : c.inputs) {
    if (in.table < 0) continue;
    const RoleView& v = b.role[in.role];
    if (weights_of(v, expert) == nullptr) return true;
  }
  return false;
}

}  // namespace

const char* weights_of(const RoleView& table, std::int64_t expert) noexcept {
  return reinterpret_cast<const char* const*>(table.data)[table.extent[0] > 1 ? expert * table.stride[0] : 0];
}

std::int64_t Groups::number_tiles(const chain::FusionChain& c, const Binding& b, std::int64_t tile_m,
                                  std::int64_t tiles_n) noexcept {
  std::int64_t tiles = 0;
  const std::int64_t experts = std::max<std::int64_t>(b.live[static_cast<int>(chain::Symbol::e)], 1);
  for (std::int64_t g = 0; g < count; ++g) {
    tiles_before[g] = tiles;
    if (rows(g) == 0) continue;
    if (lacks_weights(c, b, g % experts))
      faults |= recipe::kFaultNullWeights;
    else
      tiles += (rows(g) + tile_m - 1) / tile_m * tiles_n;
  }
  tiles_before[count] = tiles;
  return tiles;
}

std::int64_t Groups::group_of(std::int64_t item) const noexcept {
  return std::upper_bound(tiles_before, tiles_before + count, item) - tiles_before - 1;
}

bool read_groups(const chain::FusionChain& c, const Binding& b, Groups& to) noexcept {
  thread_local Arena arena;
  to.count = b.live[static_cast<int>(chain::Symbol::g)];
  auto* const begin = reinterpret_cast<std::int64_t*>(arena.take(static_cast<std::size_t>(4 * (to.count + 1))));
  if (!begin) return false;
  to.tiles_before = begin + to.count + 1;
  const bool along_m = c.grouping.axis == chain::GroupedAxis::m;
  const std::int64_t rows = b.live[static_cast<int>(along_m ? chain::Symbol::m : chain::Symbol::k)];
  read_bounds(c, b, rows, begin, to);
  to.begin = begin;
  return c.grouping.mode == MoeMode::none || read_rows(c, b, rows, begin, to);
}

}  // namespace verglas::engine::cpu
