#include "engine/cpu/launcher.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/parallel_for.hpp"
#include "base/subnormals.hpp"
#include "engine/cpu/arena.hpp"
#include "engine/cpu/groups.hpp"
#include "engine/cpu/pointwise.hpp"
#include "engine/cpu/quantise.hpp"
#include "engine/cpu/reduce.hpp"
#include "engine/cpu/tiles.hpp"
#include "numeric/convert.hpp"

namespace verglas::engine::cpu {
namespace {

using recipe::Binding;
using recipe::RoleView;

/// A step takes its result, up to three converted operands and a converted result; a role takes one.
constexpr int kMaxSlots = 5 * chain::kMaxSteps + 2 * chain::kMaxRoles;

class CpuLauncher final : public recipe::Launcher {
 public:
  CpuLauncher(const chain::FusionChain& chain, Sgemm sgemm) : chain_(chain), program_(make_program(chain)), sgemm_(sgemm) {
    plain_ = chain.gemms.size() == 1 && chain.stores.size() == 1 && !chain.stores[0].accumulate && chain.steps.empty() &&
             chain.reductions.empty() && program_.product_type[0] == DataType::fp32 && program_.product_lane[0] == Lane::f32 &&
             chain.quantised.empty();
    for (const QuantiseOp& q : program_.quantised)
      if (q.along_m) gathered_.push_back(q.block);
  }

  Status launch(const Binding& b, const recipe::Call&) const noexcept override {
    const WithSubnormals subnormals;
    Groups groups;
    if (is_grouped() && !read_groups(chain_, b, groups)) return {ErrorCode::out_of_memory, -1, 0};
    const Space space = space_of(b, groups);
    prepare_outputs(b, space);
    std::atomic<std::int64_t> turn{0};
    std::atomic<bool> starved{false};
    parallel_for(space.items, [&](std::int64_t item, int) {
      if (!run_tile(work_at(b, space, item), item, turn)) starved.store(true, std::memory_order_relaxed);
    });
    if (groups.faults != 0) faults_.fetch_or(groups.faults, std::memory_order_relaxed);
    if (starved.load()) return {ErrorCode::out_of_memory, -1, 0};
    for (const ReduceOp& r : program_.reductions) finish_reduction(r, b, space);
    return {};
  }

  std::uint32_t data_faults() const noexcept override { return faults_.load(std::memory_order_relaxed); }
  std::uint32_t take_data_faults() const noexcept override { return faults_.exchange(0, std::memory_order_relaxed); }

  Error failure(Status) const override { return broken(Rule::call_memory, "scratch memory for a tile could not be had"); }

 private:
  struct Work {
    const Binding& b;
    std::int64_t batch, m0, n0, rows, columns;  ///< batch: along the first axis of the epilogue, the group where there are some
    Tile tile;
    std::int64_t k0 = 0, depth = 0;             ///< the part of K that is summed
    std::int64_t expert = 0;                    ///< along the first axis of b
    const std::int64_t* matrix_rows = nullptr;  ///< rows of a, where they do not follow m0
    const std::int64_t* chain_rows = nullptr;   ///< likewise rows of the epilogue

    std::int64_t row_of(std::int64_t row) const noexcept { return chain_rows ? chain_rows[row] : m0 + row; }
  };

  /// What a call computes, cut into tiles.
  struct Space {
    std::int64_t l, m, n;
    Tile tile;
    std::int64_t tiles_m, tiles_n, items;
    const Groups& groups;
  };

  bool is_grouped() const noexcept { return chain_.grouping.axis != chain::GroupedAxis::none; }
  bool groups_rows() const noexcept { return chain_.grouping.axis == chain::GroupedAxis::m; }

  Space space_of(const Binding& b, Groups& groups) const noexcept {
    constexpr std::int64_t kLeastRows = 256;  // a tile of fewer packs the weights too often where one group has most rows
    const bool by_depth = chain_.grouping.axis == chain::GroupedAxis::k;
    const std::int64_t some = std::max<std::int64_t>(groups.count, 1);
    Space s{by_depth ? groups.count : b.live[1], b.live[2], b.live[3], {}, 0, 0, 0, groups};
    const std::int64_t rows = groups_rows() ? std::max(s.m / some, std::min(s.m, kLeastRows)) : s.m;
    const std::int64_t depth = by_depth ? b.live[4] / some : b.live[4];
    s.tile = whole_blocks(tile_for(groups_rows() ? some : s.l, rows, s.n, depth));
    s.tiles_m = (s.m + s.tile.m - 1) / s.tile.m;
    s.tiles_n = (s.n + s.tile.n - 1) / s.tile.n;
    s.items = groups_rows() ? groups.number_tiles(chain_, b, s.tile.m, s.tiles_n) : s.l * s.tiles_m * s.tiles_n;
    return s;
  }

