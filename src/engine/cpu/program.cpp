#include "engine/cpu/program.hpp"

#include <algorithm>

namespace verglas::engine::cpu {
namespace {

using chain::FusionChain;
using chain::Value;
using chain::ValueKind;

class Maker {
 public:
  explicit Maker(const FusionChain& c) : c_(c), slot_(c.values.size(), -1), last_use_(c.values.size(), -1) {}

  Program run() {
    find_last_uses();
    for (const chain::Gemm& g : c_.gemms) {
      const Value& v = c_.values[static_cast<std::size_t>(g.value)];
      slot_[static_cast<std::size_t>(g.value)] = take();
      p_.product_slot.push_back(slot_[static_cast<std::size_t>(g.value)]);
      p_.product_type.push_back(v.dtype);
      const bool is_scored = c_.grouping.combines();  // and so summed in fp32
      p_.product_lane.push_back(g.accumulate == DataType::int32 && !is_scored ? Lane::i32 : Lane::f32);
    }
    for (std::size_t s = 0; s < c_.steps.size(); ++s) add_step(s);
    for (const chain::Store& s : c_.stores)
      p_.stores.push_back({slot_of(s.value), s.role, lane(s.value), s.accumulate, value(s.value).is_half});
    for (const chain::Reduction& r : c_.reductions)
      p_.reductions.push_back({r.mode, lane(r.value), r.compute == DataType::int32 ? Lane::i32 : Lane::f32, slot_of(r.value),
                               r.role, r.reduces, value(r.value).is_half});
    for (const chain::Quantise& q : c_.quantised) {
      const bool is_scaled = q.scale_role >= 0;
      p_.quantised.push_back({.slot = slot_of(q.value),
                              .lane = lane(q.value),
                              .along_m = q.along_m,
                              .block = q.block,
                              .vmax = q.vmax,
                              .role = q.role,
                              .scale_role = q.scale_role,
                              .is_interleaved = is_scaled && c_.roles[static_cast<std::size_t>(q.scale_role)].is_interleaved,
                              .is_by_group = is_scaled && c_.grouping.has_group_rows() &&
                                             c_.roles[static_cast<std::size_t>(q.scale_role)].is_interleaved,
                              .data = type_of(q.role),
                              .scale = is_scaled ? type_of(q.scale_role) : DataType::not_set,
                              .is_half = value(q.value).is_half});
    }
    p_.slots = top_;
    return std::move(p_);
  }

 private:
  const Value& value(int v) const { return c_.values[static_cast<std::size_t>(v)]; }
  DataType type_of(int role) const {
    return c_.operands[static_cast<std::size_t>(c_.roles[static_cast<std::size_t>(role)].operand)].dtype;
  }
  Lane lane(int v) const { return lane_of(value(v).dtype); }
  /// Does not change from row to row, so that it is computed once a tile.
  bool is_tile_value(int v) const { return !value(v).varies[1]; }

  void find_last_uses() {
    const int end = static_cast<int>(c_.steps.size());
    for (int s = 0; s < end; ++s)
      for (const int input : c_.steps[static_cast<std::size_t>(s)].input)
        if (input >= 0) last_use_[static_cast<std::size_t>(input)] = s;
    for (const chain::Store& s : c_.stores) last_use_[static_cast<std::size_t>(s.value)] = end;
    for (const chain::Reduction& r : c_.reductions) last_use_[static_cast<std::size_t>(r.value)] = end;
    for (const chain::Quantise& q : c_.quantised) last_use_[static_cast<std::size_t>(q.value)] = end;
    for (std::size_t v = 0; v < c_.values.size(); ++v)
      if (is_tile_value(static_cast<int>(v))) last_use_[v] = end;  // lives as long as the tile
  }

  /// A slot for the value. One that lives as long as the tile never shares with what a row writes.
  int take(bool for_tile = false) {
    if (!for_tile && !free_.empty()) {
      const int s = free_.back();
      free_.pop_back();
      return s;
    }
    return top_++;
  }

  /// The slot of a value; loads aux tensors and constants when first asked.
  int slot_of(int v) {
    int& slot = slot_[static_cast<std::size_t>(v)];
    if (slot >= 0) return slot;
    slot = take(is_tile_value(v));
    Op op;
    op.lane = lane(v);
    op.out = slot;
    if (value(v).kind == ValueKind::constant) {
      op.kind = OpKind::fill;
      op.constant = value(v).constant;
      op.round_to = op.lane == Lane::f32 ? value(v).dtype : DataType::not_set;
    } else {
      op.kind = OpKind::load;
      op.role = value(v).source;
    }
    emit(op, v);
    return slot;
  }

  void emit(const Op& op, int v) { (is_tile_value(v) ? p_.tile_ops : p_.row_ops).push_back(op); }

