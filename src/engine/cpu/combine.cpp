#include "engine/cpu/combine.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/cpu/arena.hpp"
#include "engine/cpu/groups.hpp"
#include "numeric/convert.hpp"

namespace verglas::engine::cpu {
namespace {

/// Routes whose products are kept at once.
constexpr std::int64_t kMostRoutes = 8192;
constexpr std::int64_t kMostTokens = 2048, kColumns = 256;

/// Products of some routes, those of one expert at once: `place` is filled with where each route's row lies among them.
bool multiply_by_expert(std::span<const Route> routes, std::int64_t* place, std::int64_t* order, std::int64_t* rows,
                        std::int64_t columns, RowProduct multiply, float* products) noexcept {
  const std::int64_t count = std::ssize(routes);
  const auto expert = [&](std::int64_t i) { return routes[static_cast<std::size_t>(order[i])].expert; };
  std::iota(order, order + count, 0);
  std::sort(order, order + count, [&](std::int64_t x, std::int64_t y) {
    return std::pair(routes[static_cast<std::size_t>(x)].expert, x) < std::pair(routes[static_cast<std::size_t>(y)].expert, y);
  });
  for (std::int64_t i = 0; i < count; ++i) {
    rows[i] = routes[static_cast<std::size_t>(order[i])].row;
    place[order[i]] = i;
  }
  for (std::int64_t first = 0, end = 0; first < count; first = end) {
    while (end < count && expert(end) == expert(first)) ++end;
    if (!multiply(expert(first), {rows + first, rows + end}, products + first * columns)) return false;
  }
  return true;
}

}  // namespace

Tile tile_of_tokens(std::int64_t tokens, std::int64_t columns) noexcept {
  const std::int64_t parts = std::max<std::int64_t>((tokens + kMostTokens - 1) / kMostTokens, 1);
  return strip_for(parts, (tokens + parts - 1) / parts, columns, kColumns);
}

bool add_routes(const Work& w, const Scores& scores, bool is_integer, RowProduct multiply, float* c, std::int64_t ldc) noexcept {
  for (std::int64_t m = 0; m < w.rows; ++m) std::memset(c + m * ldc, 0, static_cast<std::size_t>(w.columns) * sizeof(float));
  const std::span<const Route> all(w.routed->routes + w.routed->routes_before[w.m0],
                                   w.routed->routes + w.routed->routes_before[w.m0 + w.rows]);
  const auto most = static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(all), kMostRoutes));
  thread_local Arena of_products, of_lists;
  float* const products = of_products.take(most * static_cast<std::size_t>(w.columns));
  auto* const place = reinterpret_cast<std::int64_t*>(of_lists.take(6 * most));
  if (most > 0 && (!products || !place)) return false;
  for (std::size_t first = 0; first < all.size(); first += most) {
    const auto routes = all.subspan(first, std::min(most, all.size() - first));
    if (!multiply_by_expert(routes, place, place + most, place + 2 * most, w.columns, multiply, products)) return false;
    for (std::size_t i = 0; i < routes.size(); ++i) {
      const Route& r = routes[i];
      const std::int64_t at = r.token * scores.view.stride[1] + r.slot * scores.view.stride[2];
      const float score = numeric::to_float(scores.view.data + at * bytes_of(scores.dtype), scores.dtype);
      float *const from = products + place[i] * w.columns, *const to = c + (r.token - w.m0) * ldc;
      if (is_integer) numeric::load_f32(from, DataType::int32, 1, w.columns, from);
      for (std::int64_t n = 0; n < w.columns; ++n) to[n] += score * from[n];
    }
  }
  return true;
}

}  // namespace verglas::engine::cpu
