#include "numeric/block_scale.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace verglas::numeric {
namespace {

constexpr ScaleShape kShapes[] = {{1, 1, 1},   {1, 128, 4}, {2, 129, 4},  {3, 127, 5},
                                  {2, 384, 7}, {1, 33, 12}, {4, 128, 13}, {1, 1000, 1}};

TEST(BlockScale, EveryByteOfTheBlobIsTheScaleOfOnePlace) {
  for (const ScaleShape& s : kShapes) {
    const std::int64_t rows = (s.rows + 127) / 128 * 128, columns = (s.columns + 3) / 4 * 4;
    ASSERT_EQ(scale_blob_bytes(s), s.batches * rows * columns);
    std::vector<int> hits(static_cast<std::size_t>(scale_blob_bytes(s)));
    for (std::int64_t l = 0; l < s.batches; ++l)
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t at = scale_offset(s, l, r, c);
          ASSERT_GE(at, 0);
          ASSERT_LT(at, scale_blob_bytes(s));
          ++hits[static_cast<std::size_t>(at)];
        }
    EXPECT_EQ(hits, std::vector<int>(hits.size(), 1)) << s.rows << 'x' << s.columns;
  }
}

// The layout said differently: pad, split into atoms of 128 x 4, see an atom as (4, 32, 4) and swap its first two axes.
TEST(BlockScale, IsThePaddedMatrixWithItsAtomsSwapped) {
  for (const ScaleShape& s : kShapes) {
    std::int64_t next = 0;
    for (std::int64_t l = 0; l < s.batches; ++l)
      for (std::int64_t row_atom = 0; row_atom * 128 < s.rows; ++row_atom)
        for (std::int64_t column_atom = 0; column_atom * 4 < s.columns; ++column_atom)
          for (std::int64_t lane = 0; lane < 32; ++lane)
            for (std::int64_t quarter = 0; quarter < 4; ++quarter)
              for (std::int64_t c = 0; c < 4; ++c)
                ASSERT_EQ(scale_offset(s, l, row_atom * 128 + quarter * 32 + lane, column_atom * 4 + c), next++);
    EXPECT_EQ(next, scale_blob_bytes(s));
  }
}

TEST(BlockScale, AShortLastBlockHasAScale) {
  EXPECT_EQ(scale_columns(64, 32), 2);
  EXPECT_EQ(scale_columns(65, 32), 3);
  EXPECT_EQ(scale_columns(1, 16), 1);
  EXPECT_EQ(scale_columns(0, 16), 0);
  EXPECT_EQ(scale_blob_bytes({1, 130, scale_columns(65, 16)}), 2 * 2 * 512);
  EXPECT_EQ(scale_blob_bytes({1, 0, 4}), 0);
}

TEST(BlockScale, CountsBeyond32Bits) {
  const ScaleShape s{8, std::int64_t{1} << 20, 1024};
  static_assert(scale_blob_bytes({8, std::int64_t{1} << 20, 1024}) == std::int64_t{1} << 33);
  EXPECT_EQ(scale_offset(s, 7, (std::int64_t{1} << 20) - 1, 1023), (std::int64_t{1} << 33) - 1);
}

}  // namespace
}  // namespace verglas::numeric