  Work work_at(const Binding& b, const Space& s, std::int64_t item) const noexcept {
    const Groups& g = s.groups;
    const std::int64_t group = groups_rows() ? g.group_of(item) : item / (s.tiles_m * s.tiles_n);
    const std::int64_t rest = groups_rows() ? item - g.tiles_before[group] : item % (s.tiles_m * s.tiles_n);
    const std::int64_t first = groups_rows() ? g.begin[group] : 0;
    Work w{b, group, first + rest / s.tiles_n * s.tile.m, rest % s.tiles_n * s.tile.n, 0, 0, s.tile};
    w.rows = std::min(s.tile.m, (groups_rows() ? g.begin[group + 1] : s.m) - w.m0);
    w.columns = std::min(s.tile.n, s.n - w.n0);
    w.depth = b.live[4];
    w.expert = group;
    if (groups_rows()) {
      w.expert = group % std::max<std::int64_t>(b.live[static_cast<int>(chain::Symbol::e)], 1);
      if (g.matrix_row) w.matrix_rows = g.matrix_row + w.m0;
      if (g.chain_row) w.chain_rows = g.chain_row + w.m0;
    } else if (is_grouped()) {
      w.k0 = g.begin[group];
      w.depth = g.rows(group);
    }
    return w;
  }

  /// f(first, count) for all rows that a group owns, in runs.
  template <class F>
  void each_owned_run(const Groups& g, F&& f) const noexcept {
    if (!g.chain_row) return f(g.first(), g.all_rows());
    for (std::int64_t p = g.first(); p < g.last(); ++p) f(g.chain_row[p], 1);
  }
  /// Rows of an output of fp32 or int32.
  static RoleView rows_of(RoleView v, std::int64_t first, std::int64_t count) noexcept {
    v.data += first * v.stride[1] * static_cast<std::int64_t>(sizeof(float));
    v.extent[1] = count;
    return v;
  }

  /// Everything that outputs hold before the first tile: identities of reductions, zeros of padding and of rows without a group.
  void prepare_outputs(const Binding& b, const Space& s) const noexcept {
    const bool only_owned = groups_rows() && !chain_.grouping.zero_fill;
    for (const ReduceOp& r : program_.reductions) {
      const RoleView& v = b.role[r.role];
      if (only_owned && !r.reduces[1])
        each_owned_run(s.groups, [&](std::int64_t first, std::int64_t count) { seed(r, rows_of(v, first, count)); });
      else
        seed(r, v);
    }
    for (const QuantiseOp& q : program_.quantised) Quantiser(q, b).clear();
    if (!groups_rows() || !chain_.grouping.zero_fill) return;
    const bool all = s.groups.chain_row != nullptr || !chain_.tables.empty();
    const auto zero = [&](int role) {
      zero_rows(b.role[role], type_of(role), 0, all ? s.m : s.groups.first());
      if (!all) zero_rows(b.role[role], type_of(role), s.groups.last(), s.m - s.groups.last());
    };
    for (const StoreOp& store : program_.stores) zero(store.role);
    for (const QuantiseOp& q : program_.quantised) {
      zero(q.role);
      zero(q.scale_role);
    }
  }

  static void zero_rows(const RoleView& v, DataType type, std::int64_t first, std::int64_t count) noexcept {
    const bool is_run = v.stride[2] == 1 || v.extent[2] == 1;
    const std::int64_t bytes = is_run ? numeric::byte_offset(v.extent[2], type) : bytes_of(type);
    for (std::int64_t m = first; m < first + count; ++m)
      for (std::int64_t n = 0; n < (is_run ? 1 : v.extent[2]); ++n)
        std::memset(v.data + numeric::byte_offset(m * v.stride[1] + n * v.stride[2], type), 0, static_cast<std::size_t>(bytes));
  }

