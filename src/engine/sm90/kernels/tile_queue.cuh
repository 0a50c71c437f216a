#pragma once
#include "group_scheduler.cuh"

namespace vg {

/// Which tiles a block computes: every gridDim-th.
template <class C, bool CLAIMS>
class TurnsOf {
 public:
  VG_DEVICE TurnsOf(const Parameters&, Tiles<C>& tiles, uint8*, uint32) : tiles_(tiles), count_(tiles.count()) {}

  /// By the producer: the number of its first tile, and of that after t; not below count() when there is none.
  VG_DEVICE uint32 first() const { return blockIdx.x / C::SPLIT; }
  VG_DEVICE uint32 after(uint32 t) const { return t + step(); }
  VG_DEVICE Tile find(uint32 t) { return tiles_.nth(i_++, t); }
  VG_DEVICE void ask() {}

  /// By a consumer: `begin`, and while there is `more`, `tile` once and `next`.
  VG_DEVICE void begin(int consumer) {
    i_ = C::PINGPONG && consumer == 1 ? 1 : 0;
    t_ = first() + i_ * step();
  }
  VG_DEVICE bool more() const { return t_ < count_; }
  VG_DEVICE Tile tile() { return tiles_.nth(i_, t_); }
  VG_DEVICE void next() {
    i_ += C::PINGPONG ? 2 : 1;
    t_ = C::LISTED > 0 ? first() + i_ * step() : t_ + step() * (C::PINGPONG ? 2 : 1);
    phase_ ^= 1;
  }
  /// Parity of the consumer's tiles so far.
  VG_DEVICE uint32 phase() const { return phase_; }
  /// Depth of the block's first tile, and of the one that the other consumer computes after this one's.
  VG_DEVICE int k_blocks_of_first() { return tiles_.k_blocks_of(0, first()); }
  VG_DEVICE int k_blocks_between() { return tiles_.k_blocks_of(i_ + 1, t_ + step()); }

 private:
  VG_DEVICE static uint32 step() { return gridDim.x / C::SPLIT; }

  Tiles<C>& tiles_;
  uint32 count_, i_ = 0, t_ = 0, phase_ = 0;
};

/// Where tiles of groups take unequal times, since some end early: the next one that nobody has, by a counter in memory. The
/// producer asks for it while it loads the last stages of a tile, finds where it lies, and hands that on through shared memory.
/// Each block counts up until there is nothing left, so that the counter wraps to zero with the last of them. Where all tiles are
/// whole, or short, they go by turns, as elsewhere.
template <class C>
class TurnsOf<C, true> {
  using L = Layout<C>;
  static constexpr uint32 QUEUE = L::QUEUE;
  static constexpr int NONE = -1;
  /// The producer is one thread, or a warpgroup of which one thread asks and speaks.
  static constexpr bool MANY = L::ANY_COPIED;
  static_assert(C::PRODUCERS == 1 && C::CONSUMERS <= 2 && !C::SCALED && !L::ANY_DECODED);

 public:
  VG_DEVICE TurnsOf(const Parameters& p, Tiles<C>& tiles, uint8* memory, uint32 smem)
      : p_(p), tiles_(tiles), table_(memory), queue_(smem + L::GROUP_TABLE), count_(tiles.count()) {}
  VG_DEVICE static void init(uint32 smem) {
    for (uint32 i = 0; i < QUEUE; ++i) {
      barrier_init(full(smem + L::GROUP_TABLE, i), 1);
      barrier_init(empty(smem + L::GROUP_TABLE, i), C::DEPTH_GROUPS ? 4 * C::CONSUMERS : L::EMPTY_ARRIVALS);
    }
  }

