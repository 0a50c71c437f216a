#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace verglas {

/// Named fields as bytes: equal fields give equal bytes, and different fields different bytes, whatever they contain, since each
/// value stands behind its length. Used for keys; readable, so that two keys can be compared with diff.
///
///     arch 7 sm_90a⏎       name, length of the value in bytes, value
class CanonicalBytes {
 public:
  /// `name` has no space and no line end.
  void add(std::string_view name, std::string_view value) {
    bytes_.append(name).append(" ").append(std::to_string(value.size())).append(" ").append(value).append("\n");
  }
  void add(std::string_view name, std::int64_t value) { add(name, std::string_view(std::to_string(value))); }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace verglas
