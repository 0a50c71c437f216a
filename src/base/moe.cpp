#include "verglas/moe.hpp"

#include <array>

namespace verglas {
namespace {

constexpr std::array<std::string_view, 4> kModes = {"none", "gather", "scatter", "combine"};
constexpr std::array<std::string_view, 2> kOffsets = {"first_token", "end"};

template <class Enum, std::size_t n>
std::optional<Enum> find(const std::array<std::string_view, n>& names, std::string_view name) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  return std::nullopt;
}

}  // namespace

std::string_view name_of(MoeMode mode) noexcept { return kModes[static_cast<std::size_t>(mode)]; }
std::string_view name_of(MoeOffsets offsets) noexcept { return kOffsets[static_cast<std::size_t>(offsets)]; }
std::optional<MoeMode> moe_mode_from_name(std::string_view name) noexcept { return find<MoeMode>(kModes, name); }
std::optional<MoeOffsets> moe_offsets_from_name(std::string_view name) noexcept { return find<MoeOffsets>(kOffsets, name); }

}  // namespace verglas
