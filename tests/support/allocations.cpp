#include "support/allocations.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local long allocations = 0;
}

// In a file of their own: where the compiler sees both bodies it takes the pair for a mismatch.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
// The address sanitizer has one of its own, which it would not see freed by the delete below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }

namespace support {
long allocations_of_this_thread() noexcept { return allocations; }
}  // namespace support
