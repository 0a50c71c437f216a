#include "engine/cpu/launcher.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "base/parallel_for.hpp"
#include "base/subnormals.hpp"
#include "engine/cpu/arena.hpp"
#include "engine/cpu/combine.hpp"
#include "engine/cpu/epilogue.hpp"
#include "engine/cpu/groups.hpp"
#include "engine/cpu/panels.hpp"
#include "engine/cpu/quantise.hpp"
#include "engine/cpu/reduce.hpp"
#include "engine/cpu/tiles.hpp"
#include "numeric/convert.hpp"

namespace verglas::engine::cpu {
namespace {

using recipe::Binding;
using recipe::RoleView;

class CpuLauncher final : public recipe::Launcher {
 public:
  CpuLauncher(const chain::FusionChain& chain, Sgemm sgemm)
      : chain_(chain), program_(make_program(chain)), epilogue_(chain_, program_), sgemm_(sgemm) {
    plain_ = chain.gemms.size() == 1 && chain.stores.size() == 1 && !chain.stores[0].accumulate && chain.steps.empty() &&
             chain.reductions.empty() && program_.product_type[0] == DataType::fp32 && program_.product_lane[0] == Lane::f32 &&
             chain.quantised.empty();
    for (const ReduceOp& r : program_.reductions) only_lines_ = only_lines_ && (r.reduces[1] || r.reduces[2]);
    in_turns_ = sgemm != nullptr && sgemm == panels_sgemm() && !is_grouped() && only_lines_;
    for (const chain::MatrixInput& in : chain.inputs) in_turns_ = in_turns_ && is_plain_fp32(in, epilogue_.type_of(in.role));
  }

  Status launch(const Binding& b, const recipe::Call&) const noexcept override {
    const WithSubnormals subnormals;
    Groups groups;
    if (is_grouped() && !read_groups(chain_, b, groups)) return {ErrorCode::out_of_memory, -1, 0};
    const Space space = space_of(b, groups);
    prepare_outputs(b, space);
    PartialLanes partials = partials_of(space);
    std::atomic<bool> starved{false};
    parallel_for(space.items, [&](std::int64_t item, int) {
      if (!run_tile(work_at(b, space, item), item, partials)) starved.store(true, std::memory_order_relaxed);
    });
    if (groups.faults != 0) faults_.fetch_or(groups.faults, std::memory_order_relaxed);
    if (starved.load()) return {ErrorCode::out_of_memory, -1, 0};
    for (std::int64_t item = 0; partials.of_call && item < space.items; ++item)
      combine_tile(work_at(b, space, item), partials.of_call + item * partials.lanes);
    for (const ReduceOp& r : program_.reductions) finish_reduction(r, b, space);
    return {};
  }

  std::uint32_t data_faults() const noexcept override { return faults_.load(std::memory_order_relaxed); }
  std::uint32_t take_data_faults() const noexcept override { return faults_.exchange(0, std::memory_order_relaxed); }

  Error failure(Status) const override { return broken(Rule::call_memory, "scratch memory for a tile could not be had"); }

 private:
  /// What a call computes, cut into tiles.
  struct Space {
    std::int64_t l, m, n;
    Tile tile;
    std::int64_t tiles_m, tiles_n, items;
    bool in_turns;
    const Groups& groups;
  };

  /// Partial results of reductions: of all tiles, kept until the last is done, or of each tile in its own scratch, combined in
  /// turn.
  struct PartialLanes {
    std::int64_t lanes = 0;  ///< of a tile
    float* of_call = nullptr;
    std::atomic<std::int64_t> turn{0};
  };

  bool is_grouped() const noexcept { return chain_.grouping.axis != chain::GroupedAxis::none; }
  bool groups_rows() const noexcept { return chain_.grouping.has_group_rows(); }
  bool combines() const noexcept { return chain_.grouping.combines(); }

  Space space_of(const Binding& b, Groups& groups) const noexcept {
    constexpr std::int64_t kLeastRows = 256;  // a tile of fewer packs the weights too often where one group has most rows
    const bool by_depth = chain_.grouping.axis == chain::GroupedAxis::k;
    const std::int64_t some = std::max<std::int64_t>(groups.count, 1);
    Space s{by_depth ? groups.count : b.live[1], b.live[2], b.live[3], {}, 0, 0, 0, can_take_turns(b), groups};
    const std::int64_t rows = groups_rows() ? std::max(s.m / some, std::min(s.m, kLeastRows)) : s.m;
    const std::int64_t depth = by_depth ? b.live[4] / some : b.live[4];
    s.tile = whole_blocks(combines()   ? tile_of_tokens(s.m, s.n)
                          : s.in_turns ? strip_for(s.l, s.m, s.n, columns_in_turns(depth, gemms()))
                                       : tile_for(groups_rows() ? some : s.l, rows, s.n, depth));
    s.tiles_m = (s.m + s.tile.m - 1) / s.tile.m;
    s.tiles_n = (s.n + s.tile.n - 1) / s.tile.n;
    s.items = groups_rows() ? groups.number_tiles(chain_, b, s.tile.m, s.tiles_n) : s.l * s.tiles_m * s.tiles_n;
    return s;
  }

