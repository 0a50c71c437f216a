// Our declarations of NVRTC's interface against its own header, where it is installed.
#if __has_include("/usr/local/cuda/include/nvrtc.h")
#define VERGLAS_HAS_NVRTC_H 1
#include "/usr/local/cuda/include/nvrtc.h"
#endif

#include <gtest/gtest.h>

#include <type_traits>

#include "cuda/nvrtc_types.hpp"

namespace verglas::cuda {
namespace {

#ifdef VERGLAS_HAS_NVRTC_H

#define SAME(name) EXPECT_EQ(static_cast<int>(verglas::cuda::name), static_cast<int>(::name)) << #name

TEST(NvrtcTypes, ConstantsAreThoseOfTheHeader) {
  SAME(NVRTC_SUCCESS);
  SAME(NVRTC_ERROR_OUT_OF_MEMORY);
  SAME(NVRTC_ERROR_PROGRAM_CREATION_FAILURE);
  SAME(NVRTC_ERROR_INVALID_INPUT);
  SAME(NVRTC_ERROR_INVALID_PROGRAM);
  SAME(NVRTC_ERROR_INVALID_OPTION);
  SAME(NVRTC_ERROR_COMPILATION);
  SAME(NVRTC_ERROR_BUILTIN_OPERATION_FAILURE);
  SAME(NVRTC_ERROR_INTERNAL_ERROR);
}

template <class... Ours, class... Theirs>
constexpr bool called_alike(verglas::cuda::nvrtcResult (*)(Ours...), ::nvrtcResult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs))
    return false;
  else
    return ((std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs)) && ...);
}

TEST(NvrtcTypes, EveryCallHasTheHeadersParameters) {
#define VERGLAS_NVRTC_CALL(name, parameters) \
  EXPECT_TRUE(called_alike(static_cast<verglas::cuda::nvrtcResult(*) parameters>(nullptr), decltype(&::name){})) << #name;
#include "cuda/nvrtc_calls.def"
#undef VERGLAS_NVRTC_CALL
}

#else

TEST(NvrtcTypes, ConstantsAreThoseOfTheHeader) { GTEST_SKIP() << "no nvrtc.h in /usr/local/cuda/include"; }

#endif

}  // namespace
}  // namespace verglas::cuda
