#pragma once
#include "unowned.cuh"

namespace vg {

// What all blocks of a launch do before any of them goes on. They run at one time, since the launch asks for that.

/// By all threads of every consumer, once in a launch. Everything that any of them has stored is seen behind it, past the
/// first-level cache.
template <class C>
VG_DEVICE void wait_for_all_blocks(const Parameters& p, int consumer) {
  uint32 *const arrived = p.claimed + 32, *const round = arrived + 1;
  __threadfence();
  consumer_sync(consumer);
  if (threadIdx.x % 128 == 0) {
    const uint32 others = gridDim.x * C::CONSUMERS - 1, before = load_l2(round, true, 0);
    __threadfence();
    if (count_up(arrived, others) == others) {
      __threadfence();
      store_l2(round, before + 1);
    } else {
      while (load_l2(round, true, 0) == before) __nanosleep(64);
    }
    __threadfence();
  }
  consumer_sync(consumer);
}

/// work(row) for each row of the result to which nobody has scattered, as each_unowned has it. The marks of the others go.
template <class C, class Work>
VG_DEVICE void each_unscattered(const Parameters& p, const Work& work) {
  each_row<C>(
      p,
      [&](int row) {
        uint32* const mark = words_of_rows(p) + row;
        const bool is_free = load_l2(mark, true, 0) == 0;
        if (!is_free) store_l2(mark, 0);
        return is_free;
      },
      work);
}

}  // namespace vg
