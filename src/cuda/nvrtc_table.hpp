#pragma once
#include <string>

#include "base/result.hpp"
#include "cuda/lazy_table.hpp"
#include "cuda/nvrtc_types.hpp"

namespace verglas::cuda {

/// NVRTC as a table of functions.
struct NvrtcTable {
#define VERGLAS_NVRTC_CALL(name, parameters) nvrtcResult(*name) parameters = nullptr;
#include "cuda/nvrtc_calls.def"
#undef VERGLAS_NVRTC_CALL
  const char* (*nvrtcGetErrorString)(nvrtcResult) = nullptr;
  int major = 0, minor = 0;
  std::string build;  ///< which build of that version: part of cache keys, since 13.0.48 and 13.0.88 both answer "13.0"
  std::string path;
};

/// Oldest NVRTC that is accepted, as 1000 · major + 10 · minor: `--minimal` came with it.
inline constexpr int kOldestNvrtc = 12040;

/// NVRTC of this machine; or a decline of rule nvrtc.missing. Where a driver is present, an NVRTC of a later major version
/// than the driver's is passed over, since that driver could not load what it compiles.
Result<const NvrtcTable*> nvrtc();
LibraryReport nvrtc_report();
/// `driver_version`: that of the driver that is to load the code, or 0 for any (compiling ahead of time).
LibraryReport open_nvrtc(NvrtcTable& table, const SearchPlaces& places, int driver_version);

LazyTable<NvrtcTable>& lazy_nvrtc();
using NvrtcOverride = TableOverride<NvrtcTable, lazy_nvrtc>;

}  // namespace verglas::cuda
