#include <array>
#include <cstring>

#include "engine/sm90/generate.hpp"
#include "numeric/convert.hpp"

// What the generated epilogue reads at a call, behind the parameter block.
namespace verglas::sm90 {

using chain::FusionChain;

namespace {

void write_scalars(const EpiloguePlan& plan, const FusionChain& chain, const recipe::Binding& binding, std::byte* to) noexcept {
  for (const int role : plan.scalars) {
    const auto operand = static_cast<std::size_t>(chain.roles[static_cast<std::size_t>(role)].operand);
    if (chain.operands[operand].dtype == DataType::int32) {
      std::memcpy(to, binding.role[role].data, 4);
    } else {
      const float value = numeric::to_float(binding.role[role].data, chain.operands[operand].dtype);
      std::memcpy(to, &value, sizeof value);
    }
    to += 4;
  }
}

}  // namespace

void write_addresses(const EpiloguePlan& plan, const FusionChain& chain, const recipe::Binding& binding, const ScratchNeed& need,
                     const Scratch& scratch, std::byte* to) noexcept {
  to += plan.maps.size() * kMapBytes;
  for (const int role : plan.aux) {
    std::memcpy(to, &binding.role[role].data, 8);
    to += 32;
  }
  for (std::size_t j = 0; j < plan.reductions.size(); ++j) {
    const std::array where{scratch.zeroed + need.reduction[j].partials, scratch.zeroed + need.reduction[j].counters,
                           reinterpret_cast<std::uint64_t>(binding.role[plan.reductions[j].role].data)};
    std::memcpy(to, &where, sizeof where);
    to += 56;
  }
  if (!plan.scalars.empty()) write_scalars(plan, chain, binding, to);
}

void write_arguments(const EpiloguePlan& plan, const FusionChain& chain, const recipe::Binding& binding, const ScratchNeed& need,
                     const Scratch& scratch, std::byte* to) noexcept {
  const auto stride = [](const recipe::RoleView& v, int axis) {
    return static_cast<std::uint64_t>(v.extent[axis] > 1 ? v.stride[axis] : 0);
  };
  const auto put = [&to](const auto& value) {
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  };
  to += plan.maps.size() * kMapBytes;
  for (const int role : plan.aux) {
    const recipe::RoleView& v = binding.role[role];
    put(std::array{reinterpret_cast<std::uint64_t>(v.data), stride(v, 0), stride(v, 1), stride(v, 2)});
  }
  for (std::size_t j = 0; j < plan.reductions.size(); ++j) {
    const chain::Reduction& r = plan.reductions[j];
    const recipe::RoleView& v = binding.role[r.role];
    put(std::array{scratch.zeroed + need.reduction[j].partials, scratch.zeroed + need.reduction[j].counters,
                   reinterpret_cast<std::uint64_t>(v.data), stride(v, 0), stride(v, 1), stride(v, 2)});
    double count = 1;
    for (int axis = 0; axis < 3; ++axis)
      if (r.reduces[static_cast<std::size_t>(axis)]) {
        const bool of_groups = axis == 0 && chain.grouping.axis == chain::GroupedAxis::k;
        count *=
            static_cast<double>(of_groups ? binding.live[static_cast<std::size_t>(chain::Symbol::g)] : binding.live[axis + 1]);
      }
    put(static_cast<float>(count));
    put(0.0F);
  }
  write_scalars(plan, chain, binding, to);
}

}  // namespace verglas::sm90
