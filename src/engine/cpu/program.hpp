#pragma once
#include <cstdint>
#include <vector>

#include "chain/chain.hpp"

/// A chain turned into straight-line work on rows: what the evaluator runs for each tile.
namespace verglas::engine::cpu {

/// What a lane of a row holds. int32 tensors and int32 arithmetic use integer lanes, everything else float lanes.
enum class Lane : std::uint8_t { f32, i32 };

enum class OpKind : std::uint8_t { load, fill, to_f32, to_i32, step, runs, rope };

/// One operation on a row of columns. Slots are arrays of one tile's width, 4 bytes a lane.
struct Op {
  OpKind kind = OpKind::step;
  Lane lane = Lane::f32;                         ///< in which it computes
  PointwiseMode mode = PointwiseMode::identity;  ///< step
  PointwiseParameters parameters;
  std::array<int, 3> in{-1, -1, -1};      ///< slots; of rope the second and third are room for the tables
  int out = 0;                            ///< slot
  int role = -1;                          ///< load
  int run = 0;                            ///< runs: which of two kinds
  bool is_half = false;                   ///< of what is made of runs: half of the columns
  double constant = 0.0;                  ///< fill
  DataType round_to = DataType::not_set;  ///< not_set: the lanes are already of that type
};

struct StoreOp {
  int slot = 0, role = 0;
  Lane lane = Lane::f32;
  bool accumulate = false;  ///< added to what is there
  bool is_half = false;
};

struct ReduceOp {
  ReductionMode mode = ReductionMode::add;
  Lane lane = Lane::f32;  ///< of the source
  Lane compute = Lane::f32;
  int slot = 0, role = 0;
  std::array<bool, 3> reduces{};
  bool is_half = false;
};

struct QuantiseOp {
  int slot = 0;
  Lane lane = Lane::f32;  ///< of the source
  bool along_m = false;
  int block = 0;
  float vmax = 0.0F;
  int role = 0, scale_role = -1;
  bool is_interleaved = false, is_by_group = false;  ///< in atoms; those of each group by themselves
  DataType data = DataType::fp8_e4m3, scale = DataType::fp8_e8m0;
  bool is_half = false;
};

struct Program {
  std::vector<Op> tile_ops;            ///< same for every row of a tile: once a tile
  std::vector<Op> row_ops;             ///< once a row
  std::vector<int> product_slot;       ///< by gemm: the slot that holds its row
  std::vector<DataType> product_type;  ///< by gemm: rounded to this before anybody reads it
  std::vector<Lane> product_lane;      ///< of the sum
  std::vector<StoreOp> stores;
  std::vector<ReduceOp> reductions;
  std::vector<QuantiseOp> quantised;
  std::vector<int> stored_by;  ///< by row operation: the store of its result, -1 if none
  std::vector<int> summed_in;  ///< by gemm: the store in whose output it may be summed, -1 if none
  int slots = 0;
  bool has_runs = false;
};

Program make_program(const chain::FusionChain& chain);

constexpr Lane lane_of(DataType t) noexcept { return t == DataType::int32 || t == DataType::int64 ? Lane::i32 : Lane::f32; }

}  // namespace verglas::engine::cpu