  VG_DEVICE uint32 first() {
    if (blockIdx.x < count_) return blockIdx.x;
    ask();
    return after(blockIdx.x);
  }
  VG_DEVICE void ask() {
    if (speaks() && *table_.claims) asked_ = count_up(p_.claimed, (count_ > gridDim.x ? count_ : gridDim.x) - 1);
  }
  VG_DEVICE uint32 after(uint32 t) {
    if (!*table_.claims) return t + gridDim.x;
    uint32 next = gridDim.x + asked_;
    if constexpr (MANY) {
      if (speaks()) *table_.next = static_cast<int>(next);
      warpgroup_sync<4>();
      next = static_cast<uint32>(*table_.next);
      warpgroup_sync<4>();
    }
    for (int i = 0; next >= count_ && i < (C::PINGPONG ? 2 : 1); ++i) publish({0, 0, NONE});
    return next;
  }
  VG_DEVICE Tile find(uint32 t) {
    const Tile tile = tiles_.at(t, table_.cursors[0]);
    if (*table_.claims) publish(tile);
    return tile;
  }

  VG_DEVICE void begin(int consumer) {
    consumer_ = consumer;
    turn_ = C::PINGPONG ? static_cast<uint32>(consumer) : 0;
  }
  VG_DEVICE bool more() const {
    if (!*table_.claims) return number() < count_;
    barrier_wait(full(queue_, turn_ % QUEUE), turn_ / QUEUE & 1);
    return word(2) != NONE;
  }
  VG_DEVICE Tile tile() {
    if (!*table_.claims) return tiles_.at(number(), table_.cursors[1 + consumer_]);
    Tile tile{word(0), word(1), word(2), word(3), word(4)};
    tiles_.complete(tile);
    release(turn_);
    return tile;
  }
  VG_DEVICE void next() { turn_ += C::PINGPONG ? 2 : 1; }
  VG_DEVICE uint32 phase() const { return turn_ / (C::PINGPONG ? 2 : 1) % 2; }
  VG_DEVICE int k_blocks_of_first() { return k_blocks_at(0); }
  VG_DEVICE int k_blocks_between() { return k_blocks_at(turn_ + 1); }

 private:
  /// Of the other consumer's tile. Where depths differ both look at each.
  VG_DEVICE int k_blocks_at(uint32 turn) {
    if constexpr (!C::DEPTH_GROUPS) return p_.k_blocks;
    if (!*table_.claims) return tiles_.k_blocks_of(turn, blockIdx.x + turn * gridDim.x);
    barrier_wait(full(queue_, turn % QUEUE), turn / QUEUE & 1);
    const int group = static_cast<int>(__float_as_uint(load_float(words(turn % QUEUE) + 8)));
    release(turn);
    return group == NONE ? 0 : tiles_.k_blocks_of_group(group);
  }
  VG_DEVICE void release(uint32 turn) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(queue_, turn % QUEUE));
  }

  VG_DEVICE static bool speaks() { return !MANY || threadIdx.x == 0; }
  VG_DEVICE static uint32 full(uint32 queue, uint32 slot) { return queue + 8 * slot; }
  VG_DEVICE static uint32 empty(uint32 queue, uint32 slot) { return queue + 8 * (QUEUE + slot); }
  VG_DEVICE uint32 words(uint32 slot) const { return queue_ + 16 * QUEUE + 4 * L::QUEUE_WORDS * slot; }
  VG_DEVICE int word(int i) const { return static_cast<int>(__float_as_uint(load_float(words(turn_ % QUEUE) + 4 * i))); }
  VG_DEVICE uint32 number() const { return blockIdx.x + turn_ * gridDim.x; }
  VG_DEVICE void publish(const Tile& tile) {
    if (!speaks()) return;
    const uint32 slot = turn_ % QUEUE;
    barrier_wait(empty(queue_, slot), (turn_ / QUEUE & 1) ^ 1);
    const int values[L::QUEUE_WORDS] = {tile.m, tile.n, tile.batch, tile.row, tile.end};
#pragma unroll
    for (int i = 0; i < L::QUEUE_WORDS; ++i) store_float(words(slot) + 4 * i, __int_as_float(values[i]));
    barrier_arrive(full(queue_, slot));
    ++turn_;
  }

  const Parameters& p_;
  Tiles<C>& tiles_;
  GroupTable<C> table_;
  uint32 queue_, count_, turn_ = 0, asked_ = 0;
  int consumer_ = 0;
};
template <class C>
using Turns = TurnsOf<C, C::CLAIMS>;

}  // namespace vg
