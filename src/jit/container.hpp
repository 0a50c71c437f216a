#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

namespace verglas::jit {

/// Named fields in one checked file: cache entries and ahead-of-time plans. All numbers little-endian.
///
///     89 'V' 'E' 'R' 'G' 'L' 'A' 'S' │ kind u32 │ schema u32 │ file bytes u64 │ fields u32
///     fields × ( name bytes u32 │ name │ value bytes u64 │ value )
///     SHA-256 of everything above
struct Container {
  std::uint32_t kind = 0;
  std::uint32_t schema = 0;
  std::vector<std::pair<std::string, std::string>> fields;

  void add(std::string name, std::string value) { fields.emplace_back(std::move(name), std::move(value)); }
  /// The value of a field; null where there is none.
  const std::string* find(std::string_view name) const noexcept;
  std::string* find(std::string_view name) noexcept;
};

inline constexpr std::string_view kContainerMagic = "\x89VERGLAS";
inline constexpr std::uint32_t kCacheEntryKind = 0x4b434756;  // "VGCK"
inline constexpr std::uint32_t kPlanFileKind = 0x50504756;    // "VGPP"

std::string write_container(const Container& container);

/// Why bytes are no container; `damaged` where they claim to be one of this kind and are not whole.
struct ContainerFault {
  enum class What { not_ours, other_schema, damaged } what;
  std::string text;  ///< a clause: "is cut short: 812 of 4,096 bytes"
};
/// Everything is checked before anything is used: magic, kind, schema, length, checksum, then each field's bounds.
tl::expected<Container, ContainerFault> read_container(std::string_view bytes, std::uint32_t kind, std::uint32_t schema);

}  // namespace verglas::jit
