#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verglas/call.hpp"
#include "verglas/dtype.hpp"
#include "verglas/error.hpp"
#include "verglas/tensor.hpp"

namespace verglas {

namespace chain {
struct FusionChain;
}
namespace recipe {
struct Recipe;
}
namespace plan {
struct PlanState;
struct CompiledState;
}  // namespace plan

struct PlanOptions {
  Device device{};                                 ///< where the plan will run; the default is the CPU
  std::vector<std::string> deselect_engines = {};  ///< engines whose name contains one of these are not asked
};

/// What an engine said when it did not take the chain.
struct DeclineRecord {
  std::string engine, rule, text;
};

/// One operand of a compiled plan, in the order in which `execute` takes buffers.
struct OperandInfo {
  std::string name;
  std::int64_t uid = 0;
  std::string roles;  ///< "a", "b", "aux", "scalar", "output", "reduction" and others, or several joined by "+"
  DataType dtype = DataType::not_set;
  std::vector<std::int64_t> dim, stride;  ///< as declared
  bool is_output = false;
  bool is_host_scalar = false;
};

/// How plans are measured by `PlanList::tune`.
struct TuneOptions {
  int most = 16;          ///< plans that are compiled and measured: the best predictions, three at least of each engine
  double seconds = 0.02;  ///< of the windows in which a plan is timed, at most 10; each has some ten of them
};

/// What `PlanList::tune` found out.
struct TuneReport {
  struct Plan {
    std::size_t index = 0;  ///< in the list
    std::string name;
    double seconds = 0;   ///< median of one call; 0 where it failed
    std::string failure;  ///< why it was not timed; empty otherwise
  };
  std::vector<Plan> plans;  ///< fastest first; those that failed last
  std::string record;       ///< the file that keeps it, or empty
  std::string why_not;      ///< why it is not kept
};

class BoundCall;

/// A plan ready to run. Immutable and shared: copies are cheap, any number of threads may execute one at the same time, each with
/// its own buffers and workspace.
class CompiledPlan {
 public:
  CompiledPlan() = default;
  explicit CompiledPlan(std::shared_ptr<const plan::CompiledState> state) : state_(std::move(state)) {}

  std::span<const OperandInfo> operands() const noexcept;
  /// Position of the operand with that uid or unique name, −1 when there is none.
  int operand_index(std::int64_t uid) const noexcept;
  int operand_index(std::string_view name) const noexcept;

  /// Checks everything, then launches. Neither throws nor allocates; nothing is written for a call that is refused.
  Status execute(std::span<const TensorView> buffers, Stream stream = {}, Workspace workspace = {}) const noexcept;
  /// The same with bare addresses: every operand is as the graph declared it.
  Status execute(std::span<void* const> addresses, Stream stream = {}, Workspace workspace = {}) const noexcept;
  /// Renders why `execute` answered `status` for these arguments. Launches nothing.
  Error explain(Status status, std::span<const TensorView> buffers, Stream stream = {}, Workspace workspace = {}) const;
  /// `execute`, and on refusal throws what `explain` says.
  void run(std::span<const TensorView> buffers, Stream stream = {}, Workspace workspace = {}) const;

  /// Throws `call.data` where calls of grouped products met data that do not fit (docs/moe.md), and forgets it; until then the
  /// next call is refused. On a GPU it says what the work that is done has found: synchronise the stream before.
  void check() const;

  /// A call that is made many times: checked here once, throws as `run` does. Launches nothing.
  BoundCall bind(std::span<const TensorView> buffers, Stream stream = {}, Workspace workspace = {}) const;

  WorkspaceSize workspace() const noexcept;
  std::string name() const;    ///< "cpu[PRODUCT=1]"
  std::string engine() const;  ///< "cpu"
  /// Why its code came out slower than was predicted ("it spills 8 bytes"); empty: nothing is known.
  std::string flaw() const;
  /// The plans that `PlanList::compile` compiled before this one, and their flaws: a line each, mostly none.
  std::string passed_over() const;
  int engine_id() const noexcept;
  const Knobs& knobs() const noexcept;
  Device device() const noexcept;
  const recipe::Recipe& recipe() const noexcept;
  const chain::FusionChain& chain() const noexcept;
  bool valid() const noexcept { return state_ != nullptr; }  ///< one that is not refuses calls; recipe and chain need one that is

