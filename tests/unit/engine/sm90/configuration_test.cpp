#include "engine/sm90/configuration.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "engine/sm90/tensor_maps.hpp"

namespace verglas::sm90 {
namespace {

KernelConfig pingpong(int n, int stages) {
  KernelConfig c;
  c.schedule = Schedule::pingpong;
  c.block_n = n;
  c.stages = stages;
  c.store_buffers = 2;
  return c;
}

Problem product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {m, n, k, 1, {1 << 20, k, 1, 0}, {1 << 20, k, 1, 0}, {1 << 20, n, 1, 0}};
}

TEST(Sm90Divisor, EqualsDivisionForEveryKindOfNumerator) {
  std::mt19937 g(3);
  std::uniform_int_distribution<std::uint32_t> any(0, 0x7fffffff);
  for (std::uint32_t i = 1; i < 3000; ++i) {
    const std::uint32_t value = i < 1000 ? i : i < 1031 ? 1u << (i - 1000) : std::max(1u, any(g) >> (i % 31));
    const Divisor d = make_divisor(value);
    for (const std::uint32_t x : {0u, value - 1, value, any(g), any(g), 0x7fffffffu, 0x7fffffffu - 0x7fffffffu % value})
      ASSERT_EQ(divide(x, d), x / value) << x << " / " << value;
  }
}

TEST(Sm90Configuration, CountsSharedMemoryAndRegistersAsTheNotesDo) {
  const KernelConfig coop;
  EXPECT_EQ(stage_bytes(coop), 48 * 1024);
  EXPECT_EQ(smem_bytes(coop), 3 * 48 * 1024 + 64 * 1024 + 64);
  EXPECT_EQ(accumulators_of(coop), 128);
  EXPECT_EQ(chunks_of(coop), 4);
  EXPECT_EQ(entry_registers(coop), 168);
  EXPECT_EQ(producer_registers(coop) + 2 * consumer_registers(coop), 3 * 168);
  EXPECT_EQ(accumulators_of(pingpong(176, 5)), 176);
  EXPECT_EQ(chunks_of(pingpong(176, 5)), 2 * 4) << "64, 64, 32 and 16 columns for each row block";
  EXPECT_EQ(stages_that_fit(pingpong(176, 5)), 5);
  KernelConfig n_major = pingpong(176, 4);
  n_major.b_major = Major::mn;
  EXPECT_EQ(stage_bytes(n_major), (128 + 192) * 128) << "blocks of 64 columns";
}

TEST(Sm90Configuration, CountsTheLandingOfAClustersOtherBlocks) {
  KernelConfig c;
  c.block_m = 64, c.block_n = 32, c.consumers = 1, c.stages = 12, c.store_buffers = 1;
  const int whole = smem_bytes(c);
  c.split = 2;
  EXPECT_EQ(smem_bytes(c) - whole, 64 * 32 * 4 + 2 * 8) << "sums of fp32, and two barriers";
  c.split = 4;
  EXPECT_EQ(smem_bytes(c) - whole, 3 * 64 * 32 * 4 + 2 * 8);
  EXPECT_EQ(fault_of(c), std::nullopt);
  c.split = 3;
  EXPECT_NE(fault_of(c), std::nullopt) << "clusters are powers of two";
  c.split = 2, c.consumers = 2, c.block_m = 128, c.stages = 4, c.schedule = Schedule::pingpong;
  EXPECT_NE(fault_of(c), std::nullopt) << "ptxas serialises it";
  c.schedule = Schedule::cooperative;
  EXPECT_EQ(fault_of(c), std::nullopt);
  c.block_m = 64, c.consumers = 1, c.stages = 12;
  c.split = 16;
  EXPECT_NE(fault_of(c), std::nullopt) << "beyond the portable size";

  const Problem p = product(16, 300, 1000);
  c.split = 2;
  const ParameterBlock block = make_block(c, p, 8);
  EXPECT_EQ(block.k_blocks, 8) << "half of 16 blocks of 64, the last of which is not full";
  EXPECT_EQ(block.tiles, 10U);
  EXPECT_EQ(grid_of(c, block, 132), 20U);
  EXPECT_EQ(grid_of(c, block, 7), 6U) << "whole clusters";
  EXPECT_EQ(grid_of(c, make_block(c, product(0, 300, 8), 8), 132), 2U);
}

TEST(Sm90Configuration, RefusesWhatThePtxAssemblerWouldAndTakesItsNeighbour) {
  EXPECT_EQ(fault_of(pingpong(192, 4)), std::nullopt);
  EXPECT_NE(fault_of(pingpong(208, 4)), std::nullopt) << "208 accumulators spill";
  EXPECT_EQ(fault_of(pingpong(176, 5)), std::nullopt);
  EXPECT_NE(fault_of(pingpong(176, 6)), std::nullopt) << "shared memory";
  KernelConfig three;
  three.consumers = 3, three.block_m = 192, three.block_n = 192, three.store_buffers = 2;
  EXPECT_EQ(fault_of(three), std::nullopt);
  three.block_n = 208;
  EXPECT_NE(fault_of(three), std::nullopt) << "one wgmma needs 130 registers of 128 at entry";
  KernelConfig rows;
  rows.block_m = 64;
  EXPECT_NE(fault_of(rows), std::nullopt) << "two consumers share 128 rows at least";
  KernelConfig pieces;
  pieces.output = DataType::fp32, pieces.stages = 2, pieces.store_buffers = 2;
  pieces.d_path = Path::bytes2;
  EXPECT_NE(fault_of(pieces), std::nullopt);
  pieces.d_path = Path::bytes4;
  EXPECT_EQ(fault_of(pieces), std::nullopt);
  KernelConfig promoted;
  promoted.input = DataType::fp8_e4m3, promoted.promoted = true, promoted.stages = 1;
  EXPECT_NE(fault_of(promoted), std::nullopt) << "the next stage is waited for before this one is left";
  promoted.stages = 2;
  EXPECT_EQ(fault_of(promoted), std::nullopt);
}

TEST(Sm90Configuration, NamesTellFlavorsApart) {
  std::set<std::string> names;
  std::size_t count = 0;
  for (const Schedule schedule : {Schedule::cooperative, Schedule::pingpong})
    for (const Major major : {Major::k, Major::mn})
      for (const DataType out : {DataType::bf16, DataType::fp32})
        for (const Path path : {Path::tma, Path::bytes4, Path::bytes16})
          for (const bool programmatic : {false, true}) {
            KernelConfig c;
            c.schedule = schedule, c.b_major = major, c.output = out, c.a_path = path, c.programmatic = programmatic;
            names.insert(name_of(c));
            ++count;
          }
  EXPECT_EQ(names.size(), count);
}

TEST(Sm90Paths, TakeTheWidestThatBaseAndStridesAllow) {
  const auto path = [](std::uint64_t address, std::int64_t pitch, std::int64_t inner = 1) {
    return best_path({address, pitch, inner, 0}, true, 40, 30, 1, 2);
  };
  EXPECT_EQ(path(1 << 20, 32), Path::tma);
  EXPECT_EQ(path((1 << 20) + 8, 32), Path::bytes8);
  EXPECT_EQ(path(1 << 20, 36), Path::bytes8);
  EXPECT_EQ(path(1 << 20, 34), Path::bytes4);
  EXPECT_EQ(path(1 << 20, 31), Path::bytes2);
  EXPECT_EQ(path(1 << 20, 64, 2), Path::bytes2) << "no contiguous dimension";
  EXPECT_EQ(path(1 << 20, 0), Path::bytes16) << "rows that repeat have no map";
  EXPECT_EQ(path(1 << 20, -32), Path::bytes16);
  EXPECT_EQ(best_path({1 << 20, 31, 1, 0}, true, 1, 30, 1, 2), Path::tma) << "the pitch of one row is never used";
  EXPECT_EQ(best_path({1 << 20, 32, 1, 31}, true, 40, 30, 2, 2), Path::bytes2) << "batches lie at odd distances";
}

TEST(Sm90Maps, KeepTheDriversLimitsForEveryFlavor) {
  for (const Major major : {Major::k, Major::mn})
    for (const DataType out : {DataType::bf16, DataType::fp16, DataType::fp32})
      for (const int n : {64, 112, 128, 176, 192, 256}) {
        KernelConfig c = pingpong(n, 3);
        c.a_major = c.b_major = major;
        c.output = out;
        Problem p = product(1000, 1000, 1000);
        if (major == Major::mn) p.a[0] = p.b[0] = {1 << 20, 1, 1000, 0};
        EXPECT_EQ(fault_of(map_of_a(c, p)), std::nullopt);
        EXPECT_EQ(fault_of(map_of_b(c, p)), std::nullopt);
        int bytes = 0;
        for (const int width : {128, 64, 32})
          if (stores_width(c, width)) {
            EXPECT_EQ(fault_of(map_of_d(c, p, width)), std::nullopt);
            EXPECT_EQ(map_of_d(c, p, width).box[0] * static_cast<unsigned>(bytes_of(out)), static_cast<unsigned>(width));
            bytes |= width;
          }
        EXPECT_EQ(n * bytes_of(out) % 128, bytes & 96) << "the narrow boxes cover the rest of a row";
      }
}

TEST(Sm90Maps, NameTheLimitThatIsBroken) {
  const KernelConfig c;
  const MapRequest good = map_of_a(c, product(64, 64, 64));
  ASSERT_EQ(fault_of(good), std::nullopt);
  const auto broken = [&](auto change) {
    MapRequest r = good;
    change(r);
    return fault_of(r).value_or("");
  };
  EXPECT_NE(broken([](MapRequest& r) { r.address += 8; }).find("multiple of 16"), std::string::npos);
  EXPECT_NE(broken([](MapRequest& r) { r.strides[0] = 136; }).find("136 bytes of dimension 1"), std::string::npos);
  EXPECT_NE(broken([](MapRequest& r) { r.strides[1] = std::uint64_t{1} << 40; }).find("dimension 2"), std::string::npos);
  EXPECT_NE(broken([](MapRequest& r) { r.box[1] = 257; }).find("box 257"), std::string::npos);
  EXPECT_NE(broken([](MapRequest& r) { r.box[0] = 72; }).find("inner box of 144"), std::string::npos);
  EXPECT_NE(broken([](MapRequest& r) { r.extents[2] = 0; }).find("extent 0"), std::string::npos);
}

/// The device's tile_at, in the words of the block.
std::array<std::uint32_t, 3> tile_at(const ParameterBlock& p, std::uint32_t t) {
  const std::uint32_t batch = divide(t, p.tiles_of_batch), in_batch = t - batch * p.tiles_of_batch.value;
  const std::uint32_t group = divide(in_batch, p.tiles_of_group), in_group = in_batch - group * p.tiles_of_group.value;
  const Divisor width = group < p.full_groups ? p.group : p.last_group;
  const std::uint32_t slow = divide(in_group, width), fast = group * p.group.value + in_group - slow * width.value;
  return p.swap_raster ? std::array{batch, slow, fast} : std::array{batch, fast, slow};
}

TEST(Sm90Raster, VisitsEveryTileOnce) {
  const KernelConfig c;
  for (const std::int64_t m : {1, 128, 129, 1000, 4096, 4200})
    for (const std::int64_t n : {1, 256, 257, 3000})
      for (const int group : {1, 3, 8, 16})
        for (const bool swap : {false, true}) {
          Problem p = product(m, n, 64);
          p.batches = 3;
          const ParameterBlock b = make_block(c, p, group, swap);
          const auto tiles_m = static_cast<std::uint32_t>((m + 127) / 128), tiles_n = static_cast<std::uint32_t>((n + 255) / 256);
          ASSERT_EQ(b.tiles, 3 * tiles_m * tiles_n);
          std::set<std::array<std::uint32_t, 3>> seen;
          for (std::uint32_t t = 0; t < b.tiles; ++t) {
            const auto at = tile_at(b, t);
            ASSERT_TRUE(at[0] < 3 && at[1] < tiles_m && at[2] < tiles_n);
            seen.insert(at);
          }
          EXPECT_EQ(seen.size(), b.tiles);
        }
}

}  // namespace
}  // namespace verglas::sm90