  void finish_reduction(const ReduceOp& r, const Binding& b, const Space& s) const noexcept {
    const RoleView& v = b.role[r.role];
    const double columns = r.reduces[2] ? double(s.n) : 1.0;
    if (!groups_rows()) {
      finish(r, v, (r.reduces[0] ? double(s.l) : 1.0) * (r.reduces[1] ? double(s.m) : 1.0) * columns);
    } else if (!r.reduces[1]) {
      each_owned_run(s.groups, [&](std::int64_t first, std::int64_t count) { finish(r, rows_of(v, first, count), columns); });
    } else if (r.reduces[0]) {
      finish(r, v, double(s.groups.all_rows()) * columns);
    } else {
      for (std::int64_t g = 0; g < s.groups.count; ++g) {
        RoleView of_group = v;
        of_group.data += g * v.stride[0] * static_cast<std::int64_t>(sizeof(float));
        of_group.extent[0] = 1;
        finish(r, of_group, double(s.groups.rows(g)) * columns);
      }
    }
  }

  /// Rows by slot. What a slot holds now lies in its home, in a product's sums or in an operand.
  struct Slots {
    const float* now[kMaxSlots];
    float* home[kMaxSlots];
  };
  struct Sums {
    float* at = nullptr;
    std::int64_t ld = 0;
  };

  /// Where the tile of a product is summed: in the output behind it, whose lines then come while oneDNN computes, or in scratch.
  Sums sums_of(const Work& w, std::size_t g, float* scratch) const noexcept {
    if (const int s = program_.summed_in[g]; s >= 0 && !w.chain_rows) {
      const StoreOp& store = program_.stores[static_cast<std::size_t>(s)];
      const RoleView& v = w.b.role[store.role];
      float* out = in_place(store, w, 0);
      if (out && v.extent[1] > 1 && v.stride[1] >= v.extent[2]) return {out, v.stride[1]};
    }
    return {scratch, w.tile.n};
  }

  /// Edges of tiles lie between blocks, which are 16 or 32 elements.
  Tile whole_blocks(Tile t) const noexcept {
    const std::int64_t unit = program_.quantised.empty() ? 1 : 32;
    return {(t.m + unit - 1) / unit * unit, (t.n + unit - 1) / unit * unit};
  }
  /// Rows of scratch: those that quantisers along M gather, and one that both kinds work in.
  std::int64_t quantiser_rows() const noexcept {
    std::int64_t rows = program_.quantised.empty() ? 0 : 1;
    for (const std::int64_t block : gathered_) rows += block;
    return rows;
  }

  static Partial partial_of(const ReduceOp& r, const Work& w, float* lanes) {
    return {lanes, r.reduces[1] ? 1 : w.rows, r.reduces[2] ? 1 : w.columns};
  }

  /// Products, then the epilogue row by row. Partials are combined in the order of the tiles whatever thread is first, so that
  /// sums have the same bits in every run. False: no memory.
  bool run_tile(const Work& w, std::int64_t item, std::atomic<std::int64_t>& turn) const noexcept {
    if (is_plain(w))
      return product(w, 0, reinterpret_cast<float*>(address(program_.stores[0].role, w, 0)),
                     w.b.role[program_.stores[0].role].stride[1]);
    thread_local Arena arena;
    const std::int64_t area = w.tile.m * w.tile.n;
    const auto gemms = static_cast<std::int64_t>(chain_.gemms.size());
    const auto reductions = static_cast<std::int64_t>(program_.reductions.size());
    float* scratch =
        arena.take(static_cast<std::size_t>(area * (gemms + reductions) + (program_.slots + 1 + quantiser_rows()) * w.tile.n));
    float* partials = scratch + gemms * area;
    float* slots = partials + reductions * area;
    bool fed = scratch != nullptr;
    Sums sums[chain::kMaxRoles];
    for (std::int64_t g = 0; g < gemms && fed; ++g) {
      sums[g] = sums_of(w, static_cast<std::size_t>(g), scratch + g * area);
      fed = product(w, static_cast<std::size_t>(g), sums[g].at, sums[g].ld);
    }
    if (fed) {
      for (std::int64_t r = 0; r < reductions; ++r)
        reset(program_.reductions[static_cast<std::size_t>(r)],
              partial_of(program_.reductions[static_cast<std::size_t>(r)], w, partials + r * area));
      epilogue(w, sums, slots, partials);
    }
    if (reductions == 0) return fed;
    wait_for(turn, item);
    for (std::int64_t r = 0; r < reductions && fed; ++r) {
      const ReduceOp& op = program_.reductions[static_cast<std::size_t>(r)];
      combine(op, partial_of(op, w, partials + r * area), w.b.role[op.role], w.batch, w.m0, w.n0, w.chain_rows);
    }
    turn.store(item + 1, std::memory_order_release);
    return fed;
  }