 private:
  std::shared_ptr<const plan::CompiledState> state_;
};

/// A checked call of a plan, to be launched again and again: nothing but addresses can change, so that a launch checks only the
/// calling thread's device, and the first one after `set_address` checks everything again. Made by `CompiledPlan::bind`.
///
/// Memory   views, stream and workspace are kept, not what they point to: buffers live as long as the call is used
/// Threads  one thread at a time; a copy is a call of its own. Copying allocates, launching does not
/// Hazard   the bytes behind a new address are not known: it must be memory of the plan's device, which reaches as far as the
///          buffer that was bound, and for an output can be written. Null, alignment and overlap are checked
class BoundCall {
 public:
  BoundCall() noexcept;
  BoundCall(const BoundCall& other);
  BoundCall& operator=(const BoundCall& other);
  BoundCall(BoundCall&&) noexcept;
  BoundCall& operator=(BoundCall&&) noexcept;
  ~BoundCall();

  /// Launches. A refused call writes nothing, and later ones are refused until the address is put right.
  Status operator()() noexcept;
  /// The address of an operand in the next launches, by its position in `operands()`; false when there is none of that number.
  bool set_address(int operand, void* address) noexcept;
  /// Renders why a launch answered `status`.
  Error explain(Status status) const;
  bool valid() const noexcept { return state_ != nullptr; }

 private:
  friend class CompiledPlan;
  struct State;
  std::unique_ptr<State> state_;
};

/// Every plan that can serve a graph, best first (those that were measured here, then by prediction), and every engine that
/// cannot, with its reason. Indices are stable.
class PlanList {
 public:
  PlanList() = default;
  explicit PlanList(std::shared_ptr<plan::PlanState> state) : state_(std::move(state)) {}

  std::size_t size() const noexcept;
  std::string name(std::size_t i) const;
  std::string engine(std::size_t i) const;
  int engine_id(std::size_t i) const;
  const Knobs& knobs(std::size_t i) const;
  double predicted_seconds(std::size_t i) const;
  /// As the tuning record or `tune` has it; 0 where nobody measured this plan here.
  double measured_seconds(std::size_t i) const;
  const std::vector<DeclineRecord>& declines() const noexcept;

  /// Plans of engines whose name contains one of the substrings stay in the list and are not chosen any more.
  void deselect_engines(const std::vector<std::string>& substrings);
  /// Pins one entry: only it is compiled from now on. Throws invalid_graph plan.index.
  void select_plan(std::size_t i);
  /// Appends the plan of a record (engine id and complete knobs) and answers its index; throws unsupported plan.replay.
  std::size_t append(int engine_id, const Knobs& knobs);
  bool barred(std::size_t i) const;

  /// Measures the most promising plans on the device, on random operands of the declared extents, beside each other. From now on
  /// the fastest is compiled first; it is kept in the tuning record, which every later list for this chain and device is ranked
  /// by. Indices stay. Takes seconds, and memory for operands. Throws plan.none, where nothing can be timed, and what the device
  /// says.
  TuneReport tune(const TuneOptions& options = {});
  /// What the tuning record said when the list was made: a file, or why one does not count; empty where there is none.
  const std::string& tuning_note() const noexcept;

  CompiledPlan compile(std::size_t i) const;
  /// The first entry, in order, that compiles and is not barred (or the pinned one). One whose code spills registers, or was
  /// compiled in another way that makes it slow, is passed over unless it was measured, or no other is better; `passed_over` says
  /// so. Others that would have the same are not compiled. Throws `unsupported` with every reason.
  CompiledPlan compile() const;

  /// Null when the graph is not a chain.
  const chain::FusionChain* chain() const noexcept;
  std::string unsupported_text() const;  ///< why nothing serves: every decline, in order

 private:
  std::shared_ptr<plan::PlanState> state_;
};

/// A plan that `verglas compile` wrote, ready to run; needs the driver, and no compiler. The bytes are code: load only what you
/// trust. Throws file.open, file.plan_format, file.plan_damaged, file.plan_version, also where other kernel sources than this
/// build's were compiled, file.plan_arch, and what the driver says.
CompiledPlan load_plan(const std::string& path, Device device = {DeviceType::cuda, 0});
/// The same of the bytes of such a file, which are not needed afterwards.
CompiledPlan load_plan(std::span<const std::byte> bytes, Device device = {DeviceType::cuda, 0});

}  // namespace verglas
