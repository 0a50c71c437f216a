#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "verglas/plan.hpp"
#include "verglas/tensor.hpp"

namespace verglas::python {

/// Extents and strides of operands for one call, with cuDNN Frontend's names: three lists, in elements and the graph's order of
/// axes. What none of them names is read as ever.
struct Overrides {
  using Uids = std::optional<std::vector<std::int64_t>>;
  using Lists = std::optional<std::vector<std::vector<std::int64_t>>>;

  Uids uids;
  Lists shapes, strides;

  bool empty() const noexcept { return !uids && !shapes && !strides; }
  /// Positions of the operands; throws pack.override, pack.unknown, pack.duplicate.
  std::vector<std::size_t> operands_of(const CompiledPlan& plan) const;
  /// Describes the buffer of that operand by entry i. Its type and what is known of its memory stay; an address has the
  /// declared type.
  void apply(std::size_t i, const OperandInfo& operand, TensorView& view) const noexcept;
};

}  // namespace verglas::python
