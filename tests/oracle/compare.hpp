#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "oracle/evaluate.hpp"

namespace oracle {

struct CompareOptions {
  bool zero_sign = true;  ///< −0 and +0 differ where the reference says which
};

/// What a comparison found; `ok()` is the verdict, `text()` the sentence for a failing test.
struct Comparison {
  std::string tensor;
  std::string problem;  ///< extents that do not fit; nothing was compared then
  std::int64_t count = 0;
  std::int64_t wrong = 0;
  std::vector<std::int64_t> first;  ///< coordinates of the first wrong element
  double got = 0;
  Bound want;
  std::int64_t exact = 0;  ///< elements of which only one bit pattern is right

  bool ok() const { return problem.empty() && wrong == 0; }
  std::string text() const;
};

/// Reads every element of `memory` and asks whether `want` allows it. Leading unit axes may be missing on either side.
Comparison compare(const std::string& name, Format format, const Memory& memory, const Result& want,
                   const CompareOptions& options = {});

/// All outputs of `graph` that have memory, against a fresh evaluation; the texts of those that are wrong.
std::vector<Comparison> compare_outputs(const Graph& graph, const Options& options = {}, const CompareOptions& how = {});
/// The same with results at hand.
std::vector<Comparison> compare_outputs(const Graph& graph, const std::vector<Result>& results, const CompareOptions& how = {});
/// Sentences of all failures, empty when all are right.
std::string failures(const std::vector<Comparison>& comparisons);

/// Offset of the first byte that changed without being part of an element of the view, −1 if none.
/// `before` and `after` are the whole allocation, `offset` the byte in it where the view begins.
std::int64_t first_stray_write(std::span<const std::byte> before, std::span<const std::byte> after, std::int64_t offset,
                               Format format, const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides);

}  // namespace oracle
