#pragma once
#include "either.cuh"
#include "layout.cuh"
#include "position.cuh"
#include "tile_scheduler.cuh"

namespace vg {

// Of values that are not negative.
struct Most {
  VG_DEVICE static int join(int a, int b) { return a > b ? a : b; }
  VG_DEVICE static int of_warp(int x) { return most_of_warp(x); }
};
struct Sum {
  VG_DEVICE static int join(int a, int b) { return a + b; }
  VG_DEVICE static int of_warp(int x) { return sum_of_warp(x); }
};
/// One value a thread, joined over `all` and those of all threads before it; then `all` has those of every thread too.
template <class Join, int WARPS>
VG_DEVICE int joined_before(int x, int& all, int* totals) {
  static_assert(WARPS <= 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, x, lanes);
    if (lane >= lanes) x = Join::join(below, x);
  }
  if (lane == 31) totals[warp] = x;
  const int own = __shfl_up_sync(0xffffffffu, x, 1);
  __syncthreads();
  const int total = lane < WARPS ? totals[lane] : 0;
  const int before = Join::join(all, Join::of_warp(lane < warp ? total : 0));
  all = Join::join(all, Join::of_warp(total));
  __syncthreads();
  return lane == 0 ? before : Join::join(before, own);
}

/// Of an expert's matrix of B number i: from a table that lies where the view says, or its place in a tensor, whose stride is in
/// bytes.
template <class C>
VG_DEVICE uint64 address_of_weights(const Parameters& p, int i, int expert) {
  const View& view = p.b_view[i];
  const int64 at = expert * view.batch_stride;
  return C::B_ADDRESSED >> i & 1 ? static_cast<const uint64*>(view.address)[at] : reinterpret_cast<uint64>(view.address) + at;
}
/// There is no expert, or its address is none that weights can be loaded from.
template <class C>
VG_DEVICE bool lacks_weights(const Parameters& p, int group) {
  if (C::DEPTH_GROUPS) return false;
  if (p.experts == 0) return true;
  bool lacks = false;
  if constexpr (C::B_ADDRESSED != 0) {
    constexpr uint64 UNIT = C::B_PIECE == 0 ? 16 : C::B_PIECE;
#pragma unroll
    for (int i = 0; i < C::B_COUNT; ++i) {
      if (!(C::B_ADDRESSED >> i & 1)) continue;
      const uint64 address = address_of_weights<C>(p, i, group % p.experts);
      lacks = lacks || address == 0 || address % UNIT != 0;
    }
  }
  return lacks;
}

/// Rows that groups may own: those of D, but where each of these is a sum.
template <class C>
VG_DEVICE int rows_of_groups(const Parameters& p) {
  return C::COMBINES ? p.tokens : p.m;
}

/// What memory says of the groups, in shared memory: the first row of each, behind them the end of the last; and the tiles before
/// each, behind them all tiles.
template <class C>
struct GroupTable {
  int* begin;
  int* before;
  int* cursors;  // where blocks claim tiles: the group of the last tile, of the producer and of each consumer; registers are dear
  int* claims;   // likewise: do they, since tiles take unequal times and are not over before a claim is?
  int* next;     // likewise: the number of a tile, between threads of the producer
  int* shift;    // GROUP_ATOMS: of each group, from a row to one in atoms of its scales
  VG_DEVICE explicit GroupTable(uint8* memory)
      : begin(reinterpret_cast<int*>(memory + Layout<C>::BEGIN_TABLE)),
        before(begin + C::GROUPS + 1),
        cursors(before + C::GROUPS + 1 + Layout<C>::THREADS / 32),
        claims(cursors + 3),
        next(claims + 1),
        shift(cursors + (C::CLAIMS ? 6 : 0)) {}

  /// Of a group whose rows are a part of K; one of zeros where it has none.
  VG_DEVICE int k_blocks_of(int g) const {
    const int rows = begin[g + 1] - begin[g];
    return rows == 0 ? 1 : (rows + Layout<C>::BLOCK_K - 1) / Layout<C>::BLOCK_K;
  }

