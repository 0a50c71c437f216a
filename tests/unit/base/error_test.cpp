#include <gtest/gtest.h>

#include "base/rules.hpp"

namespace verglas {

TEST(Error, SaysCodeRuleOperandGotAndWanted) {
  const Error e(ErrorCode::invalid_call, "gemm.k_equal", "b", "K = 4096 from shape (512, 4096)", "2048 as in a (128, 2048)");
  EXPECT_STREQ(e.what(), "invalid_call [gemm.k_equal] b: got K = 4096 from shape (512, 4096), wanted 2048 as in a (128, 2048)");
  EXPECT_EQ(e.code(), ErrorCode::invalid_call);
}

TEST(Error, OfARuleHasTheRulesIdAndCode) {
  const Error e = broken(Rule::internal, "impossible");
  EXPECT_EQ(e.rule(), "internal");
  EXPECT_STREQ(e.what(), "internal [internal] impossible");
}

}  // namespace verglas
