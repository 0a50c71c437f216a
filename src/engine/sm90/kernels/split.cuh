#pragma once
#include "layout.cuh"

namespace vg {

/// A tile's K split over the blocks of a cluster: each sums its part. The rows of a consumer have a home, another block for each
/// consumer: the others send their sums there, it adds them in order of rank and drains. Sums travel from registers to the other
/// block's shared memory, four a thread; the bytes count at a barrier there. A second barrier says that they were read.
template <class C>
class Split {
  using L = Layout<C>;
  static constexpr int OTHERS = C::SPLIT - 1;

 public:
  VG_DEVICE Split(uint32 smem, int consumer)
      : landing_(smem + L::LANDING + consumer * L::LANDING_BYTES),
        landed_(L::landed(smem, consumer)),
        read_(L::read(smem, consumer)),
        rank_(cluster_rank()),
        home_(static_cast<uint32>(consumer % C::SPLIT)) {}

  /// Of two blocks whose memory this one reaches, neither ends before the other is done with it.
  VG_DEVICE void finish() {
    if (rank_ != home_ && phase_ != 0xffffffffu) barrier_wait(read_, phase_);
  }

  VG_DEVICE bool drains() const { return rank_ == home_; }

  /// True for the block that drains the consumer's rows.
  template <class A>
  VG_DEVICE bool join(A (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2]) {
    const uint32 slot = landing_ + threadIdx.x % 128 * 16;
    phase_ = phase_ == 0 ? 1 : 0;
    if (!drains()) {
      barrier_wait(read_, phase_ ^ 1);  // the sums of the tile before
      const uint32 to = remote_shared(slot + (rank_ < home_ ? rank_ : rank_ - 1) * L::SUMS_BYTES, home_),
                   barrier = remote_shared(landed_, home_);
      const auto bits = [](A x) { return __builtin_bit_cast(uint32, x); };
      each(acc, [&](int i, A(&x)[C::BLOCK_N / 2], int e) {
        store_remote(to + i * 2048, barrier, bits(x[e]), bits(x[e + 1]), bits(x[e + 2]), bits(x[e + 3]));
      });
      return false;
    }
    if (threadIdx.x % 128 == 0) barrier_arrive_expect(landed_, OTHERS * L::SUMS_BYTES);
    barrier_wait(landed_, phase_);
    for (int other = 0; other < OTHERS; ++other) {
      each(acc, [&](int i, A(&x)[C::BLOCK_N / 2], int e) {
        Piece<16> y;
        load_shared(slot + other * L::SUMS_BYTES + i * 2048, y);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[e + j] += __builtin_bit_cast(A, y.v[j]);
      });
    }
    return true;
  }

  /// By the block that drains, once the drain has used the sums. Not sooner: an arrival at another block overtakes loads from
  /// shared memory that wait behind stores of the drain before, and the next sums land on what is still to be read.
  VG_DEVICE void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      for (uint32 other = 0; other < C::SPLIT; ++other)
        if (other != rank_) barrier_arrive_remote(remote_shared(read_, other));
    }
  }

 private:
  /// Four sums at a time: their number among all, their row block, and the first in it.
  template <class A, class Body>
  VG_DEVICE static void each(A (&acc)[C::GEMMS][L::M_BLOCKS][C::BLOCK_N / 2], Body&& body) {
#pragma unroll
    for (int g = 0; g < C::GEMMS; ++g) {
#pragma unroll
      for (int b = 0; b < L::M_BLOCKS; ++b) {
#pragma unroll
        for (int e = 0; e < C::BLOCK_N / 2; e += 4) body((g * L::M_BLOCKS + b) * C::BLOCK_N / 8 + e / 4, acc[g][b], e);
      }
    }
  }

  uint32 landing_, landed_, read_, rank_, home_;
  uint32 phase_ = 0xffffffffu;
};

/// One block a tile.
struct Whole {
  VG_DEVICE Whole(uint32, int) {}
  VG_DEVICE bool drains() const { return true; }
  template <class Accumulators>
  VG_DEVICE bool join(Accumulators&) {
    return true;
  }
  VG_DEVICE void release() {}
  VG_DEVICE void finish() {}
};

}  // namespace vg