  /// Does a group own a row, and multiply it?
  VG_DEVICE bool is_multiplied(const Parameters& p, int row) const {
    if (row < begin[0] || row >= begin[p.groups]) return false;
    int low = 0, high = p.groups;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (begin[middle] <= row ? low : high) = middle;
    }
    return before[low] != before[low + 1];
  }

  /// By all threads of the block; `lacks_scales` says which experts do. Bounds that fall or leave the rows are held to the
  /// greatest until there and to the rows, those within ROW_UNIT rows to where these begin, and block 0 tells the host.
  template <class LacksScales>
  VG_DEVICE void read(const Parameters& p, const LacksScales& lacks_scales) const {
    constexpr int THREADS = Layout<C>::THREADS, WARPS = THREADS / 32;
    int* totals = before + C::GROUPS + 1;
    const int thread = static_cast<int>(threadIdx.x), most_rows = C::DEPTH_GROUPS ? p.k : rows_of_groups<C>(p);
    const auto given_of = [&](int g) {
      const int64 at = g * p.offset_stride;
      return g >= p.groups     ? 0
             : C::OFFSETS_WIDE ? static_cast<const int64*>(p.offsets)[at]
                               : int64{static_cast<const int*>(p.offsets)[at]};
    };
    bool fits = true;
    [[maybe_unused]] bool is_between = true;  // such units
    int most = 0;
    int64 next = given_of(thread);
#pragma unroll 1
    for (int base = 0; base < p.groups; base += THREADS) {
      const int g = base + thread;
      const int64 given = next;
      next = given_of(g + THREADS);
      int held = given < 0 ? 0 : given > most_rows ? most_rows : static_cast<int>(given);
      if constexpr (C::ROW_UNIT > 1) {
        const int over = held == most_rows ? 0 : held % C::ROW_UNIT;
        held -= over;
        is_between = is_between && over == 0;
      }
      const int low = joined_before<Most, WARPS>(held, most, totals);
      fits = fits && (g >= p.groups || (given >= low && given <= most_rows));
      if (g < p.groups) begin[g + (C::OFFSETS_END ? 1 : 0)] = held > low ? held : low;
    }
    if (thread == 0) begin[C::OFFSETS_END ? 0 : p.groups] = C::OFFSETS_END ? 0 : most_rows;
    if (!fits && blockIdx.x == 0) *static_cast<volatile uint32*>(p.faults) = 1;
    if constexpr (C::ROW_UNIT > 1)
      if (!is_between && blockIdx.x == 0) static_cast<volatile uint32*>(p.faults)[4] = 1;
    __syncthreads();
    int all = 0, cut = 0;
    [[maybe_unused]] int atoms = 0;  // GROUP_ATOMS: their rows, of all groups before
    bool is_long = !C::DEPTH_GROUPS && p.k_blocks > C::SHORT_TILE;
#pragma unroll 1
    for (int base = 0; base < p.groups; base += THREADS) {
      const int g = base + thread;
      int rows = g < p.groups ? begin[g + 1] - begin[g] : 0;
      if (rows != 0 && (lacks_weights<C>(p, g) || lacks_scales(g % p.experts))) {
        rows = 0;
        if (blockIdx.x == 0) static_cast<volatile uint32*>(p.faults)[3] = 1;
      }
      const int tiles = !C::DEPTH_GROUPS                                 ? (rows + C::BLOCK_M - 1) / C::BLOCK_M * p.tiles_n
                        : g >= p.groups || (C::ACCUMULATES && rows == 0) ? 0  // nothing is added to what is there
                                                                         : static_cast<int>(p.tiles_of_batch.value);
      cut |= !C::DEPTH_GROUPS ? rows % C::BLOCK_M : g < p.groups ? k_blocks_of(g) ^ k_blocks_of(0) : 0;
      is_long |= C::DEPTH_GROUPS && g < p.groups && k_blocks_of(g) > C::SHORT_TILE;
      const int at = joined_before<Sum, WARPS>(tiles, all, totals);
      if (g < p.groups) before[g] = at;
      if constexpr (C::GROUP_ATOMS) {
        const int own = g < p.groups ? (begin[g + 1] - begin[g] + 127) / 128 * 128 : 0;
        const int to = joined_before<Sum, WARPS>(own, atoms, totals);
        if (g < p.groups) shift[g] = to - begin[g];
      }
    }
    if (thread == 0) before[p.groups] = all;
    if constexpr (C::CLAIMS) {
      const bool differ = __syncthreads_or(cut) != 0, last = __syncthreads_or(is_long) != 0;
      if (threadIdx.x < 3) cursors[threadIdx.x] = 0;
      if (threadIdx.x == 0) *claims = differ && last;
    }
    __syncthreads();
  }
};

