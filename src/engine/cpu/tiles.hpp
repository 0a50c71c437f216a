#pragma once
#include <cstdint>

namespace verglas::engine::cpu {

/// Tile of the output that one item of work computes; depends on the extents alone, so that the bits do not depend on the
/// threads.
struct Tile {
  std::int64_t m, n;
};
Tile tile_for(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t k) noexcept;
/// The same for products that take turns: as many rows as can be, since all share the packed columns, of which there are
/// `columns` at most.
Tile strip_for(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t columns) noexcept;

}  // namespace verglas::engine::cpu
