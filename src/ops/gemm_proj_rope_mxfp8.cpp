#include <algorithm>

#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

using enum DataType;

constexpr std::int64_t kPlain = 128, kHalf = 32, kHead = kPlain + 2 * kHalf, kBlock = 32;
/// What a graph of the three is about: features without rotation, or one half of the rotated ones.
enum Part { kFeatures, kFirstHalf, kSecondHalf, kParts };
enum Rows { kAll, kEven, kOdd };  ///< of w: those of kFeatures, or every second one of the others

constexpr std::int64_t first_of(int part) { return part == kFeatures ? 0 : part == kFirstHalf ? kPlain : kPlain + kHalf; }
constexpr std::int64_t width_of(int part) { return part == kFeatures ? kPlain : kHalf; }

/// A view of three axes, `first` elements from the start.
TensorView cut(const TensorView& v, std::array<std::int64_t, 3> extent, std::array<std::int64_t, 3> stride,
               std::int64_t first = 0) {
  TensorView out = v;
  const std::int64_t bytes = first * bytes_of(v.dtype);
  if (out.data != nullptr) out.data = static_cast<char*>(out.data) + bytes;
  if (out.observed_bytes >= 0) out.observed_bytes = std::max<std::int64_t>(out.observed_bytes - bytes, 0);
  out.rank = 3;
  std::copy(extent.begin(), extent.end(), out.extent.begin());
  std::copy(stride.begin(), stride.end(), out.stride.begin());
  return out;
}

TensorView rows_of_x(const TensorView& v, int) { return cut(v, {1, v.extent[0], v.extent[1]}, {0, v.stride[0], v.stride[1]}); }

/// w as it is passed here has features along axis 0, whatever its strides: (H, n, K).
TensorView rows_of_w(const TensorView& v, int rows) {
  const std::int64_t step = rows == kAll ? 1 : 2, first = rows == kAll ? 0 : kPlain + (rows == kOdd ? 1 : 0);
  TensorView out = cut(v, {v.extent[0] / kHead, rows == kAll ? kPlain : kHalf, v.extent[1]},
                       {kHead * v.stride[0], step * v.stride[0], v.stride[1]}, first * v.stride[0]);
  out.order = AxisOrder::kernel;
  return out;
}

/// Scales of w in the order of B: (H, K / 32, n).
TensorView scales_of_w(const TensorView& v, int rows) {
  TensorView out = rows_of_w(v, rows);
  std::swap(out.extent[1], out.extent[2]);
  std::swap(out.stride[1], out.stride[2]);
  out.order = AxisOrder::declared;
  return out;
}

TensorView half_of_table(const TensorView& v, int part) {
  return cut(v, {1, v.extent[0], kHalf}, {0, v.stride[0], v.stride[1]}, part == kFirstHalf ? 0 : kHalf * v.stride[1]);
}

/// (rows, H, width) as (H, rows, columns of the part); `of` elements of the head are one column.
TensorView columns_of(const TensorView& v, int part, std::int64_t of) {
  return cut(v, {v.extent[1], v.extent[0], width_of(part) / of}, {v.stride[1], v.stride[0], v.stride[2]},
             first_of(part) / of * v.stride[2]);
}
TensorView features(const TensorView& v, int part) { return columns_of(v, part, 1); }
TensorView blocks(const TensorView& v, int part) { return columns_of(v, part, kBlock); }

/// y = bf16(x · wᵀ); the last 64 features of each head of 192 are rotated; blocks of 32 along features and along tokens in e4m3.
class GemmProjRopeMxfp8 final : public Definition {
 public:
  enum { kX, kW, kCos, kSin, kXScale, kWScale, kRow, kRowScales, kCol, kColScales };

  std::string_view name() const noexcept override { return "gemm_proj_rope_mxfp8"; }
  std::span<const TensorInfo> tensors() const noexcept override {
    static constexpr std::array<TensorInfo, 10> kTensors = {{{"x", false, false},
                                                             {"w", false, false},
                                                             {"cos", false, false},
                                                             {"sin", false, false},
                                                             {"x_scale", false, true},
                                                             {"w_scale", false, true},
                                                             {"out_fp8_row", true, false},
                                                             {"out_scales_row", true, false},
                                                             {"out_fp8_col", true, false},
                                                             {"out_scales_col", true, false}}};
    return kTensors;
  }