/// The tiles of a block where rows, or the depth, are those of groups: group after group, and within one as tile_at has them.
/// Each who asks walks on from the group that he was at.
template <class C>
class GroupTiles {
 public:
  VG_DEVICE GroupTiles(const Parameters& p, uint8* memory) : p_(p), table_(memory), list_(memory + Layout<C>::LIST) {}
  VG_DEVICE uint32 count() const { return static_cast<uint32>(table_.before[p_.groups]); }

  /// By all threads of the block: its first tiles, a thread each. Short ones would be over before one thread has found the next.
  VG_DEVICE void list() {
    for (int i = static_cast<int>(threadIdx.x); i < C::LISTED; i += Layout<C>::THREADS) {
      const uint32 t = blockIdx.x + static_cast<uint32>(i) * gridDim.x;
      if (t >= count()) break;
      int cursor = 0;
      const Tile tile = at(t, cursor);
      reinterpret_cast<Listed*>(list_)[i] = {tile.m, tile.n, tile.batch, tile.row};
    }
    __syncthreads();
  }
  /// Tile number t of all, and `i` of this block. Neither falls from call to call.
  VG_DEVICE Tile nth(uint32 i, uint32 t) {
    if (C::LISTED == 0 || i >= C::LISTED) return at(t);
    const Listed listed = reinterpret_cast<const Listed*>(list_)[i];
    Tile to{listed.m, listed.n, listed.batch, listed.row, C::DEPTH_GROUPS ? p_.m : table_.begin[listed.batch + 1]};
    complete(to);
    return to;
  }
  /// t does not fall from call to call.
  VG_DEVICE Tile at(uint32 t) { return at(t, group_); }
  /// `cursor`: the group of the tile before, and then of this one; or of one further on, where another warp that shares it is
  /// ahead by a few stages.
  VG_DEVICE Tile at(uint32 t, int& cursor) {
    const int tile = static_cast<int>(t);
    int group = cursor;
    if (tile < table_.before[group]) group = 0;
    if (tile >= table_.before[group + 1]) {
      // Not far, where groups have few tiles: twice as far each time.
      int reach = 1, high = p_.groups;
      for (++group; group + reach < high && table_.before[group + reach] <= tile; reach *= 2) group += reach;
      if (group + reach < high) high = group + reach;
      while (high - group > 1) {
        const int middle = (group + high) / 2;
        (table_.before[middle] <= tile ? group : high) = middle;
      }
      cursor = group;
    }
    const int first = table_.begin[group], end = table_.begin[group + 1];
    if constexpr (C::DEPTH_GROUPS) {
      Tile to = tile_at(p_, t - static_cast<uint32>(table_.before[group]));
      to.row = to.m * C::BLOCK_M;
      to.end = p_.m;
      to.batch = group;
      complete(to);
      return to;
    }
    const uint32 tiles_m = static_cast<uint32>((end - first + C::BLOCK_M - 1) / C::BLOCK_M);
    const uint32 in_group = t - static_cast<uint32>(table_.before[group]);
    const uint32 strip = divide(in_group, p_.tiles_of_group), in_strip = in_group - strip * p_.tiles_of_group.value;
    const uint32 left = tiles_m - strip * p_.group.value, width = left < p_.group.value ? left : p_.group.value;
    const uint32 n = width == 1 ? in_strip : in_strip / width, m = strip * p_.group.value + in_strip - n * width;
    Tile to{static_cast<int>(m), static_cast<int>(n), group};
    to.row = first + to.m * C::BLOCK_M;
    to.end = end;
    complete(to);
    return to;
  }
  /// What follows from the group, and is alike for all tiles of rows.
  VG_DEVICE void complete(Tile& to) const {
    if constexpr (C::DEPTH_GROUPS) {
      to.d_batch = to.batch;
      to.k = p_.k == 0 ? p_.k_first : table_.begin[to.batch];
      to.k_end = table_.begin[to.batch + 1];
      to.k_blocks = table_.k_blocks_of(to.batch);
      return;
    }
    to.a_batch = to.d_batch = 0;
    to.b_batch = to.batch < p_.experts ? to.batch : to.batch % p_.experts;
    to.k = p_.k_first;
    to.k_end = p_.k;
    to.k_blocks = p_.k_blocks;
  }
  /// From a row to one in atoms of its group's scales.
  VG_DEVICE int shift_of(const Tile& tile) const { return table_.shift[tile.batch]; }
  VG_DEVICE int k_blocks_of_group(int group) const { return table_.k_blocks_of(group); }
  /// Of a tile that another consumer computes; none where there is no such tile.
  VG_DEVICE int k_blocks_of(uint32 i, uint32 t) {
    if constexpr (C::DEPTH_GROUPS) return t < count() ? nth(i, t).k_blocks : 0;
    return p_.k_blocks;
  }

