#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verglas/dtype.hpp"
#include "verglas/moe.hpp"
#include "verglas/pointwise.hpp"

/// What is asked for, without a word about hardware: the narrow waist between descriptions and engines.
namespace verglas::chain {

inline constexpr int kMaxRoles = 64;
inline constexpr int kMaxSteps = 512;

/// What stands for an extent: a live quantity of the call, or 1 for good. Of grouped products: g groups, e experts, t rows of the
/// tokens where these are not M. h is half of N, of what is made of runs. r is for good as well: columns of a head that are
/// rotated, or slots of a token.
enum class Symbol : std::uint8_t { one, l, m, n, k, g, e, t, h, r };
inline constexpr int kSymbols = 10;

/// Columns of a run where every second run is taken.
inline constexpr int kRun = 32;

/// A tensor that the caller passes, as declared.
struct Operand {
  std::string name;
  std::int64_t uid = 0;
  DataType dtype = DataType::not_set;
  std::vector<std::int64_t> dim, stride;  ///< elements, the user's axes
  bool is_output = false;
  bool is_host_scalar = false;  ///< passed by value at each call: one element in host memory
};

/// scale_a, scale_b: scales of the blocks of a matrix; output_scale: those of a quantised output. b_table, scale_table: addresses
/// of matrices, and of their scales.
/// group_offset, token_index, token_slot, token_score: what a Grouping reads.
enum class RoleKind : std::uint8_t {
  a,
  b,
  b_table,
  scale_table,
  scale_a,
  scale_b,
  group_offset,
  token_index,
  token_slot,
  token_score,
  aux,
  host_scalar,
  output,
  reduction,
  output_scale,
};

/// One way in which the kernel reads or writes an operand.
/// Shapes   canonical axes: a (L, M, K), b (L, N, K), the others (L, M, N); scales (L, rows, blocks along K or N), those of
///          blocks along M (L, N, blocks along M); with groups the first axis is that of groups, of b that of experts; b_table,
///          scale_table and group_offset lie along the first axis, token_index and token_slot along the second; token_score (1,
///          M, slots)
struct Role {
  RoleKind kind = RoleKind::a;
  int operand = 0;
  std::array<Symbol, 3> symbol{};     ///< of each canonical axis; `one` is a broadcast (inputs) or reduced (reductions) axis
  std::array<std::int8_t, 3> axis{};  ///< declared axis that holds it, −1 where the operand has none
  int block = 0;                      ///< of scales: elements along canonical axis 2 that share one
  bool is_interleaved = false;        ///< of scales: a blob of atoms, which has no axes
  bool is_by_group = false;           ///< of such a blob: the rows of each group begin an atom
};

/// One pointwise node. Operands are values; it computes in `compute` and rounds to the type of `value`. Or, where `run` is not
/// −1, every second run of kRun columns of its operand, from that one on. Or, where `is_rope`, what the chain's Rope makes of it.
struct Step {
  PointwiseMode mode = PointwiseMode::identity;
  PointwiseParameters parameters;     ///< gen_index: axis 0, 1, 2 of (L, M, N)
  DataType compute = DataType::fp32;  ///< fp32 or int32
  std::array<int, 3> input{-1, -1, -1};
  int value = -1;
  int run = -1;  ///< −1, 0 or 1
  bool is_rope = false;
  std::string name;
};

enum class ValueKind : std::uint8_t { product, aux, constant, step };

/// A node of the chain's dataflow: what it holds is rounded to `dtype`, stored or not.
struct Value {
  ValueKind kind = ValueKind::step;
  DataType dtype = DataType::fp32;
  int source = 0;                ///< product: index in gemms; aux: index in roles; step: index in steps
  double constant = 0.0;         ///< of ValueKind::constant, as given: engines round it to dtype
  std::array<bool, 3> varies{};  ///< along L, M, N; a false axis holds one value for all
  std::string name;
  bool is_half = false;  ///< made of runs: N / 2 columns
};

/// A step on the way into a product: `x` is the running value, the other operand (if any) is a scalar role or a constant.
struct PrologueStep {
  PointwiseMode mode = PointwiseMode::identity;
  PointwiseParameters parameters;
  DataType compute = DataType::fp32;
  DataType dtype = DataType::fp32;  ///< rounded to
  int scalar_role = -1;
  std::optional<double> constant;  ///< rounded to its declared type
  bool scalar_first = false;       ///< the scalar is the left operand
  friend bool operator==(const PrologueStep&, const PrologueStep&) = default;
};

/// Matrices in memory of their own, or their scales, whose addresses an operand holds: of type int64 and extent (experts).
struct PointerTable {
  DataType dtype = DataType::bf16;
  std::array<std::int64_t, 2> extent{}, stride{};  ///< of each matrix, along N and K; or of its scales, along N and blocks
  int block = 0;                                   ///< of scales: elements along K that share one
  bool is_interleaved = false;                     ///< of scales: each matrix has a blob of atoms
};

/// A matrix as the product reads it: a role, and what happens to each element before. One with scales has no prologue: each
/// element is multiplied by the scale of its block in fp32, and rounded to `dtype`.
struct MatrixInput {
  int role = 0;
  int scale_role = -1;
  int table = -1, scale_table = -1;  ///< indices in tables, where the role is one of addresses
  std::vector<PrologueStep> prologue;
  DataType dtype = DataType::bf16;  ///< type that enters the product
};

struct Gemm {
  int a = 0, b = 0;                      ///< indices in inputs
  DataType accumulate = DataType::fp32;  ///< fp32, tf32 (fp32 sums of tf32-precise operands) or int32
  int value = 0;
  bool is_fast = false;  ///< of fp8: may be summed in what a tensor core keeps
};

struct Store {
  int value = 0, role = 0;
  bool accumulate = false;  ///< added to what the output holds, and rounded once
};

/// Along which axis of the products memory says what belongs together.
enum class GroupedAxis : std::uint8_t {
  none,
  m,  ///< each group's rows times the matrix of its expert; what varies along L varies from group to group
  k,  ///< for each group a product over its part of K; L is the groups
};

/// Groups of rows (axis m) or of the depth (axis k): bounds that lie in memory and that no check can read. Group g has expert
/// g mod experts.
struct Grouping {
  GroupedAxis axis = GroupedAxis::none;
  MoeMode mode = MoeMode::none;
  MoeOffsets offsets = MoeOffsets::first_token;
  std::int64_t top_k = 1;
  bool zero_fill = false;
  int offset_role = -1, index_role = -1, slot_role = -1, score_role = -1;
  std::int64_t groups = 1, experts = 1, tokens = 0;  ///< of the description; tokens: rows of a where they are not M

