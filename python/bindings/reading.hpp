#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "recipe/recipe.hpp"
#include "verglas/plan.hpp"
#include "verglas/tensor.hpp"

/// How a buffer that does not say is read: by its own description, or by the graph's; and B's axes in which order.
/// docs/python.md, "What a buffer means", has the rules in words.
namespace verglas::python {

/// What the rules ask about one operand; settled when the plan is compiled.
struct Reading {
  bool is_list = false;                     ///< offsets, indices or addresses: as many as there are, which may be one
  bool is_scores = false;                   ///< (tokens, slots), unit axes left out or not: as many tokens as there are
  bool is_matrix = false;                   ///< an a, b, their scales, output or reduction: rank 2 or 3
  bool is_b = false;                        ///< fills a role b, maybe others too
  bool is_scalar = false;                   ///< passed by value
  bool is_blob = false;                     ///< interleaved scales: a run of bytes, of any extents
  bool k_major = false, has_major = false;  ///< of b: the declared contiguous axis is K; there is one at all
  int real_axes = 0;                        ///< declared extents other than 1
  std::array<chain::Symbol, 3> symbol{};    ///< of an operand of the epilogue: what its axes follow; else all `one`
  std::int64_t elements = 1;                ///< declared
  std::int64_t reach_bytes = 0;             ///< declared, first element to the end of the last
};

/// One for each operand, in order. The operand that M and K are read from is the first.
std::vector<Reading> readings_of(const CompiledPlan& plan);

/// What the matrices of a call, which come first and have been settled, say of L, M and N, and R, which is as declared.
struct LiveExtents {
  const recipe::Recipe& recipe;
  std::span<const TensorView> views;
  std::int64_t of(chain::Symbol symbol) const noexcept;  ///< −1 where they do not say
};

/// Rewrites the view where the graph's description counts, and sets the axis order of B. `live_k` is the K of the first operand.
void settle(TensorView& view, const OperandInfo& operand, const Reading& reading, std::int64_t live_k,
            const LiveExtents& live) noexcept;

/// A view of fp4 in storage slots, bytes of two elements, becomes one of elements: the packed axis is twice as long.
void count_elements(TensorView& view, int packed) noexcept;
/// The axis of stride 1, where nothing but the view is known; `preferred` where unit extents leave several.
int packed_axis(const TensorView& view, int preferred) noexcept;

/// K as the first operand, an A, has it; −1 where its view does not say.
std::int64_t live_k_of(const TensorView& first, const OperandInfo& operand) noexcept;

}  // namespace verglas::python
