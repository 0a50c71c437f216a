#include "base/strides.hpp"

#include <gtest/gtest.h>

#include <array>

namespace verglas {
namespace {

using Extents = std::array<std::int64_t, 2>;

TEST(Strides, AreInjectiveWhereEachPassesTheReachOfTheSmaller) {
  EXPECT_TRUE(is_injective(Extents{3, 4}, Extents{4, 1}));
  EXPECT_FALSE(is_injective(Extents{3, 4}, Extents{3, 1}));
  EXPECT_TRUE(is_injective(Extents{3, 4}, Extents{1, 3}));
  EXPECT_FALSE(is_injective(Extents{3, 4}, Extents{1, 2}));
}

TEST(Strides, OfOneElementMeanNothing) {
  EXPECT_TRUE(is_injective(Extents{1, 4}, Extents{0, 1}));
  EXPECT_FALSE(is_injective(Extents{2, 4}, Extents{0, 1}));
}

TEST(Strides, OfNoElementsAreInjective) { EXPECT_TRUE(is_injective(Extents{0, 4}, Extents{0, 0})); }

}  // namespace
}  // namespace verglas
