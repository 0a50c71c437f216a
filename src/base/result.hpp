#pragma once
#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "base/rules.hpp"

namespace verglas {

/// A "no" that is a value: this engine, or this analysis, does not serve the request. Never an error by itself.
struct Decline {
  Rule rule;
  std::string text;  ///< operand, got, wanted, in words
};

/// A value or the reason why there is none.
template <class T>
using Result = tl::expected<T, Decline>;

inline tl::unexpected<Decline> decline(Rule rule, std::string text) {
  return tl::unexpected<Decline>(Decline{rule, std::move(text)});
}

}  // namespace verglas
