#include "support/products.hpp"

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>

#include "oracle/formats.hpp"

namespace support {

using namespace verglas;
using enum DataType;

namespace {

/// Strides of (l, rows, cols) with one contiguous axis.
std::vector<std::int64_t> strides(std::int64_t rows, std::int64_t cols, bool cols_contiguous, std::int64_t pad) {
  const std::int64_t pitch = (cols_contiguous ? cols : rows) + pad;
  return {pitch * (cols_contiguous ? rows : cols), cols_contiguous ? pitch : 1, cols_contiguous ? 1 : pitch};
}

double number_at(const std::vector<std::uint8_t>& bytes, std::size_t at, DataType t) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + at, static_cast<std::size_t>(bytes_of(t)));
  return oracle::decode(static_cast<oracle::Format>(t), bits);
}

}  // namespace

bool Product::is_exact() const {
  return e.activation != PointwiseMode::gelu_approx_tanh && e.activation != PointwiseMode::gelu_approx_tanh_bwd;
}

std::ostream& operator<<(std::ostream& o, const Product& c) {
  return o << c.l << 'x' << c.m << 'x' << c.n << 'x' << c.k << (c.a_k ? " t" : " n") << (c.b_k ? "t" : "n")
           << (c.d_n ? " rows " : " columns ") << name_of(c.in) << " → " << name_of(c.out) << " in " << name_of(c.compute)
           << " epilogue " << c.e.factor << c.e.host_factor << c.e.matrix << c.e.bias << c.e.batched_bias << ' '
           << name_of(c.e.activation) << " pad " << c.pad;
}

Graph describe(const Product& c) {
  Graph g({.io_data_type = c.in, .compute_data_type = c.in == int8 ? int32 : fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {c.broadcast_a ? 1 : c.l, c.m, c.k}, .stride = strides(c.m, c.k, c.a_k, c.pad)});
  const Tensor b =
      g.tensor({.name = "b", .dim = {c.broadcast_b ? 1 : c.l, c.k, c.n}, .stride = strides(c.k, c.n, !c.b_k, c.pad)});
  Tensor v = g.matmul(a, b, {.compute_data_type = c.in == int8 ? int32 : c.compute});
  const auto d_strides = strides(c.m, c.n, c.d_n, c.pad);
  if (c.e.factor) v = g.mul(v, g.scalar(0.5));
  if (c.e.host_factor)
    v = g.mul(g.tensor({.name = "alpha", .dim = {1, 1, 1}, .stride = {1, 1, 1}, .data_type = fp32, .pass_by_value = true}), v);
  if (c.e.matrix) v = g.add(v, g.tensor({.name = "c", .dim = {c.l, c.m, c.n}, .stride = d_strides, .data_type = c.out}));
  if (c.e.bias) {
    const std::int64_t batch = c.e.batched_bias ? c.l : 1;
    v = g.add(g.tensor({.name = "bias",
                        .dim = {batch, c.d_n ? 1 : c.m, c.d_n ? c.n : 1},
                        .stride = {c.d_n ? c.n : c.m, c.d_n ? c.n : 1, 1},
                        .data_type = c.out}),
              v);
  }
  if (c.e.activation == PointwiseMode::gelu_approx_tanh_bwd)
    v = g.pointwise(c.e.activation,
                    {v, g.tensor({.name = "z", .dim = {c.l, c.m, c.n}, .stride = d_strides, .data_type = c.out})});
  else if (c.e.activation != PointwiseMode::identity) {
    if (c.e.keeps_argument) v.set_output(true).set_name("z").set_data_type(fp32).set_stride(d_strides);
    v = g.pointwise(c.e.activation, {v});
  }
  v.set_output(true).set_name("d").set_data_type(c.out).set_stride(d_strides);
  return g;
}

std::size_t reach_of(const OperandInfo& o) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < o.dim.size(); ++i) last += (o.dim[i] - 1) * o.stride[i];
  return static_cast<std::size_t>(last + 1) * static_cast<std::size_t>(bytes_of(o.dtype));
}

std::vector<std::vector<std::uint8_t>> fill_operands(const CompiledPlan& plan, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> draw(-3, 3);
  std::vector<std::vector<std::uint8_t>> all;
  for (const OperandInfo& o : plan.operands()) {
    all.emplace_back(reach_of(o), 0xEE);
    if (o.is_output) continue;
    const auto size = static_cast<std::size_t>(bytes_of(o.dtype));
    for (std::size_t i = 0; i < all.back().size(); i += size) {
      const std::uint64_t bits = oracle::encode(static_cast<oracle::Format>(o.dtype), draw(random));
      std::memcpy(all.back().data() + i, &bits, size);
    }
  }
  return all;
}

std::string difference(const CompiledPlan& plan, const std::vector<std::vector<std::uint8_t>>& got,
                       const std::vector<std::vector<std::uint8_t>>& want, bool exact) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const OperandInfo& o = plan.operands()[i];
    if (!o.is_output || got[i] == want[i]) continue;
    const auto size = static_cast<std::size_t>(bytes_of(o.dtype));
    for (std::size_t at = 0; at < want[i].size(); at += size) {
      if (std::memcmp(got[i].data() + at, want[i].data() + at, size) == 0) continue;
      const double ours = number_at(got[i], at, o.dtype), theirs = number_at(want[i], at, o.dtype);
      if (ours == 0 && theirs == 0) continue;  // the library has its own sign of a zero sum
      // 1 + tanh cancels where it is small, in one engine and not in another.
      if (!exact && std::abs(ours - theirs) <= 1e-5 + (size == 2 ? 0.01 : 2e-4) * std::abs(theirs)) continue;
      return o.name + " at " + std::to_string(at / size) + ": " + std::to_string(ours) + " is not " + std::to_string(theirs);
    }
  }
  return {};
}

}  // namespace support
