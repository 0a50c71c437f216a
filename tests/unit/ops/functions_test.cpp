#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "verglas/verglas.hpp"

// The functions that allocate what they answer, with every kind of operand and output; values are those of ones.
namespace verglas::ops {
namespace {

using enum DataType;

constexpr std::uint8_t kOneE4m3 = 0x38, kTwoOnesFp4 = 0x22;

struct Ones {
  std::vector<std::uint8_t> a = std::vector<std::uint8_t>(64 * 32, kOneE4m3), b = a;
  std::vector<std::uint8_t> of_a = std::vector<std::uint8_t>(512, 127), of_b = std::vector<std::uint8_t>(512, 128);
  float norm_const = 1;

  TensorView matrix(std::vector<std::uint8_t>& memory, std::int64_t rows, DataType type) {
    return TensorView::dense(memory.data(), type, {rows, 32, 1});
  }
  TensorView atoms(std::vector<std::uint8_t>& memory) { return TensorView::dense(memory.data(), fp8_e8m0, {1, 1, 1, 32, 4, 4}); }
  BlockScales scales(bool quantised = false) {
    return {
        .a = atoms(of_a), .b = atoms(of_b), .norm_const = quantised ? TensorView::dense(&norm_const, fp32, {1}) : TensorView{}};
  }
};

template <class T>
std::span<const T> values(const Array& x) {
  return {x.data<T>(), static_cast<std::size_t>(x.view().observed_bytes) / sizeof(T)};
}
template <class T>
bool all_are(const Array& x, T wanted) {
  const auto all = values<T>(x);
  return !all.empty() && std::ranges::all_of(all, [&](T v) { return v == wanted; });
}
bool is_made(const Array& x) { return x.view().dtype != not_set; }

TEST(OperationFunctions, TakeOperandsWithScales) {
  Ones x;
  const GemmAmaxResult r =
      gemm_amax_forward(x.matrix(x.a, 3, fp8_e4m3), x.matrix(x.b, 4, fp8_e4m3), {.sf_vec_size = 32}, x.scales());
  EXPECT_TRUE(all_are(r.c, 64.0F)) << "32 ones times a scale of 2";
  EXPECT_EQ(*r.amax.data<float>(), 64);
}

TEST(OperationFunctions, AnswerFp4InPairs) {
  Ones x;
  std::ranges::fill(x.a, kTwoOnesFp4);
  std::ranges::fill(x.b, kTwoOnesFp4);
  const GemmAmaxResult r = gemm_amax_forward(x.matrix(x.a, 3, fp4_e2m1), x.matrix(x.b, 4, fp4_e2m1),
                                             {.c_dtype = fp4_e2m1, .sf_vec_size = 32}, x.scales());
  EXPECT_EQ(values<std::uint8_t>(r.c).size(), 6U);
  EXPECT_TRUE(all_are<std::uint8_t>(r.c, 0x77)) << "the largest number of fp4";
  EXPECT_EQ(*r.amax.data<float>(), 64);
}

TEST(OperationFunctions, AnswerQuantisedOutputsWithTheirScales) {
  Ones x;
  const TensorView a = x.matrix(x.a, 3, fp8_e4m3), b = x.matrix(x.b, 64, fp8_e4m3);
  const GemmSreluResult r =
      gemm_srelu_forward(a, b, {}, 0.5F, {.c_dtype = fp32, .d_dtype = fp8_e4m3, .sf_vec_size = 32}, x.scales(true));
  EXPECT_TRUE(all_are(r.c, 32.0F));
  EXPECT_TRUE(all_are<std::uint8_t>(r.d, 0x78)) << "1024 = 256 · 4";
  EXPECT_EQ(r.sfd.view().rank, 6);
  EXPECT_EQ(r.sfd.data<std::uint8_t>()[0], 129);
  EXPECT_FALSE(is_made(r.amax));
  const GemmSwigluResult s = gemm_swiglu_forward(a, b, 0.5F, {.c_dtype = fp8_e4m3, .sf_vec_size = 32}, x.scales(true));
  EXPECT_TRUE(all_are(s.ab12, 32.0F));
  EXPECT_TRUE(all_are<std::uint8_t>(s.c, 0x78)) << "1024 · sigmoid(32)";
  EXPECT_EQ(s.sfc.data<std::uint8_t>()[0], 129);
  EXPECT_FALSE(is_made(s.amax));
  std::vector<float> dy(std::size_t{3} * 64, 1.0F);
  const GemmSreluGradients g = gemm_srelu_backward(a, b, TensorView::dense(dy.data(), fp32, {3, 64, 1}), {}, 0.5F,
                                                   {.d_dtype = fp8_e4m3, .sf_vec_size = 32}, x.scales(true));
  EXPECT_TRUE(all_are<std::uint8_t>(g.d, 0x78)) << "64 = 256 / 4";
  EXPECT_EQ(g.sfd.data<std::uint8_t>()[0], 125);
  EXPECT_TRUE(all_are(g.dprob, 65536.0F));
}

TEST(OperationFunctions, AnswerTheMaximumOfFp4Operands) {
  Ones x;
  std::ranges::fill(x.a, kTwoOnesFp4);
  std::ranges::fill(x.b, kTwoOnesFp4);
  const GemmSreluResult r = gemm_srelu_forward(x.matrix(x.a, 3, fp4_e2m1), x.matrix(x.b, 4, fp4_e2m1), {}, 1.0F,
                                               {.d_dtype = fp32, .sf_vec_size = 32}, x.scales());
  EXPECT_TRUE(all_are(r.d, 4096.0F));
  EXPECT_EQ(*r.amax.data<float>(), 4096);
  EXPECT_FALSE(is_made(r.sfd));
}

TEST(OperationFunctions, AllocateNothingForMoreThanThereCanBe) {
  const auto rows = [](std::int64_t n) { return TensorView::dense(nullptr, fp32, {n, 1, 1}); };
  EXPECT_THROW(gemm_amax_forward(rows(std::int64_t{1} << 32), rows(std::int64_t{1} << 32)), std::bad_alloc);
  EXPECT_THROW(gemm_amax_forward(rows(std::int64_t{1} << 30), rows(std::int64_t{1} << 29)), std::bad_alloc);
}

TEST(OperationFunctions, Project) {
  constexpr std::uint16_t kOne = 0x3F80;
  std::vector<std::uint16_t> ones(std::size_t{384} * 32, kOne), zeros(std::size_t{32} * 64, 0);
  const TensorView x = TensorView::dense(ones.data(), bf16, {32, 32}), w = TensorView::dense(ones.data(), bf16, {384, 32});
  const TensorView cos = TensorView::dense(ones.data(), bf16, {32, 64}), sin = TensorView::dense(zeros.data(), bf16, {32, 64});
  const GemmProjRopeMxfp8Result r = gemm_proj_rope_mxfp8_forward(x, w, cos, sin);
  for (const Array* q : {&r.out_fp8_row, &r.out_fp8_col}) EXPECT_TRUE(all_are<std::uint8_t>(*q, 0x78)) << "32 = 256 / 8";
  for (const Array* s : {&r.out_scales_row, &r.out_scales_col}) EXPECT_TRUE(all_are<std::uint8_t>(*s, 124));
  EXPECT_EQ(values<std::uint8_t>(r.out_scales_row).size(), std::size_t{32} * 2 * 6);
  EXPECT_EQ(values<std::uint8_t>(r.out_scales_col).size(), std::size_t{2} * 192);
  EXPECT_THROW(gemm_proj_rope_mxfp8_forward(x, w, cos, sin, x), Error);
}

}  // namespace
}  // namespace verglas::ops
