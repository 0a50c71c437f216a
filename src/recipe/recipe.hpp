#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rules.hpp"
#include "chain/chain.hpp"
#include "verglas/call.hpp"
#include "verglas/tensor.hpp"

/// What a runtime value cannot change about a plan, settled when it compiles; the checks of a call; and the one way to launch.
namespace verglas::recipe {

using chain::kMaxRoles;
using chain::kSymbols;
using chain::RoleKind;
using chain::Symbol;

/// What a check looks at. `build` emits them in the order of the contract, and no check reads what an earlier one has not
/// established.
enum class CheckKind : std::uint8_t {
  count,         ///< as many buffers as operands
  plan_device,   ///< the calling thread's current device is the plan's
  present,       ///< operand: an address, unless it has no element
  writable,      ///< operand: not read-only
  rank,          ///< role of a matrix or output: rank 2 or 3; binds the role's view in canonical axes
  device,        ///< operand: on the plan's device; host scalars on the host
  dtype,         ///< operand
  major,         ///< role: stride 1 along canonical axis `a`, where its extent is above 1
  modulus,       ///< role: extent of canonical axis `a` is a multiple of `b`
  stride_sign,   ///< role: no negative stride on an axis that is walked
  pitch,         ///< role: stride of the axis beside `a` clears the extent along `a`
  outer_stride,  ///< role: byte strides of axes other than `a` are multiples of `b`, and below 2^40 where `other` is 1
  reach,         ///< role: extents not negative, bytes fit 63 bits; measures the role's reach
  vector,        ///< role of one axis: no other extent than 1 beside it, none below 0; scores: slots are the last one
  live,          ///< M and K from the first a, N from the first b, L from the first role that has it; each below 2^31
  inner,         ///< K is not 0
  runs,          ///< N is whole pairs of runs
  heads,         ///< N is whole heads
  live_groups,   ///< groups from the offsets, experts from the first b or its table, rows from token indices; each below 2^31
  batch,         ///< role: canonical axis 0
  extents,       ///< role: canonical axes from `a` on have the live extents
  alignment,     ///< role: address is a multiple of `b`
  span,          ///< role: reach within the observed bytes
  aux,           ///< role: extents without unit axes are those of its broadcast shape; binds the role's view
  packed,        ///< role of fp4: pairs along canonical axis 2, even strides; halves the reach
  blocks,        ///< role of scales of an output: the live extent along its blocks is whole blocks
  scale,         ///< role: plain scales have their extents, interleaved ones are a dense run; binds the role's view
  scale_size,    ///< role: interleaved scales have the bytes of all their atoms, by groups those of any groups
  overlap,       ///< role and role `other`: byte ranges are disjoint
  injective,     ///< role: no two elements in one place
  data,          ///< the calls before met no data that did not fit
  grid,          ///< tiles of the live extents are below 2^31
  workspace,     ///< size and alignment
  end,           ///< not a check: the last of every list
};

struct Check {
  Rule rule = Rule::internal;
  CheckKind kind = CheckKind::present;
  std::uint8_t role = 0;   ///< or operand
  std::uint8_t other = 0;  ///< of a span: the role's operand
  std::uint8_t a = 0;
  std::uint16_t b = 1;      ///< a power of two
  std::uint16_t index = 0;  ///< place in `Recipe::checks`, also of its copy in `Recipe::address_checks`
};

/// Facts about a role that the checks read.
struct RoleFact {
  RoleKind kind = RoleKind::a;
  std::uint8_t operand = 0;
  std::uint8_t slot_bytes = 0;  ///< bytes of one stored element; of fp4 of a pair
  bool is_packed = false;       ///< fp4
  bool is_interleaved = false;  ///< scales in atoms
  bool is_by_group = false;     ///< whose rows begin one for each group
  std::int32_t block = 0;       ///< of scales: elements that share one
  std::array<Symbol, 3> symbol{};
  std::array<std::int8_t, 3> from_end{};           ///< canonical axis i is axis rank − from_end[i] of a buffer in declared order
  std::array<std::int64_t, 3> extent{}, stride{};  ///< as declared, canonical axes; what a bare address means
};

struct OperandFact {
  DataType dtype = DataType::not_set;
  bool is_output = false, is_host_scalar = false;
  std::uint8_t first_role = 0;
  Device device{};  ///< where its memory has to be
};

/// A role of one call, in canonical axes. Not initialised: the checks fill it.
struct RoleView {
  char* data;
  std::int64_t extent[3], stride[3];  ///< elements
  std::int64_t reach;                 ///< bytes from data to the end of the last element; 0 when empty
};

/// What the checks establish and the launcher reads: live extents and one view a role.
struct Binding {
  std::int64_t live[kSymbols];  ///< indexed by Symbol: 1, L, M, N, K; where there are groups G, E, T; N / 2
  RoleView role[kMaxRoles];
  bool is_ready = false;     ///< what `Launcher::current_device` found
  bool is_declared = false;  ///< extents and strides of all roles are those of the declaration
};

struct Call {
  std::span<const TensorView> buffers;
  Stream stream;
  Workspace workspace;
};

/// What only memory knows, and what a launch keeps inside its buffers and reports: docs/moe.md.
enum DataFault : std::uint32_t {
  kFaultOffsets = 1,      ///< offsets of groups fall, or lie outside the rows
  kFaultTokenIndex = 2,   ///< a token index outside the tokens
  kFaultTokenSlot = 4,    ///< a slot outside top_k
  kFaultNullWeights = 8,  ///< a null address for the weights of a group that has rows
  kFaultBlocks = 16,      ///< groups begin within a block of rows that are quantised along M, or within their scales' atom
};
/// In words, and the operands that hold them.
std::string text_of_faults(std::uint32_t faults);
std::string operands_of_faults(const chain::FusionChain& chain, std::uint32_t faults);

/// Extents of the tiles that a launch is divided into; 0 where nothing counts them.
struct Tiles {
  std::int64_t m = 0, n = 0;
};

/// How an operand is declared: as little as tells a buffer of that layout, in one line of memory.
struct alignas(64) DeclaredOperand {
  std::int64_t extent[3]{}, stride[3]{};
  DataType dtype = DataType::not_set;
  std::int8_t rank = 0;
};

struct Recipe {
  std::vector<OperandFact> operands;
  std::vector<RoleFact> roles;
  std::vector<Check> checks;
  std::array<std::int64_t, 4> declared{};  ///< L, M, N, K
  Device device{};
  WorkspaceSize workspace{};
  Tiles tiles{};
  int first_a = 0, first_b = 0, first_l = -1;  ///< roles that M and K, N, and L are read from; first_l −1: L is 1
  int offsets = -1, experts = -1;  ///< roles that G and E are read from; without offsets there are no groups, without experts one
  int row_list = -1;               ///< role that M is read from instead, where rows of the first a are T: indices or scores
  std::int64_t most_groups = std::int64_t{1} << 31;
  std::int64_t head = 0;     ///< columns of a head; 0: no heads
  std::int64_t fixed = 0;    ///< what Symbol::r stands for
  bool is_by_table = false;  ///< weights are a table: N and K are those of the description

