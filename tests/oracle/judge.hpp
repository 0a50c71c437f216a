#pragma once
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "oracle/graph.hpp"

namespace oracle {

enum class DeviceKind { cpu, cuda, unknown };

/// A buffer of one call as the caller describes it. The address is a number: the judge never looks at memory.
struct Buffer {
  std::uint64_t address = 0;
  Format format = Format::not_set;
  std::vector<std::int64_t> dims{};
  std::vector<std::int64_t> strides{};  ///< as many as dims
  bool bare = false;                    ///< type, extents and strides are the declaration's
  bool kernel_order = false;            ///< axes (b, N, K) in the role of a second operand
  bool read_only = false;
  DeviceKind device = DeviceKind::cpu;  ///< unknown is trusted
  int device_id = 0;
  std::int64_t observed_bytes = -1;  ///< from the address; −1 unknown
};

struct Binding {
  std::int64_t uid = 0;
  Buffer buffer;
};

/// What the engine adds to the contract, or takes from it.
struct JudgeOptions {
  DeviceKind device = DeviceKind::cpu;
  int device_id = 0;
  std::int64_t max_extent = std::numeric_limits<std::int32_t>::max();
  int current_device_id = -1;  ///< of the calling thread; −1: that of the plan
  /// Matrices move in pieces of 16, 8 or 4 bytes, the most that the declaration allows: it has an axis of stride 1 (K before M or
  /// N; of an output N, or M where that alone makes pieces of 16 bytes below the limit), and its other strides are whole pieces.
  /// Then every call keeps that axis, whole pieces and an aligned address. What moves in pieces of 16 bytes has strides below
  /// 2^40 bytes, unless the declaration itself has not.
  bool moves_pieces = false;
  std::int64_t tile_m = 0, tile_n = 0;  ///< of the output; 0: nothing counts tiles
};

/// One broken rule. Rules:
///   missing  unknown  duplicate        keys of the call
///   null  device  dtype  rank          one buffer, before its axes are read
///   extent.negative  stride.negative  overflow  extent.large
///   extent.batch  extent.m  extent.n  extent.k   operands of the products, against the live L, M, N, K
///   extent.output  extent.aux          against the live domain
///   scale.extent  scale.size  blocks  packed    scales of blocks, axes that are quantised, fp4
///   alignment  span  read_only
///   zero_stride_output  alias_output   two indices of an output on one element
///   major  outer_stride  alignment     what engines that move pieces ask
///   current_device  grid               the call as a whole
///   overlap                            bytes of an output with those of any other operand
struct Fault {
  std::string rule;
  std::string operand;  ///< name of the tensor, or its uid in words
  friend bool operator==(const Fault&, const Fault&) = default;
};

struct Verdict {
  std::vector<Fault> faults;

  bool legal() const { return faults.empty(); }
  bool breaks(const std::string& rule) const;
  bool breaks(const std::string& rule, const std::string& operand) const;
  std::set<std::string> rules() const;
  std::string text() const;
};

/// Judges a call of a graph. All faults that can be seen are listed, not the first only; a buffer whose rank is wrong is not
/// looked at further, and rules that need M, N, K or L are left out where the operand that gives them is broken.
Verdict judge(const Graph& graph, const std::vector<Binding>& call, const JudgeOptions& options = {});

/// Whether no two indices meet: axes of extent > 1 by ascending stride, each stride above Σ (extent − 1) · stride of those
/// before.
bool is_injective(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides);

/// The buffer that binds a tensor exactly as declared (dense or not), for tests that then change one thing.
Buffer as_declared(const Tensor& tensor, std::uint64_t address);

}  // namespace oracle
