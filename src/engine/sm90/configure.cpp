#include <algorithm>
#include <array>
#include <span>

#include "base/sha256.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/predict.hpp"
#include "engine/sm90/problem.hpp"
#include "engine/sm90/prologue.hpp"
#include "engine/sm90/source.hpp"
#include "jit/embedded.hpp"

namespace verglas::sm90 {
namespace {

constexpr const char* kTileM = "TILE_M";
constexpr const char* kTileN = "TILE_N";
constexpr const char* kConsumers = "CONSUMERS";
constexpr const char* kPingpong = "PINGPONG";
constexpr const char* kProgrammatic = "PROGRAMMATIC";  ///< programmatic launch: the kernel waits inside for the one before it

struct Shape {
  int m, n, consumers;
  bool pingpong;
};
/// The tile family, widest first: of one product, and of two that share the accumulators.
constexpr std::array kPairShapes = {Shape{128, 128, 2, false}, Shape{128, 96, 2, true}, Shape{128, 64, 2, true},
                                    Shape{64, 128, 1, false}, Shape{64, 64, 1, false}};
constexpr std::array kShapes = {Shape{128, 256, 2, false}, Shape{128, 192, 2, true}, Shape{128, 176, 2, true},
                                Shape{128, 128, 2, true},  Shape{64, 128, 1, false}, Shape{64, 64, 1, false}};
/// Of sums that are promoted: cooperative, since the add hides behind the other consumer's products.
constexpr std::array kPromotedShapes = {Shape{128, 256, 2, false}, Shape{128, 192, 2, false}, Shape{128, 128, 2, false},
                                        Shape{64, 128, 1, false}, Shape{64, 64, 1, false}};
constexpr std::array kPromotedPairShapes = {Shape{128, 128, 2, false}, Shape{128, 64, 2, false}, Shape{64, 128, 1, false},
                                            Shape{64, 64, 1, false}};

/// fp8 sums are, unless the graph lets all of its products go without.
bool is_promoted(const chain::FusionChain& c) {
  return is_fp8(c.inputs.front().dtype) && !std::ranges::all_of(c.gemms, &chain::Gemm::is_fast);
}

Knobs knobs_of(const Shape& s, bool programmatic) {
  return {{kTileM, s.m}, {kTileN, s.n}, {kConsumers, s.consumers}, {kPingpong, s.pingpong}, {kProgrammatic, programmatic}};
}

}  // namespace

KernelConfig configuration_of(const chain::FusionChain& c, const Knobs& knobs) {
  const ProductRoles roles = product_roles(c);
  const chain::Role& out = c.roles[static_cast<std::size_t>(roles.d)];
  KernelConfig k;
  k.gemms = static_cast<int>(c.gemms.size());
  k.a_count = roles.a_count;
  k.b_count = roles.b_count;
  k.reductions = static_cast<int>(c.reductions.size());
  for (const chain::Reduction& r : c.reductions) k.column_reductions += r.reduces[1] && !r.reduces[2] ? 1 : 0;
  for (std::size_t g = 0; g < c.gemms.size(); ++g) {
    k.gemm_a[g] = static_cast<std::uint8_t>(c.gemms[g].a);
    k.gemm_b[g] = static_cast<std::uint8_t>(c.gemms[g].b - roles.a_count);
  }
  k.block_m = static_cast<int>(knobs.at(kTileM));
  k.block_n = static_cast<int>(knobs.at(kTileN));
  k.consumers = static_cast<int>(knobs.at(kConsumers));
  k.schedule = knobs.at(kPingpong) != 0 ? Schedule::pingpong : Schedule::cooperative;
  k.programmatic = knobs.at(kProgrammatic) != 0;
  k.input = c.inputs.front().dtype;
  k.input_b = c.inputs.back().dtype == k.input ? DataType::not_set : c.inputs.back().dtype;
  k.promoted = is_promoted(c);
  const auto stored = [&](int side) {
    const chain::MatrixInput& in = first_input(c, side);
    return in.prologue.empty() ? DataType::not_set : stored_type(c, in);
  };
  k.a_stored = stored(0);
  k.b_stored = stored(1);
  k.output = c.operands[static_cast<std::size_t>(out.operand)].dtype;
  fit_operands(k, problem_of(roles, declared_views(c).data(), input_bytes(k), bytes_of(k.output)));
  // A whole tile staged where three stages still fit beside it; else chunks that take turns. Ping-pong hides its drain, and
  // spends the room on stages.
  k.store_buffers = k.schedule == Schedule::pingpong ? 2 : chunks_of(k);
  k.stages = stages_that_fit(k);
  if (k.stages < 3) {
    k.store_buffers = 2;
    k.stages = stages_that_fit(k);
  }
  return k;
}

std::vector<Knobs> configurations_of(const chain::FusionChain& c, int sm_count) {
  std::vector<std::pair<double, Knobs>> ranked;
  using Family = std::span<const Shape>;
  const bool promoted = is_promoted(c), pair = c.gemms.size() > 1;
  const Family family =
      promoted ? (pair ? Family(kPromotedPairShapes) : Family(kPromotedShapes)) : (pair ? Family(kPairShapes) : Family(kShapes));
  for (const Shape& s : family)
    for (const bool programmatic : {false, true}) {
      Knobs knobs = knobs_of(s, programmatic);
      const KernelConfig k = configuration_of(c, knobs);
      if (k.stages < 1 || fault_of(k)) continue;
      // 176 accumulators leave no registers for addresses: the drain by single elements spills there.
      if (s.pingpong && results_of(k) > 128 && k.d_path != Path::tma) continue;
      // Nor for a second output or a reduction.
      if (results_of(k) > 128 && (c.stores.size() > 1 || !c.reductions.empty())) continue;
      ranked.emplace_back(predict_seconds(k, c.declared, sm_count, drain_of(c)), std::move(knobs));
    }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<Knobs> all;
  for (auto& [seconds, knobs] : ranked) all.push_back(std::move(knobs));
  return all;
}

jit::CompileRequest compile_request(const KernelConfig& config, const EpilogueText& epilogue) {
  jit::CompileRequest request;
  request.kernel = "vg_" + name_of(config);
  const std::string text = epilogue.arguments + epilogue.prologues + epilogue.body;
  if (text != EpilogueText{}.arguments + EpilogueText{}.prologues + EpilogueText{}.body)
    request.kernel += "_" + sha256_hex(text).substr(0, 12);
  request.source = kernel_source(config, epilogue, request.kernel);
  const auto headers = jit::embedded_sources();
  request.headers.assign(headers.begin(), headers.end());
  return request;
}

}  // namespace verglas::sm90
