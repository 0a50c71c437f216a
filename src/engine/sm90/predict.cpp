#include "engine/sm90/predict.hpp"

#include <algorithm>
#include <cmath>

#include "engine/sm90/problem.hpp"
#include "engine/sm90/rope.hpp"
#include "engine/sm90/runs.hpp"

namespace verglas::sm90 {
namespace {

constexpr double kMemoryBytes = 4.3e12;  ///< per second, as a copy reaches
constexpr double kL2Bytes = 16e12;
constexpr double kL2Size = 50e6;
constexpr double kSmBytes = 150e9;                                          ///< that one SM takes in, per second
constexpr double kFixedSeconds = 3.8e-6;                                    ///< launch, first fill, tail
constexpr double kProgrammaticGain = 1.8e-6, kProgrammaticSeconds = 30e-6;  ///< longer launches gain nothing
constexpr double kDrainCyclesPerValue = 2200.0 / (64.0 * 256.0);            ///< a consumer's share of a tile through staging
constexpr double kElementCycles = 3;  ///< of a value of D that goes by itself, column by column
constexpr double kJoinCycles = 1000, kJoinCyclesPerValue = 2700.0 / (64.0 * 128.0);  ///< sums of another block
constexpr double kLastStoreBytes = 40;  ///< per cycle: what the last tile of each SM writes while nothing runs

/// Elements a cycle that producers decode beside products, which read the same shared memory; those that a prologue converts are
/// slower.
double decoded_per_cycle(int producers, bool converts) { return (6.5 + 2.5 * producers) * (converts ? 0.6 : 1.0); }

/// Until all blocks are there; and of loads of products that are summed, which wait for memory.
constexpr double kMeetingSeconds = 3e-6, kTurnSeconds = 0.55e-6;

/// Cycles in which a tile of groups is found and asked for.
constexpr double kFoundCycles = 1500;

/// Cycles of a warpgroup for 16 lines of a k-block that begin anywhere.
constexpr double kShiftedCycles = 375;

/// Cycles in which a consumer decodes 64 rows of a k-block to registers and multiplies them, beside the other warps.
constexpr double kHeldCycles = 400, kHeldCyclesPerColumn = 3.5;

/// Cycles of a k-block of fp4 beside few rows: what brings B, and what each consumer decodes.
constexpr double kCarriedCycles = 80, kCarriedCyclesPerColumn = 2, kCarriedCyclesPerConsumer = 95;

/// What power leaves of the clock when tensor cores are busy that share of the time.
double clock_at(double util) { return std::max(1.34e9, 1.85e9 - 0.84e9 * std::max(0.0, util - 0.3)); }

/// Cycles of a warpgroup for one step on a unit: measured on a few chains, and guessed by kind.
double cycles_of(PointwiseMode mode) {
  using enum PointwiseMode;
  switch (mode) {
    case identity:
    case add:
    case sub:
    case mul:
    case max:
    case min:
    case abs:
    case neg:
    case relu:
    case leaky_relu:
    case relu_bwd:
    case leaky_relu_bwd: return 15;
    case exp:
    case sigmoid:
    case swish:
    case gelu_approx_tanh: return 170;
    case erf:
    case pow:
    case tan: return 600;
    default: return 250;
  }
}

}  // namespace

std::array<std::int64_t, 4> extents_of(const chain::FusionChain& c) {
  std::array<std::int64_t, 4> e = c.declared;
  if (c.grouping.combines()) e[1] = c.grouping.tokens;  // rows that are multiplied
  if (c.grouping.axis == chain::GroupedAxis::k) {
    e[0] = std::max<std::int64_t>(1, c.grouping.groups);
    e[3] = (e[3] + e[0] - 1) / e[0];
  }
  return e;
}

namespace {

/// Of quantised outputs, for a unit.
double cycles_of_quantisers(const chain::FusionChain& c) {
  double cycles = 0;
  for (const chain::Quantise& q : c.quantised) {
    const chain::Role& data = c.roles[static_cast<std::size_t>(q.role)];
    const bool is_fp4 = c.operands[static_cast<std::size_t>(data.operand)].dtype == DataType::fp4_e2m1;
    cycles += (is_fp4 ? 295 : 175) + (!q.along_m ? 0 : q.block == 32 ? 150 : 15);
  }
  return cycles;
}

}  // namespace

double drain_of(const chain::FusionChain& c) {
  const StagedRoles staged = staged_roles(c);
  double cycles = 0;
  for (const chain::Step& s : c.steps) cycles += s.is_rope || is_free(c, s) ? 0 : cycles_of(s.mode);
  for (const chain::Value& v : c.values)
    if (v.kind == chain::ValueKind::aux) cycles += !v.varies[1] || !v.varies[2] || v.source == staged.tile.role ? 60 : 250;
  if (has_runs(c)) {
    // A unit of the chain drains two of the product; what is stored of all columns is two runs.
    double more = 250.0 * static_cast<double>(c.reductions.size()) + cycles_of_quantisers(c);
    for (const chain::Store& s : c.stores) more += c.values[static_cast<std::size_t>(s.value)].is_half ? 120 : 240;
    return (cycles + more) / 2;
  }
  const auto further = static_cast<double>(std::max<std::size_t>(1, c.stores.size()) - 1);
  cycles += 120.0 * staged.further_count + 400.0 * (further - staged.further_count);
  // Rotated columns are quantised by whole chunks, in fewer.
  const double of_quantisers = cycles_of_quantisers(c) * (has_rope(c) ? 0.8 : 1.0);
  return cycles + 250.0 * static_cast<double>(c.reductions.size()) + of_quantisers;
}

double combining_seconds(const chain::FusionChain& c, const KernelConfig& k, int sm_count) {
  if (!k.combines) return 0;
  const auto tokens = static_cast<double>(c.declared[1]), n = static_cast<double>(c.declared[2]);
  const double bytes = 2.0 * sizeof(float) * k.gemms * static_cast<double>(c.grouping.tokens) * n;
  // Loads of a slot come in turns of as many as there are registers for, and each turn waits for memory.
  const double pieces = std::ceil(tokens / k.block_m) * (k.block_m / 64 / row_blocks(k)) * std::ceil(n / k.block_n);
  const double turns = k.gemms * row_blocks(k) * std::ceil(k.block_n / (results_of(k) > 64 ? 64.0 : 128.0));
  const double waves = std::ceil(pieces / (sm_count * k.consumers));
  return bytes / kMemoryBytes + kMeetingSeconds + waves * static_cast<double>(c.grouping.top_k) * turns * kTurnSeconds;
}

double predict_seconds(const KernelConfig& c, const std::array<std::int64_t, 4>& extents, int sm_count, double drain,
                       std::int64_t groups) {
  const double l = static_cast<double>(extents[0]);
  const double m = static_cast<double>(extents[1]);
  const double n = static_cast<double>(extents[2]);
  const double k = static_cast<double>(extents[3]);
  const double some = c.depth_groups ? 1 : static_cast<double>(std::min(groups, extents[1]));
  // Where a group ends, half of a tile is nobody's; of which blocks of 64 rows are not multiplied.
  const bool of_rows = c.groups > 0 && !c.depth_groups;
  const double tiles_m = of_rows ? std::max(some, m / c.block_m + some / 2) : std::ceil(m / c.block_m);
  const double multiplied = of_rows ? std::max(some, m / 64 + some / 2) * 64 / c.block_m / tiles_m : 1.0;
  const double tiles = l * tiles_m * std::ceil(n / c.block_n), blocks = std::max(1, sm_count / c.split);
  // How many tiles there are only the offsets know: on the average half of the last wave stands still.
  const double waves = of_rows && tiles > blocks ? tiles / blocks + 0.5 : std::ceil(tiles / blocks);
  const double k_blocks = std::ceil(k / (block_k(c) * c.split));
  // One instruction of 64 rows takes N/2 cycles, or the shared-memory port's 16 + N/4; four of them a k-block.
  const double instruction = std::max(c.block_n / 2.0, 16 + c.block_n / 4.0);
  // The add hides behind the other consumer's products, of 256 columns a hundredth more: those look for the next stage ahead.
  const double promoted = c.groups > 0 ? 1.08 : c.block_n > 192 ? 1.01 : 1.02;
  // Of sums with scales, narrow instructions take longer for a column.
  const double promotion = c.scaled ? (instruction_n(c) < 48 ? 3.2 : 3.0) : c.promoted ? promoted : 1.0;
  const double alone = c.consumers > 1 ? 1.0 : c.scaled ? 1.3 : 1.05;  // between its stages the tensor cores wait
  const auto is_int = [](DataType t) { return t == DataType::int8 || t == DataType::uint8; };
  const bool converts = is_int(c.a_stored) || is_int(c.b_stored);  // by a prologue: nothing else makes 16-bit values of them
  const double decoded = block_k(c) * (c.a_count * c.block_m * (c.a_decoded != 0 && !c.held) +
                                       c.b_count * c.block_n * (c.b_decoded != 0 && !c.carried));
  const double shifted =
      !shifts(c) ? 0.0
                 : (c.a_path == Path::tma ? 0 : c.a_count * c.block_m) + (c.b_path == Path::tma ? 0.0 : c.b_count * c.block_n);
  const double of_k =
      k_blocks *
      std::max({multiplied * c.gemms * c.block_m / 64.0 * instruction * 4 * promotion * alone,
                decoded / decoded_per_cycle(c.producers, converts), shifted / 16 * kShiftedCycles / c.producers,
                c.carried ? kCarriedCycles + kCarriedCyclesPerColumn * c.block_n + kCarriedCyclesPerConsumer * c.consumers
                : c.held  ? row_blocks(c) * (kHeldCycles + kHeldCyclesPerColumn * c.block_n)
                          : 0.0});
  const double tile_cycles = of_rows ? std::max(of_k, kFoundCycles) : of_k;
  const bool pingpong = c.schedule == Schedule::pingpong;
  const double values = 1.0 * c.block_m * c.block_n / (pingpong ? 1 : c.consumers);
  const bool by_element = c.d_path != Path::tma && piece_bytes(c.d_path) == bytes_of(c.output);
  // With little depth nothing hides that chunks wait for each other.
  const double waits = c.is_shallow && c.store_buffers < chunks_of(c) ? 1.5 : 1.0;
  const bool only_quantises = c.quantisers > 0 && !c.has_d && c.run_bytes == 0;
  const double of_value = only_quantises ? 0 : by_element ? kElementCycles : waits * kDrainCyclesPerValue;
  const double drain_cycles = of_value * values / (pingpong ? 2 : 1) + drain * values / (64 * 16) +
                              (c.split > 1 ? kJoinCycles + kJoinCyclesPerValue * values * c.gemms : 0);
  // Ping-pong: one consumer drains while the other multiplies, so a tile takes the longer of both; the last drain is seen.
  // Of what a chain adds a tenth is seen all the same, a fifth of what reduces no columns, and a third of what is copied beside
  // D, and where columns are folded by two units, for want of registers.
  // Units that are drained together show a fifth where the drain is longer than the products.
  const bool reduces_rows = c.reductions > c.column_reductions, folds_late = c.column_reductions > 0 && results_of(c) > 128;
  const bool is_long = c.loads_tile && reduces_rows && results_of(c) > 128 && drain_cycles > tile_cycles;
  const double part = is_long                                 ? 0.2
                      : c.loads_tile || c.further_outputs > 0 ? 0.35
                      : c.rotates                             ? 0.15
                      : c.run_bytes > 0                       ? 0.0
                      : c.quantisers > 0                      ? 0.4
                      : folds_late                            ? 0.3
                      : reduces_rows                          ? 0.2
                                                              : 0.1;
  const double seen = part * drain * values / (64 * 16);
  const double cycles = pingpong ? waves * (std::max(tile_cycles, (tile_cycles + drain_cycles) / 2) + seen) + drain_cycles
                                 : waves * (tile_cycles + drain_cycles);
  const double last_store = std::min(m, 1.0 * c.block_m) * std::min(n, 1.0 * c.block_n) * bytes_of(c.output) / kLastStoreBytes;

  const double useful = c.gemms * l * m * n * std::max(k, 1.0) * bytes_of(c.input) / (4096.0 * sm_count);
  const double util = std::min(1.0, useful / (cycles + 4500));
  // Tiles that read much for what they multiply draw power, which takes it from the clock.
  const double per_flop = 2.0 * (1.0 * c.a_count / c.block_n + 1.0 * c.b_count / c.block_m) / (2.0 * c.gemms);
  // Rows of groups share less of what they read, and fp8 without promotion is multiplied as fast as it comes.
  const bool is_fast = is_fp8(c.input) && !c.promoted;
  const double power = 1 + (of_rows ? 1.7 : is_fast ? 1.3 : 1.0) * std::clamp(10 * (per_flop - 0.0117), 0.0, 0.05);
  const double clock = clock_at(util) / power / (c.block_n <= 64 && c.block_m <= 64 ? 1.02 : 1.0);
  const auto moves = [](Path path, int decoded_pieces) { return path != Path::tma && decoded_pieces == 0; };
  const bool any_moves = !c.carried && (moves(c.a_path, c.a_decoded) || moves(c.b_path, c.b_decoded));
  const double copied = any_moves && !shifts(c) ? 2.5 / std::min(c.producers, 2) : 1.0;  // pieces by threads
  const double tensor = (cycles + last_store) / clock * copied;

  // Pieces of 16 bytes hold 64 elements beside scales of a tenth.
  const auto bytes = [&](int decoded_pieces) { return decoded_pieces == 0 ? bytes_of(c.input) : decoded_pieces * 17 / 64.0; };
  const double a_rows = c.casts ? bytes_of(c.a_stored) : c.a_count * bytes(c.a_decoded), b_rows = c.b_count * bytes(c.b_decoded);
  const double out = (c.has_d ? bytes_of(c.output) * l * m * n : 0) + c.run_bytes * l * m * n / (64 * 64);
  const double operands = l * k * (a_rows * m + b_rows * n * std::max(1.0, some));
  const double l2 = (l * k * (a_rows * m * std::ceil(n / c.block_n) + b_rows * n * tiles_m) + out) / kL2Bytes;
  const double taken_in =
      waves * k_blocks * block_k(c) * (a_rows * std::min(m, 1.0 * c.block_m) + b_rows * std::min(n, 1.0 * c.block_n)) / kSmBytes;
  const double busy = std::max({tensor, l2, taken_in});
  const double memory = (operands * (operands > kL2Size ? 1.3 : 1.0) + out) / kMemoryBytes;
  // Neither hides the other wholly where both are long.
  const double both = std::cbrt(busy * busy * busy + memory * memory * memory);
  // The gap between launches is rest for a chip that is short of power.
  const bool gains = c.programmatic && both < kProgrammaticSeconds;
  const double gain = gains ? kProgrammaticGain * std::pow(1 - util, 1.5) : 0.0;
  // Nothing hides the last drain of a narrow tile by single elements, where rows and columns are exchanged.
  const double exposed = by_element && c.block_n <= 32 ? kElementCycles * values / clock_at(0) : 0.0;
  return both + exposed + kFixedSeconds - gain;
}

}  // namespace verglas::sm90
