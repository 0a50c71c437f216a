#include <algorithm>
#include <array>
#include <span>

#include "base/sha256.hpp"
#include "engine/sm90/code_size.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/exchange.hpp"
#include "engine/sm90/generate.hpp"
#include "engine/sm90/predict.hpp"
#include "engine/sm90/problem.hpp"
#include "engine/sm90/prologue.hpp"
#include "engine/sm90/rope.hpp"
#include "engine/sm90/runs.hpp"
#include "engine/sm90/source.hpp"
#include "jit/embedded.hpp"

namespace verglas::sm90 {
namespace {

constexpr const char* kTileM = "TILE_M";
constexpr const char* kTileN = "TILE_N";
constexpr const char* kConsumers = "CONSUMERS";
constexpr const char* kPingpong = "PINGPONG";
constexpr const char* kProgrammatic = "PROGRAMMATIC";  ///< programmatic launch: the kernel waits inside for the one before it
constexpr const char* kSplit = "SPLIT";                ///< blocks of a cluster that share the K of a tile
constexpr const char* kExchanged = "EXCHANGED";        ///< rows and columns change places
constexpr const char* kHeld = "A_IN_REGISTERS";        ///< consumers decode A; of chains that have what they can decode

struct Shape {
  int m, n, consumers;
  bool pingpong;
  int split = 1;
  bool exchanged = false;
  bool held = false;
};
/// The tile family, widest first: of one product, and of two that share the accumulators.
constexpr std::array kPairShapes = {Shape{128, 128, 2, false}, Shape{128, 96, 2, true}, Shape{128, 64, 2, true},
                                    Shape{64, 128, 1, false}, Shape{64, 64, 1, false}};
constexpr std::array kShapes = {Shape{128, 256, 2, false}, Shape{128, 192, 2, true}, Shape{128, 176, 2, true},
                                Shape{128, 128, 2, true},  Shape{64, 128, 1, false}, Shape{64, 64, 1, false}};
/// Where tiles are so few that half of the chip stands still, two blocks share the K of each.
constexpr std::array kSplitShapes = {Shape{128, 64, 2, false, 2}, Shape{64, 64, 1, false, 2}};
/// Where every SM but few has one tile of these, and no more: its drain is half as long as that of 64 rows by one consumer.
constexpr Shape kOneWaveShape{128, 64, 2, false};
/// Up to so many rows, or columns, D is narrow: that side becomes the columns of the kernel, since its rows come in blocks of 64.
constexpr std::int64_t kNarrow = 32;
/// The same beside fp4 that consumers decode, as long as few rows are.
constexpr std::int64_t kFewRows = 64;

/// Tiles that a block finds at its start where they are short.
constexpr int kListed = 256;

/// Rows of A of a box at the end of a group.
constexpr int kTailRows = 16;

/// Where operands are decoded, or shifted, by two warpgroups.
constexpr Shape kDecodedShape = {128, 192, 2, false};

/// Where consumers decode A to registers.
constexpr Shape kHeldShape = {256, 128, 2, false, 1, false, true};

/// Where consumers cast A to registers: cooperative, so that one casts while products of the other run.
constexpr std::array kCastShapes = {Shape{128, 256, 2, false}, Shape{128, 128, 2, false}, Shape{64, 128, 1, false}};

/// Of sums that are promoted: cooperative, since the add hides behind the other consumer's products.
constexpr std::array kPromotedShapes = {Shape{128, 256, 2, false}, Shape{128, 192, 2, false}, Shape{128, 128, 2, false},
                                        Shape{64, 128, 1, false}, Shape{64, 64, 1, false}};
constexpr std::array kPromotedPairShapes = {Shape{128, 128, 2, false}, Shape{128, 64, 2, false}, Shape{64, 128, 1, false},
                                            Shape{64, 64, 1, false}};

/// fp8 sums are, unless the graph lets all of its products go without.
bool is_promoted(const chain::FusionChain& c) {
  return is_fp8(multiplied_type(c, first_input(c, 0))) &&
         (scales_sums(c) || !std::ranges::all_of(c.gemms, &chain::Gemm::is_fast));
}

/// A that consumers decode, or cast.
bool enters_from_registers(const chain::FusionChain& c) { return may_be_held(c) || may_be_cast(c); }

Knobs knobs_of(const Shape& s, bool programmatic, bool holds) {
  Knobs knobs = {{kTileM, s.m},
                 {kTileN, s.n},
                 {kConsumers, s.consumers},
                 {kPingpong, s.pingpong},
                 {kProgrammatic, programmatic},
                 {kSplit, s.split},
                 {kExchanged, s.exchanged}};
  if (holds) knobs[kHeld] = s.held;
  return knobs;
}

std::vector<Shape> family_of(const chain::FusionChain& c, int sm_count) {
  using Family = std::span<const Shape>;
  const bool promoted = is_promoted(c), pair = c.gemms.size() > 1;
  const Family family =
      promoted ? (pair ? Family(kPromotedPairShapes) : Family(kPromotedShapes)) : (pair ? Family(kPairShapes) : Family(kShapes));
  std::vector<Shape> all(family.begin(), family.end());
  const auto by_two = [&] {
    return std::ranges::any_of(c.inputs, [&](const auto& in) { return pieces_decoded(c, in) != 0; }) ||
           configuration_of(c, knobs_of(kDecodedShape, false, false)).producers == 2;
  };
  if (!pair && by_two()) all.push_back(kDecodedShape);
  const bool has_short_tiles = c.declared[1] <= 64 * c.grouping.groups &&
                               c.declared[3] * bytes_of(multiplied_type(c, first_input(c, 0))) <= kShortTile * kLineBytes;
  if (c.grouping.has_group_rows() && !pair && !promoted && has_short_tiles)
    all.insert(all.end(), {{64, 256, 2, true}, {64, 128, 2, true}});
  if (c.grouping.axis != chain::GroupedAxis::none) return all;
  const auto [l, m, n, k] = c.declared;
  for (const Shape& s : kSplitShapes)
    if (l * ((m + s.m - 1) / s.m) * ((n + s.n - 1) / s.n) <= sm_count / 2) all.push_back(s);
  const std::int64_t tiles = l * ((m + kOneWaveShape.m - 1) / kOneWaveShape.m) * ((n + kOneWaveShape.n - 1) / kOneWaveShape.n);
  if (tiles > sm_count / 2 && tiles <= sm_count) all.push_back(kOneWaveShape);
  const bool turned = m < n;
  const std::int64_t narrow = turned ? m : n;
  for (const int split : {1, 2})
    if (narrow <= kNarrow) all.push_back({64, narrow > 16 ? 32 : 16, 1, false, split, turned});
  // Consumers decode A where both are narrow, or where few rows leave a narrow A to be all there is to read.
  const chain::FusionChain other = exchanged(c);
  if (may_be_held(c) && may_be_held(other)) all.push_back(kHeldShape);
  for (const int consumers : {1, 2})
    for (const int split : {1, 2})
      if (narrow <= kFewRows && may_be_held(turned ? other : c))
        all.push_back({64 * consumers, narrow > 32 ? 64 : narrow > 16 ? 32 : 16, consumers, false, split, turned, true});
  for (const bool exchanges : {false, true}) {
    if (!may_be_cast(exchanges ? other : c)) continue;
    for (Shape s : kCastShapes) {
      s.exchanged = exchanges;
      s.held = true;
      all.push_back(s);
    }
    for (const int split : {1, 2})
      if (narrow <= kNarrow && exchanges == turned) all.push_back({64, narrow > 16 ? 32 : 16, 1, false, split, turned, true});
  }
  return all;
}

/// What is kept beside the accumulators while they drain, where A enters from registers: little fits.
bool keeps_much(const chain::FusionChain& c, const KernelConfig& k) {
  const auto is_of_all = [](const chain::Reduction& r) { return r.reduces[1] && r.reduces[2]; };
  if (!has_runs(c) && c.quantised.empty())
    return k.reductions > 2 || (k.column_reductions > 0 && (k.reductions > 1 || k.loads_tile));
  if (c.reductions.size() > 1 || !std::ranges::all_of(c.reductions, is_of_all)) return true;
  if (has_runs(c)) return c.quantised.size() + c.reductions.size() > 1;
  const std::size_t found = c.reductions.size() + c.quantised.size();
  const auto is_identity = [](const chain::Step& s) { return s.mode == PointwiseMode::identity; };
  return (found > 0 && !std::ranges::all_of(c.steps, is_identity)) ||
         (c.quantised.size() > 1 && (found > 2 || !c.stores.empty()));
}

/// What has no registers beside the places and tables of groups: seen of drawn chains. One consumer has enough.
bool spills_beside_groups(const KernelConfig& k) {
  if (!has_group_rows(k) || k.consumers == 1) return false;
  const bool runs = k.run_bytes > 0, reduces = k.reductions > 0;
  if (k.schedule == Schedule::pingpong && reduces && results_of(k) > 176 && meets(k)) return true;
  if (k.schedule == Schedule::pingpong && reduces && (k.producers > 1 || (results_of(k) > 128 && k.vectors > 0))) return true;
  if (k.quantisers == 0 || k.vectors == 0) return false;
  return (runs && k.gathers) || (k.addressed != 0 && k.quantisers > 1) || (k.block_n > 192 && (reduces || (runs && k.promoted)));
}

}  // namespace

bool exchanges(const Knobs& knobs) { return knobs.at(kExchanged) != 0; }
Knobs code_of(Knobs knobs) {
  knobs.erase(kProgrammatic);
  return knobs;
}
chain::FusionChain seen_chain(const chain::FusionChain& c, const Knobs& knobs) {
  return exchanges(knobs) ? exchanged(c) : has_runs(c) ? in_runs(c).chain : c;
}
EpiloguePlan epilogue_of(const chain::FusionChain& c, const Knobs& knobs) {
  return has_runs(c) ? epilogue_of_runs(c) : *epilogue_of(seen_chain(c, knobs));
}

KernelConfig configuration_of(const chain::FusionChain& chain, const Knobs& knobs) {
  const chain::FusionChain c = seen_chain(chain, knobs);
  const ProductRoles roles = product_roles(c);
  KernelConfig k;
  k.rotates = has_rope(chain);
  k.run_bytes = has_runs(chain) ? run_bytes_of(chain) : k.rotates ? kChunkBytes : 0;
  k.gemms = k.run_bytes > 0 ? 1 : static_cast<int>(c.gemms.size());
  k.a_count = roles.a_count;
  k.b_count = roles.b_count;
  k.reductions = static_cast<int>(c.reductions.size());
  k.quantisers = static_cast<int>(c.quantised.size());
  for (const chain::Quantise& q : c.quantised) k.column_quantisers += q.along_m && !k.rotates ? 1 : 0;
  for (const chain::Reduction& r : c.reductions) k.column_reductions += r.reduces[1] && !r.reduces[2] ? 1 : 0;
  for (std::size_t g = 0; g < c.gemms.size(); ++g) {
    k.gemm_a[g] = static_cast<std::uint8_t>(c.gemms[g].a);
    k.gemm_b[g] = static_cast<std::uint8_t>(c.gemms[g].b - roles.a_count);
  }
  k.block_m = static_cast<int>(knobs.at(kTileM));
  k.block_n = static_cast<int>(knobs.at(kTileN));
  k.consumers = static_cast<int>(knobs.at(kConsumers));
  k.schedule = knobs.at(kPingpong) != 0 ? Schedule::pingpong : Schedule::cooperative;
  k.split = static_cast<int>(knobs.at(kSplit));
  k.programmatic = knobs.at(kProgrammatic) != 0;
  k.input = multiplied_type(c, first_input(c, 0));
  const DataType input_b = multiplied_type(c, first_input(c, 1));
  k.input_b = input_b == k.input ? DataType::not_set : input_b;
  k.scaled = scales_sums(c);
  k.a_decoded = pieces_decoded(c, first_input(c, 0));
  k.b_decoded = pieces_decoded(c, first_input(c, 1));
  const auto held = knobs.find(kHeld);
  k.held = held != knobs.end() && held->second != 0;
  k.casts = k.held && may_be_cast(c);
  if (k.casts) k.held = false, k.a_decoded = 0;
  k.carried = k.held && k.block_n <= kFewRows;
  k.joined = k.carried ? 4 : 1;
  k.promoted = is_promoted(c);
  const auto stored = [&](int side) {
    const chain::MatrixInput& in = first_input(c, side);
    return in.prologue.empty() && pieces_decoded(c, in) == 0 ? DataType::not_set : stored_type(c, in);
  };
  k.a_stored = stored(0);
  k.b_stored = stored(1);
  k.has_d = roles.d >= 0;
  if (k.has_d) k.output = c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(roles.d)].operand)].dtype;
  if (c.grouping.axis != chain::GroupedAxis::none) {
    k.groups = kMostGroups;
    k.gathers = c.grouping.mode == MoeMode::gather;
    k.scatters = c.grouping.mode == MoeMode::scatter;
    k.combines = c.grouping.combines();
    k.depth_groups = c.grouping.axis == chain::GroupedAxis::k;
    k.group_atoms = std::ranges::any_of(c.roles, &chain::Role::is_by_group);
    k.row_unit = static_cast<int>(chain::unit_of_bounds(c));
    k.accumulates = std::ranges::any_of(c.stores, &chain::Store::accumulate);
    k.wide_offsets =
        c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(c.grouping.offset_role)].operand)].dtype ==
        DataType::int64;
    k.offsets_are_ends = c.grouping.offsets == MoeOffsets::end;
    const auto keeps_rows = [](const chain::Reduction& r) { return !r.reduces[1]; };
    k.zero_fill = c.grouping.zero_fill && !k.combines &&
                  (!chain.stores.empty() || !c.quantised.empty() || std::ranges::any_of(c.reductions, keeps_rows));
    k.addressed = roles.addressed;
    constexpr std::int64_t kShallow = 256;  // at 128 rows a group the drain is the time, at 1,024 stages are
    k.is_shallow = k.depth_groups && c.declared[3] <= kShallow * c.grouping.groups;
  }
  fit_operands(k, problem_of(roles, declared_views(c).data(), input_bytes(k), bytes_of(k.output)));
  const bool of_rows = k.groups > 0 && !k.depth_groups;
  k.tail_rows = of_rows && k.a_path == Path::tma && k.a_count == 1 && !k.scaled ? kTailRows : 0;
  // More warps decode or copy faster, and leave fewer registers: for instructions of at most 192 columns. Only one kind takes
  // turns.
  const bool decodes = k.a_decoded != 0 || k.b_decoded != 0;
  const bool loads = (k.a_path != Path::tma && k.a_decoded == 0) || (k.b_path != Path::tma && k.b_decoded == 0);
  // Beside three a consumer has 128 registers.
  const bool needs_more = k.rotates || (k.gemms > 1 && k.reductions > 0);
  const bool has_many = k.consumers == 1 && !needs_more;
  if (k.held)
    k.producers = 2;
  else if (decodes && !loads && k.block_n <= 192)
    k.producers = has_many && results_of(k) <= 88 ? 3 : results_of(k) <= 128 ? 2 : 1;
  else if (loads && !decodes && k.groups == 0 && k.block_n <= 192 && (!shifts(k) || (shifts_all(k) && !k.scaled)))
    k.producers = has_many && accumulators_of(k) <= 64 ? 3 : accumulators_of(k) <= (k.promoted ? 128 : 96) ? 2 : 1;
  // Where tiles are short by the description they go by turns, and nobody has to ask which way it is.
  const bool is_long = of_rows ? c.declared[3] > kShortTile * block_k(k) : k.depth_groups && !k.is_shallow;
  k.claims = is_long && k.producers == 1 && k.addressed == 0 && !k.scaled && !decodes;
  k.vectors = k.rotates ? 0 : vectors_of(c);
  const StagedRoles staged = staged_roles(c);
  k.loads_tile = staged.tile.role >= 0;
  k.further_outputs = staged.further_count;
  fit_staging(k);
  // As many as there is room for, and where registers are.
  const bool has_registers = results_of(k) <= 128 && k.reductions == 0 && !k.scaled && !decodes;
  if (k.groups > 0 && !is_long && k.addressed == 0 && !k.combines && has_registers) k.listed = kListed;
  while (k.listed > 0 && smem_bytes(k) > kSmemBytes) k.listed /= 2;
  return k;
}

