#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "oracle/graph.hpp"
#include "support/poisoned_buffer.hpp"
#include "support/random.hpp"
#include "verglas/graph.hpp"

namespace support {

/// What an axis of an operand stands for; the extent of a call follows from it.
enum class Axis : std::uint8_t { one, l, m, n, k, g, e, t, s };
/// Indexed by Axis; [0] is 1.
using Extents = std::array<std::int64_t, 9>;

/// What an operand says about groups.
enum class Duty : std::uint8_t { none, offsets, index, slot, token, table };

/// A tensor that a call passes.
struct CaseOperand {
  int tensor = 0;  ///< index in the reference graph; its uid there is that of the graph
  std::vector<Axis> axes;
  bool is_output = false;
  bool is_host_scalar = false;
  bool is_only_b = false;  ///< may be passed in kernel order
  int packed_axis = -1;    ///< of fp4: the one along which two elements share a byte
  /// Of scales: elements of a block, and the axis along which it lies; `axes` are those of the data.
  int block = 0;
  std::size_t block_axis = 0;
  Duty duty = Duty::none;  ///< of grouped products; token: rows that nobody reads hold NaN
};

enum class Data : std::uint8_t {
  small_integers,  ///< −3 … 3: most sums are exact
  normal,
  wild,  ///< with NaN, infinities, −0, denormals and large numbers
};

/// One graph in two forms, made side by side: nothing of one was derived from the other.
struct Case {
  std::uint64_t seed = 0;
  verglas::Graph graph;
  oracle::Graph reference;
  std::vector<CaseOperand> operands;
  Extents declared{};
  Extents unit{1, 1, 1, 1, 1};  ///< every extent is a multiple
  bool is_tied = false;         ///< a tensor has several roles: M = N = K at every call
  std::int64_t most_live = 40;  ///< of M, N, K at a call
  std::int64_t most_work = 0;   ///< L · M · N · K of a call, where it is not the declared one; 0: any
  bool has_kernel_types = false;
  bool is_for_device = false;  ///< calls keep the declared order of axes and what all strides are multiples of
  Data data = Data::small_integers;

  /// One line that says how to draw it again, and what it is.
  std::string line() const;
};

struct GeneratorOptions {
  std::int64_t largest = 80;       ///< of M, N, K
  std::int64_t most_work = 60000;  ///< L · M · N · K
  int most_steps = 6;
  bool block_scaled = false;  ///< matrices with scales of blocks, and quantised outputs
  /// Calls that a kernel's paths take: layouts in declared order and alignment, extents up to `largest` at every call.
  bool for_device = false;
  /// What a GPU kernel multiplies, mostly bf16 and fp16; one product or two, and floating types behind.
  bool kernel_types = false;
};

/// A graph that is a chain which the CPU engine serves.
Case draw_case(std::uint64_t seed, const GeneratorOptions& options = {});

/// The buffers of one legal call and how they are described.
struct Call {
  Extents live{};
  std::vector<PoisonedBuffer> buffers;     ///< one for each operand of the case
  std::vector<verglas::TensorView> views;  ///< likewise
  std::vector<oracle::Memory> memory;      ///< likewise, what the reference reads
  std::vector<PoisonedBuffer> matrices;    ///< to which tables of addresses point
  bool has_faults = false;                 ///< its offsets or indices do not fit
  bool is_bare = false;                    ///< every view is a bare address
};

/// A call with extents, layouts, axis orders and ranks of its own.
Call draw_call(const Case& c, Random& random);
/// Strides that put no two elements in one place, in any order of axes, with gaps; all but the smallest multiples of `unit`.
std::vector<std::int64_t> draw_layout(const std::vector<std::int64_t>& dims, Random& random, std::int64_t unit = 1);

/// Strides of an input: gaps, repeated axes, windows that overlap.
std::vector<std::int64_t> draw_input_layout(const std::vector<std::int64_t>& dims, Random& random);
double draw_number(oracle::Format format, Data data, Random& random);

/// The elements of a buffer in other words: units dropped or added, B with its axes the other way round.
struct Description {
  std::vector<std::int64_t> dims, strides;
  bool kernel_order = false;
};
Description describe(const CaseOperand& o, bool is_aux, const PoisonedBuffer& buffer, Random& random);
verglas::TensorView view_of(const Description& d, oracle::Format format, void* data);

/// The same for fp4: the axis with two elements a byte has stride 1, the others even ones.
std::vector<std::int64_t> draw_packed_layout(const std::vector<std::int64_t>& dims, int axis, Random& random);

/// The views in the order of the plan's operands.
std::vector<verglas::TensorView> in_plan_order(const Case& c, const verglas::CompiledPlan& plan,
                                               const std::vector<verglas::TensorView>& views);
/// The reference graph with the memory of this call.
oracle::Graph bound(const Case& c, const Call& call);

}  // namespace support
