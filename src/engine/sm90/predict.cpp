#include "engine/sm90/predict.hpp"

#include <algorithm>
#include <cmath>

namespace verglas::sm90 {
namespace {

constexpr double kClock = 1.35e9;        ///< steady state under load, Hz
constexpr double kMemoryBytes = 4.3e12;  ///< per second, as a copy reaches
constexpr double kL2Bytes = 11e12;       ///< 128x128 tiles run at 10e12
constexpr double kL2Size = 50e6;
constexpr double kFixedSeconds = 3.5e-6;                          ///< launch, first fill, tail
constexpr double kDrainCyclesPerValue = 2200.0 / (64.0 * 256.0);  ///< a consumer's share of a tile through staging

/// Cycles of a warpgroup for one step on a unit: measured on chains of one step, and guessed by kind.
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
    case gelu:
    case gelu_bwd:
    case erf:
    case pow:
    case tan: return 600;
    default: return 250;
  }
}

}  // namespace

double drain_of(const chain::FusionChain& c) {
  double cycles = 0;
  for (const chain::Step& s : c.steps) cycles += cycles_of(s.mode);
  for (const chain::Value& v : c.values)
    if (v.kind == chain::ValueKind::aux) cycles += v.varies[1] && v.varies[2] ? 250 : 40;
  cycles += 400.0 * static_cast<double>(c.stores.size() - 1) + 60.0 * static_cast<double>(c.reductions.size());
  return cycles;
}

double predict_seconds(const KernelConfig& c, const std::array<std::int64_t, 4>& extents, int sm_count, double drain) {
  const double l = static_cast<double>(extents[0]);
  const double m = static_cast<double>(extents[1]);
  const double n = static_cast<double>(extents[2]);
  const double k = static_cast<double>(extents[3]);
  const double tiles = l * std::ceil(m / c.block_m) * std::ceil(n / c.block_n);
  const double waves = std::ceil(tiles / sm_count);
  const double k_steps = std::ceil(k / block_k(c)) * 4;
  // One instruction of 64 rows takes N/2 cycles, or the shared-memory port's 16 + N/4.
  const double instruction = std::max(c.block_n / 2.0, 16 + c.block_n / 4.0);
  const double promotion = c.promoted ? 1.08 : 1.0;
  const double tile_cycles = c.gemms * c.block_m / 64.0 * instruction * k_steps * promotion;
  const bool pingpong = c.schedule == Schedule::pingpong;
  const double values = 1.0 * c.block_m * c.block_n / (pingpong ? 1 : c.consumers);
  const double drain_cycles = kDrainCyclesPerValue * values / (pingpong ? 2 : 1) + drain * values / (64 * 16);
  // Ping-pong: one consumer drains while the other multiplies, so a tile takes the longer of both; the last drain is seen.
  const double cycles = pingpong ? waves * std::max(tile_cycles, (tile_cycles + drain_cycles) / 2) + drain_cycles
                                 : waves * (tile_cycles + drain_cycles);
  // Tiles that read much for what they multiply draw power, which takes it from the clock.
  const double per_flop = 2.0 * (1.0 * c.a_count / c.block_n + 1.0 * c.b_count / c.block_m) / (2.0 * c.gemms);
  const double tensor = cycles / kClock * (per_flop > 0.014 ? 1.05 : 1.0);
  const double in = bytes_of(c.input) * l * k;
  const double out = bytes_of(c.output) * l * m * n;
  const double operands = in * (c.a_count * m + c.b_count * n);
  const double l2 = (in * (c.a_count * m * std::ceil(n / c.block_n) + c.b_count * n * std::ceil(m / c.block_m)) + out) / kL2Bytes;
  const double rereads = operands > kL2Size ? 1.3 : 1.0;
  const double memory = (operands * rereads + out) / kMemoryBytes;
  const double copied = c.a_path == Path::tma && c.b_path == Path::tma ? 1.0 : 2.5;  // pieces are moved by threads
  return std::max({tensor * copied, l2, memory}) + kFixedSeconds - (c.programmatic ? 0.5e-6 : 0.0);
}

}  // namespace verglas::sm90
