#include <utility>
#include <vector>

#include "base/rules.hpp"
#include "plan/plan_state.hpp"

namespace verglas {

struct BoundCall::State {
  std::shared_ptr<const plan::CompiledState> plan;
  std::vector<TensorView> views;
  Stream stream;
  Workspace workspace;
  recipe::Binding binding{};
  bool is_checked = false;  ///< the binding is what the checks made of the views

  recipe::Call call() const noexcept { return {views, stream, workspace}; }
};

BoundCall::BoundCall() noexcept = default;
BoundCall::BoundCall(const BoundCall& other) : state_(other.state_ ? std::make_unique<State>(*other.state_) : nullptr) {}
BoundCall& BoundCall::operator=(const BoundCall& other) {
  if (this != &other) state_ = other.state_ ? std::make_unique<State>(*other.state_) : nullptr;
  return *this;
}
BoundCall::BoundCall(BoundCall&&) noexcept = default;
BoundCall& BoundCall::operator=(BoundCall&&) noexcept = default;
BoundCall::~BoundCall() = default;

BoundCall CompiledPlan::bind(std::span<const TensorView> buffers, Stream stream, Workspace workspace) const {
  if (!state_) throw explain({}, buffers);
  BoundCall bound;
  bound.state_ = std::make_unique<BoundCall::State>();
  BoundCall::State& s = *bound.state_;
  s.plan = state_;
  s.views.assign(buffers.begin(), buffers.end());
  s.stream = stream;
  s.workspace = workspace;
  const Status status = recipe::check(state_->compiled.recipe, *state_->compiled.launcher, s.call(), s.binding);
  if (!status.ok()) throw explain(status, buffers, stream, workspace);
  s.is_checked = true;
  return bound;
}

Status BoundCall::operator()() noexcept {
  if (!state_) return {ErrorCode::invalid_call, -1, 0};
  State& s = *state_;
  const engine::Compiled& compiled = s.plan->compiled;
  if (s.is_checked) [[likely]]
    return recipe::launch_again(compiled.recipe, *compiled.launcher, s.call(), s.binding);
  const Status status = recipe::check(compiled.recipe, *compiled.launcher, s.call(), s.binding);
  if (!status.ok()) return status;
  s.is_checked = true;
  return compiled.launcher->launch(s.binding, s.call());
}

bool BoundCall::set_address(int operand, void* address) noexcept {
  if (!state_ || operand < 0 || static_cast<std::size_t>(operand) >= state_->views.size()) return false;
  TensorView& v = state_->views[static_cast<std::size_t>(operand)];
  if (v.data == address) return true;
  v.data = address;
  v.observed_bytes = -1;  // the bytes that were known are those of the buffer before
  state_->is_checked = false;
  return true;
}

Error BoundCall::explain(Status status) const {
  if (!state_) return broken(Rule::plan_stage, "a bound call that no plan has made was launched");
  const engine::Compiled& compiled = state_->plan->compiled;
  return recipe::explain(compiled.recipe, *state_->plan->chain, *compiled.launcher, status, state_->call());
}

}  // namespace verglas
