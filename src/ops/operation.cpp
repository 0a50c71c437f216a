#include "verglas/ops/operation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "ops/definition.hpp"
#include "ops/plan_cache.hpp"
#include "ops/repeat.hpp"

namespace verglas::ops {
namespace {

using Maker = const Definition& (*)() noexcept;
constexpr std::array<std::pair<std::string_view, Maker>, 5> kOperations = {{{"gemm_amax", gemm_amax},
                                                                            {"gemm_swiglu", gemm_swiglu},
                                                                            {"gemm_srelu", gemm_srelu},
                                                                            {"gemm_dsrelu", gemm_dsrelu},
                                                                            {"gemm_proj_rope_mxfp8", gemm_proj_rope_mxfp8}}};

/// Outputs that a call has to bring along: scales too, where there are quantised data.
void require_outputs(const Problem& p) {
  const auto infos = p.definition.tensors();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const bool is_scales = p.layout[i].dtype != DataType::not_set && p.layout[i].rank == 6;
    if (infos[i].is_output && (!infos[i].is_optional || is_scales)) p.require({static_cast<int>(i)});
  }
}

std::shared_ptr<const Built> build(const Problem& p, const Key& key) {
  Description d(p);
  p.definition.describe(p, d);
  auto built = std::make_shared<Built>(Built{key, d.graph.compile({.device = p.at(0).device, .deselect_engines = {}}), {}});
  for (const OperandInfo& o : built->plan.operands())
    for (const auto& [uid, feed] : d.feeds)
      if (uid == o.uid) built->feeds.push_back(feed);
  return built;
}

}  // namespace

std::shared_ptr<const Built> built_for(const Problem& p) {
  const Key key = key_of(p);
  if (auto found = plan_cache().find(key)) return found;
  return plan_cache().put(key, build(p, key));
}

void launch(const Built& built, const Problem& p, const TensorView& alpha, Stream stream) {
  std::array<TensorView, 2 * kMaxTensors> views;
  for (std::size_t i = 0; i < built.feeds.size(); ++i) {
    const Feed& feed = built.feeds[i];
    views[i] = feed.cut == Cut::alpha ? alpha : cut_out(p.at(feed.place), feed);
  }
  try {
    built.plan.run({views.data(), built.feeds.size()}, stream);
  } catch (const Error& e) {  // of the plan, which does not know whose it is
    if (e.code() != ErrorCode::invalid_call || e.operand().empty()) throw;
    throw Error(e.code(), e.rule(), std::string(p.definition.name()) + ", " + e.operand(), e.got(), e.want());
  }
}

Operation Operation::named(std::string_view name) {
  for (const auto& [known, maker] : kOperations)
    if (known == name) return Operation(maker());
  std::string all;
  for (const std::string_view known : names()) all += (all.empty() ? "" : ", ") + std::string(known);
  throw broken(Rule::op_name, "operation", "'" + std::string(name) + "'", all);
}

std::span<const std::string_view> Operation::names() noexcept {
  static constexpr auto kNames = [] {
    std::array<std::string_view, kOperations.size()> names;
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = kOperations[i].first;
    return names;
  }();
  return kNames;
}

std::string_view Operation::name() const noexcept { return definition_->name(); }
std::span<const TensorInfo> Operation::tensors() const noexcept { return definition_->tensors(); }

std::vector<TensorView> Operation::outputs(std::span<const TensorView> tensors, const Options& options) const {
  const Problem p = problem_of(*definition_, tensors, options);
  std::vector<TensorView> all{p.layout.begin(), p.layout.begin() + static_cast<std::ptrdiff_t>(tensors.size())};
  for (TensorView& v : all) {
    if (v.dtype != DataType::fp4_e2m1 || options.c_dtype != DataType::uint8) continue;
    v.dtype = DataType::uint8;  // bytes of two, as asked
    v.extent[1] /= 2;
    for (const std::size_t i : {0, 2}) v.stride[i] /= 2;
  }
  return all;
}

Problem Operation::problem(std::span<const TensorView> tensors, const Options& options, const Problem* like) const {
  Problem p = problem_of(*definition_, tensors, options, like);
  require_outputs(p);
  return p;
}

CompiledPlan Operation::plan(std::span<const TensorView> tensors, const Options& options) const {
  const Problem p = problem(tensors, options);
  return built_for(p)->plan;
}

void Operation::run(std::span<const TensorView> tensors, const Options& options, float alpha, Stream stream) const {
  const Problem p = problem(tensors, options);
  launch(*built_for(p), p, TensorView::address(&alpha), stream);
}

