#pragma once
#include <cstdint>

#include "engine/cpu/program.hpp"
#include "numeric/block_scale.hpp"
#include "recipe/recipe.hpp"

namespace verglas::engine::cpu {

/// Where rows of a tile lie in the output.
struct TileAt {
  std::int64_t batch, m0, n0;
  std::int64_t scale_shift = 0;  ///< from a row to one of scales in atoms of each group
  std::int64_t group_first = 0, group_rows = 0;
};

/// One quantised output of one call: its data and its scales.
class Quantiser {
 public:
  Quantiser(const QuantiseOp& op, const recipe::Binding& binding) noexcept
      : op_(op), data_(binding.role[op.role]), scale_(binding.role[op.scale_role < 0 ? op.role : op.scale_role]) {}

  /// Zero in every scale, padding included. Once a call, before any tile.
  void clear() const noexcept;
  /// The same of the rows of one group, which begin at `first` and, with blocks along N, at a row of the scales.
  void clear_group(std::int64_t first, std::int64_t rows, std::int64_t scale_row) const noexcept;
  /// Without scales: n values of row m as they are. With scales: blocks along N of row m: n values from column n0 on, whole
  /// blocks. `spare` takes n lanes.
  void row(const TileAt& at, std::int64_t m, const float* values, std::int64_t n, float* spare) const noexcept;
  /// One block along M for each of n columns: op.block rows of `values`, which are overwritten, from row m on.
  void columns(const TileAt& at, std::int64_t m, float* values, std::int64_t width, std::int64_t n, float* spare) const noexcept;

 private:
  void store(const TileAt& at, std::int64_t m, const float* values, std::int64_t n) const noexcept;
  /// With blocks along M: where the atoms of a group begin, and what they hold.
  std::int64_t base_of(std::int64_t first) const noexcept {
    return numeric::scale_blob_bytes({.rows = scale_.extent[1], .columns = first / op_.block});
  }
  numeric::ScaleShape shape_of(std::int64_t rows) const noexcept {
    return {.rows = scale_.extent[1], .columns = rows / op_.block};
  }
  void put_scale(std::int64_t batch, std::int64_t row, std::int64_t block, std::uint8_t bits) const noexcept;

  const QuantiseOp& op_;
  const recipe::RoleView& data_;
  const recipe::RoleView& scale_;
};

}  // namespace verglas::engine::cpu
