#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>

#include "verglas/dtype.hpp"

namespace verglas {

inline constexpr int kMaxRank = 8;

enum class DeviceType : std::uint8_t { cpu = 0, cuda = 1, unknown = 255 };

/// Where memory lies. `unknown` is what a bare address has: it is trusted.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int16_t id = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

/// In which order a rank-3 view lists the axes of a matrix operand. The graph declares A (b, M, K), B (b, K, N), outputs
/// (b, M, N); kernels allocate B as (b, N, K). Only B's views differ; docs/python.md has the rule for buffers that do not say.
enum class AxisOrder : std::uint8_t { declared = 0, kernel = 1 };

/// A buffer as the caller holds it. The memory stays the caller's; a view owns nothing.
/// Shapes   extents and strides in elements; strides may be 0 on inputs, and anything on axes of extent 1
/// Units    observed_bytes in bytes from `data`, −1 where the producer does not say
struct TensorView {
  void* data = nullptr;
  DataType dtype = DataType::not_set;
  std::int8_t rank = 0;  ///< −1: a bare address, described wholly by the plan's declaration
  AxisOrder order = AxisOrder::declared;
  bool read_only = false;
  Device device{};
  std::int64_t observed_bytes = -1;
  std::array<std::int64_t, kMaxRank> extent{};
  std::array<std::int64_t, kMaxRank> stride{};

  static constexpr std::int8_t kBareAddress = -1;

  /// Dense row-major view. Throws call.rank for more than kMaxRank extents.
  static TensorView dense(void* data, DataType dtype, std::initializer_list<std::int64_t> extents, Device device = {});
  /// View with given strides, one for each extent; else it throws call.rank.
  static TensorView strided(void* data, DataType dtype, std::initializer_list<std::int64_t> extents,
                            std::initializer_list<std::int64_t> strides, Device device = {});
  /// A pointer whose type, extents and strides are those of the graph's tensor.
  static TensorView address(void* data) noexcept;

  bool is_bare() const noexcept { return rank == kBareAddress; }
};

}  // namespace verglas
