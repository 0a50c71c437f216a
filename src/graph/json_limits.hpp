#pragma once
#include <cstddef>
#include <cstdint>

/// Limits of graph files; docs/graph-file.md and rule file.limit state the same.
namespace verglas::graph {

inline constexpr std::int64_t kMaxFileBytes = std::int64_t{16} << 20;
inline constexpr std::size_t kMaxFileTensors = 16384;
inline constexpr std::size_t kMaxFileNodes = 16384;
inline constexpr std::size_t kMaxFileList = 64;  ///< extents, strides or operands
inline constexpr int kMaxFileDepth = 8;

}  // namespace verglas::graph
