#include <algorithm>

#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

using enum DataType;

constexpr std::int64_t kBlock = 32, kLongestHead = 4096;

/// The first axis as rows, of a batch; the others, or one of them, as columns.
TensorView rows_of(const TensorView& v) {
  TensorView out = v;
  const std::int64_t columns = v.rank == 3 ? v.extent[1] * v.extent[2] : v.extent[1];
  const std::int64_t step = v.rank == 3 ? v.stride[2] : v.stride[1];
  out.rank = 3;
  std::ranges::copy(std::array{std::int64_t{1}, v.extent[0], columns}, out.extent.begin());
  std::ranges::copy(std::array{std::int64_t{0}, v.stride[0], step}, out.stride.begin());
  return out;
}

/// w as it is passed here has features along axis 0, whatever its strides.
TensorView rows_of_w(const TensorView& v) {
  TensorView out = rows_of(v);
  out.order = AxisOrder::kernel;
  return out;
}

/// Scales of w in the order of B: (1, K / 32, N).
TensorView scales_of_w(const TensorView& v) {
  TensorView out = rows_of(v);
  std::swap(out.extent[1], out.extent[2]);
  std::swap(out.stride[1], out.stride[2]);
  return out;
}

/// y = bf16(x · wᵀ); the last features of each head are rotated, as many as the tables have; blocks of 32 along features and
/// along tokens in e4m3.
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
    p.l = 1;
    p.block = scaled ? kBlock : 0;
    if (p.m % kBlock != 0) throw broken(Rule::op_extent, p.who(kX), std::to_string(p.m) + " tokens", "a multiple of 32");
    read_heads(p);
    if (scaled && p.k % kBlock != 0) throw broken(Rule::op_extent, p.who(kX), "K = " + std::to_string(p.k), "a multiple of 32");
    p.require_dense(kX, {p.m, p.k});
    p.require_dense(kCos, {p.m, p.rotated});
    p.require_dense(kSin, {p.m, p.rotated});
    read_w(p, kW, p.k);
    if (scaled) {
      p.require_dense(kXScale, {p.m, p.k / kBlock});
      read_w(p, kWScale, p.k / kBlock);
    }
    const std::int64_t heads = p.n / p.head;
    p.make_dense(kRow, {p.m, heads, p.head}, fp8_e4m3);
    p.make_dense(kRowScales, {p.m, heads, p.head / kBlock}, uint8);
    p.make_dense(kCol, {p.m, heads, p.head}, fp8_e4m3);
    p.make_dense(kColScales, {p.m / kBlock, heads, p.head}, uint8);
    for (const int scale : {kRowScales, kColScales})
      if (p.has(scale)) p.given[static_cast<std::size_t>(scale)].dtype = fp8_e8m0;
  }

  void describe(const Problem& p, Description& d) const override {
    Graph& g = d.graph;
    const Sizes s(p);
    Tensor a = d.input(TensorView::dense(nullptr, p.at(kX).dtype, {s.m, s.k}), own(kX, rows_of), "x");
    Tensor b = d.input(weights(p, s.k, p.at(kW).dtype), own(kW, rows_of_w), "w");
    if (p.block != 0) {
      const TensorView scales = TensorView::dense(nullptr, fp8_e8m0, {s.m, s.k / kBlock});
      a = g.block_scale_dequantize(a, d.input(scales, own(kXScale, rows_of), "x_scale"), {1, kBlock});
      b = g.block_scale_dequantize(b, d.input(weights(p, s.k / kBlock, fp8_e8m0), own(kWScale, scales_of_w), "w_scale"),
                                   {kBlock, 1});
    }
    const Tensor y = g.matmul(a, b).set_data_type(bf16);
    const TensorView table = TensorView::dense(nullptr, bf16, {s.m, p.rotated});
    const Tensor cos = d.input(table, own(kCos, rows_of), "cos"), sin = d.input(table, own(kSin, rows_of), "sin");
    const Tensor z = g.rope(y, cos, sin, p.head);
    const TensorView data = TensorView::dense(nullptr, fp8_e4m3, {s.m, s.heads, p.head});
    const TensorView along = TensorView::dense(nullptr, fp8_e8m0, {s.m, s.heads, p.head / kBlock});
    const TensorView across = TensorView::dense(nullptr, fp8_e8m0, {s.m / kBlock, s.heads, p.head});
    d.store_blocks(g.block_scale_quantize(z, kBlock), {data, along}, {own(kRow, rows_of), own(kRowScales, rows_of)});
    d.store_blocks(g.block_scale_quantize(z, kBlock, 1), {data, across}, {own(kCol, rows_of), own(kColScales, rows_of)});
  }

 private:
  /// Extents of the declaration: those of the call, but none that would be a broadcast axis.
  struct Sizes {
    explicit Sizes(const Problem& p)
        : m(std::max(p.m, kBlock)),
          k(std::max<std::int64_t>(p.k, p.block != 0 ? kBlock : 2)),
          heads(std::max<std::int64_t>(p.n / p.head, 1)) {}
    std::int64_t m, k, heads;
  };

  static Feed own(int place, TensorView (*view)(const TensorView&)) { return {static_cast<std::int8_t>(place), Cut::own, view}; }

  /// How many features a head has, and how many of them the tables rotate.
  static void read_heads(Problem& p) {
    p.head = p.options.head_dim;
    if (p.head < kBlock || p.head > kLongestHead || p.head % kBlock != 0)
      throw broken(Rule::op_option, std::string(p.definition.name()) + ", head_dim", std::to_string(p.head),
                   "a multiple of 32 up to " + std::to_string(kLongestHead));
    if (p.n % p.head != 0)
      throw broken(Rule::op_extent, p.who(kW), std::to_string(p.n) + " features", "a multiple of " + std::to_string(p.head));
    p.rotated = p.at(kCos).rank == 2 ? p.at(kCos).extent[1] : 0;
    if (p.rotated < kBlock || p.rotated > p.head || p.rotated % kBlock != 0)
      throw broken(Rule::op_extent, p.who(kCos), std::to_string(p.rotated) + " columns",
                   "a multiple of 32 up to " + std::to_string(p.head));
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
    const std::int64_t rows = Sizes(p).heads * p.head;
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
