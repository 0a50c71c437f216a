#pragma once
// Graphs drawn so that what a kernel has (loaders, casts, scales, groups, runs, rotations, operands, reductions, quantised
// outputs) meets in any combination, with data whose results have one bit pattern: for a comparison with the CPU engine.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "chain/chain.hpp"
#include "verglas/verglas.hpp"

namespace support {

class FeatureGraph {
 public:
  /// `call`: 0 as declared; else the same graph with extents of a call, which a plan of the declared one serves; 2, 5 and so
  /// on are large ones of little depth.
  explicit FeatureGraph(std::uint64_t seed, int call = 0) : seed_(seed), call_(call) {}
  /// The same graph at each call. May be one that nobody serves, or that is refused.
  void describe(verglas::Graph& g) const;
  /// Content of an operand, by its name; `bytes` are all 0xFF before.
  void fill(const verglas::OperandInfo& info, std::vector<std::uint8_t>& bytes) const;

  /// Of weights by address, and of their scales: bytes that hold one matrix, and their type.
  struct ByAddress {
    std::pair<std::size_t, verglas::DataType> weights, scales;
  };
  ByAddress by_address() const;

  std::uint64_t seed() const { return seed_; }

 private:
  std::uint64_t seed_;
  int call_;
};

/// What a plan of a graph has in its kernel and around it, as words "what=which"; each "what" once at most.
std::vector<std::string> features_of(const verglas::chain::FusionChain& chain, const verglas::Knobs& knobs);

}  // namespace support
