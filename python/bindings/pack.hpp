#pragma once
#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "buffers.hpp"
#include "overrides.hpp"
#include "reading.hpp"
#include "recipe/recipe.hpp"
#include "verglas/graph.hpp"
#include "verglas/plan.hpp"

namespace verglas::python {

/// A compiled plan with what Python's packs need to know about its operands. Immutable, shared by all threads.
struct PlanFacts {
  PlanFacts(CompiledPlan compiled, Graph described);

  CompiledPlan plan;
  Graph graph;                                  ///< whose tensors are keys
  std::vector<std::int16_t> operand_of_tensor;  ///< by index of the tensor in its graph, −1 for what is no operand
  std::vector<Reading> readings;
};

/// The buffers of one call, in the plan's order, and all that keeps them alive.
class Pack {
 public:
  /// From a dict by tensor, uid or name, or from a sequence in the order of operands(). Throws pack.* and call.*.
  /// Operands that an override describes are read by it alone.
  /// `stream` is that of the call, for producers that have to know.
  Pack(const PlanFacts& facts, nb::handle buffers, nb::handle stream, const Overrides& overrides = {});
  /// As many buffers as operands, in their order.
  Pack(const PlanFacts& facts, PyObject* const* buffers, std::size_t count, nb::handle stream);
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;
  ~Pack();

  std::span<const TensorView> views() const noexcept { return {views_, count_}; }
  std::span<PyObject* const> objects() const noexcept { return {objects_, count_}; }
  bool asked() const noexcept { return keep_.asked; }

 private:
  template <class Fill>
  void fill(Fill&& add_all);
  void take_in_order(PyObject* const* buffers, std::size_t given);
  void add(int operand, nb::handle object);
  int operand_of(nb::handle key) const;
  void finish(const Overrides& overrides = {});

  const PlanFacts& facts_;
  std::size_t count_;
  alignas(TensorView) std::byte memory_[sizeof(TensorView) * recipe::kMaxRoles];  // not initialised: only count_ of them are
  TensorView* views_ = reinterpret_cast<TensorView*>(memory_);
  PyObject* objects_[recipe::kMaxRoles];     // owned; null: not given yet
  std::int64_t scalars_[recipe::kMaxRoles];  // values of operands passed by value as numbers
  Keepers keep_;
};

/// One operand: an array, an address, or a number where it is passed by value, which is stored in `scalar`.
void read_operand(const PlanFacts& facts, std::size_t operand, nb::handle object, std::int64_t& scalar, TensorView& view,
                  Keepers& keep);
/// Reads buffers as the graph's description says, where theirs leaves it open; from all views, B's order being A's matter.
/// Bit i of `settled`: operand i is described already.
void settle_all(const PlanFacts& facts, std::span<TensorView> views, std::uint64_t settled = 0) noexcept;

/// None, an address, torch's stream (cuda_stream) or an object with __cuda_stream__.
Stream stream_of(nb::handle object);
/// None, an address, or a dense writable buffer.
Workspace workspace_of(nb::handle object, Keepers& keep);

/// The same, where None is the stream on which the plan's tensors are being worked, if they tell: torch's current stream.
/// asked   some producer was told `object`, and is told anew where the stream is another
Stream stream_for(nb::handle object, const PlanFacts& facts, std::span<const TensorView> views,
                  std::span<PyObject* const> objects, bool asked);

/// Runs the plan without the interpreter's lock.
void run(const PlanFacts& facts, std::span<const TensorView> views, Stream stream, Workspace workspace);

/// Reads the pack and runs the plan.
void execute(const PlanFacts& facts, nb::handle buffers, nb::handle workspace, nb::handle stream,
             const Overrides& overrides = {});
void execute(const PlanFacts& facts, const Pack& pack, nb::handle workspace, nb::handle stream);

}  // namespace verglas::python
