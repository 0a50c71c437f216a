#include "engine/cpu/epilogue.hpp"

#include <algorithm>

#include "engine/cpu/pointwise.hpp"
#include "engine/cpu/quantise.hpp"
#include "numeric/convert.hpp"

namespace verglas::engine::cpu {
namespace {

using recipe::RoleView;

/// From `lane` to the other one.
void convert(const float* from, Lane lane, float* to, std::int64_t n) noexcept {
  if (lane == Lane::i32)
    numeric::load_f32(from, DataType::int32, 1, n, to);
  else
    numeric::load_i32(from, DataType::fp32, 1, n, reinterpret_cast<std::int32_t*>(to));
}

/// Of what is made of runs there are half as many.
std::int64_t columns_of(bool is_half, std::int64_t n) noexcept { return is_half ? n / 2 : n; }

}  // namespace

Epilogue::Epilogue(const chain::FusionChain& chain, const Program& program)
    : chain_(chain), program_(program), groups_rows_(chain.grouping.has_group_rows()) {
  for (const QuantiseOp& q : program_.quantised)
    if (q.along_m) gathered_.push_back(q.block);
}

/// Slots, one row for conversions and, for quantisers, those that they gather along M and one that both kinds work in.
std::int64_t Epilogue::scratch_rows() const noexcept {
  std::int64_t rows = program_.slots + 1 + (program_.quantised.empty() ? 0 : 1);
  for (const std::int64_t block : gathered_) rows += block;
  return rows;
}

std::int64_t Epilogue::partial_lanes(const Tile& tile) const noexcept {
  std::int64_t lanes = 0;
  for (const ReduceOp& r : program_.reductions) lanes += (r.reduces[1] ? 1 : tile.m) * (r.reduces[2] ? 1 : tile.n);
  return lanes;
}

void Epilogue::lay_out(const Work& w, float* lanes, Partials& partials) const noexcept {
  for (std::size_t r = 0; r < program_.reductions.size(); ++r) {
    const ReduceOp& op = program_.reductions[r];
    partials[r] = {lanes, op.reduces[1] ? 1 : w.rows, op.reduces[2] ? 1 : w.columns};
    lanes += (op.reduces[1] ? 1 : w.tile.m) * (op.reduces[2] ? 1 : w.tile.n);
  }
}

void Epilogue::begin(const Work& w, Slots& slots, float* scratch, const Partials& partials) const noexcept {
  for (int s = 0; s <= program_.slots; ++s) slots.home[s] = scratch + s * w.tile.n;
  for (const Op& op : program_.tile_ops) run(op, w, 0, slots, slots.home[op.out], w.columns);
  for (std::size_t r = 0; r < program_.reductions.size(); ++r) reset(program_.reductions[r], partials[r]);
}

void Epilogue::rows(const Work& w, std::int64_t first, std::int64_t count, const Sums* sums, Slots& slots,
                    const Partials& partials) const noexcept {
  const std::int64_t n = w.columns;
  float* const spare = slots.home[program_.slots];
  for (std::int64_t row = first; row < first + count; ++row) {
    if (row + 1 < w.rows) fetch_ahead(w, row + 1);
    for (std::size_t g = 0; g < program_.product_slot.size(); ++g) {
      float* sum = sums[g].at + (row - first) * sums[g].ld;
      round_product(g, sum, n);
      slots.now[program_.product_slot[g]] = sum;
    }
    for (std::size_t i = 0; i < program_.row_ops.size(); ++i) {
      const Op& op = program_.row_ops[i];
      float* out = program_.stored_by[i] >= 0 ? in_place(program_.stores[static_cast<std::size_t>(program_.stored_by[i])], w, row)
                                              : nullptr;
      run(op, w, row, slots, out ? out : slots.home[op.out], columns_of(op.is_half, n));
    }
    for (const StoreOp& s : program_.stores) store(s, w, row, slots.now[s.slot], columns_of(s.is_half, n), spare);
    for (std::size_t r = 0; r < program_.reductions.size(); ++r) {
      const ReduceOp& op = program_.reductions[r];
      const float* lanes = slots.now[op.slot];
      const std::int64_t columns = columns_of(op.is_half, n);
      if (op.lane != op.compute) {
        convert(lanes, op.lane, spare, columns);
        lanes = spare;
      }
      absorb(op, partials[r], row, lanes, columns);
    }
    if (!program_.quantised.empty()) quantise(w, row, slots.now, spare, n);
  }
}

/// Asks for the operands of a row: a row is too short for the processor to see by itself what comes next.
void Epilogue::fetch_ahead(const Work& w, std::int64_t row) const noexcept {
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
void Epilogue::quantise(const Work& w, std::int64_t row, const float* const* slot, float* spare,
                        std::int64_t columns) const noexcept {
  const std::int64_t width = w.tile.n;
  float* const bench = spare + width;
  float* gathered = bench + width;
  for (const QuantiseOp& q : program_.quantised) {
    const std::int64_t n = columns_of(q.is_half, columns);
    const TileAt at{groups_rows_ ? 0 : w.batch, w.m0, columns_of(q.is_half, w.n0), w.scale_shift, w.group_first, w.group_rows};
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

float* Epilogue::in_place(int role, Lane lane, const Work& w, std::int64_t row) const noexcept {
  const RoleView& v = w.b.role[role];
  const bool lanes = type_of(role) == (lane == Lane::i32 ? DataType::int32 : DataType::fp32);
  return lanes && v.stride[2] == 1 && v.extent[2] != 1 ? reinterpret_cast<float*>(address(role, w, row)) : nullptr;
}

void Epilogue::round_product(std::size_t g, float* sum, std::int64_t n) const noexcept {
  const DataType type = program_.product_type[g];
  if (program_.product_lane[g] != lane_of(type)) convert(sum, program_.product_lane[g], sum, n);
  if (lane_of(type) == Lane::f32) numeric::round_f32(sum, type, n);
}

void Epilogue::run(const Op& op, const Work& w, std::int64_t row, Slots& slots, float* out, std::int64_t n) const noexcept {
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
    case OpKind::runs:
      for (std::int64_t i = 0; i < n; i += chain::kRun)
        std::copy_n(slot[op.in[0]] + 2 * i + op.run * chain::kRun, chain::kRun, out + i);
      break;
    case OpKind::rope: rope(op, w, row, slots, out, n); break;
  }
  if (op.round_to != DataType::not_set) numeric::round_f32(out, op.round_to, n);
}

/// Tiles begin and end between heads.
void Epilogue::rope(const Op& op, const Work& w, std::int64_t row, const Slots& slots, float* out,
                    std::int64_t n) const noexcept {
  const chain::Rope& r = chain_.rope;
  const auto table = [&](int role, int slot) {
    const RoleView& v = w.b.role[role];
    const std::int64_t offset =
        (v.extent[0] > 1 ? w.batch * v.stride[0] : 0) + (v.extent[1] > 1 ? w.row_of(row) * v.stride[1] : 0);
    numeric::load_f32(v.data + offset * bytes_of(type_of(role)), type_of(role), v.stride[2], r.rotated, slots.home[slot]);
    return slots.home[slot];
  };
  const float *const cos = table(r.cos_role, op.in[1]), *const sin = table(r.sin_role, op.in[2]), *in = slots.now[op.in[0]];
  const std::int64_t plain = r.head - r.rotated, half = r.rotated / 2;
  for (std::int64_t at = 0; at < n; at += r.head) {
    std::copy_n(in + at, plain, out + at);
    const float* const x = in + at + plain;
    float* const z = out + at + plain;
    for (std::int64_t j = 0; j < half; ++j) {
      z[j] = x[2 * j] * cos[j] - x[2 * j + 1] * sin[j];
      z[half + j] = x[2 * j + 1] * cos[half + j] + x[2 * j] * sin[half + j];
    }
  }
}

void Epilogue::step(const Op& op, const Work& w, std::int64_t row, const float* const* slot, float* out,
                    std::int64_t n) const noexcept {
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

char* Epilogue::address(int role, const Work& w, std::int64_t row) const noexcept {
  const RoleView& v = w.b.role[role];
  const std::int64_t offset = (v.extent[0] > 1 ? w.batch * v.stride[0] : 0) +
                              (v.extent[1] > 1 ? w.row_of(row) * v.stride[1] : 0) +
                              (v.extent[2] > 1 ? columns_of(is_half(role), w.n0) * v.stride[2] : 0);
  return v.data + offset * bytes_of(type_of(role));
}

void Epilogue::load(const Op& op, const Work& w, std::int64_t row, float* out, std::int64_t n) const noexcept {
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

void Epilogue::store(const StoreOp& s, const Work& w, std::int64_t row, const float* lanes, std::int64_t n,
                     float* spare) const noexcept {
  char* to = address(s.role, w, row);
  if (to == reinterpret_cast<const char*>(lanes)) return;
  const std::int64_t stride = w.b.role[s.role].stride[2];
  Lane lane = s.lane;
  if (s.accumulate) {
    if (w.depth == 0) return;  // a sum of nothing changes no bit, of a −0 neither
    lane = add_stored(s, to, stride, lanes, spare, n);
    lanes = spare;
  }
  if (lane == Lane::i32)
    numeric::store_i32(reinterpret_cast<const std::int32_t*>(lanes), type_of(s.role), to, stride, n);
  else
    numeric::store_f32(lanes, type_of(s.role), to, stride, n);
}

/// What the output holds, plus the lanes: of integers in int32 where it holds integers, else in fp32.
Lane Epilogue::add_stored(const StoreOp& s, const char* from, std::int64_t stride, const float* lanes, float* sum,
                          std::int64_t n) const noexcept {
  const DataType type = type_of(s.role);
  const auto* integers = reinterpret_cast<const std::int32_t*>(lanes);
  if (s.lane == Lane::i32 && is_integer(type)) {
    auto* const to = reinterpret_cast<std::int32_t*>(sum);
    numeric::load_i32(from, type, stride, n, to);
    for (std::int64_t i = 0; i < n; ++i)
      to[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(to[i]) + static_cast<std::uint32_t>(integers[i]));
    return Lane::i32;
  }
  numeric::load_f32(from, type, stride, n, sum);
  for (std::int64_t i = 0; i < n; ++i) sum[i] += s.lane == Lane::i32 ? static_cast<float>(integers[i]) : lanes[i];
  return Lane::f32;
}

}  // namespace verglas::engine::cpu