  /// One fp32 product, stored as it is in rows: it needs no scratch.
  bool is_plain(const Work& w) const noexcept {
    if (!plain_ || w.chain_rows) return false;
    const RoleView& out = w.b.role[program_.stores[0].role];
    return out.stride[2] == 1 && out.stride[1] >= out.extent[2];
  }

  /// Items are handed out in order, so the one that is waited for has started and the wait ends.
  static void wait_for(const std::atomic<std::int64_t>& turn, std::int64_t item) noexcept {
    while (turn.load(std::memory_order_acquire) != item) std::this_thread::yield();
  }

  /// False: no memory.
  bool product(const Work& w, std::size_t index, float* c, std::int64_t ldc) const noexcept {
    const chain::Gemm& g = chain_.gemms[index];
    const auto block = [&](int input, std::int64_t along, std::int64_t first, std::int64_t rows, const std::int64_t* row_at) {
      const chain::MatrixInput& in = chain_.inputs[static_cast<std::size_t>(input)];
      const RoleView& v = w.b.role[in.role];
      if (in.table >= 0) {
        const chain::PointerTable& t = chain_.tables[static_cast<std::size_t>(in.table)];
        const char* data = weights_of(v, along) + numeric::byte_offset(first * t.stride[0], t.dtype);
        return MatrixBlock{data, t.dtype, rows, t.stride[0], t.stride[1], &in, 0, first};
      }
      const DataType t = type_of(in.role);
      const std::int64_t batch = v.extent[0] > 1 ? along : 0;
      const std::int64_t offset = batch * v.stride[0] + (row_at ? 0 : first * v.stride[1]) + w.k0 * v.stride[2];
      return MatrixBlock{
          v.data + numeric::byte_offset(offset, t), t, rows, v.stride[1], v.stride[2], &in, batch, row_at ? 0 : first, row_at};
    };
    return tile_product(sgemm_, block(g.a, w.batch, w.m0, w.rows, w.matrix_rows), block(g.b, w.expert, w.n0, w.columns, nullptr),
                        w.depth, g.accumulate == DataType::int32, chain_, w.b, c, ldc);
  }

  void epilogue(const Work& w, const Sums* sums, float* scratch, float* partials) const noexcept {
    const std::int64_t n = w.columns;
    const std::int64_t width = w.tile.n;
    Slots slots;
    for (int s = 0; s < program_.slots; ++s) slots.home[s] = scratch + s * width;
    float* spare = scratch + program_.slots * width;
    for (const Op& op : program_.tile_ops) run(op, w, 0, slots, slots.home[op.out], n);
    for (std::int64_t row = 0; row < w.rows; ++row) {
      if (row + 1 < w.rows) fetch_ahead(w, row + 1);
      for (std::size_t g = 0; g < program_.product_slot.size(); ++g) {
        float* sum = sums[g].at + row * sums[g].ld;
        round_product(g, sum, n);
        slots.now[program_.product_slot[g]] = sum;
      }
      for (std::size_t i = 0; i < program_.row_ops.size(); ++i) {
        const Op& op = program_.row_ops[i];
        float* out = program_.stored_by[i] >= 0
                         ? in_place(program_.stores[static_cast<std::size_t>(program_.stored_by[i])], w, row)
                         : nullptr;
        run(op, w, row, slots, out ? out : slots.home[op.out], n);
      }
      for (const StoreOp& s : program_.stores) store(s, w, row, slots.now[s.slot], n, spare);
      for (std::size_t r = 0; r < program_.reductions.size(); ++r) {
        const ReduceOp& op = program_.reductions[r];
        const float* lanes = slots.now[op.slot];
        if (op.lane != op.compute) {
          convert(lanes, op.lane, spare, n);
          lanes = spare;
        }
        absorb(op, partial_of(op, w, partials + static_cast<std::int64_t>(r) * w.tile.m * width), row, lanes, n);
      }
      if (!program_.quantised.empty()) quantise(w, row, slots.now, spare, n);
    }
  }