  bool combines() const noexcept { return mode == MoeMode::combine; }
  /// Rows of a are T, not M.
  bool has_tokens() const noexcept { return mode == MoeMode::gather || combines(); }
  /// Rows of the results belong to groups; those of combine are tokens.
  bool has_group_rows() const noexcept { return axis == GroupedAxis::m && !combines(); }
};

struct Reduction {
  ReductionMode mode = ReductionMode::add;
  DataType compute = DataType::fp32;  ///< fp32 or int32; also the type of the output
  int value = 0, role = 0;
  std::array<bool, 3> reduces{};  ///< over L, M, N
};

/// Columns come in heads, of each of which the last `rotated` are rotated.
struct Rope {
  std::int64_t head = 0, rotated = 0;  ///< 0: there is none
  int cos_role = -1, sin_role = -1;    ///< (L, M, R), each axis but the last 1 or the full one
};

/// Blocks of a value that become narrow elements and one scale each; or, without a scale, pairs of fp4 of what it is.
struct Quantise {
  int value = 0;
  bool along_m = false;  ///< else along N
  int block = 0;
  float vmax = 0.0F;  ///< what the largest magnitude of a block becomes, before a scale is rounded
  int role = 0, scale_role = -1;
};

struct FusionChain {
  std::array<std::int64_t, 4> declared{};  ///< L, M, N, K of the description
  Grouping grouping;
  std::vector<PointerTable> tables;
  std::vector<Operand> operands;    ///< in the order in which a call passes them: inputs as first used, then outputs
  std::vector<Role> roles;          ///< in the order of RoleKind
  std::vector<MatrixInput> inputs;  ///< distinct matrices: all a, then all b
  std::vector<Gemm> gemms;
  std::vector<Value> values;
  std::vector<Step> steps;  ///< in an order in which each can be computed
  std::vector<Store> stores;
  std::vector<Reduction> reductions;
  std::vector<Quantise> quantised;
  Rope rope;
};

/// How the scales of an input lie; block 0 where it has none.
struct ScaleFormat {
  DataType dtype = DataType::not_set;
  int block = 0;
  bool is_interleaved = false, is_by_group = false;  ///< as in Role
};
ScaleFormat scale_format(const FusionChain& chain, const MatrixInput& input) noexcept;
/// What a symbol stands for in the description.
std::int64_t declared_extent(const FusionChain& chain, Symbol symbol) noexcept;
/// What Symbol::r stands for.
std::int64_t fixed_extent(const FusionChain& chain) noexcept;
/// Rows of groups: what every bound but the last row is a multiple of, whole blocks along M and whole atoms of their scales.
std::int64_t unit_of_bounds(const FusionChain& chain) noexcept;
/// "a", "b", "a_scale", "b_scale", "aux", "scalar", "output", "reduction", "output_scale", …
std::string_view name_of(RoleKind kind) noexcept;
/// Role with its operand's name, for messages: "aux 'bias'".
std::string label_of(const FusionChain& chain, const Role& role);
/// The chain as lines of text, the same for equal chains.
std::string print(const FusionChain& chain);

}  // namespace verglas::chain
