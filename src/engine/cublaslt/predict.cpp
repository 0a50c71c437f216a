#include "engine/cublaslt/predict.hpp"

#include <algorithm>
#include <cmath>

namespace verglas::cublaslt {
namespace {

// The terms of sm90's model (docs/gpu.md), with the constants that describe the library's kernels on an H200.
constexpr double kClock = 1.35e9;
constexpr double kMemoryBytes = 4.3e12;
constexpr double kL2Size = 50e6;
constexpr double kFixedSeconds = 6e-6;  ///< a call clears counters, or adds parts of K, beside its kernel
constexpr double kDrainCycles = 2200;
constexpr double kUnaligned = 2.4;  ///< rows that are no whole pieces of 16 bytes

/// Cycles of a type beside bf16.
double slowness_of(const Product& p) {
  if (p.a_type == DataType::fp32) return p.accumulate == DataType::tf32 ? 2.0 : 14.0;  // without tensor cores
  return bytes_of(p.a_type) == 1 ? 0.5 : 1.0;
}

}  // namespace

double predict_seconds(const Product& p, const Geometry& g, int sm_count, int rank) noexcept {
  const auto l = static_cast<double>(g.batches), rows = static_cast<double>(g.d.rows), cols = static_cast<double>(g.d.cols);
  const auto k = static_cast<double>(p.x_k_major() ? g.x.rows : g.x.cols);
  double tensor = 1e30;
  struct Tile {
    double rows, cols;
  };
  for (const Tile t : {Tile{128, 256}, {256, 128}, {128, 128}, {64, 128}, {128, 64}, {64, 64}})
    for (const double split : {1.0, 2.0, 4.0, 8.0}) {
      const double tiles = l * std::ceil(rows / t.rows) * std::ceil(cols / t.cols) * split;
      const double n = std::max(t.rows, t.cols), m = std::min(t.rows, t.cols);
      const double multiply = m / 64 * std::max(n / 2, 16 + n / 4) * std::ceil(k / 64 / split) * 4;
      const double drain = kDrainCycles * m * n / (128 * 256);
      const double parts = split > 1 ? 3e-6 : 0;
      tensor = std::min(tensor, std::ceil(tiles / sm_count) * (multiply * slowness_of(p) + drain) / kClock + parts);
    }
  const Alignments at = alignments_of(p, g);
  if (std::min({at.x, at.y, at.d}) < 16) tensor *= kUnaligned;
  const double in = bytes_of(p.a_type) * l * k * (rows + cols);
  const double out = bytes_of(p.d_type) * l * rows * cols * (1 + (p.c >= 0) + (p.aux >= 0));
  const double memory = (in * (in > kL2Size ? 1.3 : 1.0) + out) / kMemoryBytes;
  return (std::max(tensor, memory) * 1.01 + kFixedSeconds) * (1 + 0.01 * rank);
}

}  // namespace verglas::cublaslt