  /// A call whose buffers are laid out as declared passes every check that does not look at an address, a device or a size: the
  /// list was run once on the declaration when the plan was made. Such a call takes the views below and runs the other checks.
  bool declaration_passes = false;
  std::vector<Check> address_checks;               ///< those of `checks` that remain, in their order
  std::vector<DeclaredOperand> declared_operands;  ///< by operand
  std::vector<RoleView> declared_views;            ///< by role
  std::vector<std::uint8_t> operand_of_role;
  std::int64_t declared_live[kSymbols]{};
};

/// What an engine adds to the rules that hold everywhere.
struct Requirements {
  Device device{};
  WorkspaceSize workspace{};
  struct Matrix {
    bool k_major = true;       ///< canonical contiguous axis: K, or M/N
    int modulus = 1;           ///< of the contiguous extent, elements
    int stride_multiple = 1;   ///< of the other strides, bytes
    bool stride_limit = true;  ///< the other strides are below 2^40 bytes
    int alignment = 0;         ///< of the address, bytes; 0: that of the element
    bool pitch = false;        ///< lines along the contiguous axis do not overlap
  };
  std::vector<std::pair<int, Matrix>> matrix;  ///< role → rule; roles not named have no such rule
  std::vector<std::pair<int, Matrix>> aux;     ///< the same for operands of the epilogue
  bool inner = false;                          ///< K is not 0
  Tiles tiles{};                               ///< the kernel counts tiles in 32 bits
  std::int64_t most_groups = std::int64_t{1} << 31;
};

/// The views of all roles as declared, at address 0: of interleaved scales nothing is told.
std::vector<RoleView> declared_views(const chain::FusionChain& chain);

/// The recipe of a chain with what this engine adds.
Recipe build(const chain::FusionChain& chain, const Requirements& requirements);

/// The engine's half of a call: everything is checked and bound when it runs.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual Status launch(const Binding& binding, const Call& call) const noexcept = 0;
  /// The current device of the calling thread, for plans that care; answers the plan's where there is nothing to ask.
  /// `is_ready` becomes true where the thread needs no preparing for the launch.
  virtual Device current_device(Device plan, bool& /*is_ready*/) const noexcept { return plan; }
  /// What calls until now met in memory that no check can read, as bits of DataFault.
  virtual std::uint32_t data_faults() const noexcept { return 0; }
  /// The same, and forgets it.
  virtual std::uint32_t take_data_faults() const noexcept { return 0; }
  /// The error of a launch that answered this status: what was attempted, and the driver's own name for the failure.
  virtual Error failure(Status status) const = 0;
};

/// The one executor: every check, then the launch.
Status execute(const Recipe& recipe, const Launcher& launcher, const Call& call) noexcept;
/// The checks alone; the binding is whole where the answer is ok.
Status check(const Recipe& recipe, const Launcher& launcher, const Call& call, Binding& binding) noexcept;
/// Launches a binding that `check` filled for this call: of the checks, only the one of what the thread can change is made.
Status launch_again(const Recipe& recipe, const Launcher& launcher, const Call& call, Binding& binding) noexcept;
/// The same list of checks, rendered. `status` is what execute answered.
Error explain(const Recipe& recipe, const chain::FusionChain& chain, const Launcher& launcher, Status status, const Call& call);

/// One line a check, for `verglas explain`.
std::string print_checks(const Recipe& recipe, const chain::FusionChain& chain);

}  // namespace verglas::recipe
