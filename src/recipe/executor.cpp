#include "recipe/evaluate.hpp"

namespace verglas::recipe {
namespace {

/// Extents, strides and type are the declared ones; a bare address has no others.
bool is_as_declared(const TensorView& v, const DeclaredOperand& declared) noexcept {
  if (v.is_bare()) return true;
  if (v.rank != declared.rank || v.dtype != declared.dtype || v.order != AxisOrder::declared) return false;
  std::int64_t differs = 0;
  const auto rank = static_cast<std::size_t>(declared.rank);
  if (rank == 3) [[likely]] {
    for (std::size_t i = 0; i < 3; ++i) differs |= (v.extent[i] ^ declared.extent[i]) | (v.stride[i] ^ declared.stride[i]);
    return differs == 0;
  }
  for (std::size_t i = 0; i < rank; ++i) differs |= (v.extent[i] ^ declared.extent[i]) | (v.stride[i] ^ declared.stride[i]);
  return differs == 0;
}

bool is_as_declared(const Recipe& r, const Call& call) noexcept {
  if (!r.declaration_passes || call.buffers.size() != r.declared_operands.size()) return false;
  for (std::size_t i = 0; i < call.buffers.size(); ++i)
    if (!is_as_declared(call.buffers[i], r.declared_operands[i])) return false;
  return true;
}

/// Reads no more than it has to: between two calls the driver has used the nearest caches for itself.
void bind_declared(const Recipe& r, const Call& call, Binding& b) noexcept {
  for (int i = 0; i < 5; ++i) b.live[i] = r.declared_live[i];
  for (const int i : {8, 9}) b.live[i] = r.declared_live[i];
  if (r.offsets >= 0)
    for (int i = 5; i < kSymbols; ++i) b.live[i] = r.declared_live[i];
  for (std::size_t i = 0; i < r.declared_views.size(); ++i) {
    b.role[i] = r.declared_views[i];
    b.role[i].data = static_cast<char*>(call.buffers[r.operand_of_role[i]].data);
  }
  b.is_declared = true;
}

[[gnu::always_inline]] inline Status checked(const Recipe& recipe, const Launcher& launcher, const Call& call,
                                             Binding& binding) noexcept {
  const Check* list = recipe.checks.data();
  binding.is_declared = false;
  if (is_as_declared(recipe, call)) {
    bind_declared(recipe, call, binding);
    list = recipe.address_checks.data();
  }
  return evaluate(recipe, list, launcher, call, binding,
                  [](int check, const auto&) { return Status{ErrorCode::invalid_call, static_cast<std::int16_t>(check), 0}; });
}

}  // namespace

Status check(const Recipe& recipe, const Launcher& launcher, const Call& call, Binding& binding) noexcept {
  return checked(recipe, launcher, call, binding);
}

Status launch_again(const Recipe& recipe, const Launcher& launcher, const Call& call, Binding& binding) noexcept {
  binding.is_ready = false;
  const bool refused = recipe.offsets >= 0 && launcher.data_faults() != 0;
  if (refused || launcher.current_device(recipe.device, binding.is_ready) != recipe.device) [[unlikely]] {
    Binding scratch;
    return check(recipe, launcher, call, scratch);  // which refuses for that reason, by the number of the check
  }
  return launcher.launch(binding, call);
}

Status execute(const Recipe& recipe, const Launcher& launcher, const Call& call) noexcept {
  Binding binding;  // not initialised on purpose: the checks fill what the launcher reads
  const Status status = checked(recipe, launcher, call, binding);
  return status.ok() ? launcher.launch(binding, call) : status;
}

}  // namespace verglas::recipe
