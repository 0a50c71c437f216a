#include "jit/report.hpp"

#include <gtest/gtest.h>

namespace verglas::jit {

TEST(ResourceReport, ReadsRegistersStackSpillsSharedMemoryAndBarriers) {
  const ResourceReport r = parse_report(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'vg_1' for 'sm_90a'\n"
      "ptxas info    : Function properties for vg_1\n"
      "    48 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 16 barriers, 48 bytes cumulative stack size, 1024 bytes smem, 536 bytes cmem[0]\n"
      "ptxas info    : Compile time = 18.879 ms\n");
  EXPECT_EQ(r.registers, 168);
  EXPECT_EQ(r.stack_bytes, 48);
  EXPECT_EQ(r.spill_store_bytes, 12);
  EXPECT_EQ(r.spill_load_bytes, 20);
  EXPECT_EQ(r.smem_bytes, 1024);
  EXPECT_EQ(r.barriers, 16);
  EXPECT_TRUE(r.spills());
  EXPECT_FALSE(r.clean());
  EXPECT_TRUE(r.advice.empty());
  EXPECT_TRUE(r.warnings.empty());
}

TEST(ResourceReport, OfAKernelWithoutTroubleIsClean) {
  const ResourceReport r = parse_report(
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 90 registers, used 1 barriers\n");
  EXPECT_TRUE(r.clean());
  EXPECT_EQ(r.registers, 90);
  EXPECT_EQ(r.smem_bytes, 0);
}

TEST(ResourceReport, KeepsAdviceOfPtxasAndNamesWhatItMeans) {
  const auto with = [](int code) {
    return parse_report("ptxas info    : (C" + std::to_string(code) +
                        ") Potential Performance Loss: something in the function 'vg_1'\n");
  };
  for (const int code : {7504, 7507, 7508, 7512}) {
    EXPECT_TRUE(with(code).setmaxnreg_ignored()) << code;
    EXPECT_FALSE(with(code).wgmma_serialised()) << code;
  }
  for (const int code : {7509, 7510, 7511, 7514, 7515}) {
    EXPECT_TRUE(with(code).wgmma_serialised()) << code;
    EXPECT_FALSE(with(code).setmaxnreg_ignored()) << code;
  }
  for (const int code : {7517, 7519}) {
    EXPECT_FALSE(with(code).wgmma_serialised()) << code;
    EXPECT_FALSE(with(code).clean()) << code;
  }
}

TEST(ResourceReport, KeepsWarningsOfEitherCompiler) {
  const ResourceReport r = parse_report(
      "vg_1.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n\n"
      "ptxas warning : Registers are spilled to local memory in function 'vg_1'\n");
  EXPECT_EQ(r.warnings.size(), 2U);
  EXPECT_FALSE(r.clean());
}

TEST(ResourceReport, OfNothingIsEmpty) {
  EXPECT_EQ(parse_report("").registers, 0);
  EXPECT_EQ(parse_report("Used registers\nbytes stack frame").registers, 0);
}

}  // namespace verglas::jit
