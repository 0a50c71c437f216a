#include "base/rules.hpp"

#include <array>
#include <utility>

namespace verglas {
namespace {
constexpr std::array kRules = {
#define VERGLAS_RULE(name, id, code, holds, remedy) RuleInfo{id, ErrorCode::code, holds, remedy},
#include "base/rules.def"
#undef VERGLAS_RULE
};
}  // namespace

const RuleInfo& info_of(Rule rule) noexcept { return kRules[static_cast<std::size_t>(rule)]; }
int rule_count() noexcept { return static_cast<int>(kRules.size()); }

Error broken(Rule rule, std::string operand, std::string got, std::string want) {
  const RuleInfo& r = info_of(rule);
  return Error(r.code, r.id, std::move(operand), std::move(got), std::move(want));
}
Error broken(Rule rule, std::string text) { return Error(info_of(rule).code, info_of(rule).id, std::move(text)); }

}  // namespace verglas
