#include "verglas/pointwise.hpp"

#include <array>

namespace verglas {
namespace {

struct ModeInfo {
  std::string_view name;
  int arity;
};
// In the order of the enumeration.
constexpr std::array<ModeInfo, kPointwiseModeCount> kModes = {{
    {"identity", 1},
    {"add", 2},
    {"sub", 2},
    {"mul", 2},
    {"div", 2},
    {"max", 2},
    {"min", 2},
    {"pow", 2},
    {"mod", 2},
    {"add_square", 2},
    {"abs", 1},
    {"neg", 1},
    {"ceil", 1},
    {"floor", 1},
    {"sqrt", 1},
    {"rsqrt", 1},
    {"reciprocal", 1},
    {"exp", 1},
    {"log", 1},
    {"sin", 1},
    {"cos", 1},
    {"tan", 1},
    {"erf", 1},
    {"relu", 1},
    {"leaky_relu", 1},
    {"elu", 1},
    {"gelu", 1},
    {"gelu_approx_tanh", 1},
    {"sigmoid", 1},
    {"swish", 1},
    {"softplus", 1},
    {"tanh", 1},
    {"cmp_eq", 2},
    {"cmp_neq", 2},
    {"cmp_gt", 2},
    {"cmp_ge", 2},
    {"cmp_lt", 2},
    {"cmp_le", 2},
    {"logical_and", 2},
    {"logical_or", 2},
    {"logical_not", 1},
    {"binary_select", 3},
    {"gen_index", 1},
    {"relu_bwd", 2},
    {"leaky_relu_bwd", 2},
    {"sigmoid_bwd", 2},
    {"tanh_bwd", 2},
    {"elu_bwd", 2},
    {"gelu_bwd", 2},
    {"gelu_approx_tanh_bwd", 2},
    {"softplus_bwd", 2},
    {"swish_bwd", 2},
}};
constexpr std::array<std::string_view, kReductionModeCount> kReductions = {"add", "mul",   "min",   "max",         "amax",
                                                                           "avg", "norm1", "norm2", "mul_no_zeros"};

/// A number that was made a mode.
constexpr ModeInfo kNoMode = {"no mode", 0};
const ModeInfo& info_of(PointwiseMode mode) noexcept {
  const auto i = static_cast<std::size_t>(mode);
  return i < kModes.size() ? kModes[i] : kNoMode;
}
}  // namespace

int arity_of(PointwiseMode mode) noexcept { return info_of(mode).arity; }
std::string_view name_of(PointwiseMode mode) noexcept { return info_of(mode).name; }

std::optional<PointwiseMode> pointwise_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kModes.size(); ++i)
    if (kModes[i].name == name) return static_cast<PointwiseMode>(i);
  return std::nullopt;
}

std::string_view name_of(ReductionMode mode) noexcept {
  const auto i = static_cast<std::size_t>(mode);
  return i < kReductions.size() ? kReductions[i] : kNoMode.name;
}

std::optional<ReductionMode> reduction_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kReductions.size(); ++i)
    if (kReductions[i] == name) return static_cast<ReductionMode>(i);
  return std::nullopt;
}

}  // namespace verglas
