#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuda/driver_types.hpp"

namespace verglas::sm90 {

/// x / value = x * multiplier >> shift for every x < 2^31; see kernels/parameters.cuh.
struct Divisor {
  std::uint32_t value = 1, multiplier = 1u << 31, shift = 31;
};
/// For 1 <= value < 2^31: with 2^l the power of two at or above it, multiplier = ceil(2^(31 + l) / value) fits 32 bits, and its
/// error times 2^31 stays below 2^(31 + l) / value, so that no quotient of x < 2^31 is off.
constexpr Divisor make_divisor(std::uint32_t value) noexcept {
  const auto l = static_cast<std::uint32_t>(std::bit_width(value - 1));
  const std::uint64_t power = std::uint64_t{1} << (31 + l);
  return {value, static_cast<std::uint32_t>((power + value - 1) / value), 31 + l};
}
constexpr std::uint32_t divide(std::uint32_t x, const Divisor& d) noexcept {
  return static_cast<std::uint32_t>(std::uint64_t{x} * d.multiplier >> d.shift);
}

/// An operand that goes without a tensor map. Strides in elements. `inner` is the dimension along which pieces are moved.
struct ViewBlock {
  std::uint64_t address = 0;
  std::int64_t outer_stride = 0, inner_stride = 1, batch_stride = 0;
};

/// The kernel's one parameter, mirror of Parameters in kernels/parameters.cuh. The generated epilogue's arguments follow at
/// kEpilogueOffset. Maps come first, since their addresses must be multiples of 64.
///
///   offset  bytes                                       offset  bytes
///        0    256  maps of A, of the first product's first   1056    16  m, n, k, batches
///      256    256  maps of B                                1072     4  k_blocks
///      512    128  map of D, boxes of 128 bytes a row       1076    16  a_batch_step, b_batch_step: 0 repeats one matrix
///      640    128  map of D, 64 bytes                       1092     4  swap_raster
///      768    128  map of D, 32 bytes                       1096     8  tiles, full_groups
///      896     64  views of A                               1104    48  divisors: tiles of a batch, of a group, group, last
///      960     64  views of B                               1152     4  k_first: beyond all k when K = 0
///     1024     32  view of D                                1156     4  stage_bytes: that maps bring into a stage
///     1160    24  of groups: offsets, their stride, faults   1184    20  groups, experts, tiles_n, tokens, top_k
///     1208    32  indices and slots, their strides          1240     8  maps of weights by address
///     1248     8  bytes of 64 rows of A, of a tail's box    1256    16  counter of tiles that are taken; products that are
///     summed
///                                                           1280        epilogue arguments
struct alignas(64) ParameterBlock {
  cuda::CUtensorMap a[2]{}, b[2]{}, d{}, d_half{}, d_quarter{};
  ViewBlock a_view[2], b_view[2], d_view;
  std::int32_t m = 0, n = 0, k = 0, batches = 1;
  std::int32_t k_blocks = 0;
  std::int32_t a_batch_step[2] = {1, 1}, b_batch_step[2] = {1, 1};
  std::int32_t swap_raster = 0;
  std::uint32_t tiles = 0, full_groups = 0;
  Divisor tiles_of_batch, tiles_of_group, group, last_group;
  std::int32_t k_first = 0;
  std::int32_t stage_bytes = 0;
  std::uint64_t offsets = 0;
  std::int64_t offset_stride = 0;
  std::uint64_t faults = 0;
  std::int32_t groups = 0, experts = 1, tiles_n = 0;
  std::int32_t tokens = 0, top_k = 1;
  std::uint64_t indices = 0, slots = 0;
  std::int64_t index_stride = 0, slot_stride = 0;
  std::uint64_t maps = 0;
  std::int32_t row_block_bytes = 0, tail_bytes = 0;
  std::uint64_t claimed = 0, products = 0;
  std::int32_t unused[2] = {};
};
inline constexpr std::size_t kEpilogueOffset = 1280;

static_assert(sizeof(cuda::CUtensorMap) == 128 && sizeof(ViewBlock) == 32 && sizeof(Divisor) == 12);
static_assert(offsetof(ParameterBlock, a) == 0 && offsetof(ParameterBlock, b) == 256 && offsetof(ParameterBlock, d) == 512);
static_assert(offsetof(ParameterBlock, a_view) == 896 && offsetof(ParameterBlock, d_view) == 1024);
static_assert(offsetof(ParameterBlock, m) == 1056 && offsetof(ParameterBlock, k_blocks) == 1072);
static_assert(offsetof(ParameterBlock, tiles) == 1096 && offsetof(ParameterBlock, tiles_of_batch) == 1104);
static_assert(offsetof(ParameterBlock, offsets) == 1160 && offsetof(ParameterBlock, groups) == 1184);
static_assert(offsetof(ParameterBlock, indices) == 1208 && offsetof(ParameterBlock, maps) == 1240);
static_assert(offsetof(ParameterBlock, claimed) == 1256);
static_assert(sizeof(ParameterBlock) == kEpilogueOffset && alignof(ParameterBlock) == 64);

}  // namespace verglas::sm90
