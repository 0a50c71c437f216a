#include <optional>

#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "engine/sm90/problem.hpp"

namespace verglas::sm90 {
namespace {

/// All A alike and all B alike, of types that wgmma multiplies, summed in the type that it sums them in.
std::optional<Decline> fault_of_types(const chain::FusionChain& c) {
  const auto typed = [&](const chain::MatrixInput& in) {
    return label_of(c, c.roles[static_cast<std::size_t>(in.role)]) + " is " + std::string(name_of(in.dtype));
  };
  const auto input = [&](int i) -> const chain::MatrixInput& { return c.inputs[static_cast<std::size_t>(i)]; };
  const chain::MatrixInput &a = input(c.gemms[0].a), &b = input(c.gemms[0].b);
  for (const chain::Gemm& g : c.gemms) {
    if (input(g.a).dtype != a.dtype) return Decline{Rule::sm90_types, typed(input(g.a)) + ", " + typed(a)};
    if (input(g.b).dtype != b.dtype) return Decline{Rule::sm90_types, typed(input(g.b)) + ", " + typed(b)};
    if (g.accumulate == DataType::fp32 && a.dtype == DataType::fp32)
      return Decline{Rule::sm90_types, typed(a) + " and is summed in fp32; the tensor cores multiply it as tf32"};
  }
  return std::nullopt;
}

}  // namespace

Result<engine::Claim> claim_chain(const chain::FusionChain& c) {
  if (c.grouping.axis != chain::GroupedAxis::none)
    return decline(Rule::sm90_grouped, label_of(c, c.roles[static_cast<std::size_t>(c.grouping.offset_role)]));
  for (const chain::Role& r : c.roles)
    if (r.block > 0)
      return decline(Rule::sm90_block_scale, label_of(c, r) + " holds scales of blocks of " + std::to_string(r.block));
  if (c.gemms.size() > 2) return decline(Rule::sm90_products, std::to_string(c.gemms.size()) + " matmuls");
  if (const auto epilogue = epilogue_of(c); !epilogue) return tl::unexpected<Decline>(epilogue.error());
  if (auto fault = fault_of_types(c)) return tl::unexpected<Decline>(*std::move(fault));
  const std::string sums = c.gemms[0].accumulate == DataType::int32 ? "sums in int32" : "sums in fp32";
  return engine::Claim{c.steps.empty() ? "one kernel: TMA, wgmma, " + sums
                                       : "one kernel: TMA, wgmma, " + sums + ", the epilogue in registers"};
}

}  // namespace verglas::sm90
