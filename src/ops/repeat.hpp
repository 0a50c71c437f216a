#pragma once
#include <memory>
#include <span>
#include <vector>

#include "ops/definition.hpp"

namespace verglas::ops {

/// A call that passed every check of its operation, for later ones whose tensors look the same: of those only what depends on
/// addresses is checked, by the plan's own list. Immutable, for any number of threads.
class Repeat {
 public:
  /// `p` is the problem that these tensors made, all outputs among them, and `built` its plan.
  Repeat(std::span<const TensorView> tensors, const Problem& p, const std::shared_ptr<const Built>& built);

  /// Makes the call in full.
  static std::shared_ptr<const Repeat> after(const Operation& operation, std::span<const TensorView> tensors,
                                             const Options& options, float alpha, Stream stream);

  enum class Of : std::uint8_t { all, inputs };
  /// Types, extents, strides, devices and what is known of the memory are those of the first call; addresses do not count.
  bool is_like(std::span<const TensorView> tensors, Of which) const noexcept;
  /// The plans of the first call, as long as the cache has them; counts as a use.
  std::shared_ptr<const Built> find() const;
  /// Launches with these addresses, by place. False where nothing was launched: the plan refuses, and the call made in full says
  /// why. Throws what the driver says.
  bool launch(const Built& built, std::span<const TensorView> tensors, const TensorView& alpha, Stream stream) const;

 private:
  struct Operand {
    std::int8_t place = -1;   ///< −1: alpha
    std::int64_t offset = 0;  ///< bytes from the tensor's first element
  };
  Key key_;
  const Built* built_;  ///< never dereferenced: tells whether the cache has the same one still
  std::vector<TensorView> tensors_;
  std::uint32_t outputs_ = 0;      ///< bit i: the tensor at place i is an output
  std::vector<TensorView> views_;  ///< in the plan's order
  std::vector<Operand> operands_;
};

}  // namespace verglas::ops
