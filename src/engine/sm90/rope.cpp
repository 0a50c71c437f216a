#include "engine/sm90/rope.hpp"

#include <algorithm>
#include <string>

namespace verglas::sm90 {

using chain::FusionChain;

std::optional<Decline> fault_of_rope(const FusionChain& c) {
  if (!has_rope(c)) return std::nullopt;
  const auto no = [](std::string text) { return Decline{Rule::sm90_rope, std::move(text)}; };
  const chain::Step& s = *std::ranges::find_if(c.steps, &chain::Step::is_rope);
  if (c.rope.rotated != kRotated || c.rope.head % kRotated != 0)
    return no(std::to_string(c.rope.rotated) + " of " + std::to_string(c.rope.head) + " columns are rotated");
  if (c.gemms.size() != 1) return no(std::to_string(c.gemms.size()) + " products");
  const chain::Value& read = c.values[static_cast<std::size_t>(s.input[0])];
  if (read.kind != chain::ValueKind::product) return no("tensor '" + read.name + "' is no product");
  if (read.dtype != DataType::bf16) return no("tensor '" + read.name + "' is " + std::string(name_of(read.dtype)));
  for (const int role : {c.rope.cos_role, c.rope.sin_role}) {
    const chain::Role& r = c.roles[static_cast<std::size_t>(role)];
    const chain::Operand& o = c.operands[static_cast<std::size_t>(r.operand)];
    if (o.dtype != DataType::bf16) return no(label_of(c, r) + " is " + std::string(name_of(o.dtype)));
    if (o.stride.back() != 1) return no(label_of(c, r) + " has other strides");
  }
  const auto others = [&](const auto& x) { return x.value != s.value; };
  const auto reads = [&](const chain::Step& x) { return std::ranges::find(x.input, s.value) != x.input.end(); };
  if (!c.stores.empty() || !c.reductions.empty() || std::ranges::any_of(c.quantised, others) ||
      std::ranges::any_of(c.steps, reads))
    return no("more is asked for than what is rotated, quantised");
  for (const chain::Quantise& q : c.quantised) {
    const chain::Role& r = c.roles[static_cast<std::size_t>(q.role)];
    const DataType type = c.operands[static_cast<std::size_t>(r.operand)].dtype;
    if (q.scale_role < 0 || q.block != 32 || type == DataType::fp4_e2m1)
      return no(label_of(c, r) + " is " + std::string(name_of(type)) + " in blocks of " + std::to_string(q.block));
  }
  return std::nullopt;
}

}  // namespace verglas::sm90
