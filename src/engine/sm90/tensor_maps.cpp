#include "engine/sm90/tensor_maps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace verglas::sm90 {
namespace {

constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;
constexpr std::int64_t kExtentLimit = std::int64_t{1} << 31;  // coordinates are 32-bit signed

std::uint64_t round_up(std::uint64_t x, std::uint64_t unit) { return (x + unit - 1) / unit * unit; }
std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

cuda::CUtensorMapDataType map_type(DataType t) {
  switch (t) {
    case DataType::bf16: return cuda::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DataType::fp16: return cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DataType::fp32: return cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DataType::int32: return cuda::CU_TENSOR_MAP_DATA_TYPE_INT32;
    default: return cuda::CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

/// Dimension 0 is the inner one. A stride over an extent of 1 is never used, so it may be anything legal.
MapRequest request(DataType type, std::uint64_t address, std::int64_t inner, std::int64_t outer, std::int64_t outer_stride,
                   std::int64_t batches, std::int64_t batch_stride, std::uint32_t box_inner, std::uint32_t box_outer,
                   cuda::CUtensorMapSwizzle swizzle) {
  const std::uint64_t size = static_cast<std::uint64_t>(bytes_of(type));
  MapRequest r;
  r.type = map_type(type);
  r.address = address;
  const bool one_matrix = batches == 1 || batch_stride == 0;
  r.extents = {static_cast<std::uint64_t>(inner), static_cast<std::uint64_t>(outer),
               static_cast<std::uint64_t>(one_matrix ? 1 : batches)};
  r.strides[0] = outer == 1 ? round_up(r.extents[0] * size, 16) : static_cast<std::uint64_t>(outer_stride) * size;
  // Not used, and held to the limit all the same: a matrix may be larger.
  r.strides[1] = one_matrix ? std::min(round_up(r.strides[0] * r.extents[1], 16), kStrideLimit - 16)
                            : static_cast<std::uint64_t>(batch_stride) * size;
  r.box = {box_inner, box_outer, 1};
  r.swizzle = swizzle;
  return r;
}

/// Rows of an operand that a stage gets of each of its matrices. The copy engine takes longer for rows outside of the operand
/// than for others, so a box has none that it can do without: lines behind it hold anything, and give results outside of D.
std::int64_t rows_in_a_stage(Major major, int block_rows, std::int64_t rows) {
  return major == Major::k ? std::min<std::int64_t>(block_rows, rows) : (block_rows + 63) / 64 * 64;
}

/// Rows of groups go by boxes of a block of 64.
bool has_blocks(const KernelConfig& c) { return c.groups > 0 && !c.depth_groups && c.a_path == Path::tma; }
int rows_of_box_of_a(const KernelConfig& c) { return has_blocks(c) ? 64 : c.block_m; }
/// Rows of the list, where they are gathered.
std::int64_t rows_of_a(const KernelConfig& c, const Problem& p) { return c.combines ? p.tokens : p.m; }

/// A and B alike: rows are m or n, columns are k.
MapRequest map_of_input(const KernelConfig& c, const Matrix& x, Major major, int block_rows, std::int64_t rows, std::int64_t k,
                        std::int64_t batches) {
  const auto elements = static_cast<std::uint32_t>(kLineBytes / bytes_of(c.input));
  if (major == Major::k) {
    MapRequest r =
        request(c.input, x.address, k, rows, x.row_stride, batches, x.batch_stride, elements,
                static_cast<std::uint32_t>(rows_in_a_stage(major, block_rows, rows)), cuda::CU_TENSOR_MAP_SWIZZLE_128B);
    if (c.input == DataType::fp32) r.type = cuda::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;  // rounds; the tensor cores would cut
    return r;
  }
  return request(c.input, x.address, rows, k, x.col_stride, batches, x.batch_stride, elements,
                 static_cast<std::uint32_t>(block_k(c)), cuda::CU_TENSOR_MAP_SWIZZLE_128B);
}

ViewBlock view_of(const Matrix& x, bool contiguous_is_cols) {
  return {x.address, contiguous_is_cols ? x.row_stride : x.col_stride, contiguous_is_cols ? x.col_stride : x.row_stride,
          x.batch_stride};
}

}  // namespace

std::optional<std::string> fault_of(const MapRequest& r) {
  if (r.address % 16 != 0) return fmt::format("address {:#x} is not a multiple of 16", r.address);
  for (std::size_t i = 0; i < 3; ++i) {
    if (r.extents[i] == 0 || r.extents[i] > std::uint64_t{1} << 32)
      return fmt::format("extent {} of dimension {}", r.extents[i], i);
    if (r.box[i] == 0 || r.box[i] > 256) return fmt::format("box {} of dimension {} is not 1 to 256", r.box[i], i);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    if (r.strides[i] % 16 != 0 || r.strides[i] >= kStrideLimit) {
      return fmt::format("stride of {} bytes of dimension {} is not a multiple of 16 below 2^40", r.strides[i], i + 1);
    }
  }
  std::uint32_t size = 1;
  switch (r.type) {
    case cuda::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
    case cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case cuda::CU_TENSOR_MAP_DATA_TYPE_UINT16: size = 2; break;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case cuda::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case cuda::CU_TENSOR_MAP_DATA_TYPE_INT32:
    case cuda::CU_TENSOR_MAP_DATA_TYPE_UINT32: size = 4; break;
    default: break;
  }
  const std::uint32_t span = r.swizzle == cuda::CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                             : r.swizzle == cuda::CU_TENSOR_MAP_SWIZZLE_64B ? 64
                             : r.swizzle == cuda::CU_TENSOR_MAP_SWIZZLE_32B ? 32
                                                                            : 256 * size;
  const std::uint32_t inner = r.box[0] * size;
  if (inner > span || inner % 16 != 0) return fmt::format("inner box of {} bytes, a multiple of 16 up to {}", inner, span);
  return std::nullopt;
}

Path best_path(const Matrix& x, bool contiguous_is_cols, std::int64_t rows, std::int64_t cols, std::int64_t batches,
               int element_bytes) {
  const std::int64_t inner = contiguous_is_cols ? cols : rows, outer = contiguous_is_cols ? rows : cols;
  const std::int64_t inner_stride = contiguous_is_cols ? x.col_stride : x.row_stride;
  const std::int64_t outer_stride = contiguous_is_cols ? x.row_stride : x.col_stride;
  const Path element = static_cast<Path>(element_bytes);
  if (inner == 0 || outer == 0) return element;  // nothing to read, and no map has an extent of 0
  if (inner_stride != 1 && inner != 1) return element;
  const std::int64_t outer_bytes = outer == 1 ? 0 : outer_stride * element_bytes;
  const std::int64_t batch_bytes = batches == 1 ? 0 : x.batch_stride * element_bytes;
  const auto divides = [&](std::int64_t unit) {
    return x.address % static_cast<std::uint64_t>(unit) == 0 && outer_bytes % unit == 0 && batch_bytes % unit == 0;
  };
  const bool in_limits = inner < kExtentLimit && outer < kExtentLimit && batches < kExtentLimit &&
                         (outer == 1 || outer_bytes > 0) && batch_bytes >= 0 &&
                         static_cast<std::uint64_t>(outer_bytes) < kStrideLimit &&
                         static_cast<std::uint64_t>(batch_bytes) < kStrideLimit;
  if (divides(16)) return in_limits ? Path::tma : Path::bytes16;
  if (divides(8)) return Path::bytes8;
  if (divides(4)) return Path::bytes4;
  if (divides(2)) return Path::bytes2;
  return element;
}

Major major_of(const Matrix& x, std::int64_t rows, std::int64_t cols) {
  if (x.col_stride == 1 || cols == 1) return Major::k;
  return x.row_stride == 1 || rows == 1 ? Major::mn : Major::k;
}

OutputFit fit_output(const Matrix& x, std::int64_t m, std::int64_t n, std::int64_t batches, int element_bytes) {
  const Path along_n = best_path(x, true, m, n, batches, element_bytes);
  if (along_n != Path::tma && element_bytes > 1 && best_path(x, false, m, n, batches, element_bytes) == Path::tma)
    return {Path::tma, true};
  return {along_n, false};
}

namespace {
/// The one that asks less of an operand.
Path harder(Path x, Path y) {
  if (x == Path::tma) return y;
  return y == Path::tma ? x : std::min(x, y);
}

/// How an operand travels, and how it lies in shared memory.
struct Way {
  Major major = Major::k;
  bool turned = false;
  Path path = Path::tma;
};
/// bytes: of an element in shared memory; stored: in global memory, where it is converted on its way, else not set.
Way way_of(const Matrix& x, std::int64_t rows, std::int64_t k, std::int64_t batches, int bytes, DataType stored) {
  const Major major = major_of(x, rows, k);
  const bool turned = bytes != 2 && major != Major::k;
  if (stored != DataType::not_set) {
    const int element = bytes_of(stored), most = turned ? element : std::min(16, 16 / bytes * element);
    const Path path = best_path(x, major == Major::k, rows, k, batches, element);
    const int piece = path == Path::tma ? 16 : piece_bytes(path);
    return {turned ? Major::k : major, turned, static_cast<Path>(std::min(piece, most))};
  }
  const Path path = best_path(x, major == Major::k, rows, k, batches, bytes);
  if (!turned) return {major, false, path};
  // Only 16-bit types are multiplied as they lie along M or N.
  const int piece = path == Path::tma ? 16 : piece_bytes(path);
  return {Major::k, true, bytes == 4 ? (piece == 16 ? Path::bytes16 : Path::bytes4) : piece >= 4 ? Path::bytes4 : Path::bytes1};
}
}  // namespace

void fit_operands(KernelConfig& c, const Problem& p) {
  const int in = bytes_of(c.input), out = bytes_of(c.output);
  // Two matrices of one side travel alike: the way of the harder one, and by single elements where their majors differ.
  const auto fit = [&](const std::array<Matrix, 2>& x, int count, std::int64_t rows, auto batches, DataType stored, Major& major,
                       bool& turned, Path& path) {
    Way way = way_of(x[0], rows, p.k, batches(0), in, stored);
    for (std::size_t i = 1; i < static_cast<std::size_t>(count); ++i) {
      const Way other = way_of(x[i], rows, p.k, batches(i), in, stored);
      const bool alike = other.major == way.major && other.turned == way.turned;
      way = alike ? Way{way.major, way.turned, harder(way.path, other.path)}
                  : Way{way.major, false, static_cast<Path>(stored == DataType::not_set ? in : bytes_of(stored))};
    }
    major = way.major, turned = way.turned, path = way.path;
  };
  const auto of_a = [&](std::size_t) { return p.batches; };
  const auto of_b = [&](std::size_t i) { return p.batches_of_b(i); };
  fit(p.a, c.a_count, rows_of_a(c, p), of_a, c.a_stored, c.a_major, c.a_turned, c.a_path);
  fit(p.b, c.b_count, p.n, of_b, c.b_stored, c.b_major, c.b_turned, c.b_path);
  // The copy engine, and threads that move pieces, want whole ones along a line, and a group begins at any row.
  const auto begins_anywhere = [&](Major major, bool turned) {
    const bool along_k = major == Major::k && !turned;
    return c.groups > 0 && along_k == c.depth_groups;
  };
  if (c.gathers) {
    const int element = bytes_of(stored_a(c)), most = std::min(16, 16 / bytes_of(c.input) * element);
    int piece = c.a_major == Major::k && !c.a_turned ? most : element;
    for (std::size_t i = 0; i < static_cast<std::size_t>(c.a_count); ++i) {
      const Path path = best_path(p.a[i], true, p.tokens, p.k, 1, element);
      piece = std::min(piece, path == Path::tma ? 16 : piece_bytes(path));
    }
    c.a_path = static_cast<Path>(piece);
    c.a_major = Major::k;
    c.a_turned = false;
  } else if (begins_anywhere(c.a_major, c.a_turned))
    c.a_path = static_cast<Path>(bytes_of(stored_a(c)));
  if (c.depth_groups && begins_anywhere(c.b_major, c.b_turned)) c.b_path = static_cast<Path>(bytes_of(stored_b(c)));
  // What is decoded lies along K in a stage, whatever its strides, and finds out about them at the call.
  if (c.a_decoded != 0) c.a_major = Major::k, c.a_turned = false, c.a_path = Path::bytes1;
  if (c.carried) {
    // Two elements a byte: what is left of its strides are bytes.
    Matrix a = p.a[0];
    const bool is_even = (a.row_stride % 2 | a.batch_stride % 2) == 0;
    a.row_stride /= 2, a.batch_stride /= 2;
    if (is_even && a.col_stride == 1 && best_path(a, true, p.m, p.k, p.batches, 1) == Path::tma) c.a_path = Path::tma;
    c.b_major = Major::k, c.b_turned = false, c.b_path = static_cast<Path>(bytes_of(stored_b(c)));  // whatever its strides
  }
  if (c.b_decoded != 0) c.b_major = Major::k, c.b_turned = false, c.b_path = static_cast<Path>(bytes_of(stored_b(c)));
  if (c.casts)
    c.a_major = Major::k, c.a_turned = false, c.a_path = best_path(p.a[0], true, p.m, p.k, p.batches, bytes_of(c.a_stored));
  if (!c.has_d) return;
  // Nor does D go by boxes along M there.
  const OutputFit d = has_group_rows(c) ? OutputFit{best_path(p.d, true, p.m, p.n, p.batches, out), false}
                                        : fit_output(p.d, p.m, p.n, p.batches, out);
  c.d_path = d.path;
  c.d_along_m = d.along_m;
}

MapRequest map_of_a(const KernelConfig& c, const Problem& p, std::size_t which) {
  if (c.casts)
    return request(c.a_stored, p.a[which].address, p.k, p.m, p.a[which].row_stride, p.batches, p.a[which].batch_stride,
                   static_cast<std::uint32_t>(block_k(c)), static_cast<std::uint32_t>(rows_in_a_stage(Major::k, c.block_m, p.m)),
                   cuda::CU_TENSOR_MAP_SWIZZLE_64B);
  if (c.carried)
    return request(DataType::uint8, p.a[0].address, (p.k + 1) / 2, p.m, p.a[0].row_stride / 2, p.batches, p.a[0].batch_stride / 2,
                   kLineBytes, static_cast<std::uint32_t>(rows_in_a_stage(Major::k, c.block_m, p.m)),
                   cuda::CU_TENSOR_MAP_SWIZZLE_128B);
  return map_of_input(c, p.a[which], c.a_major, rows_of_box_of_a(c), rows_of_a(c, p), p.k, p.batches);
}
MapRequest map_of_tail(const KernelConfig& c, const Problem& p) {
  return map_of_input(c, p.a[0], c.a_major, c.tail_rows, rows_of_a(c, p), p.k, p.batches);
}
MapRequest map_of_b(const KernelConfig& c, const Problem& p, std::size_t which) {
  return map_of_input(c, p.b[which], c.b_major, c.block_n, p.n, p.k, p.addressed != 0 ? 1 : p.batches_of_b(which));
}
MapRequest map_of_chunks(const Matrix& x, DataType type, bool along_m, bool is_output, std::int64_t m, std::int64_t n,
                         std::int64_t batches, int width) {
  const int size = bytes_of(type), piece = 16 / size;
  const std::int64_t lines = along_m ? m : n, inner = is_output ? std::max<std::int64_t>(1, lines - lines % piece) : lines;
  const auto columns = static_cast<std::uint32_t>(width / size);
  if (along_m)
    return request(type, x.address, inner, n, x.col_stride, batches, x.batch_stride, static_cast<std::uint32_t>(128 / size),
                   columns, cuda::CU_TENSOR_MAP_SWIZZLE_128B);
  const auto swizzle = width == 128  ? cuda::CU_TENSOR_MAP_SWIZZLE_128B
                       : width == 64 ? cuda::CU_TENSOR_MAP_SWIZZLE_64B
                                     : cuda::CU_TENSOR_MAP_SWIZZLE_32B;
  return request(type, x.address, inner, m, x.row_stride, batches, x.batch_stride, columns, 64, swizzle);
}

MapRequest map_of_d(const KernelConfig& c, const Problem& p, int width) {
  return map_of_chunks(p.d, c.output, c.d_along_m, true, p.m, p.n, p.batches, width);
}

bool stores_width(const KernelConfig& c, int width) noexcept {
  const int bytes = c.block_n * bytes_of(c.output);
  return c.has_d && c.d_path == Path::tma && (width == 128 ? bytes >= 128 : bytes % (2 * width) >= width);
}

int raster_group(const KernelConfig& c, int sm_count) noexcept {
  return std::max(1, static_cast<int>(std::lround(std::sqrt(static_cast<double>(sm_count) * c.block_n / c.block_m))));
}

ParameterBlock make_block(const KernelConfig& c, const Problem& p, int group, bool swap_raster) {
  ParameterBlock b;
  const auto step = [](const Matrix& x, std::int64_t batches) { return x.batch_stride == 0 || batches == 1 ? 0 : 1; };
  for (std::size_t i = 0; i < 2; ++i) {
    b.a_view[i] = view_of(p.a[i], c.a_major == Major::k);
    b.b_view[i] = view_of(p.b[i], c.b_major == Major::k);
    b.a_batch_step[i] = step(p.a[i], p.batches);
    b.b_batch_step[i] = p.addressed != 0 ? 0 : step(p.b[i], p.batches_of_b(i));
    // Beside a table of addresses these are found alike, in bytes.
    if (p.addressed != 0 && (p.addressed >> i & 1) == 0)
      b.b_view[i].batch_stride = b.b_view[i].batch_stride * bits_of(stored_b(c)) / 8;
  }
  b.d_view = view_of(p.d, true);
  b.m = static_cast<std::int32_t>(p.m);
  b.n = static_cast<std::int32_t>(p.n);
  b.k = static_cast<std::int32_t>(p.k);
  b.batches = static_cast<std::int32_t>(p.batches);
  // Whole stages; k = 0: one block of zeros.
  b.k_blocks = static_cast<std::int32_t>(std::max<std::int64_t>(1, ceil_div(p.k, block_k(c) * c.split * c.joined)) * c.joined);
  if (p.k == 0) b.k_first = 1 << 30;
  const std::int64_t a_rows =
      c.a_path == Path::tma ? c.a_count * rows_in_a_stage(c.a_major, rows_of_box_of_a(c), rows_of_a(c, p)) : 0;
  const std::int64_t b_rows = c.b_path == Path::tma ? c.b_count * rows_in_a_stage(c.b_major, c.block_n, p.n) : 0;
  b.stage_bytes = static_cast<std::int32_t>((has_blocks(c) ? 0 : a_rows) * line_bytes_of_a(c) + b_rows * kLineBytes);
  b.row_block_bytes = static_cast<std::int32_t>(has_blocks(c) ? a_rows * kLineBytes : 0);
  b.tail_bytes = static_cast<std::int32_t>(std::min<std::int64_t>(c.tail_rows, rows_of_a(c, p)) * kLineBytes);
  b.swap_raster = swap_raster ? 1 : 0;
  const auto tiles_m = static_cast<std::uint32_t>(ceil_div(p.m, c.block_m)),
             tiles_n = static_cast<std::uint32_t>(ceil_div(p.n, c.block_n));
  const std::uint32_t fast = swap_raster ? tiles_n : tiles_m, slow = swap_raster ? tiles_m : tiles_n;
  if (tiles_m == 0 || tiles_n == 0 || p.batches == 0) return b;  // no tile: nothing is read
  const std::uint32_t width = std::min(static_cast<std::uint32_t>(group), fast);
  b.tiles_n = static_cast<std::int32_t>(tiles_n);
  if (c.groups > 0 && !c.depth_groups) {
    // How many tiles there are only the offsets know; strips within a group are as wide as its tiles allow.
    b.tiles = tiles_m * tiles_n;
    b.group = make_divisor(static_cast<std::uint32_t>(group));
    b.tiles_of_group = make_divisor(static_cast<std::uint32_t>(group) * tiles_n);
    return b;
  }
  b.tiles = tiles_m * tiles_n * static_cast<std::uint32_t>(p.batches);
  b.full_groups = fast / width;
  b.tiles_of_batch = make_divisor(tiles_m * tiles_n);
  b.tiles_of_group = make_divisor(width * slow);
  b.group = make_divisor(width);
  b.last_group = make_divisor(fast % width == 0 ? width : fast % width);
  return b;
}

unsigned grid_of(const KernelConfig& c, const ParameterBlock& block, int sm_count) noexcept {
  if (c.groups > 0 && !c.depth_groups) {
    // Each group that has rows may end with a tile of its own.
    const std::int64_t rows = c.combines ? block.tokens : block.m,
                       more = std::min<std::int64_t>(block.groups, rows) * block.tiles_n;
    const std::int64_t tiles = c.combines ? ceil_div(rows, c.block_m) * block.tiles_n : block.tiles;
    return static_cast<unsigned>(std::clamp<std::int64_t>(std::max<std::int64_t>(tiles + more, block.tiles), 1, sm_count));
  }
  const auto split = static_cast<std::uint32_t>(c.split), most = static_cast<std::uint32_t>(sm_count) / split;
  return split * std::clamp(block.tiles, 1U, std::max(1U, most));
}

}  // namespace verglas::sm90
