#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace verglas {

/// Elementwise functions of one, two or three operands. `docs/numerics.md` has every formula, with NaN and edge behaviour.
enum class PointwiseMode : std::uint8_t {
  identity,
  add,
  sub,
  mul,
  div,
  max,
  min,
  pow,
  mod,
  add_square,  // binary from add on
  abs,
  neg,
  ceil,
  floor,
  sqrt,
  rsqrt,
  reciprocal,
  exp,
  log,
  sin,
  cos,
  tan,
  erf,  // unary
  relu,
  leaky_relu,
  elu,
  gelu,
  gelu_approx_tanh,
  sigmoid,
  swish,
  softplus,
  tanh,  // activations
  cmp_eq,
  cmp_neq,
  cmp_gt,
  cmp_ge,
  cmp_lt,
  cmp_le,
  logical_and,
  logical_or,
  logical_not,
  binary_select,
  gen_index,
  relu_bwd,
  leaky_relu_bwd,
  sigmoid_bwd,
  tanh_bwd,
  elu_bwd,
  gelu_bwd,
  gelu_approx_tanh_bwd,
  softplus_bwd,
  swish_bwd,
};
inline constexpr int kPointwiseModeCount = static_cast<int>(PointwiseMode::swish_bwd) + 1;

/// Operands that the mode takes: 1, 2, or 3 (binary_select: input0, input1, mask; backward modes: loss, input).
int arity_of(PointwiseMode mode) noexcept;
/// Name in files, docs and errors: "gelu_approx_tanh".
std::string_view name_of(PointwiseMode mode) noexcept;
std::optional<PointwiseMode> pointwise_from_name(std::string_view name) noexcept;

/// Parameters of the modes that have any; the others ignore them.
struct PointwiseParameters {
  std::optional<float> lower_clip = {};      ///< relu, relu_bwd; 0 when neither this nor a slope is given
  std::optional<float> upper_clip = {};      ///< relu, relu_bwd; none by default
  std::optional<float> negative_slope = {};  ///< relu, relu_bwd: optional; leaky_relu and its backward: required
  float alpha = 1.0F;                        ///< elu, elu_bwd
  float beta = 1.0F;                         ///< swish, softplus and their backward modes
  int axis = -1;                             ///< gen_index: which axis of the tensor
  friend bool operator==(const PointwiseParameters&, const PointwiseParameters&) = default;
};

/// How a reduction combines elements; NaN wins in max, min and amax. On an empty set the identity of the mode remains.
enum class ReductionMode : std::uint8_t { add, mul, min, max, amax, avg, norm1, norm2, mul_no_zeros };
inline constexpr int kReductionModeCount = 9;

std::string_view name_of(ReductionMode mode) noexcept;
std::optional<ReductionMode> reduction_from_name(std::string_view name) noexcept;

}  // namespace verglas
