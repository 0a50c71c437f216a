#pragma once
#include <array>
#include <vector>

#include "engine/cpu/program.hpp"
#include "engine/cpu/reduce.hpp"
#include "engine/cpu/tiles.hpp"
#include "recipe/recipe.hpp"

namespace verglas::engine::cpu {

struct Groups;

/// One tile of one call.
struct Work {
  const recipe::Binding& b;
  std::int64_t batch, m0, n0, rows, columns;  ///< batch: along the first axis of the epilogue, the group where there are some
  Tile tile;
  std::int64_t k0 = 0, depth = 0;             ///< the part of K that is summed
  std::int64_t expert = 0;                    ///< along the first axis of b
  const std::int64_t* matrix_rows = nullptr;  ///< rows of a, where they do not follow m0
  const std::int64_t* chain_rows = nullptr;   ///< likewise rows of the epilogue
  const Groups* routed = nullptr;             ///< whose products are added up in the rows of the tile: combine
  std::int64_t scale_shift = 0;               ///< from a row to one of scales in atoms of each group
  std::int64_t group_first = 0, group_rows = 0;
  bool in_turns = false;  ///< some rows of all products, then their epilogue, and so on

  std::int64_t row_of(std::int64_t row) const noexcept { return chain_rows ? chain_rows[row] : m0 + row; }
};

/// Sums of one product, row by row.
struct Sums {
  float* at = nullptr;
  std::int64_t ld = 0;
  bool is_scratch = false;
};

/// A step takes its result, up to three converted operands and a converted result; a role takes one.
inline constexpr int kMaxSlots = 5 * chain::kMaxSteps + 2 * chain::kMaxRoles;

/// Rows by slot. What a slot holds now lies in its home, in a product's sums or in an operand.
struct Slots {
  const float* now[kMaxSlots];
  float* home[kMaxSlots + 1];  ///< the last of a program is spare
};

/// The partial results of one tile, by reduction.
using Partials = std::array<Partial, chain::kMaxRoles>;

/// What a chain does behind its products: row by row, from sums to stores and partial reductions.
class Epilogue {
 public:
  Epilogue(const chain::FusionChain& chain, const Program& program);

  /// Rows of scratch, each as wide as a tile.
  std::int64_t scratch_rows() const noexcept;
  /// Lanes of the partial results of one tile of one call.
  std::int64_t partial_lanes(const Tile& tile) const noexcept;
  /// Where they lie among these lanes.
  void lay_out(const Work& w, float* lanes, Partials& partials) const noexcept;

  /// Lays slots out in scratch, computes what is the same for every row and resets the partial results. Once a tile.
  void begin(const Work& w, Slots& slots, float* scratch, const Partials& partials) const noexcept;
  /// Rows of the tile, in order: `sums` begin at the first of them.
  void rows(const Work& w, std::int64_t first, std::int64_t count, const Sums* sums, Slots& slots,
            const Partials& partials) const noexcept;

  DataType type_of(int role) const noexcept {
    return chain_.operands[static_cast<std::size_t>(chain_.roles[static_cast<std::size_t>(role)].operand)].dtype;
  }
  /// Address of the role's element in this tile; axes of extent 1 do not move.
  char* address(int role, const Work& w, std::int64_t row) const noexcept;
  /// Where the row of a store lies as lanes that need no conversion; null if it does not.
  float* in_place(const StoreOp& s, const Work& w, std::int64_t row) const noexcept { return in_place(s.role, s.lane, w, row); }

 private:
  float* in_place(int role, Lane lane, const Work& w, std::int64_t row) const noexcept;
  void fetch_ahead(const Work& w, std::int64_t row) const noexcept;
  void quantise(const Work& w, std::int64_t row, const float* const* slot, float* spare, std::int64_t columns) const noexcept;
  bool is_half(int role) const noexcept { return chain_.roles[static_cast<std::size_t>(role)].symbol[2] == chain::Symbol::h; }
  void round_product(std::size_t g, float* sum, std::int64_t n) const noexcept;
  void run(const Op& op, const Work& w, std::int64_t row, Slots& slots, float* out, std::int64_t n) const noexcept;
  void step(const Op& op, const Work& w, std::int64_t row, const float* const* slot, float* out, std::int64_t n) const noexcept;
  void load(const Op& op, const Work& w, std::int64_t row, float* out, std::int64_t n) const noexcept;
  void rope(const Op& op, const Work& w, std::int64_t row, const Slots& slots, float* out, std::int64_t n) const noexcept;
  void store(const StoreOp& s, const Work& w, std::int64_t row, const float* lanes, std::int64_t n, float* spare) const noexcept;
  Lane add_stored(const StoreOp& s, const char* from, std::int64_t stride, const float* lanes, float* sum,
                  std::int64_t n) const noexcept;

  const chain::FusionChain& chain_;
  const Program& program_;
  std::vector<std::int64_t> gathered_;  ///< rows that each quantiser along M gathers
  bool groups_rows_;
};

}  // namespace verglas::engine::cpu
