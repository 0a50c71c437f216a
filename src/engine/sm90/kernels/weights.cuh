#pragma once
#include "group_scheduler.cuh"

namespace vg {

/// Where B lies: in the tensor that maps and views of the parameter describe.
template <class C, bool BY_ADDRESS>
class WeightsOf {
 public:
  VG_DEVICE WeightsOf(const Parameters& p, uint8*) : p_(p) {}
  VG_DEVICE void begin(const Tile&) {}
  VG_DEVICE void prepare(uint32, uint32) {}
  VG_DEVICE const TensorMap* map(int i) const { return &p_.b[i]; }
  VG_DEVICE const View& view(int i) const { return p_.b_view[i]; }

 private:
  const Parameters& p_;
};

/// Where a table of addresses says, by expert, of one B at least. For the copy engine one thread makes maps in memory that this
/// block owns: copies of the parameter's with another address. Making one takes about a microsecond, so that of the next tile is
/// made while this one's boxes are on their way, of an address that was asked for a tile before. There are two more than stages:
/// when one is made anew, what was asked for by it has arrived.
template <class C>
class WeightsOf<C, true> {
  static constexpr bool MAPPED = C::B_PIECE == 0;
  static constexpr int SLOTS = C::STAGES + 2;

 public:
  VG_DEVICE WeightsOf(const Parameters& p, uint8* memory)
      : p_(p), ahead_(p, memory), maps_(p.maps + static_cast<int64>(blockIdx.x) * (SLOTS * C::B_COUNT)) {}

  /// By whoever asks for the boxes of this tile, or copies its pieces.
  VG_DEVICE void begin(const Tile& tile) {
    if constexpr (MAPPED) {
      if (made_ < 0) {
        ask(tile.b_batch);
        make();
      }
      slot_ = made_;
    } else {
#pragma unroll
      for (int i = 0; i < C::B_COUNT; ++i)
        views_[i] = {reinterpret_cast<void*>(address_of_weights<C>(p_, i, tile.b_batch)), p_.b_view[i].outer_stride,
                     p_.b_view[i].inner_stride, 0};
    }
  }
  /// For tile number t, after some of the tile before it has been asked for, and `step` tiles on.
  VG_DEVICE void prepare(uint32 t, uint32 step) {
    if constexpr (MAPPED) {
      if (is_first_) {
        is_first_ = false;
        if (t < ahead_.count()) ask(ahead_.at(t).b_batch);
      }
      if (t < ahead_.count()) make();
      if (t + step < ahead_.count()) ask(ahead_.at(t + step).b_batch);
    }
  }
  VG_DEVICE const TensorMap* map(int i) const { return maps_ + slot_ * C::B_COUNT + i; }
  VG_DEVICE const View& view(int i) const { return views_[i]; }

 private:
  VG_DEVICE void ask(int expert) {
    asked_ = expert;
#pragma unroll
    for (int i = 0; i < C::B_COUNT; ++i) addresses_[i] = address_of_weights<C>(p_, i, expert);
  }
  /// Of the expert that was asked for.
  VG_DEVICE void make() {
    if (asked_ == expert_) return;
    expert_ = asked_;
    if (++made_ == SLOTS) made_ = 0;
#pragma unroll
    for (int i = 0; i < C::B_COUNT; ++i) {
      TensorMap* const map = maps_ + made_ * C::B_COUNT + i;
      *map = p_.b[i];
      if (p_.k != 0) replace_address(map, addresses_[i]);  // else nothing is read
    }
    release_maps();
#pragma unroll
    for (int i = 0; i < C::B_COUNT; ++i) acquire_map(maps_ + made_ * C::B_COUNT + i);
  }

  const Parameters& p_;
  Tiles<C> ahead_;
  TensorMap* maps_;
  uint64 addresses_[C::B_COUNT];
  int asked_ = -1, expert_ = -1, made_ = -1, slot_ = 0;
  bool is_first_ = true;
  View views_[MAPPED ? 1 : C::B_COUNT];
};

template <class C>
using Weights = WeightsOf<C, C::B_ADDRESSED != 0>;

}  // namespace vg
