#pragma once
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace verglas {

/// While it lives, this thread computes with subnormals as numbers, though the host program may have switched them off. XLA does
/// so for the threads that run its programs, and threads hand that down to those they start.
class WithSubnormals {
 public:
#if defined(__SSE__)
  WithSubnormals() noexcept : before_(_mm_getcsr()) {
    if ((before_ & kFlushes) != 0) _mm_setcsr(before_ & ~kFlushes);
  }
  ~WithSubnormals() {
    if ((before_ & kFlushes) != 0) _mm_setcsr(before_);
  }
#else
  WithSubnormals() noexcept {}
#endif
  WithSubnormals(const WithSubnormals&) = delete;
  WithSubnormals& operator=(const WithSubnormals&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kFlushes = 0x8040;  // FTZ: results, DAZ: operands
  unsigned before_;
#endif
};

}  // namespace verglas