  void infer(Problem& p) const override {
    p.require({kX, kW, kCos, kSin});
    p.require_type(kX, {bf16, fp8_e4m3});
    if (p.at(kW).dtype != p.at(kX).dtype)
      throw broken(Rule::op_dtype, p.who(kW), std::string(name_of(p.at(kW).dtype)), "x and w must share a dtype");
    const bool scaled = p.at(kX).dtype == fp8_e4m3;
    for (const int scale : {kXScale, kWScale}) {
      if (scaled && !p.has(scale))
        throw broken(Rule::op_missing, p.who(scale), "none", "fp8 operands require x_scale and w_scale");
      if (!scaled && p.has(scale))
        throw broken(Rule::op_missing, p.who(scale), "one", "bf16 operands must not be given MXFP8 scales");
      if (TensorView& v = p.given[static_cast<std::size_t>(scale)]; v.dtype == uint8) v.dtype = fp8_e8m0;
      if (scaled) p.require_type(scale, {fp8_e8m0});
    }
    for (const int table : {kCos, kSin}) p.require_type(table, {bf16});
    p.m = p.at(kX).rank == 2 ? p.at(kX).extent[0] : 0;
    p.k = p.at(kX).rank == 2 ? p.at(kX).extent[1] : 0;
    p.n = p.at(kW).rank == 2 ? p.at(kW).extent[p.options.w_out_in ? 0 : 1] : 0;
    p.l = p.n / kHead;
    p.block = scaled ? kBlock : 0;
    if (p.m % kBlock != 0) throw broken(Rule::op_extent, p.who(kX), std::to_string(p.m) + " tokens", "a multiple of 32");
    if (p.n % kHead != 0) throw broken(Rule::op_extent, p.who(kW), std::to_string(p.n) + " features", "a multiple of 192");
    if (scaled && p.k % kBlock != 0) throw broken(Rule::op_extent, p.who(kX), "K = " + std::to_string(p.k), "a multiple of 32");
    p.require_dense(kX, {p.m, p.k});
    p.require_dense(kCos, {p.m, 2 * kHalf});
    p.require_dense(kSin, {p.m, 2 * kHalf});
    read_w(p, kW, p.k);
    if (scaled) {
      p.require_dense(kXScale, {p.m, p.k / kBlock});
      read_w(p, kWScale, p.k / kBlock);
    }
    p.make_dense(kRow, {p.m, p.l, kHead}, fp8_e4m3);
    p.make_dense(kRowScales, {p.m, p.l, kHead / kBlock}, uint8);
    p.make_dense(kCol, {p.m, p.l, kHead}, fp8_e4m3);
    p.make_dense(kColScales, {p.m / kBlock, p.l, kHead}, uint8);
    for (const int scale : {kRowScales, kColScales})
      if (p.has(scale)) p.given[static_cast<std::size_t>(scale)].dtype = fp8_e8m0;
  }

  int parts(const Problem&) const noexcept override { return kParts; }

  void describe(const Problem& p, Description& d) const override {
    Graph& g = d.graph;
    const Sizes s(p);
    TensorView x = TensorView::dense(nullptr, p.at(kX).dtype, {s.m, s.k});
    Tensor a = d.input(x, own(kX, rows_of_x), "x");
    if (p.block != 0) {
      const TensorView scales = TensorView::dense(nullptr, fp8_e8m0, {s.m, s.k / kBlock});
      a = g.block_scale_dequantize(a, d.input(scales, own(kXScale, rows_of_x), "x_scale"), {1, kBlock});
    }
    const auto product = [&](int rows) {
      Tensor b = d.input(weights(p, s.k, p.at(kW).dtype), own(kW, rows_of_w, rows), "w " + std::to_string(rows));
      if (p.block != 0)
        b = g.block_scale_dequantize(
            b, d.input(weights(p, s.k / kBlock, fp8_e8m0), own(kWScale, scales_of_w, rows), "w_scale " + std::to_string(rows)),
            {kBlock, 1});
      return g.matmul(a, b).set_data_type(bf16);
    };
    Tensor z;
    if (d.part == kFeatures) {
      z = product(kAll);
    } else {
      const Tensor even = product(kEven), odd = product(kOdd);
      const TensorView table = TensorView::dense(nullptr, bf16, {s.m, 2 * kHalf});
      const Tensor cos = d.input(table, own(kCos, half_of_table, d.part), "cos");
      const Tensor sin = d.input(table, own(kSin, half_of_table, d.part), "sin");
      z = d.part == kFirstHalf ? g.pointwise(PointwiseMode::sub, {g.mul(even, cos), g.mul(odd, sin)})
                               : g.add(g.mul(odd, cos), g.mul(even, sin));
    }
    const TensorView data = TensorView::dense(nullptr, fp8_e4m3, {s.m, s.heads, kHead});
    const TensorView along = TensorView::dense(nullptr, fp8_e8m0, {s.m, s.heads, kHead / kBlock});
    const TensorView across = TensorView::dense(nullptr, fp8_e8m0, {s.m / kBlock, s.heads, kHead});
    d.store_blocks(g.block_scale_quantize(z, kBlock), {data, along},
                   {own(kRow, features, d.part), own(kRowScales, blocks, d.part)});
    d.store_blocks(g.block_scale_quantize(z, kBlock, 1), {data, across},
                   {own(kCol, features, d.part), own(kColScales, features, d.part)});
  }

 private:
  /// Extents of the declaration: those of the call, but none that would be a broadcast axis.
  struct Sizes {
    explicit Sizes(const Problem& p)
        : m(std::max(p.m, kBlock)),
          k(std::max<std::int64_t>(p.k, p.block != 0 ? kBlock : 2)),
          heads(p.l == 1 ? 1 : std::max<std::int64_t>(p.l, 2)) {}
    std::int64_t m, k, heads;
  };

  static Feed own(int place, TensorView (*view)(const TensorView&, int), int part = 0) {
    return {static_cast<std::int8_t>(place), Cut::own, static_cast<std::int8_t>(part), view};
  }

  /// Checks w or its scales and turns them so that features are axis 0.
  static void read_w(Problem& p, int place, std::int64_t columns) {
    const bool out_in = p.options.w_out_in;
    p.require_dense(place, out_in ? std::vector{p.n, columns} : std::vector{columns, p.n});
    TensorView& v = p.given[static_cast<std::size_t>(place)];
    if (!out_in) {
      std::swap(v.extent[0], v.extent[1]);
      std::swap(v.stride[0], v.stride[1]);
    }
    p.major[static_cast<std::size_t>(place)] = out_in ? 1 : 0;
  }

  static TensorView weights(const Problem& p, std::int64_t columns, DataType type) {
    const std::int64_t rows = Sizes(p).heads * kHead;
    const bool out_in = p.options.w_out_in;
    return TensorView::strided(nullptr, type, {rows, columns}, {out_in ? columns : 1, out_in ? 1 : rows});
  }
};

}  // namespace

const Definition& gemm_proj_rope_mxfp8() noexcept {
  static const GemmProjRopeMxfp8 definition;
  return definition;
}

}  // namespace verglas::ops
