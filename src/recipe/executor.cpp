#include "recipe/evaluate.hpp"

namespace verglas::recipe {

Status execute(const Recipe& recipe, const Launcher& launcher, const Call& call) noexcept {
  Binding binding;  // not initialised on purpose: the checks fill what the launcher reads
  const Status status = evaluate(recipe, launcher, call, binding, [](int check, const auto&) {
    return Status{ErrorCode::invalid_call, static_cast<std::int16_t>(check), 0};
  });
  return status.ok() ? launcher.launch(binding, call) : status;
}

}  // namespace verglas::recipe
