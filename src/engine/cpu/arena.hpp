#pragma once
#include <cstddef>
#include <new>

namespace verglas::engine::cpu {

/// Scratch of one thread, kept between calls: the call path allocates only while a thread's scratch still grows.
class Arena {
 public:
  float* take(std::size_t floats) noexcept {
    if (floats > size_) {
      ::operator delete[](data_, std::align_val_t{64});
      data_ = static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t{64}, std::nothrow));
      size_ = data_ ? floats : 0;
    }
    return data_;
  }
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { ::operator delete[](data_, std::align_val_t{64}); }

 private:
  float* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace verglas::engine::cpu
