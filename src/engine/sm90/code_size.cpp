#include "engine/sm90/code_size.hpp"

#include "engine/sm90/problem.hpp"

namespace verglas::sm90 {
namespace {

/// For one value, as counted in cubins of NVRTC 13.0.
double code_of(PointwiseMode mode) {
  using enum PointwiseMode;
  switch (mode) {
    case sin:
    case cos:
    case tan:
    case pow: return 90;
    case mod: return 68;
    case softplus:
    case elu: return 38;
    case rsqrt:
    case log:
    case gelu_approx_tanh_bwd: return 28;
    case gelu:
    case gelu_bwd:
    case erf: return 22;
    case div:
    case swish_bwd:
    case reciprocal:
    case sqrt:
    case elu_bwd:
    case tanh: return 16.5;
    case tanh_bwd:
    case sigmoid_bwd:
    case exp:
    case gelu_approx_tanh: return 9;
    case swish:
    case sigmoid:
    case softplus_bwd: return 5.5;
    default: return 2;
  }
}

constexpr double kKernel = 435, kDrain = 4.4, kReduction = 7.5, kOutput = 5, kReadByThreads = 8, kQuantiser = 830, kToFp8 = 19,
                 kToFp4 = 45;

}  // namespace

int instructions_of(const chain::FusionChain& c, const KernelConfig& k) {
  double of_value = 0;
  for (const chain::Step& s : c.steps) of_value += code_of(s.mode);
  const int tile = staged_roles(c).tile.role;
  for (const chain::Value& v : c.values)
    if (v.kind == chain::ValueKind::aux && v.varies[1] && v.varies[2] && v.source != tile) of_value += kReadByThreads;
  of_value += kReduction * static_cast<double>(c.reductions.size());
  for (const chain::Quantise& q : c.quantised) {
    const chain::Role& data = c.roles[static_cast<std::size_t>(q.role)];
    const bool is_fp4 = c.operands[static_cast<std::size_t>(data.operand)].dtype == DataType::fp4_e2m1;
    of_value += is_fp4 ? kToFp4 : kToFp8;
  }
  if (!c.stores.empty()) of_value += kOutput * static_cast<double>(c.stores.size() - 1);
  // Products that meet make one value of two accumulators.
  const double results = results_of(k), values = k.run_bytes > 0 ? results / 2 : results / k.gemms;
  return static_cast<int>(kKernel + kQuantiser * static_cast<double>(c.quantised.size()) + kDrain * results + of_value * values);
}

}  // namespace verglas::sm90
