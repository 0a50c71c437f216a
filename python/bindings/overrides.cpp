#include "overrides.hpp"

#include <algorithm>

#include "base/rules.hpp"
#include "buffers.hpp"

namespace verglas::python {
namespace {

std::string count_of(const auto& list) { return list ? std::to_string(list->size()) : "no"; }

/// Bytes from the first element to the end of the last; −1 where that is not known or does not fit.
std::int64_t reach_of(const TensorView& view) noexcept {
  std::int64_t elements = 1;
  bool over = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    std::int64_t step = 0;
    if (view.extent[i] == 0) return 0;
    if (view.stride[i] < 0) return -1;
    over |= __builtin_mul_overflow(view.extent[i] - 1, view.stride[i], &step);
    over |= __builtin_add_overflow(elements, step, &elements);
  }
  over |= __builtin_mul_overflow(elements, std::int64_t{bytes_of(view.dtype)}, &elements);
  return over ? -1 : elements;
}

}  // namespace

std::vector<std::size_t> Overrides::operands_of(const CompiledPlan& plan) const {
  if (empty()) return {};
  if (!uids || !shapes || !strides || uids->size() != shapes->size() || uids->size() != strides->size())
    throw broken(Rule::pack_override, "call",
                 count_of(uids) + " override_uids, " + count_of(shapes) + " override_shapes and " + count_of(strides) +
                     " override_strides",
                 "three lists of one length");
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < uids->size(); ++i) {
    const int at = plan.operand_index((*uids)[i]);
    if (at < 0) {
      std::string known;
      for (const OperandInfo& o : plan.operands()) known += (known.empty() ? "" : ", ") + std::to_string(o.uid);
      throw broken(Rule::pack_unknown, "override_uids", "the uid " + std::to_string((*uids)[i]), "one of " + known);
    }
    const OperandInfo& operand = plan.operands()[static_cast<std::size_t>(at)];
    if (std::find(found.begin(), found.end(), static_cast<std::size_t>(at)) != found.end())
      throw broken(Rule::pack_duplicate, label_of(operand), "two overrides", "one");
    const std::size_t rank = operand.dim.size();
    if ((*shapes)[i].size() != rank || (*strides)[i].size() != rank)
      throw broken(Rule::pack_override, label_of(operand),
                   std::to_string((*shapes)[i].size()) + " extents and " + std::to_string((*strides)[i].size()) + " strides",
                   std::to_string(rank) + " of each, as the graph declares");
    found.push_back(static_cast<std::size_t>(at));
  }
  return found;
}

void Overrides::apply(std::size_t i, const OperandInfo& operand, TensorView& view) const noexcept {
  if (view.is_bare())
    view.dtype = operand.dtype;
  else if (view.observed_bytes < 0)
    view.observed_bytes = reach_of(view);
  if (operand.dtype == DataType::fp4_e2m1 && view.dtype == DataType::uint8) view.dtype = operand.dtype;  // counts elements now
  view.rank = static_cast<std::int8_t>(operand.dim.size());
  view.order = AxisOrder::declared;
  std::copy((*shapes)[i].begin(), (*shapes)[i].end(), view.extent.begin());
  std::copy((*strides)[i].begin(), (*strides)[i].end(), view.stride.begin());
}

}  // namespace verglas::python
