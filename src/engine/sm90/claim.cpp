#include <algorithm>

#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "engine/sm90/problem.hpp"

namespace verglas::sm90 {
namespace {

std::string typed(std::string_view what, DataType t) { return std::string(what) + " is " + std::string(name_of(t)); }

}  // namespace

Result<engine::Claim> claim_chain(const chain::FusionChain& c) {
  for (const chain::Role& r : c.roles)
    if (r.block > 0)
      return decline(Rule::sm90_block_scale, label_of(c, r) + " holds scales of blocks of " + std::to_string(r.block));
  if (c.gemms.size() > 2) return decline(Rule::sm90_products, std::to_string(c.gemms.size()) + " matmuls");
  if (c.stores.empty()) return decline(Rule::sm90_epilogue, "no output is dense");
  for (const chain::MatrixInput& in : c.inputs) {
    if (!in.prologue.empty())
      return decline(Rule::sm90_prologue, label_of(c, c.roles[static_cast<std::size_t>(in.role)]) + " goes through a prologue");
    if (in.dtype != c.inputs.front().dtype)
      return decline(Rule::sm90_types, typed(label_of(c, c.roles[static_cast<std::size_t>(in.role)]), in.dtype) + " and " +
                                           typed("another", c.inputs.front().dtype));
  }
  if (const auto epilogue = epilogue_of(c); !epilogue) return tl::unexpected<Decline>(epilogue.error());
  const DataType input = c.inputs.front().dtype;
  if (input != DataType::bf16 && input != DataType::fp16) return decline(Rule::sm90_types, typed("a", input));
  const DataType output = c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(c.stores[0].role)].operand)].dtype;
  if (output != DataType::bf16 && output != DataType::fp16 && output != DataType::fp32)
    return decline(Rule::sm90_types, typed("the output", output));
  return engine::Claim{c.steps.empty() ? "one kernel: TMA, wgmma, sums in fp32"
                                       : "one kernel: TMA, wgmma, sums in fp32, the epilogue in registers"};
}

}  // namespace verglas::sm90
