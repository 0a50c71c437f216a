#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace support {

/// Memory whose last byte lies before a page that may not be touched.
class Cliff {
 public:
  explicit Cliff(std::size_t bytes)
      : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), room_((bytes + page_ - 1) / page_ * page_) {
    base_ = static_cast<char*>(mmap(nullptr, room_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + room_, page_, PROT_NONE);
    data_ = reinterpret_cast<float*>(base_ + room_ - bytes);
  }
  Cliff(const Cliff&) = delete;
  Cliff& operator=(const Cliff&) = delete;
  ~Cliff() { munmap(base_, room_ + page_); }
  float* data() const { return data_; }

 private:
  std::size_t page_, room_;
  char* base_;
  float* data_;
};

}  // namespace support
