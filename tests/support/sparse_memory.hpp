#pragma once
#include <cstdint>
#include <vector>

#include "cuda/driver_table.hpp"

namespace support {

/// Memory of any size, of which a few elements are set and read.
class Sparse {
 public:
  Sparse(const verglas::cuda::DriverTable& driver, std::int64_t bytes) : driver_(driver) {
    verglas::cuda::check(driver, driver.cuMemAlloc(&base_, static_cast<std::size_t>(bytes)), "cuMemAlloc", "a large test buffer");
  }
  ~Sparse() { driver_.cuMemFree(base_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  void* data() const { return reinterpret_cast<void*>(base_); }
  template <class T>
  void put(std::int64_t element, const std::vector<T>& values) {
    verglas::cuda::check(driver_, driver_.cuMemcpyHtoD(at<T>(element), values.data(), values.size() * sizeof(T)), "cuMemcpyHtoD",
                         "a test");
  }
  void fill(unsigned char value, std::int64_t bytes) {
    verglas::cuda::check(driver_, driver_.cuMemsetD8Async(base_, value, static_cast<std::size_t>(bytes), nullptr),
                         "cuMemsetD8Async", "a test");
  }
  template <class T>
  std::vector<T> get(std::int64_t element, std::size_t count) const {
    std::vector<T> out(count);
    verglas::cuda::check(driver_, driver_.cuMemcpyDtoH(out.data(), at<T>(element), count * sizeof(T)), "cuMemcpyDtoH", "a test");
    return out;
  }

 private:
  template <class T>
  verglas::cuda::CUdeviceptr at(std::int64_t element) const {
    return base_ + static_cast<verglas::cuda::CUdeviceptr>(element) * sizeof(T);
  }
  const verglas::cuda::DriverTable& driver_;
  verglas::cuda::CUdeviceptr base_ = 0;
};

}  // namespace support
