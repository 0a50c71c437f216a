// Any bytes are a header or are refused with a rule file.npy_*; what a header promises fits 63 bits.
#include <cstdlib>
#include <string_view>

#include "base/npy.hpp"
#include "verglas/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const verglas::NpyHeader h = verglas::parse_npy_header({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (h.data_bytes < 0 || h.data_offset > size || h.dim.size() > 8) std::abort();
  } catch (const verglas::Error& e) {
    if (!e.rule().starts_with("file.npy_")) std::abort();
  }
  return 0;
}