  std::int64_t gemms() const noexcept { return static_cast<std::int64_t>(chain_.gemms.size()); }

  /// Each matrix lies as a product reads it, and all of K is summed at once.
  bool can_take_turns(const Binding& b) const noexcept {
    if (!in_turns_ || b.live[4] < 1 || b.live[4] > kTurnDepth) return false;
    for (const chain::MatrixInput& in : chain_.inputs) {
      const RoleView& v = b.role[in.role];
      if (!is_read_in_place(v.extent[1], v.stride[1], v.extent[2], v.stride[2])) return false;
    }
    return true;
  }

  Work work_at(const Binding& b, const Space& s, std::int64_t item) const noexcept {
    const Groups& g = s.groups;
    const std::int64_t group = groups_rows() ? g.group_of(item) : item / (s.tiles_m * s.tiles_n);
    const std::int64_t rest = groups_rows() ? item - g.tiles_before[group] : item % (s.tiles_m * s.tiles_n);
    const std::int64_t first = groups_rows() ? g.begin[group] : 0;
    Work w{b, group, first + rest / s.tiles_n * s.tile.m, rest % s.tiles_n * s.tile.n, 0, 0, s.tile};
    w.in_turns = s.in_turns;
    w.rows = std::min(s.tile.m, (groups_rows() ? g.begin[group + 1] : s.m) - w.m0);
    w.columns = std::min(s.tile.n, s.n - w.n0);
    w.depth = b.live[4];
    w.expert = group;
    if (groups_rows()) {
      w.expert = group % std::max<std::int64_t>(b.live[static_cast<int>(chain::Symbol::e)], 1);
      w.scale_shift = g.scale_row[group] - g.bound[group];
      w.group_first = g.bound[group];
      w.group_rows = g.bound[group + 1] - g.bound[group];
      if (g.matrix_row) w.matrix_rows = g.matrix_row + w.m0;
      if (g.chain_row) w.chain_rows = g.chain_row + w.m0;
    } else if (combines()) {
      w.routed = &g;
    } else if (is_grouped()) {
      w.k0 = g.begin[group];
      w.depth = g.rows(group);
    }
    return w;
  }

  /// f(first, count) for all rows that a group owns and has weights for, in runs.
  template <class F>
  void each_owned_run(const Space& s, F&& f) const noexcept {
    const Groups& g = s.groups;
    const bool some_lack_weights = (g.faults & recipe::kFaultNullWeights) != 0 && s.tiles_n > 0;
    if (!g.chain_row && !some_lack_weights) return f(g.first(), g.all_rows());
    for (std::int64_t group = 0; group < g.count; ++group) {
      if (some_lack_weights && !g.has_weights(group)) continue;
      if (!g.chain_row) f(g.begin[group], g.rows(group));
      for (std::int64_t p = g.begin[group]; g.chain_row && p < g.begin[group + 1]; ++p) f(g.chain_row[p], 1);
    }
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
        each_owned_run(s, [&](std::int64_t first, std::int64_t count) { seed(r, rows_of(v, first, count)); });
      else
        seed(r, v);
    }
    for (const QuantiseOp& q : program_.quantised) clear_scales(q, b, s.groups);
    if (!groups_rows() || !chain_.grouping.zero_fill) return;
    const bool all = s.groups.chain_row != nullptr || (s.groups.faults & recipe::kFaultNullWeights) != 0;
    const auto zero = [&](int role, std::int64_t block = 1) {  // block: of rows, of which a column of the role is one
      RoleView v = b.role[role];
      if (block > 1) std::swap(v.extent[1], v.extent[2]), std::swap(v.stride[1], v.stride[2]);
      zero_rows(v, epilogue_.type_of(role), 0, (all ? s.m : s.groups.first()) / block);
      if (!all) zero_rows(v, epilogue_.type_of(role), s.groups.last() / block, (s.m - s.groups.last()) / block);
    };
    for (const StoreOp& store : program_.stores) zero(store.role);
    for (const QuantiseOp& q : program_.quantised) {
      zero(q.role);
      if (q.scale_role >= 0 && !q.is_by_group) zero(q.scale_role, q.along_m ? q.block : 1);
    }
  }