void Operation::run(std::span<const TensorView> tensors, const Options& options, const TensorView& alpha, Stream stream) const {
  Problem p = problem(tensors, options);
  const bool is_one = std::all_of(alpha.extent.begin(), alpha.extent.begin() + alpha.rank, [](auto e) { return e == 1; });
  if (alpha.dtype != DataType::fp32 || !is_one)
    throw broken(Rule::op_dtype, std::string(name()) + ", alpha", is_one ? std::string(name_of(alpha.dtype)) : "several elements",
                 "one element of fp32");
  p.alpha_in_memory = true;
  launch(*built_for(p), p, TensorView::strided(alpha.data, alpha.dtype, {1, 1, 1}, {1, 1, 1}, alpha.device), stream);
}

/// Calls that passed, of all threads: as many layouts as calls may take turns in, the newest first.
struct Prepared::Last {
  std::mutex mutex;
  std::array<std::shared_ptr<const Repeat>, 4> calls;

  /// The one that looks like these; null where there is none.
  std::shared_ptr<const Repeat> find(std::span<const TensorView> tensors) {
    const std::lock_guard lock(mutex);
    for (const auto& call : calls)
      if (call && call->is_like(tensors, Repeat::Of::all)) return call;
    return nullptr;
  }
  void put(std::shared_ptr<const Repeat> made) {
    const std::lock_guard lock(mutex);
    std::rotate(calls.begin(), calls.end() - 1, calls.end());
    calls.front().swap(made);  // what it replaces dies after the lock
  }
};

namespace {

/// What a tensor is that the sample was not; nothing where both are alike.
void refuse_other(const Problem& p, const Problem& sample, std::size_t i) {
  const auto refuse = [&](std::string got, const std::string& want) {
    throw broken(Rule::op_sample, p.who(static_cast<int>(i)), std::move(got), want + " as the sample");
  };
  const TensorView &v = p.given[i], &like = sample.given[i];
  if (is_given(v) != is_given(like)) refuse(is_given(v) ? "a tensor" : "none", is_given(v) ? "none" : "one");
  if (v.dtype != like.dtype) refuse(std::string(name_of(v.dtype)), std::string(name_of(like.dtype)));
  const auto major = [](std::uint8_t axis) { return "axis " + std::to_string(axis) + " contiguous"; };
  if (p.major[i] != sample.major[i]) refuse(major(p.major[i]), major(sample.major[i]));
}

/// The same of what all tensors have together.
[[noreturn]] void refuse_other(const Problem& p, const Problem& sample) {
  const auto batch = [](const Problem& x) { return "a batch of " + std::to_string(x.l); };
  const Device device = p.at(0).device, wanted = sample.at(0).device;
  std::string got = "strides of another alignment", want = "the alignment";
  if ((p.l == 1) != (sample.l == 1)) {
    got = batch(p);
    want = sample.l == 1 ? batch(sample) : "a batch that is not 1";
  } else if (p.rotated != sample.rotated) {
    got = std::to_string(p.rotated) + " rotated features";
    want = std::to_string(sample.rotated);
  } else if (device != wanted) {
    got = text_of(device);
    want = text_of(wanted);
  }
  throw broken(Rule::op_sample, std::string(p.definition.name()), got, want + " as the samples");
}

}  // namespace

Prepared::Prepared(Operation operation, std::span<const TensorView> samples, const Options& options, float alpha)
    : operation_(operation),
      samples_(samples.begin(), samples.end()),
      options_(options),
      alpha_(alpha),
      last_(std::make_shared<Last>()) {
  for (TensorView& v : samples_)
    if (is_given(v)) v.data = nullptr;
}

bool Prepared::check_support() {
  if (is_checked_) return true;
  operation_.plan(samples_, options_);
  is_checked_ = true;
  return true;
}

void Prepared::compile() {
  if (built_) return;
  const Problem p = operation_.problem(samples_, options_);
  built_ = built_for(p);
  is_checked_ = true;
}

void Prepared::execute(std::span<const TensorView> tensors, std::optional<float> alpha, Stream stream) const {
  if (!built_) throw broken(Rule::plan_stage, std::string(operation_.name()) + " is not compiled yet: call compile()");
  float value = alpha.value_or(alpha_);
  const TensorView scalar = TensorView::address(&value);
  if (const auto last = last_->find(tensors))
    if (last->launch(*built_, tensors, scalar, stream)) return;
  const Problem sample = problem_of(*operation_.definition_, samples_, options_);
  const Problem p = operation_.problem(tensors, options_, &sample);
  if (!is_served(built_->key, key_of(p))) {
    for (std::size_t i = 0; i < tensors.size(); ++i) refuse_other(p, sample, i);
    refuse_other(p, sample);
  }
  launch(*built_, p, scalar, stream);
  last_->put(std::make_shared<const Repeat>(tensors, p, built_));
}

}  // namespace verglas::ops
