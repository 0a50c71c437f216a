#include "engine/cpu/launcher.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/parallel_for.hpp"
#include "base/subnormals.hpp"
#include "engine/cpu/arena.hpp"
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
    plain_ = chain.gemms.size() == 1 && chain.steps.empty() && chain.reductions.empty() && chain.stores.size() == 1 &&
             program_.product_type[0] == DataType::fp32 && program_.product_lane[0] == Lane::f32 && chain.quantised.empty();
    for (const QuantiseOp& q : program_.quantised)
      if (q.along_m) gathered_.push_back(q.block);
  }

  Status launch(const Binding& b, const recipe::Call&) const noexcept override {
    const WithSubnormals subnormals;
    for (const ReduceOp& r : program_.reductions) seed(r, b.role[r.role]);
    const std::int64_t l = b.live[1], m = b.live[2], n = b.live[3];
    for (const QuantiseOp& q : program_.quantised) Quantiser(q, b).clear();
    const Tile tile = whole_blocks(tile_for(l, m, n, b.live[4]));
    const std::int64_t tiles_m = (m + tile.m - 1) / tile.m;
    const std::int64_t tiles_n = (n + tile.n - 1) / tile.n;
    std::atomic<std::int64_t> turn{0};
    std::atomic<bool> starved{false};
    parallel_for(l * tiles_m * tiles_n, [&](std::int64_t item, int) {
      const std::int64_t batch = item / (tiles_m * tiles_n);
      const std::int64_t rest = item % (tiles_m * tiles_n);
      Work w{b, batch, rest / tiles_n * tile.m, rest % tiles_n * tile.n, 0, 0, tile};
      w.rows = std::min(tile.m, m - w.m0);
      w.columns = std::min(tile.n, n - w.n0);
      if (!run_tile(w, item, turn)) starved.store(true, std::memory_order_relaxed);
    });
    if (starved.load()) return {ErrorCode::out_of_memory, -1, 0};
    for (const ReduceOp& r : program_.reductions) {
      const double count = (r.reduces[0] ? double(l) : 1.0) * (r.reduces[1] ? double(m) : 1.0) * (r.reduces[2] ? double(n) : 1.0);
      finish(r, b.role[r.role], count);
    }
    return {};
  }

  Error failure(Status) const override { return broken(Rule::call_memory, "scratch memory for a tile could not be had"); }

 private:
  struct Work {
    const Binding& b;
    std::int64_t batch, m0, n0, rows, columns;
    Tile tile;
  };

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
    if (const int s = program_.summed_in[g]; s >= 0) {
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
      combine(op, partial_of(op, w, partials + r * area), w.b.role[op.role], w.batch, w.m0, w.n0);
    }
    turn.store(item + 1, std::memory_order_release);
    return fed;
  }

  /// One fp32 product, stored as it is in rows: it needs no scratch.
  bool is_plain(const Work& w) const noexcept {
    if (!plain_) return false;
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
    const auto block = [&](int input, std::int64_t first, std::int64_t rows) {
      const chain::MatrixInput& in = chain_.inputs[static_cast<std::size_t>(input)];
      const RoleView& v = w.b.role[in.role];
      const chain::Role& role = chain_.roles[static_cast<std::size_t>(in.role)];
      const DataType t = chain_.operands[static_cast<std::size_t>(role.operand)].dtype;
      const std::int64_t batch = v.extent[0] > 1 ? w.batch : 0;
      return MatrixBlock{v.data + numeric::byte_offset(batch * v.stride[0] + first * v.stride[1], t),
                         t,
                         rows,
                         v.stride[1],
                         v.stride[2],
                         &in,
                         batch,
                         first};
    };
    return tile_product(sgemm_, block(g.a, w.m0, w.rows), block(g.b, w.n0, w.columns), w.b.live[4],
                        g.accumulate == DataType::int32, chain_, w.b, c, ldc);
  }

  void epilogue(const Work& w, const Sums* sums, float* scratch, float* partials) const noexcept {
    const std::int64_t n = w.columns;
    const std::int64_t width = w.tile.n;
    Slots slots;
    for (int s = 0; s < program_.slots; ++s) slots.home[s] = scratch + s * width;
    float* spare = scratch + program_.slots * width;
    for (const Op& op : program_.tile_ops) run(op, w, 0, slots, slots.home[op.out], n);
    for (std::int64_t row = 0; row < w.rows; ++row) {
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
      for (const StoreOp& s : program_.stores) store(s, w, row, slots.now[s.slot], n);
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

  /// `spare` and the rows behind it: one for conversions, one to work in, and what quantisers along M gather.
  void quantise(const Work& w, std::int64_t row, const float* const* slot, float* spare, std::int64_t n) const noexcept {
    const std::int64_t width = w.tile.n;
    const TileAt at{w.batch, w.m0, w.n0};
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
        to.row(at, w.m0 + row, lanes, n, bench);
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
      const std::int64_t first = op.parameters.axis == 0 ? w.batch : op.parameters.axis == 1 ? w.m0 + row : w.n0;
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
                                (v.extent[1] > 1 ? (w.m0 + row) * v.stride[1] : 0) + (v.extent[2] > 1 ? w.n0 * v.stride[2] : 0);
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

  void store(const StoreOp& s, const Work& w, std::int64_t row, const float* lanes, std::int64_t n) const noexcept {
    char* to = address(s.role, w, row);
    if (to == reinterpret_cast<const char*>(lanes)) return;
    const std::int64_t stride = w.b.role[s.role].stride[2];
    if (s.lane == Lane::i32)
      numeric::store_i32(reinterpret_cast<const std::int32_t*>(lanes), type_of(s.role), to, stride, n);
    else
      numeric::store_f32(lanes, type_of(s.role), to, stride, n);
  }

  const chain::FusionChain& chain_;
  Program program_;
  Sgemm sgemm_;
  bool plain_ = false;
  std::vector<std::int64_t> gathered_;  ///< rows that each quantiser along M gathers
};

}  // namespace

std::unique_ptr<recipe::Launcher> make_launcher(const chain::FusionChain& chain, Sgemm sgemm) {
  return std::make_unique<CpuLauncher>(chain, sgemm);
}

}  // namespace verglas::engine::cpu
