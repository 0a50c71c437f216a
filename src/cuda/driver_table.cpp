#include "cuda/driver_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace verglas::cuda {
namespace {

/// The name of the first symbol that is missing, or null.
const char* fill(DriverTable& table, void* handle) {
#define VERGLAS_DRIVER_CALL(name, symbol, parameters)                            \
  table.name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, #symbol)); \
  if (!table.name) return #symbol;
#include "cuda/driver_calls.def"
#undef VERGLAS_DRIVER_CALL
  return nullptr;
}

std::string accept(DriverTable& table, void* handle, std::string& version) {
  // The version first: an old driver lacks symbols, and its age is the reason to give.
  const auto get_version = reinterpret_cast<CUresult (*)(int*)>(dlsym(handle, "cuDriverGetVersion"));
  if (!get_version) return "is not a CUDA driver: it has no cuDriverGetVersion";
  int v = 0;
  const CUresult answered = get_version(&v);
  if (answered == CUDA_ERROR_STUB_LIBRARY) return "is the toolkit's stub for linking, not a driver";
  if (answered != CUDA_SUCCESS) return fmt::format("cuDriverGetVersion answers {}", static_cast<int>(answered));
  version = fmt::format("{}.{}", v / 1000, v % 1000 / 10);
  if (v < kOldestDriver)
    return fmt::format("is a driver for CUDA {}, older than {}.{}", version, kOldestDriver / 1000, kOldestDriver % 1000 / 10);
  if (const char* missing = fill(table, handle)) return fmt::format("has no symbol {}", missing);
  table.version = v;
  if (const CUresult code = table.cuInit(0); code != CUDA_SUCCESS)
    return fmt::format("is a driver for CUDA {}, but cuInit answers {}", version, name_of(table, code));
  return {};
}

}  // namespace

LibraryReport open_driver(DriverTable& table, const SearchPlaces& places) {
  LibraryRequest request;
  request.what = "the CUDA driver";
  request.variable = "VERGLAS_CUDA_DRIVER";
  request.names = {"libcuda.so.1"};
  request.in_toolkit = false;  // hazard: a toolkit holds a stub of this name, never the driver
  request.folders = {"/usr/lib/wsl/lib",          "/usr/lib64",
                     "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                     "/usr/local/nvidia/lib64",   "/run/opengl-driver/lib"};
  request.install = "install NVIDIA's driver (550 or newer)";
  return open_library(request, places, [&](void* handle, std::string& version) { return accept(table, handle, version); }).report;
}

LazyTable<DriverTable>& lazy_driver() {
  static LazyTable<DriverTable>& lazy =
      *new LazyTable<DriverTable>(Rule::driver_missing, open_driver);  // never destroyed: plans may be dropped at exit
  return lazy;
}
Result<const DriverTable*> driver() { return lazy_driver().get(); }
LibraryReport driver_report() { return lazy_driver().report(); }

std::string name_of(const DriverTable& driver, CUresult code) {
  const char* name = nullptr;
  if (!driver.cuGetErrorName || driver.cuGetErrorName(code, &name) != CUDA_SUCCESS || !name)
    return fmt::format("code {}", static_cast<int>(code));
  return fmt::format("{} ({})", name, static_cast<int>(code));
}

Error driver_error(const DriverTable& driver, CUresult code, std::string_view call, std::string_view attempted) {
  const char* words = nullptr;
  if (!driver.cuGetErrorString || driver.cuGetErrorString(code, &words) != CUDA_SUCCESS) words = nullptr;
  std::string text =
      fmt::format("{} answers {}{}{} while {}", call, name_of(driver, code), words ? ": " : "", words ? words : "", attempted);
  const ErrorCode kind = code == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::driver_failed;
  return Error(kind, info_of(Rule::driver_call).id, std::move(text));
}

}  // namespace verglas::cuda
