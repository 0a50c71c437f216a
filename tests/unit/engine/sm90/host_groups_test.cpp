// The walk over tiles of groups, compiled for the host: every tile once, whatever rows the groups have.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <vector>

#include "engine/sm90/tensor_maps.hpp"
#include "group_scheduler.cuh"

namespace {

using namespace vg;

std::mt19937 engine(23);
int between(int low, int high) { return low + static_cast<int>(engine() % static_cast<unsigned>(high - low + 1)); }

struct Config {
  static constexpr int BLOCK_M = 128, BLOCK_N = 128, STAGES = 5, CONSUMERS = 2, PRODUCERS = 1, SPLIT = 1, STORE_BUFFERS = 2;
  static constexpr int INPUT_BYTES = 2, A_PIECE = 0, B_PIECE = 0, D_PIECE = 0, A_DECODED = 0, B_DECODED = 0, DECODERS = 1,
                       JOINED = 1;
  static constexpr int SLOTS = 1, GEMMS = 1, A_COUNT = 1, B_COUNT = 1, GROUPS = 1024, LISTED = 0, SHORT_TILE = 4, TAIL_ROWS = 16;
  static constexpr int REDUCTIONS = 0, COLUMN_REDUCTIONS = 0, VECTORS = 0, COLUMN_QUANTISERS = 0, QUANTISED_COLUMNS = 0,
                       QUANTISER_WORDS = 0;
  static constexpr int FURTHER_OUTPUTS = 0, FURTHER_BUFFERS = 0, RUN_BYTES = 0, RUN_SLOTS = 0;
  static constexpr bool CLAIMS = true, PINGPONG = true, A_K_MAJOR = true, B_K_MAJOR = true, PROMOTED = false;
  static constexpr bool SCALED = false, HELD = false, CASTS = false, CARRIED = false, LOADS_TILE = false, DEPTH_GROUPS = false;
  static constexpr bool GATHERS = false, SCATTERS = false, COMBINES = false, ZERO_FILL = false, B_BY_ADDRESS = false,
                        ACCUMULATES = false, GROUP_ATOMS = false;
  static constexpr int ROW_UNIT = 1;
  struct Output {
    static constexpr int BYTES = 2;
  };
};

/// Groups from none to 300 rows, or one of most of them, with rows that nobody owns in front.
std::vector<int> drawn_firsts() {
  const int groups = between(1, 40), skew = between(0, 2);
  std::vector<int> first{between(0, 100)};
  for (int g = 0; g < groups; ++g) {
    const int rows = skew == 0 ? between(0, 300) : skew == 1 ? between(0, 2000) / (1 + g) : between(0, 4) * 64;
    first.push_back(first.back() + rows);
  }
  return first;
}

void expect_every_tile_once(const std::vector<int>& first, int n, int width) {
  using C = Config;
  const int groups = static_cast<int>(first.size()) - 1;
  verglas::sm90::KernelConfig config;
  config.block_n = C::BLOCK_N;
  config.groups = C::GROUPS;
  verglas::sm90::Problem problem;
  problem.m = first.back() + 1, problem.n = n, problem.k = 64;
  const verglas::sm90::ParameterBlock block = make_block(config, problem, width);
  Parameters p{};
  p.groups = groups;
  p.experts = groups;
  p.tiles_n = block.tiles_n;
  p.group = {block.group.value, block.group.multiplier, block.group.shift};
  p.tiles_of_group = {block.tiles_of_group.value, block.tiles_of_group.multiplier, block.tiles_of_group.shift};
  p.k = 640;
  p.k_blocks = 10;
  std::vector<uint8> memory(static_cast<std::size_t>(Layout<C>::SMEM_BYTES));
  const GroupTable<C> table(memory.data());
  for (int g = 0; g <= groups; ++g) {
    const auto at = static_cast<std::size_t>(g);
    table.begin[g] = first[at];
    if (g > 0) table.before[g] = table.before[g - 1] + (first[at] - first[at - 1] + C::BLOCK_M - 1) / C::BLOCK_M * p.tiles_n;
  }
  std::set<std::array<int, 3>> wanted, seen;
  for (int g = 0; g < groups; ++g)
    for (int m = 0; m * C::BLOCK_M < first[static_cast<std::size_t>(g) + 1] - first[static_cast<std::size_t>(g)]; ++m)
      for (int column = 0; column < p.tiles_n; ++column) wanted.insert({g, m, column});
  GroupTiles<C> tiles(p, memory.data());
  for (uint32 t = 0; t < tiles.count(); ++t) {
    const Tile tile = tiles.at(t);
    const int begin = table.begin[tile.batch], end = table.begin[tile.batch + 1];
    ASSERT_EQ(tile.row, begin + tile.m * C::BLOCK_M);
    ASSERT_LT(tile.row, end);
    ASSERT_EQ(tile.end, end);
    ASSERT_EQ(tile.k_blocks, 10);
    ASSERT_TRUE(tile.n >= 0 && tile.n < p.tiles_n);
    ASSERT_TRUE(seen.insert({tile.batch, tile.m, tile.n}).second) << "twice";
  }
  EXPECT_EQ(seen, wanted);
}

TEST(Sm90HostGroups, EveryTileIsVisitedOnce) {
  for (int i = 0; i < 400; ++i) {
    const std::vector<int> first = drawn_firsts();
    const int n = between(1, 1200), width = between(1, 16);
    SCOPED_TRACE(i);
    expect_every_tile_once(first, n, width);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
