#pragma once
#include <memory>

#include "base/result.hpp"
#include "cuda/context.hpp"
#include "cuda/cublaslt_table.hpp"
#include "verglas/tensor.hpp"

namespace verglas::cublaslt {

/// The library with its handle for one device. Any number of threads may use a handle.
class Library {
 public:
  /// Throws driver.call, cublaslt.call.
  Library(const cuda::CublasLtTable& table, const cuda::DriverTable& driver, int ordinal);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const cuda::CublasLtTable& table() const noexcept { return table_; }
  const cuda::DriverTable& driver() const noexcept { return driver_; }
  cuda::cublasLtHandle_t handle() const noexcept { return handle_; }
  cuda::CUcontext context() const noexcept { return context_.handle(); }
  bool is_ours() const noexcept;  ///< not that of a parent process

 private:
  const cuda::CublasLtTable& table_;
  const cuda::DriverTable& driver_;
  cuda::PrimaryContext context_;
  cuda::cublasLtHandle_t handle_ = nullptr;
  int process_;
};

/// The library for that device, opened and made when first asked for, and kept; or why there is none.
Result<std::shared_ptr<const Library>> library_of(Device device);
/// Lets go of what `library_of` keeps; plans keep theirs.
void forget_libraries();

/// The error of a failed call, with the library's own name for the failure.
Error library_error(const cuda::CublasLtTable& table, cuda::cublasStatus_t status, std::string_view call,
                    std::string_view attempted);

}  // namespace verglas::cublaslt
