#include "cuda/nvrtc_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

#include "cuda/driver_table.hpp"

namespace verglas::cuda {
namespace {

std::string accept(NvrtcTable& table, void* handle, std::string& version, int driver_version) {
  table = NvrtcTable{};
#define VERGLAS_NVRTC_CALL(name, parameters)                                      \
  table.name = reinterpret_cast<nvrtcResult(*) parameters>(dlsym(handle, #name)); \
  if (!table.name) return "has no symbol " #name;
#include "cuda/nvrtc_calls.def"
#undef VERGLAS_NVRTC_CALL
  table.nvrtcGetErrorString = reinterpret_cast<const char* (*)(nvrtcResult)>(dlsym(handle, "nvrtcGetErrorString"));
  if (!table.nvrtcGetErrorString) return "has no symbol nvrtcGetErrorString";
  if (table.nvrtcVersion(&table.major, &table.minor) != NVRTC_SUCCESS) return "does not answer nvrtcVersion";
  version = fmt::format("{}.{}", table.major, table.minor);
  if (1000 * table.major + 10 * table.minor < kOldestNvrtc)
    return fmt::format("is version {}, older than {}.{}", version, kOldestNvrtc / 1000, kOldestNvrtc % 1000 / 10);
  if (driver_version != 0 && table.major > driver_version / 1000)
    return fmt::format("is version {}, and the driver is for CUDA {}.{}", version, driver_version / 1000,
                       driver_version % 1000 / 10);
  int count = 0;
  if (table.nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count <= 0) return "does not list its architectures";
  std::vector<int> archs(static_cast<std::size_t>(count));
  if (table.nvrtcGetSupportedArchs(archs.data()) != NVRTC_SUCCESS) return "does not list its architectures";
  bool has_sm90 = false;
  for (const int arch : archs) has_sm90 |= arch == 90;
  if (!has_sm90) return fmt::format("is version {} without sm_90", version);
  const LibraryBuild build = build_of(reinterpret_cast<const void*>(table.nvrtcCompileProgram));
  table.build = build.build;
  table.path = build.path;
  return {};
}

LibraryReport open_for_this_driver(NvrtcTable& table, const SearchPlaces& places) {
  const Result<const DriverTable*> d = driver();
  return open_nvrtc(table, places, d ? (*d)->version : 0);
}

}  // namespace

LibraryReport open_nvrtc(NvrtcTable& table, const SearchPlaces& places, int driver_version) {
  LibraryRequest request;
  request.what = "NVRTC";
  request.variable = "VERGLAS_NVRTC";
  request.names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  request.wheels = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};
  request.install =
      "install NVIDIA's CUDA toolkit 12.4 or newer, or the wheel nvidia-cuda-nvrtc (CUDA 13) or nvidia-cuda-nvrtc-cu12";
  return open_library(request, places,
                      [&](void* handle, std::string& version) { return accept(table, handle, version, driver_version); })
      .report;
}

LazyTable<NvrtcTable>& lazy_nvrtc() {
  static LazyTable<NvrtcTable>& lazy =
      *new LazyTable<NvrtcTable>(Rule::nvrtc_missing, open_for_this_driver);  // never destroyed: plans may be dropped at exit
  return lazy;
}
Result<const NvrtcTable*> nvrtc() { return lazy_nvrtc().get(); }
LibraryReport nvrtc_report() { return lazy_nvrtc().report(); }

}  // namespace verglas::cuda
