#include "ops/repeat.hpp"

#include <algorithm>
#include <cstring>

#include "ops/plan_cache.hpp"

namespace verglas::ops {
namespace {

constexpr std::size_t kMostOperands = 2 * kMaxTensors;
constexpr std::uintptr_t kSomewhere = std::uintptr_t{1} << 40;  ///< not null, since to null nothing is added

bool looks_like(const TensorView& x, const TensorView& y) noexcept {
  if (x.dtype != y.dtype || x.rank != y.rank || x.order != y.order || x.read_only != y.read_only || x.device != y.device ||
      x.observed_bytes != y.observed_bytes)
    return false;
  std::int64_t differs = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(std::max<std::int8_t>(x.rank, 0)); ++i)
    differs |= (x.extent[i] ^ y.extent[i]) | (x.stride[i] ^ y.stride[i]);
  return differs == 0;
}

/// The same memory in the words of the graph, so that the recipe sees its own declaration where it is that: its order of axes,
/// and its strides of axes of extent 1, which mean nothing.
void declare(TensorView& v, const OperandInfo& o) noexcept {
  if (v.order == AxisOrder::kernel && v.rank == 3) {
    std::swap(v.extent[1], v.extent[2]);
    std::swap(v.stride[1], v.stride[2]);
    v.order = AxisOrder::declared;
  }
  if (v.rank != static_cast<std::int8_t>(o.dim.size())) return;
  for (std::size_t i = 0; i < o.dim.size(); ++i)
    if (v.extent[i] == 1 && o.dim[i] == 1) v.stride[i] = o.stride[i];
}

}  // namespace

Repeat::Repeat(std::span<const TensorView> tensors, const Problem& p, const std::shared_ptr<const Built>& built)
    : key_(built->key), built_(built.get()), tensors_(tensors.begin(), tensors.end()) {
  const auto infos = p.definition.tensors();
  for (std::size_t i = 0; i < infos.size(); ++i) outputs_ |= (infos[i].is_output ? 1U : 0U) << i;
  const auto operands = built->plan.operands();
  for (std::size_t i = 0; i < built->feeds.size(); ++i) {
    const Feed& feed = built->feeds[i];
    TensorView view = TensorView::address(nullptr);
    Operand operand;
    if (feed.cut != Cut::alpha) {
      TensorView whole = p.at(feed.place);
      whole.data = reinterpret_cast<void*>(kSomewhere);
      view = cut_out(whole, feed);
      operand = {feed.place, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data) - kSomewhere)};
      view.data = nullptr;
      declare(view, operands[i]);
    }
    views_.push_back(view);
    operands_.push_back(operand);
  }
}

std::shared_ptr<const Repeat> Repeat::after(const Operation& operation, std::span<const TensorView> tensors,
                                            const Options& options, float alpha, Stream stream) {
  const Problem p = operation.problem(tensors, options);
  const auto built = built_for(p);
  ops::launch(*built, p, TensorView::address(&alpha), stream);
  return std::make_shared<const Repeat>(tensors, p, built);
}

bool Repeat::is_like(std::span<const TensorView> tensors, Of which) const noexcept {
  if (tensors.size() != tensors_.size()) return false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (which == Of::inputs && (outputs_ >> i & 1U) != 0) continue;
    if (is_given(tensors[i]) != is_given(tensors_[i]) || (is_given(tensors[i]) && !looks_like(tensors[i], tensors_[i])))
      return false;
  }
  return true;
}

std::shared_ptr<const Built> Repeat::find() const {
  auto found = plan_cache().find(key_);
  return found.get() == built_ ? std::move(found) : nullptr;
}

bool Repeat::launch(const Built& built, std::span<const TensorView> tensors, const TensorView& alpha, Stream stream) const {
  alignas(TensorView) std::byte memory[sizeof(TensorView) * kMostOperands];  // not initialised: only some of them are
  auto* const views = reinterpret_cast<TensorView*>(memory);
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].place < 0) {
      new (views + i) TensorView(alpha);
      continue;
    }
    new (views + i) TensorView(views_[i]);
    if (void* const data = tensors[static_cast<std::size_t>(operands_[i].place)].data)
      views[i].data = static_cast<char*>(data) + operands_[i].offset;
  }
  const std::span<const TensorView> all(views, operands_.size());
  const CompiledPlan& plan = built.plan;
  const Status status = plan.execute(all, stream);
  if (!status.ok() && status.code != ErrorCode::invalid_call) throw plan.explain(status, all, stream);
  return status.ok();
}

}  // namespace verglas::ops
