#pragma once
#include <memory>

#include "chain/chain.hpp"
#include "engine/cpu/product.hpp"
#include "engine/cpu/program.hpp"
#include "recipe/recipe.hpp"

namespace verglas::engine::cpu {

/// Tile of the output that one item of work computes; depends on the extents alone, so that the bits do not depend on the
/// threads.
struct Tile {
  std::int64_t m, n;
};
Tile tile_for(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t k) noexcept;

std::unique_ptr<recipe::Launcher> make_launcher(const chain::FusionChain& chain, Sgemm sgemm);

}  // namespace verglas::engine::cpu
