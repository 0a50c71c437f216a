#include <algorithm>
#include <ostream>

#include "support/grouped_calls.hpp"

namespace verglas {
namespace {

/// Where each row comes from and goes to; rows whose index is none have no owner.
void find_rows(support::Random& r, const GroupedKind& p, Grouping& g) {
  g.tokens = p.mode == MoeMode::gather ? r.between(1, kMostRows) : g.rows;
  g.results = !p.combines() ? g.rows : r.chance(50) ? (g.rows + p.top_k - 1) / p.top_k : r.between(1, kMostRows / p.top_k);
  std::vector<std::int64_t> places(static_cast<std::size_t>(g.rows / p.top_k * p.top_k));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
  r.shuffle(places);
  const bool is_wild = r.chance(8);
  for (std::int64_t row = 0; row < g.rows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    g.from.push_back(row);
    g.to.push_back(row);
    if (p.mode == MoeMode::none) continue;
    const bool gathers = p.mode == MoeMode::gather;
    const std::int64_t tokens = gathers ? g.tokens : p.combines() ? g.results : g.rows / p.top_k;
    std::int64_t token = gathers ? r.between(0, tokens - 1) : at < places.size() ? places[at] / p.top_k : -1;
    std::int64_t slot = gathers || at >= places.size() ? 0 : places[at] % p.top_k;
    // Of those that are added up a place may have several.
    if (p.combines() && (token >= tokens || r.chance(20))) token = r.between(0, tokens - 1), slot = r.between(0, p.top_k - 1);
    if (r.chance(7)) token = -1;
    if (is_wild && r.chance(5)) token = r.pick({tokens, std::int64_t{-2}, std::int64_t{2000000000}});
    if (is_wild && !gathers && r.chance(5)) slot = r.pick({p.top_k, std::int64_t{-1}});
    g.index.push_back(static_cast<std::int32_t>(token));
    g.slot.push_back(static_cast<std::int32_t>(slot));
    const bool has_token = token >= 0 && token < tokens, has_slot = gathers || (slot >= 0 && slot < p.top_k);
    if (g.owner[at] >= 0) g.fits = g.fits && (has_token || token == -1) && (!has_token || has_slot);
    if (!has_token || !has_slot) g.owner[at] = kNoGroup;
    if (gathers)
      g.from[at] = token;
    else
      g.to[at] = p.combines() ? token : token * p.top_k + slot;
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& o, const GroupedKind& k) { return o << k.name; }

Grouping draw_grouping(support::Random& r, const GroupedKind& p) {
  Grouping g;
  g.groups = r.chance(3) ? kMostGroups : r.chance(20) ? r.between(20, 200) : r.between(1, 12);
  g.experts = r.between(1, std::min(g.groups, kMostExperts - (p.in_tensor < 0 ? 0 : 1)));
  g.n = r.chance(50) ? 8 * r.between(1, kMostN / 8) : r.between(1, kMostN);
  const std::int64_t least_k = r.chance(30) ? 257 : 1, most_k = least_k == 1 ? 100 : kMostK;
  g.k = r.chance(50) ? 8 * r.between((least_k + 7) / 8, most_k / 8) : r.between(least_k, most_k);
  if (p.by_address) g.n = kN, g.k = kK;
  const std::int64_t most = std::clamp<std::int64_t>(2400 / g.groups, 3, 300);
  std::int64_t at = r.chance(30) ? r.between(0, 90) : 0;
  if (p.ends) at = 0;
  std::vector<std::int64_t> first, last;
  for (std::int64_t i = 0; i < g.groups; ++i) {
    first.push_back(at);
    at = std::min<std::int64_t>(kMostRows, at + (r.chance(30) ? 0 : r.chance(10) ? 128 : r.between(0, most)));
    last.push_back(at);
  }
  g.rows = std::min<std::int64_t>(kMostRows, p.ends ? at + (r.chance(50) ? r.between(0, 90) : 0) : at);
  if (g.rows == 0) g.rows = 1;
  g.offsets = p.ends ? last : first;
  if (r.chance(8))
    g.offsets[static_cast<std::size_t>(r.between(0, g.groups - 1))] =
        r.pick({std::int64_t{-7}, g.rows + 1, std::int64_t{0}, std::int64_t{2000000000}});
  g.owner.assign(static_cast<std::size_t>(g.rows), kNoGroup);
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < g.groups; ++i) {
    std::int64_t& o = g.offsets[static_cast<std::size_t>(i)];
    g.fits = g.fits && o >= before && o <= g.rows;
    const std::int64_t held = std::clamp(o, before, g.rows);
    if (p.ends)
      std::fill(g.owner.begin() + before, g.owner.begin() + held, i);
    else
      std::fill(g.owner.begin() + held, g.owner.end(), i);
    before = held;
  }
  if (!p.reduces && r.chance(8)) g.experts = 0;
  if (p.by_address && !p.reduces && r.chance(30)) g.null_expert = r.between(0, kMostExperts - 1);
  for (std::int64_t& owner : g.owner)
    if (owner >= 0 && (g.experts == 0 || owner % g.experts + (p.in_tensor == 0 ? 1 : 0) == g.null_expert))
      owner = kNoWeights, g.fits = false;
  find_rows(r, p, g);
  return g;
}

Grouping no_rows(support::Random& random, const GroupedKind& p) {
  Grouping none;
  none.rows = 40, none.groups = 7, none.n = p.by_address ? kN : 64, none.k = p.by_address ? kK : 64;
  none.offsets.assign(7, p.ends ? 0 : 40);
  none.owner.assign(40, kNoGroup);
  find_rows(random, p, none);
  none.fits = true;
  return none;
}

}  // namespace verglas
