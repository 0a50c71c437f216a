#include "base/canonical.hpp"

#include <gtest/gtest.h>

namespace verglas {

TEST(CanonicalBytes, AreReadable) {
  CanonicalBytes bytes;
  bytes.add("arch", "sm_90a");
  bytes.add("stages", std::int64_t{4});
  EXPECT_EQ(bytes.bytes(), "arch 6 sm_90a\nstages 1 4\n");
}

TEST(CanonicalBytes, DifferForFieldsThatWouldJoinToTheSameText) {
  CanonicalBytes one, two;
  one.add("a", "x\nb 1 y");
  two.add("a", "x");
  two.add("b", "y");
  EXPECT_NE(one.bytes(), two.bytes());
}

}  // namespace verglas
