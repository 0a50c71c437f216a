#include "engine/sm90/predict.hpp"

#include <algorithm>
#include <cmath>

namespace verglas::sm90 {
namespace {

constexpr double kClock = 1.35e9;        ///< steady state under load, Hz
constexpr double kMemoryBytes = 4.3e12;  ///< per second, as a copy reaches
constexpr double kL2Bytes = 7e12;
constexpr double kL2Size = 50e6;
constexpr double kFixedSeconds = 3.5e-6;                          ///< launch, first fill, tail
constexpr double kDrainCyclesPerValue = 2200.0 / (64.0 * 256.0);  ///< a consumer's share of a tile through staging

}  // namespace

double predict_seconds(const KernelConfig& c, const std::array<std::int64_t, 4>& extents, int sm_count) {
  const double l = static_cast<double>(extents[0]);
  const double m = static_cast<double>(extents[1]);
  const double n = static_cast<double>(extents[2]);
  const double k = static_cast<double>(extents[3]);
  const double tiles = l * std::ceil(m / c.block_m) * std::ceil(n / c.block_n);
  const double waves = std::ceil(tiles / sm_count);
  const double k_steps = std::ceil(k / block_k(c)) * 4;
  // One instruction of 64 rows takes N/2 cycles, or the shared-memory port's 16 + N/4.
  const double instruction = std::max(c.block_n / 2.0, 16 + c.block_n / 4.0);
  const double tile_cycles = c.gemms * c.block_m / 64.0 * instruction * k_steps;
  const double drain_cycles = kDrainCyclesPerValue * c.block_m * c.block_n / c.consumers;
  const double exposed = c.schedule == Schedule::pingpong ? drain_cycles : waves * drain_cycles;
  const double tensor = (waves * tile_cycles + exposed) / kClock;
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
