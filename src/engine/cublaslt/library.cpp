#include "engine/cublaslt/library.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "cuda/device.hpp"

namespace verglas::cublaslt {
namespace {

struct Kept {
  const cuda::CublasLtTable* table;
  const cuda::DriverTable* driver;
  int ordinal;
  int process;
  std::shared_ptr<const Library> library;
};
struct Registry {
  std::mutex mutex;
  std::vector<Kept> kept;
};
Registry& registry() {
  static Registry& r = *new Registry;  // never destroyed: at exit the driver may be gone
  return r;
}

}  // namespace

Error library_error(const cuda::CublasLtTable& table, cuda::cublasStatus_t status, std::string_view call,
                    std::string_view attempted) {
  return broken(Rule::cublaslt_call, fmt::format("{} answered {} ({}), {}", call, table.cublasLtGetStatusName(status),
                                                 static_cast<int>(status), attempted));
}

Library::Library(const cuda::CublasLtTable& table, const cuda::DriverTable& driver, int ordinal)
    : table_(table), driver_(driver), context_(driver, ordinal), process_(::getpid()) {
  const cuda::CurrentContext here(driver, context_.handle());
  const cuda::RelaxedCapture relaxed(driver);
  if (const auto status = table.cublasLtCreate(&handle_); status != cuda::CUBLAS_STATUS_SUCCESS)
    throw library_error(table, status, "cublasLtCreate", fmt::format("making a handle for device {}", ordinal));
}

bool Library::is_ours() const noexcept { return process_ == ::getpid(); }

Library::~Library() {
  if (!is_ours() || driver_.cuCtxPushCurrent(context_.handle()) != cuda::CUDA_SUCCESS) return;
  const cuda::RelaxedCapture relaxed(driver_);
  table_.cublasLtDestroy(handle_);
  cuda::CUcontext popped = nullptr;
  driver_.cuCtxPopCurrent(&popped);
}

Result<std::shared_ptr<const Library>> library_of(Device device) {
  const auto driver = cuda::driver();
  if (!driver) return tl::unexpected<Decline>(driver.error());
  const int count = cuda::device_count(**driver);
  if (device.id < 0 || device.id >= count)
    return decline(Rule::engine_device, fmt::format("there is no device cuda:{} ({} found)", device.id, count));
  const auto table = cuda::cublaslt();
  if (!table) return tl::unexpected<Decline>(table.error());
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (const Kept& k : r.kept)
    if (k.table == *table && k.driver == *driver && k.ordinal == device.id && k.process == ::getpid()) return k.library;
  try {
    r.kept.push_back({*table, *driver, device.id, ::getpid(), std::make_shared<const Library>(**table, **driver, device.id)});
  } catch (const Error& e) {
    return decline(Rule::cublaslt_call, e.what());
  }
  return r.kept.back().library;
}

void forget_libraries() {
  Registry& r = registry();
  std::vector<Kept> gone;
  const std::lock_guard lock(r.mutex);
  gone.swap(r.kept);
}

}  // namespace verglas::cublaslt
