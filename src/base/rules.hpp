#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "verglas/error.hpp"

namespace verglas {

/// All rules, in the order of rules.def.
enum class Rule : std::uint16_t {
#define VERGLAS_RULE(name, id, code, holds, remedy) name,
#include "base/rules.def"
#undef VERGLAS_RULE
};

struct RuleInfo {
  std::string_view id;
  ErrorCode code;
  std::string_view holds;   ///< what must hold
  std::string_view remedy;  ///< what the user can do
};

const RuleInfo& info_of(Rule rule) noexcept;
int rule_count() noexcept;

/// The error of a broken rule; its code is the rule's.
Error broken(Rule rule, std::string operand, std::string got, std::string want);
/// The same for a rule that has nothing to compare.
Error broken(Rule rule, std::string text);

}  // namespace verglas
