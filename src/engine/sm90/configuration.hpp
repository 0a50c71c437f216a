#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "verglas/dtype.hpp"

namespace verglas::sm90 {

/// Which dimension of an operand is contiguous in shared memory, as wgmma reads it. MN-major exists for 16-bit types only.
enum class Major : std::uint8_t { k, mn };

enum class Schedule : std::uint8_t {
  cooperative,  ///< the consumers share the rows of one tile; the tensor cores idle while it drains
  pingpong,     ///< two consumers with a tile each; one drains while the other multiplies
};

/// How an operand travels between global and shared memory. The number is the bytes of a piece that one thread moves; 0 is the
/// copy engine. A piece of one element is the only one that takes an operand without a contiguous dimension.
enum class Path : std::uint8_t { tma = 0, bytes1 = 1, bytes2 = 2, bytes4 = 4, bytes8 = 8, bytes16 = 16 };

constexpr int piece_bytes(Path p) noexcept { return static_cast<int>(p); }

/// One flavor of the kernel: everything that is a constant in its source. Two equal configurations make the same kernel.
struct KernelConfig {
  int block_m = 128;
  int block_n = 256;
  int stages = 3;
  int consumers = 2;      ///< warpgroups that multiply: 1 to 3; two for ping-pong
  int store_buffers = 4;  ///< chunks of 8 KB that each consumer stages D in; all of its tile, or a few that take turns
  int split = 1;          ///< blocks of a cluster that share the K of a tile
  Schedule schedule = Schedule::cooperative;
  Major a_major = Major::k;
  Major b_major = Major::k;
  DataType input = DataType::bf16;        ///< of A, and of B where that has no other; fp32 is multiplied as tf32
  DataType input_b = DataType::not_set;   ///< of B where it differs: the other fp8
  DataType a_stored = DataType::not_set;  ///< of matrices that go through a prologue, what they are stored in
  DataType b_stored = DataType::not_set;
  DataType output = DataType::bf16;
  Path a_path = Path::tma;
  Path b_path = Path::tma;
  Path d_path = Path::tma;
  bool has_d = true;       ///< else reductions are all there is
  bool d_along_m = false;  ///< D is contiguous along M; by the copy engine only
  bool a_turned = false;   ///< contiguous along M in memory and along K in shared memory: threads turn it
  bool b_turned = false;
  int a_decoded = 0, b_decoded = 0;  ///< pieces of 16 bytes of a line of a stage that threads decode to bf16; 0: as it is stored
  int producers = 1;                 ///< warpgroups that load; more than one where all that threads load is decoded, or shifted
  int slots = 0;                     ///< k-blocks of these that are on their way: a power of two
  int joined = 1;                    ///< k-blocks of 128 bytes of B in a stage
  bool held = false;                 ///< A is fp4, and enters the product from registers, decoded by consumers
  bool casts = false;                ///< A is bytes that the copy engine brings, and enters it likewise, cast by consumers
  bool carried = false;              ///< the copy engine brings it, beside few rows (carry.cuh); else those that decode B
  bool scaled = false;               ///< fp8 with scales of blocks of 32: each is summed apart, which is promotion too
  bool promoted = false;             ///< fp8: every 128 of k are summed apart and added in fp32
  /// Products that share a tile: one, or two (gemms = 2) of up to two matrices each of A and of B.
  int gemms = 1, a_count = 1, b_count = 1;
  std::array<std::uint8_t, 2> gemm_a{}, gemm_b{};  ///< which A and B a product multiplies
  int reductions = 0, column_reductions = 0;       ///< of the chain; those over rows take shared memory
  int vectors = 0;                                 ///< operands of the epilogue along N, which take shared memory
  int quantisers = 0;
  int column_quantisers = 0;                     ///< by blocks along M, which take shared memory
  bool loads_tile = false;                       ///< an operand of D's size arrives where D will lie
  int further_outputs = 0, further_buffers = 0;  ///< outputs besides D that are staged, and chunks of 8 KB for each
  /// Columns in runs of 32 of two products (runs.hpp): bytes of 64 rows by 32 columns of all outputs, and slots for as many.
  int run_bytes = 0, run_slots = 0;
  bool rotates = false;  ///< the slots are chunks of the whole tile, for rope.cuh
  int groups = 0;        ///< that one call may have, where rows of A belong to groups and each has a B of its own; 0: none
  bool gathers = false, scatters = false;  ///< rows of A are found by token indices; or places of rows in D, and slots say which
  bool combines = false;                   ///< rows of D are sums of those of groups, and belong to none
  bool depth_groups = false;               ///< parts of K and not rows are those of groups, and each has a D of its own
  bool group_atoms = false;                ///< scales of some rows lie in atoms of each group
  int row_unit = 1;                        ///< rows that groups do not cut: of a block along M, or of its scales' atom
  bool accumulates = false;                ///< a group without a part leaves its D as it is
  int addressed = 0;                       ///< bit i: matrices of B number i lie where a table in memory says
  bool is_shallow = false;                 ///< parts of K are short by the description: room goes to staging and not to stages
  bool wide_offsets = false, offsets_are_ends = false, zero_fill = false;  ///< of groups: int64; rows behind each; unowned rows
  int tail_rows = 0;          ///< of A, of a box at the end of a group; 0: blocks of 64 there too
  bool claims = false;        ///< blocks take tiles of groups one after the other as they become free
  int listed = 0;             ///< tiles of groups that a block finds at its start, all at once
  bool programmatic = false;  ///< waits for the previous kernel inside ours: needs the launch attribute of the same name

