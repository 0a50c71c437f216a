// CUDA's own host conversions as a second opinion. Only where CMake found the toolkit's headers, or those of NVIDIA's wheels.
//   VERGLAS_SLOW=1   every one of the 2^32 fp32 patterns in place of 430,000
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "numeric/formats.hpp"

#if __has_include(<cuda_fp8.h>) && __has_include(<cuda_fp4.h>)
#define VERGLAS_TEST_HAS_CUDA_FORMATS 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <cuda_fp8.h>
//
#include <cuda_fp4.h>
#pragma GCC diagnostic pop
#endif

namespace verglas::numeric {
namespace {

#if defined(VERGLAS_TEST_HAS_CUDA_FORMATS)

template <class F>
void over_floats(F&& f) {
  const std::uint64_t step = std::getenv("VERGLAS_SLOW") != nullptr ? 1 : 10'007;
  for (std::uint64_t u = 0; u < std::uint64_t{1} << 32; u += step) f(from_bits(static_cast<std::uint32_t>(u)));
}
float of_half(__half_raw h) { return fp16_to_float(h.x); }

TEST(CudaFormats, Fp8EncodeAlike) {
  over_floats([](float v) {
    const auto e4m3 = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
    const auto e5m2 = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2);
    if (std::isnan(v)) {  // the sign of a NaN is theirs to drop
      ASSERT_EQ(e4m3 & 0x7F, float_to_e4m3(v) & 0x7F);
      ASSERT_TRUE(std::isnan(e5m2_to_float(e5m2)) && std::isnan(e5m2_to_float(float_to_e5m2(v))));
      return;
    }
    ASSERT_EQ(e4m3, float_to_e4m3(v)) << v;
    ASSERT_EQ(e5m2, float_to_e5m2(v)) << v;
  });
}

TEST(CudaFormats, Fp8DecodeAlike) {
  for (unsigned b = 0; b < 256; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    const float e4m3 = of_half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)),
                e5m2 = of_half(__nv_cvt_fp8_to_halfraw(byte, __NV_E5M2));
    EXPECT_TRUE(std::isnan(e4m3) ? std::isnan(e4m3_to_float(byte)) : bits(e4m3) == bits(e4m3_to_float(byte))) << b;
    EXPECT_TRUE(std::isnan(e5m2) ? std::isnan(e5m2_to_float(byte)) : bits(e5m2) == bits(e5m2_to_float(byte))) << b;
    const float e8m0 = bf16_to_float(__nv_cvt_e8m0_to_bf16raw(byte).x);
    EXPECT_TRUE(std::isnan(e8m0) ? std::isnan(e8m0_to_float(byte)) : bits(e8m0) == bits(e8m0_to_float(byte))) << b;
  }
}

TEST(CudaFormats, E8m0EncodesAlikeFromZeroUp) {
  over_floats([](float v) {
    if (std::signbit(v) || std::isnan(v)) return;  // scales have no sign
    ASSERT_EQ(__nv_cvt_float_to_e8m0(v, __NV_SATFINITE, cudaRoundPosInf), float_to_e8m0(v)) << v;
  });
}

TEST(CudaFormats, Fp4EncodesAlike) {
  over_floats([](float v) { ASSERT_EQ(__nv_cvt_float_to_fp4(v, __NV_E2M1, cudaRoundNearest), float_to_e2m1(v)) << v; });
}

#else

TEST(CudaFormats, EncodeAlike) {
  GTEST_SKIP() << "CMake found no cuda_fp8.h and cuda_fp4.h: VERGLAS_CUDA_INCLUDE names their folder";
}

#endif

}  // namespace
}  // namespace verglas::numeric