  void add_step(std::size_t index) {
    const chain::Step& s = c_.steps[index];
    Op op;
    op.mode = s.mode;
    op.parameters = s.parameters;
    op.lane = s.compute == DataType::int32 ? Lane::i32 : Lane::f32;
    op.is_half = value(s.value).is_half;
    if (s.run >= 0) {
      op.kind = OpKind::runs;
      op.run = s.run;
      op.is_half = true;
      p_.has_runs = true;
    }
    if (s.is_rope) op.kind = OpKind::rope;
    std::vector<int> temporary;
    for (std::size_t k = 0; k < 3 && s.input[k] >= 0; ++k) {
      op.in[k] = slot_of(s.input[k]);
      if (lane(s.input[k]) == op.lane || s.mode == PointwiseMode::gen_index) continue;
      Op convert;
      convert.kind = op.lane == Lane::f32 ? OpKind::to_f32 : OpKind::to_i32;
      convert.is_half = value(s.input[k]).is_half;
      convert.in[0] = op.in[k];
      convert.out = take(is_tile_value(s.value));
      temporary.push_back(convert.out);
      op.in[k] = convert.out;
      emit(convert, s.value);
    }
    if (s.is_rope)
      for (const std::size_t table : {1, 2}) temporary.push_back(op.in[table] = take());
    const DataType type = value(s.value).dtype;
    const Lane stored = lane_of(type);
    op.out = take(is_tile_value(s.value));
    op.round_to = op.lane == stored && op.lane == Lane::f32 ? type : DataType::not_set;
    emit(op, s.value);
    slot_[static_cast<std::size_t>(s.value)] = op.out;
    if (op.lane != stored) {
      Op convert;
      convert.kind = stored == Lane::f32 ? OpKind::to_f32 : OpKind::to_i32;
      convert.lane = stored;
      convert.is_half = op.is_half;
      convert.in[0] = op.out;
      convert.out = take(is_tile_value(s.value));
      convert.round_to = stored == Lane::f32 ? type : DataType::not_set;
      emit(convert, s.value);
      temporary.push_back(op.out);
      slot_[static_cast<std::size_t>(s.value)] = convert.out;
    }
    const bool in_row = !is_tile_value(s.value);
    if (!in_row) return;  // slots of tile values are never handed on: a row would overwrite them
    free_.insert(free_.end(), temporary.begin(), temporary.end());
    release(s, static_cast<int>(index));
  }

  void release(const chain::Step& s, int index) {
    for (std::size_t k = 0; k < 3 && s.input[k] >= 0; ++k) {
      const bool repeated = std::find(s.input.begin(), s.input.begin() + static_cast<std::ptrdiff_t>(k), s.input[k]) !=
                            s.input.begin() + static_cast<std::ptrdiff_t>(k);
      if (!repeated && last_use_[static_cast<std::size_t>(s.input[k])] == index)
        free_.push_back(slot_[static_cast<std::size_t>(s.input[k])]);
    }
    if (last_use_[static_cast<std::size_t>(s.value)] < 0) free_.push_back(slot_[static_cast<std::size_t>(s.value)]);
  }

  const FusionChain& c_;
  Program p_;
  std::vector<int> slot_, last_use_, free_;
  int top_ = 0;
};

bool is_last_reader(const Program& p, std::size_t writer, int slot, int stored) {
  for (std::size_t i = writer + 1; i < p.row_ops.size(); ++i)
    for (const int in : p.row_ops[i].in)
      if (in == slot) return false;
  const auto other = [&](const auto& x) { return x.slot == slot && slot != stored; };
  return std::ranges::none_of(p.stores, other) && std::ranges::none_of(p.reductions, other) &&
         std::ranges::none_of(p.quantised, other);
}

/// Which operation writes what a store stores, and which product may be summed in that output: one that nobody reads after it.
void find_direct(Program& p) {
  p.stored_by.assign(p.row_ops.size(), -1);
  p.summed_in.assign(p.product_slot.size(), -1);
  for (std::size_t s = 0; s < p.stores.size(); ++s) {
    if (p.stores[s].accumulate) continue;
    const int slot = p.stores[s].slot;
    std::size_t writer = p.row_ops.size();
    for (std::size_t i = 0; i < p.row_ops.size(); ++i)
      if (p.row_ops[i].out == slot) writer = i;
    if (writer == p.row_ops.size() || p.row_ops[writer].kind == OpKind::load || p.stored_by[writer] >= 0) continue;
    p.stored_by[writer] = static_cast<int>(s);
    if (p.stores[s].is_half) continue;                     // no room for the sums of all columns
    if (p.row_ops[writer].kind == OpKind::rope) continue;  // it reads what it would have overwritten
    for (std::size_t g = 0; g < p.summed_in.size(); ++g)
      if (p.summed_in[g] < 0 && is_last_reader(p, writer, p.product_slot[g], slot)) {
        p.summed_in[g] = static_cast<int>(s);
        break;
      }
  }
}

}  // namespace

Program make_program(const chain::FusionChain& chain) {
  Program p = Maker(chain).run();
  find_direct(p);
  return p;
}

}  // namespace verglas::engine::cpu