  /// K-steps of a k-block of which `left` are the group's; one of zeros where it has none.
  VG_DEVICE static int steps_of(int left) {
    constexpr int STEP = Layout<C>::BLOCK_K / 4;
    return left <= STEP ? 1 : left >= 4 * STEP ? 4 : (left + STEP - 1) / STEP;
  }

  /// Zeros over what a stage has behind the end of a group: rows of another, and 0 times an infinity of its would not be 0. By a
  /// consumer, on what it reads: lines of k that others clear as well.
  VG_DEVICE static void cut(uint32 stage, int first_row_block, int k_left, int consumer) {
    using L = Layout<C>;
    if (k_left >= L::BLOCK_K) return;
    const int first = k_left > 0 ? k_left * 8 : 0, last = (C::PROMOTED ? 4 : steps_of(k_left)) * 128;
    const auto clear = [&](uint32 block) {
#pragma unroll
      for (int turn = 0; turn < 4; ++turn)
        if (const int i = first + 128 * turn + static_cast<int>(threadIdx.x) % 128; i < last)
          store_shared(block + 16 * i, Piece<16>{});
    };
#pragma unroll 1
    for (int block = 0; block < (L::A_COPIED ? 0 : C::A_COUNT * L::M_BLOCKS); ++block)
      clear(stage + block / L::M_BLOCKS * L::A_BYTES + (first_row_block + block % L::M_BLOCKS) * 8192);
#pragma unroll 1
    for (int block = 0; block < (L::B_COPIED ? 0 : C::B_COUNT * (L::B_LINES / 64)); ++block)
      clear(stage + L::ALL_A_BYTES + block / (L::B_LINES / 64) * L::B_BYTES + block % (L::B_LINES / 64) * 8192);
    fence_async_proxy();
    consumer_sync(consumer);
  }

 private:
  struct alignas(16) Listed {
    int m, n, batch, row;
  };

  const Parameters& p_;
  GroupTable<C> table_;
  uint8* list_;
  int group_ = 0;
};