std::vector<Knobs> configurations_of(const chain::FusionChain& c, int sm_count) {
  std::vector<std::pair<double, Knobs>> ranked, long_ones;
  const chain::FusionChain turned = c.grouping.axis == chain::GroupedAxis::none ? exchanged(c) : c;
  const StagedRoles staged_by_map = staged_roles(c);
  const std::span further(staged_by_map.further.data(), static_cast<std::size_t>(staged_by_map.further_count));
  const int staged = staged_by_map.tile.role;
  const bool by_threads = std::any_of(c.values.begin(), c.values.end(), [&](const chain::Value& v) {
    return v.kind == chain::ValueKind::aux && v.varies[1] && v.varies[2] && v.source != staged;
  });
  const bool plain_scales = std::ranges::any_of(
      c.inputs, [&](const chain::MatrixInput& in) { return in.scale_role >= 0 && !chain::scale_format(c, in).is_interleaved; });
  const bool runs = has_runs(c), holds = enters_from_registers(c) || enters_from_registers(turned);
  for (const Shape& s : family_of(c, sm_count))
    for (const bool programmatic : {false, true}) {
      if (runs && (s.exchanged || s.n % (2 * chain::kRun) != 0)) continue;  // tiles of whole pairs
      if (has_rope(c) && (s.exchanged || s.n % kRotated != 0)) continue;
      Knobs knobs = knobs_of(s, programmatic, holds);
      const KernelConfig k = configuration_of(c, knobs);
      // Blocks that wait for each other are all there from the start.
      if (programmatic && meets(k)) continue;
      // ptxas serialises products of two row blocks that are summed token by token, and those of pairs of which a turn has two.
      if (k.combines && (s.pingpong || (k.gemms > 1 && k.block_n * row_blocks(k) <= 64))) continue;
      if (k.combines && results_of(k) > 64 && k.reductions > 2) continue;  // spills
      if (k.stages < (k.rotates ? 3 : 1) || fault_of(k) || spills_beside_groups(k)) continue;
      // Pieces of 16 bytes on every side, as only extents or strides beyond the copy engine have them, spill there.
      if (k.block_m >= 128 && k.block_n >= 128 && k.a_path == Path::bytes16 && k.b_path == Path::bytes16 &&
          k.d_path == Path::bytes16)
        continue;
      if (k.quantisers > 0 && (s.exchanged || k.block_n % 32 != 0))
        continue;  // a block of columns lies in one tile, and rows stay rows
      // Instructions so narrow wait for each other.
      if (k.scaled && results_of(k) > 64 && instruction_n(k) < 32) continue;
      // Loads of tokens and of scales together leave too few registers there.
      if (k.scaled && k.gathers && results_of(k) > 64) continue;
      // Nor do the places of scales that lie in plain order, or in atoms of each group; and several that are made take long to
      // compile.
      if (k.scaled && k.block_n > (k.group_atoms && k.quantisers > 1 ? 128 : 192) && (plain_scales || k.group_atoms)) continue;
      // Their registers leave none for these.
      if (k.held && k.rotates) continue;
      if (k.held && results_of(k) > 32 && (by_threads || keeps_much(c, k))) continue;
      if (k.slots != 0 && s.pingpong && std::ranges::any_of(c.quantised, &chain::Quantise::along_m)) continue;
      // ptxas serialises these products.
      if (k.split > 1 && k.gemms > 1 && k.slots != 0) continue;
      // Where D lies column by column and not for the copy engine, plans without the exchange take more calls.
      if (s.exchanged && k.d_path != Path::tma && piece_bytes(k.d_path) != bytes_of(k.output)) continue;
      // 176 accumulators leave no registers for addresses: the drain by single elements spills there.
      if (s.pingpong && results_of(k) > 128 && k.d_path != Path::tma) continue;
      if (results_of(k) > (k.further_outputs > 0 ? 128 : 176) && k.d_along_m && bytes_of(k.output) == 4) continue;
      // Nor for several reductions, or outputs that threads store; and an operand of D's size that they read takes long to
      // compile.
      const int most_beside = (k.loads_tile && k.column_reductions == 0 ? kMostBesideTile : kMostBesideReduction) +
                              (bytes_of(k.output) == 4 ? 4 * results_of(k) : 0);
      const int instructions = instructions_of(c, k);
      const bool reduces_much = c.reductions.size() > 1 || (!c.reductions.empty() && instructions > most_beside);
      // Half of 32 bytes is less than a box has.
      const auto shrinks = [&](const StagedRole& r) { return r.shrink > 1; };
      if (k.block_n * bytes_of(k.output) % 64 == 32 && std::any_of(further.begin(), further.end(), shrinks)) continue;
      const bool stores_much = c.stores.size() > 2 || c.stores.size() > 1U + static_cast<std::size_t>(k.further_outputs) ||
                               (c.stores.size() > 1 && !c.reductions.empty());
      // Takes long to compile.
      if (runs && k.groups > 0 && k.vectors > 0 && s.pingpong && k.block_n > 128) continue;
      if (runs && results_of(k) > 128 && !(c.reductions.empty() && c.quantised.empty())) continue;
      // Three warpgroups that decode leave one consumer 128 registers.
      if (runs && k.producers > 2 && results_of(k) > 32 && !c.reductions.empty() && !c.quantised.empty()) continue;
      // Nor do two where consumers take turns, and products that are stored in fp32 take more where A is in registers.
      if (runs && s.pingpong && k.producers > 1 && (!c.reductions.empty() || k.groups > 0) && !c.quantised.empty()) continue;
      if (s.pingpong && k.producers > 1 && k.quantisers > 0 && k.has_d && bytes_of(k.output) == 1) continue;
      if (runs && k.held && !c.reductions.empty() && k.run_bytes > 12'288) continue;
      if (!runs && !k.rotates && results_of(k) > 128 && (stores_much || reduces_much || !c.quantised.empty() || by_threads))
        continue;
      const bool is_smallest = results_of(k) <= 32;  // which is always offered
      if (!is_smallest && instructions > kMostAtAll) continue;
      const std::array<std::int64_t, 4> extents = extents_of(s.exchanged ? turned : c);
      const double seconds =
          predict_seconds(k, extents, sm_count, drain_of(c), c.grouping.groups) + combining_seconds(c, k, sm_count);
      (!is_smallest && instructions > kMostInstructions ? long_ones : ranked).emplace_back(seconds, std::move(knobs));
    }
  // What takes long to compile is offered where else one consumer would have the tiles.
  if (std::ranges::none_of(ranked, [](const auto& r) { return r.second.at(kConsumers) == 2; }))
    std::ranges::move(long_ones, std::back_inserter(ranked));
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
