#include "engine/cpu/tiles.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace verglas::engine::cpu {
namespace {

/// Largest tile. Every tile packs its operands anew, so larger is cheaper for the product; small ones keep its epilogue in cache.
constexpr std::int64_t kLongEdge = 1024, kShortEdge = 512;
/// Up to this depth the epilogue outweighs the product, and long rows are what memory likes.
constexpr std::int64_t kThin = 192, kThinRows = 128, kThinColumns = 2048;
/// From this depth on the product outweighs the epilogue.
constexpr std::int64_t kDeep = 1024;
constexpr std::int64_t kLeastM = 64, kLeastN = 128;

std::int64_t parts(std::int64_t extent, std::int64_t tile) noexcept { return (extent + tile - 1) / tile; }
/// Tiles of about one size, a multiple of `unit`.
std::int64_t even(std::int64_t extent, std::int64_t count, std::int64_t unit) noexcept {
  return std::max(unit, (parts(extent, count) + unit - 1) / unit * unit);
}
/// Tiles that there are at least, for each processor one. What the machine has, not what a process may use.
std::int64_t wanted_tiles() noexcept {
  static const std::int64_t wanted = std::clamp<std::int64_t>(sysconf(_SC_NPROCESSORS_CONF), 2, 256);
  return wanted;
}
/// Nine tiles on two processors leave one idle for a tenth of the time: one or two more cuts even that out.
void cut_evenly(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t& count_m, std::int64_t& count_n) noexcept {
  const auto idle = [&](std::int64_t tiles) {
    return static_cast<double>(parts(tiles, wanted_tiles()) * wanted_tiles() - tiles) /
           static_cast<double>(std::max<std::int64_t>(tiles, 1));
  };
  constexpr std::array<std::array<std::int64_t, 2>, 6> kCuts = {{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {2, 0}}};
  for (const auto& [extra_m, extra_n] : kCuts) {
    const std::int64_t more_m = count_m + extra_m, more_n = count_n + extra_n;
    if (m / more_m < kLeastM || n / more_n < kLeastN || idle(l * more_m * more_n) > 0.04) continue;
    count_m = more_m;
    count_n = more_n;
    return;
  }
}

}  // namespace

Tile tile_for(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  const std::int64_t edge = k < kDeep ? kShortEdge : kLongEdge;
  std::int64_t count_m = parts(std::max<std::int64_t>(m, 1), edge);
  const std::int64_t rows = std::max<std::int64_t>(parts(m, count_m), 1);
  std::int64_t count_n = parts(std::max<std::int64_t>(n, 1), std::min(edge * edge / rows, 2 * edge));  // few rows: longer ones
  if (k < kThin) {
    count_m = parts(std::max<std::int64_t>(m, 1), kThinRows);
    count_n = parts(std::max<std::int64_t>(n, 1), kThinColumns);
  }
  while (l * count_m * count_n < wanted_tiles()) {
    const bool can_m = m / (2 * count_m) >= kLeastM;
    const bool can_n = n / (2 * count_n) >= kLeastN;
    if (!can_m && !can_n) break;
    if (can_m && (!can_n || m / count_m >= n / count_n))
      count_m *= 2;
    else
      count_n *= 2;
  }
  cut_evenly(l, m, n, count_m, count_n);
  return {even(m, count_m, 16), even(n, count_n, 16)};
}

Tile strip_for(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t columns) noexcept {
  std::int64_t count_m = 1, count_n = std::max<std::int64_t>(parts(n, columns), 1);
  while (l * count_m * count_n < wanted_tiles() && m / (count_m + 1) >= kLeastM) ++count_m;
  cut_evenly(l, m, n, count_m, count_n);
  return {even(m, count_m, 1), even(n, count_n, 32)};
}

}  // namespace verglas::engine::cpu
