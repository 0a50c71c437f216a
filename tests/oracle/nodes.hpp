#pragma once
#include "oracle/evaluate.hpp"

namespace oracle {

/// C[l,m,n] = Σ_k A[l or 0,m,k] · B[l or 0,k,n] in the compute type, not yet rounded to C's type. Rank 3 whatever came in.
/// cuts: a tensor core sums fp8 with 14 bits of its largest term in hand.
Result multiplied(const Result& a, const Result& b, Format compute, bool cuts = false);

/// Reduces the axes on which `kept` is false; int32 wraps.
Result reduced(const Result& source, Reduction mode, const std::vector<bool>& kept, Format compute);

/// `dims` with leading ones up to `rank`.
std::vector<std::int64_t> padded(std::vector<std::int64_t> dims, std::size_t rank);

}  // namespace oracle
