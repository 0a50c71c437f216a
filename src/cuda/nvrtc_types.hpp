#pragma once
// The part of NVRTC's binary interface that Verglas uses; compared with nvrtc.h by tests/unit/cuda/nvrtc_types_test.cpp.
#include <cstddef>

namespace verglas::cuda {

enum nvrtcResult : int {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
  NVRTC_ERROR_INVALID_INPUT = 3,
  NVRTC_ERROR_INVALID_PROGRAM = 4,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
  NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
  NVRTC_ERROR_INTERNAL_ERROR = 11,
};
using nvrtcProgram = struct nvrtcProgram_st*;

}  // namespace verglas::cuda
