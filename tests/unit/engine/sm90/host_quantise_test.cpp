// What the kernels' quantiser makes of single numbers, compiled for the host: the codes and scales of src/numeric.
#include <gtest/gtest.h>

#include "quantise.cuh"

namespace {

using namespace vg;

/// Numbers of every octave, of every code and around its ends; of NaN the positive quiet ones, as arithmetic on a
/// device makes them.
template <class Body>
void each_number(const Body& body) {
  for (uint32 u = 0; u < 0xff800000U; u += u % 3 == 0 ? 4099 : 4111) {
    const bool is_signaling = u > 0x7f800000U && u < 0x7fc00000U;
    if (!is_signaling) body(__uint_as_float(u));
  }
  for (int code = 0; code < 16; ++code)
    for (const float step : {0.0F, 0.25F, 0.5F, 1.0F})
      for (int nudge = -2; nudge <= 2; ++nudge) {
        const float x = verglas::numeric::e2m1_to_float(static_cast<uint8>(code)) + step;
        body(__uint_as_float(__float_as_uint(x) + static_cast<uint32>(x == 0.0F ? 0 : nudge)));
      }
}

TEST(HostQuantiser, CodesFp4AsTheCpuEngine) {
  int wrong = 0;
  each_number([&](float x) { wrong += E2m1Elements::code(x) != verglas::numeric::float_to_e2m1(x) ? 1 : 0; });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(E2m1Elements::pack(1.0F, -6.0F), 0xf2U);
}

TEST(HostQuantiser, StoresScalesAsTheCpuEngine) {
  int wrong = 0;
  each_number([&](float x) {
    x = std::fabs(x);
    const uint8 power = verglas::numeric::float_to_e8m0(x), small = verglas::numeric::float_to_e4m3(x);
    wrong += E8m0Stored::of(x) != power || E4m3Stored::of(x) != small ? 1 : 0;
    const float held = verglas::numeric::e8m0_to_float(power);
    wrong += __float_as_uint(E8m0Stored::held(power)) != __float_as_uint(held) && !std::isnan(held) ? 1 : 0;
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
