#include "engine/cpu/groups.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/cpu/arena.hpp"
#include "numeric/block_scale.hpp"

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
  const std::int64_t unit = chain::unit_of_bounds(c);
  if (are_ends) *bound++ = 0;
  for (std::int64_t g = 0; g < to.count; ++g) {
    const std::int64_t given = offsets[g];
    if (given < before || given > rows) to.faults |= recipe::kFaultOffsets;
    before = std::clamp(given, before, rows);
    if (before % unit != 0 && before != rows) {
      to.faults |= recipe::kFaultBlocks;
      before -= before % unit;
    }
    *bound++ = before;
  }
  if (!are_ends) *bound = rows;
}

/// Which token each row has, as far as it makes sense.
class Tokens {
 public:
  Tokens(const chain::FusionChain& c, const Binding& b, std::int64_t tokens) noexcept
      : has_slots_(c.grouping.slot_role >= 0),
        token_(c, b, c.grouping.index_role),
        slot_(c, b, has_slots_ ? c.grouping.slot_role : c.grouping.index_role),
        tokens_(tokens),
        top_k_(c.grouping.top_k) {}

  /// −1 where the row has no token, or no slot of it: of these two, the token −1 is no fault.
  std::int64_t of(std::int64_t row, std::uint32_t& faults) const noexcept {
    const std::int64_t t = token_[row];
    const bool is_token = t >= 0 && t < tokens_;
    const bool is_whole = is_token && (!has_slots_ || (slot(row) >= 0 && slot(row) < top_k_));
    if (!is_whole && t != -1) faults |= is_token ? recipe::kFaultTokenSlot : recipe::kFaultTokenIndex;
    return is_whole ? t : -1;
  }
  std::int64_t slot(std::int64_t row) const noexcept { return slot_[row]; }

 private:
  bool has_slots_;
  Vector token_, slot_;
  std::int64_t tokens_, top_k_;
};

/// Lists of rows for the indices of a call; a row without a place, or without a token, is in no list.
bool read_rows(const chain::FusionChain& c, const Binding& b, std::int64_t rows, std::int64_t* begin, Groups& to) noexcept {
  thread_local Arena arena;
  auto* const indices =
      reinterpret_cast<std::int64_t*>(arena.take(static_cast<std::size_t>(4 * std::max<std::int64_t>(rows, 1))));
  if (!indices) return false;
  std::int64_t* const own = indices + rows;  // rows by position; `indices` is where each comes from, or goes
  const chain::Grouping& g = c.grouping;
  const bool scatters = g.mode == MoeMode::scatter;
  const Tokens tokens(c, b, scatters ? rows / g.top_k : b.live[static_cast<int>(chain::Symbol::t)]);
  std::int64_t position = begin[0];
  for (std::int64_t group = 0; group < to.count; ++group) {
    const std::int64_t first = begin[group], end = begin[group + 1];
    if (group > 0) begin[group] = position;
    for (std::int64_t r = first; r < end; ++r) {
      const std::int64_t t = tokens.of(r, to.faults);
      if (t < 0) continue;
      own[position] = r;
      indices[position++] = scatters ? t * g.top_k + tokens.slot(r) : t;
    }
  }
  const bool is_whole = position == begin[to.count];
  begin[to.count] = position;
  to.matrix_row = scatters ? (is_whole ? nullptr : own) : indices;
  to.chain_row = scatters ? indices : (is_whole ? nullptr : own);
  return true;
}

/// Whether there is no expert, or its weights, or their scales, are addresses and one of them is null or not that of an element.
bool lacks_weights(const chain::FusionChain& c, const Binding& b, std::int64_t expert) noexcept {
  if (b.live[static_cast<int>(chain::Symbol::e)] == 0) return true;
  for (const chain::MatrixInput& in : c.inputs) {
    for (const auto& [table, role] : {std::pair{in.table, in.role}, {in.scale_table, in.scale_role}}) {
      if (table < 0) continue;
      const auto address = reinterpret_cast<std::uintptr_t>(weights_of(b.role[role], expert));
      const auto unit = static_cast<std::uintptr_t>(bytes_of(c.tables[static_cast<std::size_t>(table)].dtype));
      if (address == 0 || address % unit != 0) return true;
    }
  }
  return false;
}

/// The routes of a call, sorted: counted by token, put behind those of the tokens before, and each token's by slot and row.
bool read_routes(const chain::FusionChain& c, const Binding& b, Groups& to) noexcept {
  thread_local Arena of_counts, of_routes;
  const std::int64_t tokens = b.live[static_cast<int>(chain::Symbol::m)];
  const std::int64_t experts = std::max<std::int64_t>(b.live[static_cast<int>(chain::Symbol::e)], 1);
  const auto words = static_cast<std::size_t>(sizeof(Route) / sizeof(float));
  auto* const before = reinterpret_cast<std::int64_t*>(of_counts.take(static_cast<std::size_t>(2 * (tokens + 2))));
  auto* const routes = reinterpret_cast<Route*>(of_routes.take(words * static_cast<std::size_t>(to.all_rows() + 1)));
  if (!before || !routes) return false;
  const Tokens of_rows(c, b, tokens);
  const auto each = [&](auto&& f) {
    for (std::int64_t group = 0; group < to.count; ++group) {
      const bool lacks = to.rows(group) > 0 && lacks_weights(c, b, group % experts);
      for (std::int64_t r = to.begin[group]; r < to.begin[group + 1]; ++r) {
        const std::int64_t t = of_rows.of(r, to.faults);
        if (t < 0) continue;
        if (lacks)
          to.faults |= recipe::kFaultNullWeights;
        else
          f(Route{r, t, static_cast<std::int32_t>(group % experts), static_cast<std::int32_t>(of_rows.slot(r))});
      }
    }
  };
  std::fill_n(before, tokens + 2, 0);
  each([&](const Route& route) { ++before[route.token + 2]; });
  std::partial_sum(before, before + tokens + 2, before);
  each([&](const Route& route) { routes[before[route.token + 1]++] = route; });
  for (std::int64_t t = 0; t < tokens; ++t)
    std::sort(routes + before[t], routes + before[t + 1],
              [](const Route& x, const Route& y) { return std::pair(x.slot, x.row) < std::pair(y.slot, y.row); });
  to.routes = routes;
  to.routes_before = before;
  return true;
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
  auto* const begin = reinterpret_cast<std::int64_t*>(arena.take(static_cast<std::size_t>(8 * (to.count + 1))));
  if (!begin) return false;
  to.tiles_before = begin + to.count + 1;
  std::int64_t* const bound = to.tiles_before + to.count + 1;
  std::int64_t* const scale_row = bound + to.count + 1;
  const bool along_m = c.grouping.axis == chain::GroupedAxis::m, combines = c.grouping.combines();
  const std::int64_t rows = b.live[static_cast<int>(combines ? chain::Symbol::t : along_m ? chain::Symbol::m : chain::Symbol::k)];
  read_bounds(c, b, rows, begin, to);
  to.begin = begin;
  std::copy_n(begin, to.count + 1, bound);
  to.bound = bound;
  to.scale_row = scale_row;
  scale_row[0] = 0;
  for (std::int64_t g = 0; g < to.count; ++g)
    scale_row[g + 1] = scale_row[g] + numeric::ceil_div(to.rows(g), numeric::kScaleAtomRows) * numeric::kScaleAtomRows;
  if (combines) return read_routes(c, b, to);
  return c.grouping.mode == MoeMode::none || read_rows(c, b, rows, begin, to);
}

}  // namespace verglas::engine::cpu
