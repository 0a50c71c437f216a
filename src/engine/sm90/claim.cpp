#include <algorithm>
#include <optional>

#include "engine/sm90/engine.hpp"
#include "engine/sm90/generate.hpp"
#include "engine/sm90/problem.hpp"
#include "engine/sm90/prologue.hpp"
#include "engine/sm90/rope.hpp"
#include "engine/sm90/runs.hpp"

namespace verglas::sm90 {
namespace {

/// All A alike and all B alike, of types that wgmma multiplies, summed in the type that it sums them in.
std::optional<Decline> fault_of_types(const chain::FusionChain& c) {
  const auto typed = [&](const chain::MatrixInput& in) {
    return label_of(c, c.roles[static_cast<std::size_t>(in.role)]) + " is " + std::string(name_of(multiplied_type(c, in)));
  };
  const auto input = [&](int i) -> const chain::MatrixInput& { return c.inputs[static_cast<std::size_t>(i)]; };
  const chain::MatrixInput &a = input(c.gemms[0].a), &b = input(c.gemms[0].b);
  for (const chain::Gemm& g : c.gemms) {
    if (multiplied_type(c, input(g.a)) != multiplied_type(c, a))
      return Decline{Rule::sm90_types, typed(input(g.a)) + ", " + typed(a)};
    if (multiplied_type(c, input(g.b)) != multiplied_type(c, b))
      return Decline{Rule::sm90_types, typed(input(g.b)) + ", " + typed(b)};
    if (g.accumulate == DataType::fp32 && multiplied_type(c, a) == DataType::fp32)
      return Decline{Rule::sm90_types, typed(a) + " and is summed in fp32; the tensor cores multiply it as tf32"};
  }
  return std::nullopt;
}

/// Groups of rows, each with a matrix of a tensor or by address; or groups of K.
std::optional<Decline> fault_of_groups(const chain::FusionChain& c) {
  const chain::Grouping& g = c.grouping;
  if (g.axis == chain::GroupedAxis::none) return std::nullopt;
  const auto no = [&](const std::string& text) {
    return Decline{Rule::sm90_grouped, label_of(c, c.roles[static_cast<std::size_t>(g.offset_role)]) + ": " + text};
  };
  if (g.groups > kMostGroups) return no(std::to_string(g.groups) + " groups of at most " + std::to_string(kMostGroups));
  for (const chain::Store& s : c.stores) {
    const DataType t = c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(s.role)].operand)].dtype;
    if (s.accumulate && t != DataType::fp32 && t != DataType::bf16 && t != DataType::fp16)
      return no("adds to " + std::string(name_of(t)));
  }
  if (c.stores.empty() && g.axis == chain::GroupedAxis::k) return no("the product is not stored");
  return std::nullopt;
}

}  // namespace

Result<engine::Claim> claim_chain(const chain::FusionChain& c) {
  if (auto fault = fault_of_groups(c)) return tl::unexpected<Decline>(*std::move(fault));
  if (auto fault = fault_of_scales(c)) return tl::unexpected<Decline>(*std::move(fault));
  if (c.gemms.size() > 2) return decline(Rule::sm90_products, std::to_string(c.gemms.size()) + " matmuls");
  if (auto fault = fault_of_runs(c)) return tl::unexpected<Decline>(*std::move(fault));
  if (auto fault = fault_of_rope(c)) return tl::unexpected<Decline>(*std::move(fault));
  if (const auto epilogue = epilogue_of(c); !epilogue) return tl::unexpected<Decline>(epilogue.error());
  if (auto fault = fault_of_types(c)) return tl::unexpected<Decline>(*std::move(fault));
  const std::string sums = c.gemms[0].accumulate == DataType::int32 ? "sums in int32" : "sums in fp32";
  return engine::Claim{c.steps.empty() ? "one kernel: TMA, wgmma, " + sums
                                       : "one kernel: TMA, wgmma, " + sums + ", the epilogue in registers"};
}

}  // namespace verglas::sm90