/// Where its token has a row: token · top_k + slot, or the row itself where it is gathered; NO_PLACE where that is nowhere.
/// `tells`: the host, of what does not fit.
template <class C>
VG_DEVICE int64 place_of_token(const Parameters& p, int row, bool tells) {
  const int token = p.indices[row * p.index_stride];
  if (token < 0 || token >= (C::COMBINES ? p.m : p.tokens)) {
    if (tells && token != -1) static_cast<volatile uint32*>(p.faults)[1] = 1;
    return NO_PLACE;
  }
  if (C::GATHERS) return row;
  const int slot = p.slots[row * p.slot_stride];
  if (slot >= 0 && slot < p.top_k) return int64{token} * p.top_k + slot;
  if (tells) static_cast<volatile uint32*>(p.faults)[2] = 1;
  return NO_PLACE;
}

/// Words of memory that every launch leaves at zero, for each row of the result: behind the counter of tiles and the two words of
/// wait_for_all_blocks.
VG_DEVICE uint32* words_of_rows(const Parameters& p) { return p.claimed + 64; }

/// Where the rows of a piece lie in D, by its consumer: in their place, where the token of their index says, or nowhere, if that
/// is no token.
template <class C>
VG_DEVICE void find_places(const Parameters& p, const TilePiece& t, int end) {
  constexpr int ROWS = 64 * Layout<C>::M_BLOCKS;
  static_assert(ROWS <= 128);
  const int i = static_cast<int>(threadIdx.x) % 128, row = t.row + i;
  consumer_sync(t.consumer);  // nobody reads those of the tile before
  if (i < ROWS) {
    const int place = row < end ? static_cast<int>(place_of_token<C>(p, row, true)) : NO_PLACE;
    if constexpr (C::SCATTERS && C::ZERO_FILL)
      if (t.n == 0 && place != NO_PLACE) store_l2(words_of_rows(p) + place, 1);
    __syncwarp();
    store_float(t.places + 4 * i, __int_as_float(place));
    const bool all = __all_sync(0xffffffffu, place != NO_PLACE);
    if (i % 32 == 0) store_float(t.places + 4 * (ROWS + i / 32), all ? 1.0f : 0.0f);
  }
  consumer_sync(t.consumer);
}

/// The rows of A of a tile, −1 for one that no token has, by the producer warpgroup.
template <class C>
VG_DEVICE void find_gathered(const Parameters& p, const Tile& tile, uint32 rows) {
  warpgroup_sync<4>();  // nobody reads those of the tile before
  for (int i = static_cast<int>(threadIdx.x); i < C::BLOCK_M; i += 128) {
    const int row = tile.row + i, token = row < tile.end ? p.indices[row * p.index_stride] : -1;
    store_float(rows + 4 * i, __int_as_float(token < p.tokens ? token : -1));
  }
  warpgroup_sync<4>();
}

/// The tiles of whole matrices.
template <class C>
class WholeTiles {
 public:
  VG_DEVICE WholeTiles(const Parameters& p, uint8*) : p_(p) {}
  VG_DEVICE uint32 count() const { return p_.tiles; }
  VG_DEVICE Tile at(uint32 t) const {
    Tile to = tile_at(p_, t);
    to.row = to.m * C::BLOCK_M;
    to.end = p_.m;
    to.a_batch = to.b_batch = to.d_batch = to.batch;
    to.k = p_.k_first;
    to.k_end = p_.k;
    to.k_blocks = p_.k_blocks;
    return to;
  }
  VG_DEVICE Tile nth(uint32, uint32 t) const { return at(t); }
  VG_DEVICE int k_blocks_of(uint32, uint32) const { return p_.k_blocks; }

 private:
  const Parameters& p_;
};

template <class C>
using Tiles = Either<(C::GROUPS > 0), GroupTiles<C>, WholeTiles<C>>;

}  // namespace vg
