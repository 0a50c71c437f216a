#include "verglas/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "base/rules.hpp"
#include "engine/flawed_plans.hpp"
#include "plan/plan_state.hpp"
#include "plan/tune.hpp"

namespace verglas {
namespace plan {
namespace {

bool matches(std::string_view name, const std::vector<std::string>& substrings) {
  return std::any_of(substrings.begin(), substrings.end(),
                     [&](const std::string& s) { return name.find(s) != std::string_view::npos; });
}

OperandInfo info_of(const chain::FusionChain& c, std::size_t index) {
  const chain::Operand& o = c.operands[index];
  OperandInfo info{.name = o.name,
                   .uid = o.uid,
                   .roles = {},
                   .dtype = o.dtype,
                   .dim = o.dim,
                   .stride = o.stride,
                   .is_output = o.is_output,
                   .is_host_scalar = o.is_host_scalar};
  for (const chain::Role& r : c.roles)
    if (static_cast<std::size_t>(r.operand) == index) {
      const std::string kind(chain::name_of(r.kind));
      info.roles += info.roles.empty() ? kind : "+" + kind;
    }
  return info;
}

std::shared_ptr<CompiledState> make_state(std::shared_ptr<const chain::FusionChain> chain, const engine::Engine& engine,
                                          Knobs knobs, engine::Compiled compiled) {
  auto state = std::make_shared<CompiledState>();
  state->chain = std::move(chain);
  state->engine = &engine;
  state->knobs = std::move(knobs);
  state->compiled = std::move(compiled);
  for (std::size_t i = 0; i < state->chain->operands.size(); ++i) {
    state->operands.push_back(info_of(*state->chain, i));
    const OperandInfo& o = state->operands.back();
    state->by_uid.emplace(o.uid, static_cast<int>(i));
    const auto [it, fresh] = state->by_name.emplace(o.name, static_cast<int>(i));
    if (!fresh) it->second = -1;
  }
  return state;
}

std::shared_ptr<CompiledState> compile_entry(const PlanState& s, const Entry& e) {
  return make_state(s.chain, *e.engine, e.knobs, e.engine->compile(*s.chain, e.knobs, s.device));
}

}  // namespace

CompiledPlan make_compiled(std::shared_ptr<const chain::FusionChain> chain, const engine::Engine& engine, Knobs knobs,
                           engine::Compiled compiled) {
  return CompiledPlan(make_state(std::move(chain), engine, std::move(knobs), std::move(compiled)));
}

std::shared_ptr<PlanState> make_plans(Result<chain::FusionChain> analysed, const PlanOptions& options) {
  auto s = std::make_shared<PlanState>();
  s->device = options.device;
  if (!analysed) {
    s->declines.push_back({"chain", std::string(verglas::info_of(analysed.error().rule).id), analysed.error().text});
    return s;
  }
  s->chain = std::make_shared<const chain::FusionChain>(std::move(*analysed));
  for (const engine::Engine* e : engine::engine_list()) {
    if (matches(e->name(), options.deselect_engines)) {
      s->declines.push_back({std::string(e->name()), std::string(verglas::info_of(Rule::plan_barred).id), "deselected"});
      continue;
    }
    if (const auto claim = e->claim(*s->chain, s->device); !claim) {
      s->declines.push_back({std::string(e->name()), std::string(verglas::info_of(claim.error().rule).id), claim.error().text});
      continue;
    }
    try {
      for (Knobs& knobs : e->configurations(*s->chain, s->device)) {
        const double seconds = e->predict(*s->chain, knobs, s->device);
        s->entries.push_back({e, std::move(knobs), seconds});
      }
    } catch (const Error& failed) {  // a library's call, say: the other engines serve all the same
      s->declines.push_back({std::string(e->name()), failed.rule(), failed.what()});
    }
  }
  std::stable_sort(s->entries.begin(), s->entries.end(),
                   [](const Entry& x, const Entry& y) { return x.predicted_seconds < y.predicted_seconds; });
  if (s->entries.size() > 1) apply_tuning(*s);
  return s;
}

}  // namespace plan

// ---- PlanList

namespace {
const plan::Entry& entry_at(const std::shared_ptr<plan::PlanState>& s, std::size_t i) {
  const std::size_t count = s ? s->entries.size() : 0;
  if (i >= count)
    throw broken(Rule::plan_index, "plan", "index " + std::to_string(i),
                 count ? "0 to " + std::to_string(count - 1) : "no index: the list is empty");
  return s->entries[i];
}
}  // namespace

std::size_t PlanList::size() const noexcept { return state_ ? state_->entries.size() : 0; }
std::string PlanList::name(std::size_t i) const {
  const plan::Entry& e = entry_at(state_, i);
  return engine::plan_name(*e.engine, e.knobs);
}
std::string PlanList::engine(std::size_t i) const { return std::string(entry_at(state_, i).engine->name()); }
int PlanList::engine_id(std::size_t i) const { return entry_at(state_, i).engine->id(); }
const Knobs& PlanList::knobs(std::size_t i) const { return entry_at(state_, i).knobs; }
double PlanList::predicted_seconds(std::size_t i) const { return entry_at(state_, i).predicted_seconds; }
double PlanList::measured_seconds(std::size_t i) const { return entry_at(state_, i).measured_seconds; }
bool PlanList::barred(std::size_t i) const { return entry_at(state_, i).barred; }

const std::vector<DeclineRecord>& PlanList::declines() const noexcept {
  static const std::vector<DeclineRecord> none;
  return state_ ? state_->declines : none;
}

void PlanList::deselect_engines(const std::vector<std::string>& substrings) {
  if (!state_) return;
  for (plan::Entry& e : state_->entries) e.barred |= plan::matches(engine::plan_name(*e.engine, e.knobs), substrings);
}

void PlanList::select_plan(std::size_t i) {
  entry_at(state_, i);
  state_->selected = static_cast<int>(i);
}

std::size_t PlanList::append(int engine_id, const Knobs& knobs) {
  const auto refuse = [&](const std::string& got, const std::string& want) {
    return broken(Rule::plan_replay, "plan of engine " + std::to_string(engine_id), got, want);
  };
  if (!state_ || !state_->chain) throw refuse("a graph that is no chain", "a chain");
  for (const engine::Engine* e : engine::engine_list()) {
    if (e->id() != engine_id) continue;
    if (const auto claim = e->claim(*state_->chain, state_->device); !claim)
      throw refuse(claim.error().text, "a chain that it claims");
    const std::vector<Knobs> offered = e->configurations(*state_->chain, state_->device);
    if (std::find(offered.begin(), offered.end(), knobs) == offered.end())
      throw refuse(engine::plan_name(*e, knobs), offered.empty() ? "a configuration, of which it offers none"
                                                                 : "one of its " + std::to_string(offered.size()) +
                                                                       " configurations, the first being " +
                                                                       engine::plan_name(*e, offered.front()));
    for (std::size_t i = 0; i < state_->entries.size(); ++i)
      if (state_->entries[i].engine == e && state_->entries[i].knobs == knobs) return i;
    state_->entries.push_back({e, knobs, e->predict(*state_->chain, knobs, state_->device)});
    return state_->entries.size() - 1;
  }
  throw refuse("no engine of that id", "an id that engine_id() has answered");
}

TuneReport PlanList::tune(const TuneOptions& options) {
  if (!state_ || !state_->chain) throw broken(Rule::plan_none, unsupported_text());
  return plan::tune(*state_, options, *plan::make_meter(*state_->chain, state_->device));
}

const std::string& PlanList::tuning_note() const noexcept {
  static const std::string none;
  return state_ ? state_->tuning_note : none;
}

CompiledPlan PlanList::compile(std::size_t i) const { return CompiledPlan(plan::compile_entry(*state_, entry_at(state_, i))); }

CompiledPlan PlanList::compile() const {
  if (size() == 0) throw broken(Rule::plan_none, unsupported_text());
  if (state_->selected >= 0) {
    const auto i = static_cast<std::size_t>(state_->selected);
    if (barred(i)) throw broken(Rule::plan_barred, name(i) + " is selected and deselected");
    return compile(i);
  }
  std::string failures, passed_over;
  std::shared_ptr<plan::CompiledState> first;
  engine::FlawedPlans flawed;
  for (std::size_t k = 0; k < size(); ++k) {
    const std::size_t i = k < state_->order.size() ? state_->order[k] : k;
    if (barred(i)) {
      failures += name(i) + ": deselected; ";
      continue;
    }
    const plan::Entry& entry = state_->entries[i];
    const bool is_measured = measured_seconds(i) > 0;  // what was measured is no prediction
    const engine::Demand demand = entry.engine->demand(*state_->chain, entry.knobs);
    if (!is_measured && flawed.has_alike(*entry.engine, demand)) continue;
    try {
      std::shared_ptr<plan::CompiledState> compiled = plan::compile_entry(*state_, entry);
      const std::string& flaw = compiled->compiled.flaw;
      if (flaw.empty() || is_measured) {
        compiled->passed_over = std::move(passed_over);
        return CompiledPlan(std::move(compiled));
      }
      passed_over += name(i) + ": " + flaw + "\n";
      flawed.add(*entry.engine, demand);
      if (!first) first = std::move(compiled);
    } catch (const Error& e) {
      failures += name(i) + ": " + e.what() + "; ";
    }
  }
  if (first) return CompiledPlan(std::move(first));
  throw broken(Rule::plan_none, failures + unsupported_text());
}

const chain::FusionChain* PlanList::chain() const noexcept { return state_ ? state_->chain.get() : nullptr; }

std::string PlanList::unsupported_text() const {
  std::string s;
  for (const DeclineRecord& d : declines()) s += (s.empty() ? "" : "; ") + d.engine + ": [" + d.rule + "] " + d.text;
  return s.empty() ? "no engine was asked" : s;
}

// ---- CompiledPlan

namespace {
Error nobody_made_it() { return broken(Rule::plan_stage, "a plan was used that nobody has compiled"); }
}  // namespace

std::span<const OperandInfo> CompiledPlan::operands() const noexcept {
  return state_ ? std::span<const OperandInfo>(state_->operands) : std::span<const OperandInfo>();
}
int CompiledPlan::operand_index(std::int64_t uid) const noexcept {
  if (!state_) return -1;
  const auto it = state_->by_uid.find(uid);
  return it == state_->by_uid.end() ? -1 : it->second;
}
int CompiledPlan::operand_index(std::string_view name) const noexcept {
  if (!state_) return -1;
  const auto it = state_->by_name.find(std::string(name));
  return it == state_->by_name.end() ? -1 : it->second;
}

Status CompiledPlan::execute(std::span<const TensorView> buffers, Stream stream, Workspace workspace) const noexcept {
  if (!state_) [[unlikely]]
    return {ErrorCode::invalid_call, -1, 0};
  return recipe::execute(state_->compiled.recipe, *state_->compiled.launcher, {buffers, stream, workspace});
}

Status CompiledPlan::execute(std::span<void* const> addresses, Stream stream, Workspace workspace) const noexcept {
  // Not an array of views, all of which would be written: of a bare one nobody reads the extents.
  alignas(TensorView) std::byte memory[sizeof(TensorView) * recipe::kMaxRoles];
  auto* const views = reinterpret_cast<TensorView*>(memory);
  const std::size_t count = std::min(addresses.size(), std::size_t{recipe::kMaxRoles});
  for (std::size_t i = 0; i < count; ++i) new (views + i) TensorView(TensorView::address(addresses[i]));
  return execute(std::span<const TensorView>(views, count), stream, workspace);
}

Error CompiledPlan::explain(Status status, std::span<const TensorView> buffers, Stream stream, Workspace workspace) const {
  if (!state_) return nobody_made_it();
  return recipe::explain(state_->compiled.recipe, *state_->chain, *state_->compiled.launcher, status,
                         {buffers, stream, workspace});
}

void CompiledPlan::run(std::span<const TensorView> buffers, Stream stream, Workspace workspace) const {
  const Status status = execute(buffers, stream, workspace);
  if (!status.ok()) throw explain(status, buffers, stream, workspace);
}

void CompiledPlan::check() const {
  if (!state_) throw nobody_made_it();
  if (const std::uint32_t faults = state_->compiled.launcher->take_data_faults(); faults != 0)
    throw broken(Rule::call_data, recipe::operands_of_faults(*state_->chain, faults), recipe::text_of_faults(faults),
                 "data that fit");
}

WorkspaceSize CompiledPlan::workspace() const noexcept { return state_ ? state_->compiled.recipe.workspace : WorkspaceSize{}; }
std::string CompiledPlan::name() const { return state_ ? engine::plan_name(*state_->engine, state_->knobs) : std::string(); }
std::string CompiledPlan::engine() const { return state_ ? std::string(state_->engine->name()) : std::string(); }
std::string CompiledPlan::flaw() const { return state_ ? state_->compiled.flaw : std::string(); }
std::string CompiledPlan::passed_over() const { return state_ ? state_->passed_over : std::string(); }
int CompiledPlan::engine_id() const noexcept { return state_ ? state_->engine->id() : -1; }
const Knobs& CompiledPlan::knobs() const noexcept {
  static const Knobs none;
  return state_ ? state_->knobs : none;
}
Device CompiledPlan::device() const noexcept { return state_ ? state_->compiled.recipe.device : Device{}; }
const recipe::Recipe& CompiledPlan::recipe() const noexcept { return state_->compiled.recipe; }
const chain::FusionChain& CompiledPlan::chain() const noexcept { return *state_->chain; }

}  // namespace verglas
