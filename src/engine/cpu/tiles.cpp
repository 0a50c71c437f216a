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

}  // namespace

Tile tile_for(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  static const std::int64_t wanted = std::clamp<std::int64_t>(sysconf(_SC_NPROCESSORS_CONF), 2, 256);
  const std::int64_t edge = k < kDeep ? kShortEdge : kLongEdge;
  const auto parts = [](std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; };
  const auto even = [&](std::int64_t extent, std::int64_t count) {  // tiles of about one size, a multiple of 16
    return std::max<std::int64_t>(16, ((extent + count - 1) / count + 15) / 16 * 16);
  };
  std::int64_t count_m = parts(std::max<std::int64_t>(m, 1), edge);
  const std::int64_t rows = std::max<std::int64_t>(parts(m, count_m), 1);
  std::int64_t count_n = parts(std::max<std::int64_t>(n, 1), std::min(edge * edge / rows, 2 * edge));  // few rows: longer ones
  if (k < kThin) {
    count_m = parts(std::max<std::int64_t>(m, 1), kThinRows);
    count_n = parts(std::max<std::int64_t>(n, 1), kThinColumns);
  }
  while (l * count_m * count_n < wanted) {
    const bool can_m = m / (2 * count_m) >= kLeastM;
    const bool can_n = n / (2 * count_n) >= kLeastN;
    if (!can_m && !can_n) break;
    if (can_m && (!can_n || m / count_m >= n / count_n))
      count_m *= 2;
    else
      count_n *= 2;
  }
  // Nine tiles on two processors leave one idle for a tenth of the time: one or two more cuts even that out.
  const auto idle = [&](std::int64_t extra_m, std::int64_t extra_n) {
    const std::int64_t tiles = l * (count_m + extra_m) * (count_n + extra_n);
    return static_cast<double>(parts(tiles, wanted) * wanted - tiles) / static_cast<double>(std::max<std::int64_t>(tiles, 1));
  };
  constexpr std::array<std::array<std::int64_t, 2>, 6> kCuts = {{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {2, 0}}};
  for (const auto& [extra_m, extra_n] : kCuts) {
    const bool fits = m / (count_m + extra_m) >= kLeastM && n / (count_n + extra_n) >= kLeastN;
    if (!fits || idle(extra_m, extra_n) > 0.04) continue;
    count_m += extra_m;
    count_n += extra_n;
    break;
  }
  return {even(m, count_m), even(n, count_n)};
}

}  // namespace verglas::engine::cpu
