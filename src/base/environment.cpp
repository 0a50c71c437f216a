#include "base/environment.hpp"

#include <charconv>
#include <cstdlib>

namespace verglas::environment {
namespace {

constexpr Variable kVariables[] = {
#define VERGLAS_VARIABLE(name, kind, otherwise, meaning) {name, Kind::kind, otherwise, meaning},
#include "base/environment.def"
#undef VERGLAS_VARIABLE
};

std::string_view read(const char* name) noexcept {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::span<const Variable> variables() noexcept { return kVariables; }

std::optional<std::string> text(const char* name) {
  const std::string_view value = read(name);
  if (value.empty()) return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) noexcept {
  const std::string_view value = read(name);
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc{} || end != value.data() + value.size() || n < low || n > high) return std::nullopt;
  return n;
}

std::optional<std::uint64_t> bytes(const char* name) noexcept {
  const std::string_view value = read(name);
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc{}) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(value.data() + value.size() - end));
  int shift = 0;
  if (unit == "K" || unit == "k") {
    shift = 10;
  } else if (unit == "M" || unit == "m") {
    shift = 20;
  } else if (unit == "G" || unit == "g") {
    shift = 30;
  } else if (!unit.empty()) {
    return std::nullopt;
  }
  return n > UINT64_MAX >> shift ? UINT64_MAX : n << shift;
}

bool flag(const char* name) noexcept {
  const std::string_view value = read(name);
  return !value.empty() && value != "0";
}

}  // namespace verglas::environment