  /// Asks for the operands of a row: a row is too short for the processor to see by itself what comes next.
  void fetch_ahead(const Work& w, std::int64_t row) const noexcept {
    constexpr std::int64_t kLine = 64;
    for (const Op& op : program_.row_ops) {
      if (op.kind != OpKind::load) continue;
      const RoleView& v = w.b.role[op.role];
      if (v.stride[2] != 1 || v.extent[2] == 1) continue;
      const char* from = address(op.role, w, row);
      const std::int64_t bytes = w.columns * bytes_of(type_of(op.role));
      for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + at);
    }
  }

  /// `spare` and the rows behind it: one for conversions, one to work in, and what quantisers along M gather.
  void quantise(const Work& w, std::int64_t row, const float* const* slot, float* spare, std::int64_t n) const noexcept {
    const std::int64_t width = w.tile.n;
    const TileAt at{groups_rows() ? 0 : w.batch, w.m0, w.n0};
    float* const bench = spare + width;
    float* gathered = bench + width;
    for (const QuantiseOp& q : program_.quantised) {
      const Quantiser to(q, w.b);
      const float* lanes = slot[q.slot];
      if (q.lane == Lane::i32) {
        convert(lanes, Lane::i32, spare, n);
        lanes = spare;
      }
      if (!q.along_m) {
        to.row(at, w.row_of(row), lanes, n, bench);
        continue;
      }
      std::copy_n(lanes, n, gathered + row % q.block * width);
      if (row % q.block == q.block - 1) to.columns(at, w.m0 + row - q.block + 1, gathered, width, n, bench);
      gathered += q.block * width;
    }
  }

  float* in_place(const StoreOp& s, const Work& w, std::int64_t row) const noexcept { return in_place(s.role, s.lane, w, row); }
  /// Where the role's row lies as lanes that need no conversion; null if it does not.
  float* in_place(int role, Lane lane, const Work& w, std::int64_t row) const noexcept {
    const RoleView& v = w.b.role[role];
    const bool lanes = type_of(role) == (lane == Lane::i32 ? DataType::int32 : DataType::fp32);
    return lanes && v.stride[2] == 1 && v.extent[2] != 1 ? reinterpret_cast<float*>(address(role, w, row)) : nullptr;
  }

  /// From `lane` to the other one.
  static void convert(const float* from, Lane lane, float* to, std::int64_t n) noexcept {
    if (lane == Lane::i32)
      numeric::load_f32(from, DataType::int32, 1, n, to);
    else
      numeric::load_i32(from, DataType::fp32, 1, n, reinterpret_cast<std::int32_t*>(to));
  }

  void round_product(std::size_t g, float* sum, std::int64_t n) const noexcept {
    const DataType type = program_.product_type[g];
    if (program_.product_lane[g] != lane_of(type)) convert(sum, program_.product_lane[g], sum, n);
    if (lane_of(type) == Lane::f32) numeric::round_f32(sum, type, n);
  }

  DataType type_of(int role) const noexcept {
    return chain_.operands[static_cast<std::size_t>(chain_.roles[static_cast<std::size_t>(role)].operand)].dtype;
  }

  void run(const Op& op, const Work& w, std::int64_t row, Slots& slots, float* out, std::int64_t n) const noexcept {
    const float* const* slot = slots.now;
    if (op.kind == OpKind::load)
      if (const float* there = in_place(op.role, op.lane, w, row)) {
        slots.now[op.out] = there;
        return;
      }
    slots.now[op.out] = out;
    switch (op.kind) {
      case OpKind::load: load(op, w, row, out, n); break;
      case OpKind::fill:
        if (op.lane == Lane::i32)
          std::fill_n(reinterpret_cast<std::int32_t*>(out), n, static_cast<std::int32_t>(op.constant));
        else
          std::fill_n(out, n, static_cast<float>(op.constant));
        break;
      case OpKind::to_f32: convert(slot[op.in[0]], Lane::i32, out, n); break;
      case OpKind::to_i32: convert(slot[op.in[0]], Lane::f32, out, n); break;
      case OpKind::step: step(op, w, row, slot, out, n); break;
    }
    if (op.round_to != DataType::not_set) numeric::round_f32(out, op.round_to, n);
  }

