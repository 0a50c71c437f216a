#pragma once
#include <optional>
#include <string_view>
#include <vector>

namespace verglas::jit {

/// What a cubin says about one of its kernels, read from the ELF image itself and so independent of any compiler log.
struct CubinInfo {
  int sm = 0;           ///< 90
  int registers = 0;    ///< per thread at entry
  int frame_bytes = 0;  ///< local memory of one thread: spills and stack
  int barriers = 0;
  int instructions = 0;              ///< of its code, 16 bytes each
  std::vector<int> parameter_bytes;  ///< of each parameter, in order
};

/// None where the image is no cubin, is cut short, or has no such kernel. Reads nothing outside `image`.
/// Source: the layout of .nv.info records, as printed by NVIDIA's cuobjdump and confirmed on cubins of NVRTC 13.0.
std::optional<CubinInfo> read_cubin(std::string_view image, std::string_view kernel);

}  // namespace verglas::jit