  friend bool operator==(const KernelConfig&, const KernelConfig&) = default;
};

/// Rows of D belong to groups.
inline bool has_group_rows(const KernelConfig& c) noexcept { return c.groups > 0 && !c.depth_groups && !c.combines; }
/// Its blocks wait for each other, and so run at one time.
inline bool meets(const KernelConfig& c) noexcept { return c.combines || (c.zero_fill && c.scatters); }

/// Limits of one SM of compute capability 9.0.
inline constexpr int kSmemBytes = 232'448;
inline constexpr int kRegistersPerSm = 65'536;
inline constexpr int kLineBytes = 128;        ///< one line of a stage: a k-block of a row, or 64 elements along M or N
inline constexpr int kMostGroups = 1024;      ///< of rows, in one call
inline constexpr int kShortTile = 4;          ///< k-blocks that are over before memory says which group is next
inline constexpr int kChunkBytes = 64 * 128;  ///< one buffer of the staging of D

/// Types that a kernel stores.
bool is_output_type(DataType t) noexcept;
/// True where lines begin anywhere: pieces of an element, which the kernel loads as whole ones and shifts (shift.cuh).
bool shifts(const KernelConfig& c) noexcept;
/// True where threads load nothing else: other pieces are found by the number of a thread in the first warpgroup (load.cuh).
bool shifts_all(const KernelConfig& c) noexcept;
DataType input_of_b(const KernelConfig& c) noexcept;
DataType stored_a(const KernelConfig& c) noexcept;  ///< in memory
DataType stored_b(const KernelConfig& c) noexcept;
int line_bytes_of_a(const KernelConfig& c) noexcept;  ///< in a stage, where it is as in memory
int input_bytes(const KernelConfig& c) noexcept;      ///< of the smallest element of A and B in memory
bool is_fp8_product(const KernelConfig& c) noexcept;
int instruction_n(const KernelConfig& c) noexcept;  ///< columns of one wgmma
int block_k(const KernelConfig& c) noexcept;        ///< elements of k in a stage
int threads_of(const KernelConfig& c) noexcept;
int row_blocks(const KernelConfig& c) noexcept;       ///< wgmma row blocks of 64 that a consumer holds
int results_of(const KernelConfig& c) noexcept;       ///< registers in which a consumer thread holds a tile
int accumulators_of(const KernelConfig& c) noexcept;  ///< these and the sums that are promoted
int stage_bytes(const KernelConfig& c) noexcept;
int quantised_columns(const KernelConfig& c) noexcept;  ///< that quantisers take at once; 0 without one
int units_at_once(const KernelConfig& c) noexcept;      ///< of a chunk, drained together; 1 but where an operand is copied
bool stores_through(const KernelConfig& c) noexcept;    ///< elements that quantisers make go through shared memory
bool stores_first(const KernelConfig& c) noexcept;      ///< D is stored before anything is quantised
int quantiser_words(const KernelConfig& c) noexcept;    ///< shared memory of a consumer's quantisers
int scratch_bytes(const KernelConfig& c) noexcept;      ///< shared memory of a consumer's reductions and vectors
int decoding_bytes(const KernelConfig& c) noexcept;     ///< shared memory of one slot of what is decoded
int landing_bytes(const KernelConfig& c) noexcept;      ///< shared memory for the sums of the other blocks of a cluster
int chunks_of(const KernelConfig& c) noexcept;          ///< chunks of D a consumer drains a tile in
int group_bytes(const KernelConfig& c) noexcept;        ///< shared memory of what the offsets say
int map_bytes(const KernelConfig& c) noexcept;          ///< memory in which a block makes maps of weights by address
int smem_bytes(const KernelConfig& c) noexcept;
int entry_registers(const KernelConfig& c) noexcept;     ///< per thread, by the launch bounds
int producer_registers(const KernelConfig& c) noexcept;  ///< after setmaxnreg; entry_registers with one consumer
int carrier_registers(const KernelConfig& c) noexcept;   ///< of the producer that brings an A that is held
int consumer_registers(const KernelConfig& c) noexcept;

/// Why the kernel cannot be made, in words; nothing when it can.
std::optional<std::string> fault_of(const KernelConfig& c);

/// Short and unique: "128x256x3_coop_kk_bf16_bf16". Part of file names and of records.
std::string name_of(const KernelConfig& c);

/// Chunks of staging and stages. A whole tile staged where three stages still fit beside it; else chunks that take turns.
/// Ping-pong hides its drain and spends the room on stages, but keeps chunks for what arrives while the products run.
void fit_staging(KernelConfig& c) noexcept;

/// The largest number of stages that fits beside the staging, at most `most`; 0 when not even one does.
int stages_that_fit(KernelConfig c, int most = 16) noexcept;

}  // namespace verglas::sm90
