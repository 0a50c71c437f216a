#pragma once
#include <vector>

#include "engine/cublaslt/descriptors.hpp"
#include "verglas/call.hpp"

namespace verglas::cublaslt {

/// Algorithms that are asked for when a plan is made.
inline constexpr int kMostAlgorithms = 8;
/// Of workspace; the library's kernels for Hopper want up to 32 MiB.
inline constexpr std::uint64_t kMostWorkspaceBytes = 32 << 20;

struct Algorithm {
  cuda::cublasLtMatmulAlgo_t algo{};
  std::uint64_t workspace_bytes = 0;
};

/// What the library is told when it is asked for algorithms: alignments and bounds. Read by any number of threads.
class Preference {
 public:
  /// Throws cublaslt.call.
  Preference(const cuda::CublasLtTable& lt, const Alignments& alignments);
  ~Preference();
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cuda::cublasLtMatmulPreference_t get() const noexcept { return preference_; }

 private:
  const cuda::CublasLtTable& lt_;
  cuda::cublasLtMatmulPreference_t preference_ = nullptr;
};

/// Up to `wanted` algorithms for these extents, best first; 0 of them is an answer. The descriptor has its addresses.
cuda::cublasStatus_t ask(const Library& library, const MatmulDesc& desc, const Layouts& layouts, const Preference& preference,
                         int wanted, Algorithm* found, int& count) noexcept;

/// What the library offers for a product at its declared extents.
struct Offer {
  Knobs knobs;
  Algorithm algorithm;
};
/// Best first, each with other knobs; empty where the library has none. Throws cublaslt.call.
std::vector<Offer> offers_of(const Library& library, const Product& product, const Geometry& declared);

/// Place of an algorithm in the library's own order.
inline constexpr const char* kRank = "RANK";

}  // namespace verglas::cublaslt
