#include "engine/cpu/launcher.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/parallel_for.hpp"
#include "engine/cpu/arena.hpp"
#include "engine/cpu/pointwise.hpp"
#include "engine/cpu/reduce.hpp"
#include "numeric/convert.hpp"

namespace verglas::engine::cpu {
namespace {

using recipe::Binding;
using recipe::RoleView;

/// Largest tile. Every tile packs its operands anew, so larger is cheaper for the product; small ones keep its epilogue in cache.
constexpr std::int64_t kLongEdge = 1024, kShortEdge = 512;
/// From this depth on the product outweighs the epilogue.
constexpr std::int64_t kDeep = 1024;
constexpr std::int64_t kLeastM = 64, kLeastN = 128;
/// A step takes its result, up to three converted operands and a converted result; a role takes one.
constexpr int kMaxSlots = 5 * chain::kMaxSteps + 2 * chain::kMaxRoles;

class CpuLauncher final : public recipe::Launcher {
 public:
  CpuLauncher(const chain::FusionChain& chain, Sgemm sgemm) : chain_(chain), program_(make_program(chain)), sgemm_(sgemm) {
    plain_ = chain.gemms.size() == 1 && chain.steps.empty() && chain.reductions.empty() && chain.stores.size() == 1 &&
             program_.product_type[0] == DataType::fp32 && program_.product_lane[0] == Lane::f32;
  }

  Status launch(const Binding& b, const recipe::Call&) const noexcept override {
    for (const ReduceOp& r : program_.reductions) seed(r, b.role[r.role]);
    const std::int64_t l = b.live[1], m = b.live[2], n = b.live[3];
    const Tile tile = tile_for(l, m, n, b.live[4]);
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
    float* sums = arena.take(static_cast<std::size_t>(area * (gemms + reductions) + (program_.slots + 1) * w.tile.n));
    float* partials = sums + gemms * area;
    float* slots = partials + reductions * area;
    bool fed = sums != nullptr;
    for (std::int64_t g = 0; g < gemms && fed; ++g) fed = product(w, static_cast<std::size_t>(g), sums + g * area, w.tile.n);
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
      return MatrixBlock{
          v.data + (batch * v.stride[0] + first * v.stride[1]) * bytes_of(t), t, rows, v.stride[1], v.stride[2], &in};
    };
    return tile_product(sgemm_, block(g.a, w.m0, w.rows), block(g.b, w.n0, w.columns), w.b.live[4],
                        g.accumulate == DataType::int32, chain_, w.b, c, ldc);
  }

  void epilogue(const Work& w, float* sums, float* slots, float* partials) const noexcept {
    const std::int64_t n = w.columns;
    const std::int64_t width = w.tile.n;
    float* slot[kMaxSlots];
    for (int s = 0; s < program_.slots; ++s) slot[s] = slots + s * width;
    float* spare = slots + program_.slots * width;
    for (const Op& op : program_.tile_ops) run(op, w, 0, slot, n);
    for (std::int64_t row = 0; row < w.rows; ++row) {
      for (std::size_t g = 0; g < program_.product_slot.size(); ++g) {
        float* sum = sums + static_cast<std::int64_t>(g) * w.tile.m * width + row * width;
        round_product(g, sum, n);
        slot[program_.product_slot[g]] = sum;
      }
      for (const Op& op : program_.row_ops) run(op, w, row, slot, n);
      for (const StoreOp& s : program_.stores) store(s, w, row, slot[s.slot], n);
      for (std::size_t r = 0; r < program_.reductions.size(); ++r) {
        const ReduceOp& op = program_.reductions[r];
        const float* lanes = slot[op.slot];
        if (op.lane != op.compute) {
          convert(lanes, op.lane, spare, n);
          lanes = spare;
        }
        absorb(op, partial_of(op, w, partials + static_cast<std::int64_t>(r) * w.tile.m * width), row, lanes, n);
      }
    }
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

  void run(const Op& op, const Work& w, std::int64_t row, float* const* slot, std::int64_t n) const noexcept {
    float* out = slot[op.out];
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

  void step(const Op& op, const Work& w, std::int64_t row, float* const* slot, float* out, std::int64_t n) const noexcept {
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
};

}  // namespace

Tile tile_for(std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  static const std::int64_t wanted = std::clamp<std::int64_t>(sysconf(_SC_NPROCESSORS_CONF), 2, 256);
  const std::int64_t edge = k < kDeep ? kShortEdge : kLongEdge;
  const auto parts = [](std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; };
  const auto even = [&](std::int64_t extent, std::int64_t count) {  // tiles of about one size, a multiple of 16
    return std::max<std::int64_t>(16, ((extent + count - 1) / count + 15) / 16 * 16);
  };
  std::int64_t count_m = parts(std::max<std::int64_t>(m, 1), edge);
  std::int64_t count_n = parts(std::max<std::int64_t>(n, 1), edge);
  while (l * count_m * count_n < wanted) {
    const bool can_m = m / (2 * count_m) >= kLeastM;
    const bool can_n = n / (2 * count_n) >= kLeastN;
    if (!can_m && !can_n) break;
    if (can_m && (!can_n || m / count_m >= n / count_n))
      count_m *= 2;
    else
      count_n *= 2;
  }
  // Nine tiles on two processors leave one idle for a tenth of the time: one or two more cuts even that out.
  const auto idle = [&](std::int64_t extra_m, std::int64_t extra_n) {
    const std::int64_t tiles = l * (count_m + extra_m) * (count_n + extra_n);
    return static_cast<double>(parts(tiles, wanted) * wanted - tiles) / static_cast<double>(std::max<std::int64_t>(tiles, 1));
  };
  constexpr std::array<std::array<std::int64_t, 2>, 6> kCuts = {{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {2, 0}}};
  for (const auto& [extra_m, extra_n] : kCuts) {
    const bool fits = m / (count_m + extra_m) >= kLeastM && n / (count_n + extra_n) >= kLeastN;
    if (!fits || idle(extra_m, extra_n) > 0.04) continue;
    count_m += extra_m;
    count_n += extra_n;
    break;
  }
  return {even(m, count_m), even(n, count_n)};
}

std::unique_ptr<recipe::Launcher> make_launcher(const chain::FusionChain& chain, Sgemm sgemm) {
  return std::make_unique<CpuLauncher>(chain, sgemm);
}

}  // namespace verglas::engine::cpu