  void step(const Op& op, const Work& w, std::int64_t row, const float* const* slot, float* out, std::int64_t n) const noexcept {
    if (op.mode == PointwiseMode::gen_index) {
      const std::int64_t first = op.parameters.axis == 0 ? w.batch : op.parameters.axis == 1 ? w.row_of(row) : w.n0;
      const std::int64_t pace = op.parameters.axis == 2 ? 1 : 0;
      for (std::int64_t i = 0; i < n; ++i) {
        if (op.lane == Lane::i32)
          reinterpret_cast<std::int32_t*>(out)[i] = static_cast<std::int32_t>(first + i * pace);
        else
          out[i] = static_cast<float>(first + i * pace);
      }
      return;
    }
    const float* in[3];
    for (std::size_t k = 0; k < 3; ++k) in[k] = op.in[k] >= 0 ? slot[op.in[k]] : nullptr;
    if (op.lane == Lane::f32) {
      pointwise_f32(op.mode, op.parameters, in[0], in[1], in[2], out, n);
      return;
    }
    const auto ints = [](const float* p) { return reinterpret_cast<const std::int32_t*>(p); };
    pointwise_i32(op.mode, op.parameters, ints(in[0]), ints(in[1]), ints(in[2]), reinterpret_cast<std::int32_t*>(out), n);
  }

  /// Address of the role's element in this tile; axes of extent 1 do not move.
  char* address(int role, const Work& w, std::int64_t row) const noexcept {
    const RoleView& v = w.b.role[role];
    const std::int64_t offset = (v.extent[0] > 1 ? w.batch * v.stride[0] : 0) +
                                (v.extent[1] > 1 ? w.row_of(row) * v.stride[1] : 0) + (v.extent[2] > 1 ? w.n0 * v.stride[2] : 0);
    return v.data + offset * bytes_of(type_of(role));
  }

  void load(const Op& op, const Work& w, std::int64_t row, float* out, std::int64_t n) const noexcept {
    const RoleView& v = w.b.role[op.role];
    const char* from = address(op.role, w, row);
    const bool spread = v.extent[2] == 1 || v.stride[2] == 0;
    const std::int64_t count = spread ? 1 : n;
    const DataType type = type_of(op.role);
    if (op.lane == Lane::i32) {
      auto* lanes = reinterpret_cast<std::int32_t*>(out);
      numeric::load_i32(from, type, v.stride[2], count, lanes);
      if (spread) std::fill_n(lanes, n, lanes[0]);
    } else {
      numeric::load_f32(from, type, v.stride[2], count, out);
      if (spread) std::fill_n(out, n, out[0]);
    }
  }

  void store(const StoreOp& s, const Work& w, std::int64_t row, const float* lanes, std::int64_t n, float* spare) const noexcept {
    char* to = address(s.role, w, row);
    if (to == reinterpret_cast<const char*>(lanes)) return;
    const std::int64_t stride = w.b.role[s.role].stride[2];
    if (s.accumulate) {
      if (w.depth == 0) return;  // a sum of nothing changes no bit, of a −0 neither
      add_stored(s, to, stride, lanes, spare, n);
      lanes = spare;
    }
    if (s.lane == Lane::i32)
      numeric::store_i32(reinterpret_cast<const std::int32_t*>(lanes), type_of(s.role), to, stride, n);
    else
      numeric::store_f32(lanes, type_of(s.role), to, stride, n);
  }

  /// What the output holds, plus the lanes.
  void add_stored(const StoreOp& s, const char* from, std::int64_t stride, const float* lanes, float* sum,
                  std::int64_t n) const noexcept {
    if (s.lane == Lane::i32) {
      auto* const to = reinterpret_cast<std::int32_t*>(sum);
      const auto* more = reinterpret_cast<const std::int32_t*>(lanes);
      numeric::load_i32(from, type_of(s.role), stride, n, to);
      for (std::int64_t i = 0; i < n; ++i)
        to[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(to[i]) + static_cast<std::uint32_t>(more[i]));
      return;
    }
    numeric::load_f32(from, type_of(s.role), stride, n, sum);
    for (std::int64_t i = 0; i < n; ++i) sum[i] += lanes[i];
  }

  const chain::FusionChain& chain_;
  Program program_;
  Sgemm sgemm_;
  bool plain_ = false;
  mutable std::atomic<std::uint32_t> faults_{0};
  std::vector<std::int64_t> gathered_;  ///< rows that each quantiser along M gathers
};

}  // namespace

std::unique_ptr<recipe::Launcher> make_launcher(const chain::FusionChain& chain, Sgemm sgemm) {
  return std::make_unique<CpuLauncher>(chain, sgemm);
}

}  // namespace verglas::engine::cpu