  /// Atoms behind those of the groups, and of a group that is not computed, are nobody's.
  static void clear_scales(const QuantiseOp& q, const Binding& b, const Groups& groups) noexcept {
    const Quantiser to(q, b);
    if (!q.is_by_group) return to.clear();
    for (std::int64_t g = 0; g < groups.count; ++g)
      if (groups.has_weights(g)) to.clear_group(groups.bound[g], groups.bound[g + 1] - groups.bound[g], groups.scale_row[g]);
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
      each_owned_run(s, [&](std::int64_t first, std::int64_t count) { finish(r, rows_of(v, first, count), columns); });
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

  /// Where the tile of a product is summed: in the output behind it, whose lines then come while oneDNN computes, or in scratch.
  Sums sums_of(const Work& w, std::size_t g, float* scratch) const noexcept {
    if (const int s = program_.summed_in[g]; s >= 0 && !w.chain_rows) {
      const StoreOp& store = program_.stores[static_cast<std::size_t>(s)];
      const RoleView& v = w.b.role[store.role];
      float* out = epilogue_.in_place(store, w, 0);
      if (out && v.extent[1] > 1 && v.stride[1] >= v.extent[2]) return {out, v.stride[1]};
    }
    return {scratch, w.tile.n, true};
  }

  /// Edges of tiles lie between blocks, which are 16 or 32 elements, between pairs of runs, and between heads.
  Tile whole_blocks(Tile t) const noexcept {
    const std::int64_t unit = program_.quantised.empty() ? 1 : 32, pair = program_.has_runs ? 2 * chain::kRun : unit,
                       columns = chain_.rope.rotated != 0 ? std::lcm(pair, chain_.rope.head) : pair;
    return {(t.m + unit - 1) / unit * unit, (t.n + columns - 1) / columns * columns};
  }

  /// Scratch for the partial results of a whole call, where each is a line of its tile: then no tile waits for another.
  PartialLanes partials_of(const Space& s) const noexcept {
    constexpr std::int64_t kMost = std::int64_t{1} << 22;
    thread_local Arena arena;
    const std::int64_t lanes = epilogue_.partial_lanes(s.tile);
    if (lanes == 0 || !only_lines_ || lanes * s.items > kMost) return {lanes};
    return {lanes, arena.take(static_cast<std::size_t>(lanes * s.items))};
  }

  void combine_tile(const Work& w, float* lanes) const noexcept {
    Partials partials;
    epilogue_.lay_out(w, lanes, partials);
    for (std::size_t r = 0; r < program_.reductions.size(); ++r) {
      const ReduceOp& op = program_.reductions[r];
      combine(op, partials[r], w.b.role[op.role], w.batch, w.m0, w.n0, w.chain_rows);
    }
  }

  /// Products, then the epilogue row by row. Partials are combined in the order of the tiles whatever thread is first, so that
  /// sums have the same bits in every run. False: no memory.
  bool run_tile(const Work& w, std::int64_t item, PartialLanes& partials) const noexcept {
    if (is_plain(w)) {
      const Sums out{reinterpret_cast<float*>(epilogue_.address(program_.stores[0].role, w, 0)),
                     w.b.role[program_.stores[0].role].stride[1]};
      return product(w, 0, out.at, out.ld);
    }
    thread_local Arena arena;
    const std::int64_t area = (w.in_turns ? kTurnRows : w.tile.m) * w.tile.n;
    const std::int64_t slots = epilogue_.scratch_rows() * w.tile.n;
    float* scratch = arena.take(static_cast<std::size_t>(area * gemms() + slots + (partials.of_call ? 0 : partials.lanes)));
    float* of_tile = partials.of_call ? partials.of_call + item * partials.lanes : scratch + area * gemms() + slots;
    const bool fed = scratch && fill_tile(w, scratch, area, of_tile);
    if (partials.of_call || partials.lanes == 0) return fed;
    wait_for(partials.turn, item);
    if (fed) combine_tile(w, of_tile);
    partials.turn.store(item + 1, std::memory_order_release);
    return fed;
  }

  bool fill_tile(const Work& w, float* scratch, std::int64_t area, float* lanes) const noexcept {
    Slots slots;
    Partials partials;
    Sums sums[chain::kMaxRoles];
    epilogue_.lay_out(w, lanes, partials);
    epilogue_.begin(w, slots, scratch + gemms() * area, partials);
    for (std::size_t g = 0; g < chain_.gemms.size(); ++g) sums[g] = sums_of(w, g, scratch + static_cast<std::int64_t>(g) * area);
    if (w.in_turns) return fill_in_turns(w, sums, slots, partials);
    for (std::size_t g = 0; g < chain_.gemms.size(); ++g)
      if (!product(w, g, sums[g].at, sums[g].ld)) return false;
    epilogue_.rows(w, 0, w.rows, sums, slots, partials);
    return true;
  }

  /// Some rows of all products, then their epilogue, while the sums are in the nearest cache. Those that lie in scratch are
  /// overwritten by the next turn.
  bool fill_in_turns(const Work& w, Sums* sums, Slots& slots, const Partials& partials) const noexcept {
    Turn turns[chain::kMaxRoles];
    for (std::size_t g = 0; g < chain_.gemms.size(); ++g) {
      const MatrixBlock a = block(w, chain_.gemms[g].a, w.batch, w.m0, w.rows, nullptr);
      const MatrixBlock b = block(w, chain_.gemms[g].b, w.batch, w.n0, w.columns, nullptr);
      turns[g] = {direct_product(a, b, w.depth, sums[g].at, sums[g].ld), sums[g].is_scratch ? 0 : sums[g].ld};
    }
    return multiply_in_turns({turns, chain_.gemms.size()}, [&](std::int64_t first, std::int64_t count) {
      epilogue_.rows(w, first, count, sums, slots, partials);
      for (std::size_t g = 0; g < chain_.gemms.size(); ++g) sums[g].at += count * turns[g].c_step;
    });
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

  MatrixBlock block(const Work& w, int input, std::int64_t along, std::int64_t first, std::int64_t rows,
                    const std::int64_t* row_at) const noexcept {
    const chain::MatrixInput& in = chain_.inputs[static_cast<std::size_t>(input)];
    const RoleView& v = w.b.role[in.role];
    if (in.table >= 0) {
      const chain::PointerTable& t = chain_.tables[static_cast<std::size_t>(in.table)];
      const char* data = weights_of(v, along) + numeric::byte_offset(first * t.stride[0], t.dtype);
      return {data, t.dtype, rows, t.stride[0], t.stride[1], &in, along, first};
    }
    const DataType t = epilogue_.type_of(in.role);
    const std::int64_t batch = v.extent[0] > 1 ? along : 0;
    const std::int64_t offset = batch * v.stride[0] + (row_at ? 0 : first * v.stride[1]) + w.k0 * v.stride[2];
    return {v.data + numeric::byte_offset(offset, t),
            t,
            rows,
            v.stride[1],
            v.stride[2],
            &in,
            batch,
            row_at ? 0 : first,
            row_at,
            w.scale_shift};
  }

  /// False: no memory.
  bool product(const Work& w, std::size_t index, float* c, std::int64_t ldc) const noexcept {
    const chain::Gemm& g = chain_.gemms[index];
    const bool is_integer = g.accumulate == DataType::int32;
    const auto multiply = [&](const MatrixBlock& a, std::int64_t expert, float* to, std::int64_t ld) {
      const MatrixBlock b = block(w, g.b, expert, w.n0, w.columns, nullptr);
      return tile_product(sgemm_, a, b, w.depth, is_integer, chain_, w.b, to, ld);
    };
    if (!w.routed) return multiply(block(w, g.a, w.batch, w.m0, w.rows, w.matrix_rows), w.expert, c, ldc);
    const auto of_rows = [&](std::int64_t expert, std::span<const std::int64_t> rows, float* to) {
      return multiply(block(w, g.a, 0, 0, std::ssize(rows), rows.data()), expert, to, w.columns);
    };
    const int scores = chain_.grouping.score_role;
    return add_routes(w, {w.b.role[scores], epilogue_.type_of(scores)}, is_integer, of_rows, c, ldc);
  }

  const chain::FusionChain& chain_;
  Program program_;
  Epilogue epilogue_;
  Sgemm sgemm_;
  bool plain_ = false;
  bool only_lines_ = true;  ///< each reduction is along rows or columns of a tile
  bool in_turns_ = false;   ///< products by strips, in turns with the epilogue, where a call lets them
  mutable std::atomic<std::uint32_t> faults_{0};
};

}  // namespace

std::unique_ptr<recipe::Launcher> make_launcher(const chain::FusionChain& chain, Sgemm sgemm) {
  return std::make_unique<CpuLauncher>(chain, sgemm);
}

}  // namespace verglas::engine::cpu
