#include "engine/sm90/code_size.hpp"

#include <algorithm>
#include <array>

#include "engine/sm90/generate.hpp"
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
    case mul: return 1.25;
    default: return 2;
  }
}

constexpr double kKernel = 435, kDrain = 4.4, kDrainOfWords = 4, kWordsAlongM = 5, kReduction = 5.2, kReductionEnd = 300,
                 kReductionByBlocks = 2.5, kReadByThreads = 17, kQuantiser = 500, kToFp8 = 4, kOfSixteen = 3, kToFp4 = 12,
                 kColumns = 7, kColumnsOfSixteen = 2, kColumnsOf32 = 4.5, kRope = 1580, kCombiner = 600, kCombined = 5;
/// Of an output beside D: staged, or stored by threads; and of one of bytes.
constexpr double kOutput = 5, kOutputByThreads = 20, kOutputOfBytes = 8;
/// Of a side that is decoded, and of each 128 pieces of a stage; and of sums that are scaled, with each 64 columns.
constexpr double kDecoder = 250, kDecodedPieces = 225, kHeldLess = 750, kScaled = 60, kScaledColumns = 260;

double decoding_of(const KernelConfig& k) {
  double all = 0;
  for (const auto& [pieces, lines, count] : {std::array{k.a_decoded, k.block_m, k.a_count}, {k.b_decoded, k.block_n, k.b_count}})
    if (pieces != 0) all += count * (kDecoder + kDecodedPieces * ((pieces * lines + 127) / 128));
  if (k.held) all -= kHeldLess * row_blocks(k) / 2;  // what consumers decode
  return all + (k.scaled ? kScaled + kScaledColumns * k.block_n / 64 : 0);
}

}  // namespace

int instructions_of(const chain::FusionChain& c, const KernelConfig& k) {
  double of_value = 0, fixed = kKernel + decoding_of(k);
  if (k.rotates) return static_cast<int>(fixed + kRope + kDrain * results_of(k));
  for (const chain::Step& s : c.steps) of_value += is_free(c, s) ? 0 : code_of(s.mode);
  const StagedRoles staged = staged_roles(c);
  const int tile = staged.tile.role;
  for (const chain::Value& v : c.values)
    if (v.kind == chain::ValueKind::aux && v.varies[1] && v.varies[2] && v.source != tile) of_value += kReadByThreads;
  for (const chain::Reduction& r : c.reductions)
    of_value += quantiser_of_amax(c, r) >= 0 ? kReductionByBlocks : r.reduces[2] ? kReduction : kColumns;
  fixed += kReductionEnd * static_cast<double>(c.reductions.size());
  for (const chain::Quantise& q : c.quantised) {
    const chain::Role& data = c.roles[static_cast<std::size_t>(q.role)];
    const bool is_fp4 = c.operands[static_cast<std::size_t>(data.operand)].dtype == DataType::fp4_e2m1;
    of_value += is_fp4 ? kToFp4 : q.block == 16 ? kToFp8 + kOfSixteen : kToFp8;
    if (q.along_m) of_value += q.block == 32 ? kColumnsOf32 : kColumnsOfSixteen;
    fixed += kQuantiser;
  }
  for (std::size_t i = 1; i < c.stores.size() && k.run_bytes == 0; ++i) {
    const int role = c.stores[i].role;
    const auto is_staged = [&](const StagedRole& r) { return r.role == role; };
    const bool by_map = std::any_of(staged.further.begin(), staged.further.begin() + staged.further_count, is_staged);
    const DataType t = c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(role)].operand)].dtype;
    of_value += (by_map ? kOutput : kOutputByThreads) + (bytes_of(t) == 1 ? kOutputOfBytes : 0);
  }
  if (k.run_bytes > 0 && !c.stores.empty()) of_value += kOutput * static_cast<double>(c.stores.size() - 1);
  if (k.run_bytes == 0 && k.has_d && bytes_of(k.output) == 4) of_value += kDrainOfWords + (k.d_along_m ? kWordsAlongM : 0);
  if (k.combines) fixed += kCombiner + kCombined * results_of(k);
  // Products that meet make one value of two accumulators.
  const double results = results_of(k), values = k.run_bytes > 0 ? results / 2 : results / k.gemms;
  return static_cast<int>(fixed + kDrain * results + of_value * values);
}

}  // namespace verglas::sm90
