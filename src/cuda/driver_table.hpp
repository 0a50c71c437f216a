#pragma once
#include <string>

#include "base/result.hpp"
#include "cuda/driver_types.hpp"
#include "cuda/lazy_table.hpp"

namespace verglas::cuda {

/// The driver as a table of functions; members are called as the driver's functions are: `driver.cuLaunchKernelEx(…)`.
struct DriverTable {
#define VERGLAS_DRIVER_CALL(name, symbol, parameters) CUresult(*name) parameters = nullptr;
#include "cuda/driver_calls.def"
#undef VERGLAS_DRIVER_CALL
  int version = 0;  ///< 1000 · major + 10 · minor: 13000 for 13.0
};

/// Oldest driver that is accepted: cuFuncLoad came with it.
inline constexpr int kOldestDriver = 12040;

/// The driver of this machine, initialised; or a decline of rule driver.missing, whose text lists what was tried.
Result<const DriverTable*> driver();
/// The story of the search, for `doctor`.
LibraryReport driver_report();
/// Opens the driver among `places` into `table`; `driver()` does so once with the system's places.
LibraryReport open_driver(DriverTable& table, const SearchPlaces& places);

LazyTable<DriverTable>& lazy_driver();
/// `const DriverOverride hide(nullptr);` or `const DriverOverride fake(&recording.table());`
using DriverOverride = TableOverride<DriverTable, lazy_driver>;

/// "CUDA_ERROR_INVALID_VALUE (1)": the driver's own name for a code, or just the number where it has none.
std::string name_of(const DriverTable& driver, CUresult code);

/// The error of a failed driver call: rule driver.call, the call, the driver's name and description of the code, and what was
/// attempted ("loading kernel vg_1234 on device 1"). The code out of memory becomes ErrorCode::out_of_memory.
Error driver_error(const DriverTable& driver, CUresult code, std::string_view call, std::string_view attempted);

/// Throws `driver_error` unless the call succeeded.
inline void check(const DriverTable& driver, CUresult code, std::string_view call, std::string_view attempted) {
  if (code != CUDA_SUCCESS) throw driver_error(driver, code, call, attempted);
}

}  // namespace verglas::cuda
