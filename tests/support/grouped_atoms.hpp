#pragma once
#include <functional>
#include <string>
#include <vector>

#include "support/random.hpp"
#include "verglas/verglas.hpp"

// Grouped products with scales of blocks in atoms of 128 rows by 4, of which each group's rows begin one: groupings that are
// drawn, and every byte that a call may write, by plain loops over small integers.
namespace support {

struct AtomsKind {
  std::string name;
  bool has_token_scales = true;  ///< of tokens and weights, in atoms; else both are bf16
  bool is_fp4 = false;           ///< NVFP4, blocks of 16 with scales of e4m3; else MXFP8
  bool quantises = false;        ///< the result by blocks along N, scales in atoms; beside the sums
  bool to_fp4 = false;           ///< to NVFP4; else to MXFP8
  bool along_m = false;          ///< by blocks along M, whose scales have a row for each column of the result
  bool is_plain = false;         ///< with plain scales; of blocks along M alone
  bool pairs = false;            ///< a second product of the same groups is subtracted twice
  bool runs = false;             ///< columns come in runs of 32: the first times the second where that is above 0; beside all
  bool has_bias = false;         ///< of each group
  bool is_alone = false;         ///< only what is quantised is stored
  verglas::MoeMode mode = verglas::MoeMode::none;
  bool are_ends = false, has_wide_offsets = false;
  bool zero_fill = false;  ///< rows that have no token are 0, and have no scale
};

/// What an operand holds in a call, and what it holds then.
struct AtomsOperand {
  std::string name;
  verglas::DataType dtype;
  std::vector<std::int64_t> dim, stride;
  std::vector<std::uint8_t> bytes, want;  ///< want: of outputs; `bytes` is what was there before, a poison
};

std::vector<AtomsKind> atoms_kinds();
/// One graph for all calls of a kind.
verglas::Graph atoms_graph(const AtomsKind& kind);
/// A call: groups of none to 300 rows, rows before the first and behind the last one, padding that means nothing.
std::vector<AtomsOperand> draw_atoms_call(const AtomsKind& kind, Random& random);
/// Two groups of kRowsOfBlocks rows, quantised to MXFP8 by blocks along M.
inline constexpr std::int64_t kRowsOfBlocks = 256;
verglas::Graph blocks_graph(verglas::DataType type, std::int64_t columns, std::int64_t depth, bool in_atoms);
/// A second group that begins within a block, or within an atom of its scales, begins where that does, and the next call is told.
/// `call` has it begin at a row, and answers the bytes of all outputs.
void expect_held_bounds(const verglas::CompiledPlan& plan, bool in_atoms,
                        const std::function<std::vector<std::uint8_t>(std::int32_t)>& call);
verglas::TensorView view_of(const AtomsOperand& operand, void* data, verglas::Device device = {});
/// In words, the first byte of an output that is not what it should be; empty where all are.
std::string atoms_fault(const AtomsOperand& operand, const std::vector<std::uint8_t>& got);

}  // namespace support
