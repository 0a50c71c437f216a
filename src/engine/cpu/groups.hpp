#pragma once
#include <cstdint>

#include "chain/chain.hpp"
#include "recipe/recipe.hpp"

namespace verglas::engine::cpu {

/// A row of the tokens on its way to the token of the result to which combine adds it.
struct Route {
  std::int64_t row, token;
  std::int32_t expert, slot;
};

/// Who owns which rows in one call, as its memory says and clamped into its buffers. Positions number the rows that are computed,
/// group by group; where a list is null, position and row are the same. Memory belongs to the thread that read it.
struct Groups {
  std::int64_t count = 0;
  const std::int64_t* begin = nullptr;          ///< count + 1: first position of each group
  const std::int64_t* matrix_row = nullptr;     ///< row of a, by position
  const std::int64_t* chain_row = nullptr;      ///< row that the epilogue computes, by position
  const std::int64_t* bound = nullptr;          ///< count + 1: first row of each group, whatever its rows have
  const std::int64_t* scale_row = nullptr;      ///< count + 1: where it lies in scales in atoms of each group
  std::int64_t* tiles_before = nullptr;         ///< count + 1, filled by number_tiles
  const Route* routes = nullptr;                ///< combine: by token, those of a token by slot and then by row
  const std::int64_t* routes_before = nullptr;  ///< likewise, M + 1: how many the tokens before have
  std::uint32_t faults = 0;                     ///< bits of DataFault

  std::int64_t rows(std::int64_t g) const noexcept { return begin[g + 1] - begin[g]; }
  std::int64_t first() const noexcept { return begin[0]; }
  std::int64_t last() const noexcept { return begin[count]; }
  std::int64_t all_rows() const noexcept { return last() - first(); }

  /// Behind number_tiles.
  bool has_weights(std::int64_t g) const noexcept { return rows(g) == 0 || tiles_before[g + 1] > tiles_before[g]; }

  /// Numbers the tiles group by group and answers how many there are; a group without weights has none.
  std::int64_t number_tiles(const chain::FusionChain& chain, const recipe::Binding& binding, std::int64_t tile_m,
                            std::int64_t tiles_n) noexcept;
  /// The group of a tile.
  std::int64_t group_of(std::int64_t tile) const noexcept;
};

/// Address of the weights of an expert, from a table.
const char* weights_of(const recipe::RoleView& table, std::int64_t expert) noexcept;

/// Reads offsets, indices and slots. False: no memory for the lists.
bool read_groups(const chain::FusionChain& chain, const recipe::Binding& binding, Groups& groups) noexcept;

}  // namespace verglas::engine::cpu
