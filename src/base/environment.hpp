#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// Environment variables: one list of them all (environment.def), and typed reading. Nothing is cached here.
namespace verglas::environment {

enum class Kind : std::uint8_t { integer, text, bytes, flag };

struct Variable {
  const char* name;
  Kind kind;
  std::string_view otherwise;  ///< what holds where it is not set
  std::string_view meaning;
};

std::span<const Variable> variables() noexcept;

/// Empty where the variable is not set, or set to nothing.
std::optional<std::string> text(const char* name);
/// A whole number from `low` to `high`, and nothing else in the variable; else empty.
std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) noexcept;
/// Bytes, with K, M or G (2^10, 2^20, 2^30; either case) behind them if wanted; cut at 2^64 − 1. Else empty.
std::optional<std::uint64_t> bytes(const char* name) noexcept;
/// True for anything but unset, empty, and 0.
bool flag(const char* name) noexcept;

}  // namespace verglas::environment
