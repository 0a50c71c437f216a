#pragma once
#include <cstdint>
#include <span>

#include "base/function_ref.hpp"
#include "engine/cpu/epilogue.hpp"

namespace verglas::engine::cpu {

struct Scores {
  const recipe::RoleView& view;  ///< (1, M, slots)
  DataType dtype;
};

/// Multiplies some rows of the tokens with the weights of an expert: (rows, columns of the tile), packed. False: no memory.
using RowProduct = FunctionRef<bool(std::int64_t expert, std::span<const std::int64_t> rows, float* to)>;

/// Tall, since every tile packs the weights of all experts.
Tile tile_of_tokens(std::int64_t tokens, std::int64_t columns) noexcept;

/// The rows of a tile as sums, in fp32 and in the order of the routes, of score times product: c (w.rows, w.columns) with leading
/// dimension ldc. Products of integers are int32. False: no memory.
bool add_routes(const Work& w, const Scores& scores, bool is_integer, RowProduct multiply, float* c, std::int64_t ldc) noexcept;

}  // namespace verglas::engine::cpu
