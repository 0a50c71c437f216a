#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/sm90/configuration.hpp"
#include "engine/sm90/parameter_block.hpp"

namespace verglas::sm90 {

/// One matrix of a product, batch outermost; strides in elements, any sign, 0 for a broadcast.
struct Matrix {
  std::uint64_t address = 0;
  std::int64_t row_stride = 0;  ///< along m (A, D) or n (B)
  std::int64_t col_stride = 0;  ///< along k (A, B) or n (D)
  std::int64_t batch_stride = 0;
};

/// D[l,m,n] = sum over k of A[l,m,k] B[l,k,n], where the rows of `b` are n: b(l, n, k).
struct Problem {
  std::int64_t m = 0, n = 0, k = 0, batches = 1;
  std::array<Matrix, 2> a, b;  ///< as many as the configuration has
  Matrix d;
  std::int64_t tokens = 0;   ///< rows of each a, where they are gathered
  std::int64_t experts = 0;  ///< matrices of each b, where groups choose among them and not batches; 0: as many as batches
  int addressed = 0;         ///< bit i: b[i] lies where a table says, and its address and batch_stride are those of the table
  std::int64_t batches_of_b(std::size_t i) const noexcept {
    return (addressed >> i & 1) != 0 ? 1 : experts > 0 ? experts : batches;
  }
};

/// What cuTensorMapEncodeTiled is asked for. Inner dimension first; strides in bytes, of dimensions 1 and 2. No interleave,
/// element strides 1, L2 promotion of 256 bytes, zeros outside.
struct MapRequest {
  cuda::CUtensorMapDataType type = cuda::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  std::uint64_t address = 0;
  std::array<std::uint64_t, 3> extents{};
  std::array<std::uint64_t, 2> strides{};
  std::array<std::uint32_t, 3> box{};
  cuda::CUtensorMapSwizzle swizzle = cuda::CU_TENSOR_MAP_SWIZZLE_128B;
  friend bool operator==(const MapRequest&, const MapRequest&) = default;
};

/// The limit of the driver that a request breaks, in words; nothing when it keeps all.
std::optional<std::string> fault_of(const MapRequest& request);

/// How an operand of these extents can travel: by the copy engine where base and strides allow it, else by the widest piece.
/// `contiguous` is the dimension that lies along a line of shared memory.
Path best_path(const Matrix& x, bool contiguous_is_cols, std::int64_t rows, std::int64_t cols, std::int64_t batches,
               int element_bytes);
/// The dimension of A or B along which it is contiguous; k where both or neither is.
Major major_of(const Matrix& x, std::int64_t rows, std::int64_t cols);
/// How an output travels: by the copy engine along N or along M, or in pieces along N.
struct OutputFit {
  Path path = Path::tma;
  bool along_m = false;
};
OutputFit fit_output(const Matrix& x, std::int64_t m, std::int64_t n, std::int64_t batches, int element_bytes);
/// Sets majors and paths of a configuration to what the problem's strides ask for.
void fit_operands(KernelConfig& config, const Problem& problem);

MapRequest map_of_a(const KernelConfig& config, const Problem& problem, std::size_t which = 0);
MapRequest map_of_tail(const KernelConfig& config, const Problem& problem);  ///< of A where a group ends
MapRequest map_of_b(const KernelConfig& config, const Problem& problem, std::size_t which = 0);
/// D, or what is staged like it: boxes of 64 rows by `width` = 128, 64 or 32 bytes of columns, as staging.cuh lays them out. An
/// output ends at its last whole 16 bytes along a line, since the copy engine clips a store at those and not at elements.
MapRequest map_of_chunks(const Matrix& x, DataType type, bool along_m, bool is_output, std::int64_t m, std::int64_t n,
                         std::int64_t batches, int width);
/// `width`: 128, 64 or 32 bytes a row of the box.
MapRequest map_of_d(const KernelConfig& config, const Problem& problem, int width);
/// True where the drain of this configuration stores boxes of that width.
bool stores_width(const KernelConfig& config, int width) noexcept;

/// Tiles of the fast dimension that run side by side, so that the tiles in flight form a rectangle: sqrt(SMs · BN / BM).
int raster_group(const KernelConfig& config, int sm_count) noexcept;

/// All of the parameter block but the maps. Extents at least 1, except k: with k = 0 every box lies outside the maps, and is
/// zeros.
ParameterBlock make_block(const KernelConfig& config, const Problem& problem, int group, bool swap_raster = false);

/// Blocks of a launch: one an SM in whole clusters, and no more clusters than tiles.
unsigned grid_of(const KernelConfig& config, const ParameterBlock& block, int sm_count) noexcept;

}  // namespace verglas::sm90
