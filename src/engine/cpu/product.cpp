#include "engine/cpu/product.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/cpu/arena.hpp"
#include "engine/cpu/groups.hpp"
#include "engine/cpu/pointwise.hpp"
#include "engine/cpu/program.hpp"
#include "numeric/block_scale.hpp"
#include "numeric/convert.hpp"
#include "numeric/formats.hpp"

namespace verglas::engine::cpu {
namespace {

/// Lanes of a prologue that are worked on at once: small enough for the stack, long enough to vectorise.
constexpr std::int64_t kChunk = 256;

/// A role of one element as a lane.
float scalar_f32(const chain::FusionChain& chain, const recipe::Binding& binding, const chain::PrologueStep& s) {
  if (s.constant) return static_cast<float>(*s.constant);
  const chain::Role& role = chain.roles[static_cast<std::size_t>(s.scalar_role)];
  return numeric::to_float(binding.role[s.scalar_role].data, chain.operands[static_cast<std::size_t>(role.operand)].dtype);
}
std::int32_t scalar_i32(const chain::FusionChain& chain, const recipe::Binding& binding, const chain::PrologueStep& s) {
  std::int32_t v = 0;
  if (s.constant) {
    const double c = *s.constant;
    if (c >= -0x1p31 && c < 0x1p31 && c == std::trunc(c)) return static_cast<std::int32_t>(c);
    const auto f = static_cast<float>(c);
    numeric::load_i32(&f, DataType::fp32, 1, 1, &v);
    return v;
  }
  const chain::Role& role = chain.roles[static_cast<std::size_t>(s.scalar_role)];
  numeric::load_i32(binding.role[s.scalar_role].data, chain.operands[static_cast<std::size_t>(role.operand)].dtype, 1, 1, &v);
  return v;
}

/// Scales of a matrix in blocks along K.
class Scales {
 public:
  Scales(const MatrixBlock& x, const chain::FusionChain& chain, const recipe::Binding& binding)
      : format_(chain::scale_format(chain, *x.input)),
        view_(x.input->scale_table < 0 ? binding.role[x.input->scale_role]
                                       : of_expert(chain.tables[static_cast<std::size_t>(x.input->scale_table)],
                                                   binding.role[x.input->scale_role], x.batch)),
        is_power_(format_.dtype == DataType::fp8_e8m0),
        shape_{.batches = view_.extent[0], .rows = view_.extent[1], .columns = view_.extent[2]},
        batch_(view_.extent[0] > 1 ? x.batch : 0),
        shift_(format_.is_by_group ? x.scale_shift : 0) {}

  std::int64_t block() const noexcept { return format_.block; }
  /// The sign of an e4m3 scale has no meaning.
  float at(std::int64_t row, std::int64_t column) const noexcept {
    const std::int64_t offset = format_.is_interleaved
                                    ? numeric::scale_offset(shape_, batch_, row + shift_, column)
                                    : batch_ * view_.stride[0] + row * view_.stride[1] + column * view_.stride[2];
    const auto byte = static_cast<std::uint8_t>(view_.data[offset]);
    return is_power_ ? numeric::e8m0_to_float(byte) : numeric::e4m3_to_float(byte & 0x7FU);
  }

 private:
  static recipe::RoleView of_expert(const chain::PointerTable& t, const recipe::RoleView& table, std::int64_t expert) noexcept {
    return {const_cast<char*>(weights_of(table, expert)), {1, t.extent[0], t.extent[1]}, {0, t.stride[0], t.stride[1]}, 0};
  }

  chain::ScaleFormat format_;
  recipe::RoleView view_;
  bool is_power_;
  numeric::ScaleShape shape_;
  std::int64_t batch_, shift_;
};

/// k elements of one row of a matrix with scales, from a column on that begins a block.
void scale_row(const MatrixBlock& x, const Scales& scales, std::int64_t row, std::int64_t k0, std::int64_t k, float* f) noexcept {
  for (std::int64_t q = 0; q < k; q += scales.block()) {
    const float s = scales.at(x.first_row + x.row(row), (k0 + q) / scales.block());
    const std::int64_t end = std::min(q + scales.block(), k);
    for (std::int64_t i = q; i < end; ++i) f[i] *= s;
  }
  numeric::round_f32(f, x.input->dtype, k);
}

/// n elements of the operand, through its prologue, as fp32.
void load_run(const MatrixBlock& x, const char* src, std::int64_t stride, std::int64_t n, const chain::FusionChain& chain,
              const recipe::Binding& binding, float* out) noexcept {
  const auto& steps = x.input->prologue;
  if (x.dtype == DataType::fp4_e2m1) return numeric::load_fp4(src, n, out);
  if (steps.empty()) {
    numeric::load_f32(src, x.dtype, stride, n, out);
    return;
  }
  float f[kChunk], g[kChunk];
  std::int32_t i[kChunk], j[kChunk];
  for (std::int64_t first = 0; first < n; first += kChunk) {
    const std::int64_t count = std::min(kChunk, n - first);
    const char* from = src + first * stride * bytes_of(x.dtype);
    Lane lane = lane_of(x.dtype);
    if (lane == Lane::f32)
      numeric::load_f32(from, x.dtype, stride, count, f);
    else
      numeric::load_i32(from, x.dtype, stride, count, i);
    for (const chain::PrologueStep& s : steps) {
      const bool integer = s.compute == DataType::int32;
      const bool binary = s.constant || s.scalar_role >= 0;
      if (integer) {
        if (lane == Lane::f32) numeric::load_i32(f, DataType::fp32, 1, count, i);
        if (binary) std::fill_n(j, count, scalar_i32(chain, binding, s));
        pointwise_i32(s.mode, s.parameters, s.scalar_first ? j : i, s.scalar_first ? i : j, nullptr, i, count);
      } else {
        if (lane == Lane::i32) numeric::load_f32(i, DataType::int32, 1, count, f);
        if (binary) std::fill_n(g, count, scalar_f32(chain, binding, s));
        pointwise_f32(s.mode, s.parameters, s.scalar_first ? g : f, s.scalar_first ? f : g, nullptr, f, count);
      }
      const Lane computed = integer ? Lane::i32 : Lane::f32;
      lane = lane_of(s.dtype);
      if (computed == Lane::i32 && lane == Lane::f32) numeric::load_f32(i, DataType::int32, 1, count, f);
      if (computed == Lane::f32 && lane == Lane::i32) numeric::load_i32(f, DataType::fp32, 1, count, i);
      if (lane == Lane::f32) numeric::round_f32(f, s.dtype, count);
    }
    std::memcpy(out + first, f, static_cast<std::size_t>(count) * sizeof(float));
  }
}

struct Packed {
  const float* data;
  std::int64_t ld;
  bool k_inner;  ///< (rows, k); otherwise (k, rows)
};

bool is_direct(const MatrixBlock& x, std::int64_t k) noexcept {
  return !x.row_at && is_plain_fp32(*x.input, x.dtype) && is_read_in_place(x.rows, x.row_stride, k, x.k_stride);
}
/// Of a block that is multiplied where it lies.
Packed direct(const MatrixBlock& x, const char* from, std::int64_t k) noexcept {
  const bool k_inner = x.k_stride == 1 && x.row_stride >= k;
  return {reinterpret_cast<const float*>(from), k_inner ? x.row_stride : x.k_stride, k_inner};
}

/// The same for a matrix with scales; k0 begins a block.
Packed pack_scaled(const MatrixBlock& x, std::int64_t k0, std::int64_t k, bool k_inner, const char* base,
                   const chain::FusionChain& chain, const recipe::Binding& binding, float* into) noexcept {
  const Scales scales(x, chain, binding);
  if (k_inner) {
    for (std::int64_t r = 0; r < x.rows; ++r) {
      load_run(x, base + numeric::byte_offset(x.row(r) * x.row_stride, x.dtype), x.k_stride, k, chain, binding, into + r * k);
      scale_row(x, scales, r, k0, k, into + r * k);
    }
    return {into, k, true};
  }
  thread_local Arena arena;
  float* of_rows = arena.take(static_cast<std::size_t>(x.rows));
  if (!of_rows) return {nullptr, 0, false};
  for (std::int64_t q = 0; q < k; ++q) {
    if (q % scales.block() == 0)
      for (std::int64_t r = 0; r < x.rows; ++r) of_rows[r] = scales.at(x.first_row + r, (k0 + q) / scales.block());
    float* f = into + q * x.rows;
    load_run(x, base + q * x.k_stride * bytes_of(x.dtype), x.row_stride, x.rows, chain, binding, f);
    for (std::int64_t r = 0; r < x.rows; ++r) f[r] *= of_rows[r];
    numeric::round_f32(f, x.input->dtype, x.rows);
  }
  return {into, x.rows, false};
}

Packed pack(const MatrixBlock& x, std::int64_t k0, std::int64_t k, bool keep_direct, const chain::FusionChain& chain,
            const recipe::Binding& binding, float* into) noexcept {
  const std::int64_t size = bytes_of(x.dtype);
  const char* base = x.data + numeric::byte_offset(k0 * x.k_stride, x.dtype);
  if (keep_direct) return direct(x, base, k);
  const bool k_inner = x.row_at || x.k_stride == 1 || x.row_stride != 1 || x.dtype == DataType::fp4_e2m1;
  if (x.input->scale_role >= 0) return pack_scaled(x, k0, k, k_inner, base, chain, binding, into);
  if (k_inner) {
    for (std::int64_t r = 0; r < x.rows; ++r)
      load_run(x, base + x.row(r) * x.row_stride * size, x.k_stride, k, chain, binding, into + r * k);
    return {into, k, true};
  }
  for (std::int64_t q = 0; q < k; ++q)
    load_run(x, base + q * x.k_stride * size, x.row_stride, x.rows, chain, binding, into + q * x.rows);
  return {into, x.rows, false};
}

}  // namespace

bool is_plain_fp32(const chain::MatrixInput& input, DataType stored) noexcept {
  return stored == DataType::fp32 && input.prologue.empty() && input.scale_role < 0;
}
bool is_read_in_place(std::int64_t rows, std::int64_t row_stride, std::int64_t k, std::int64_t k_stride) noexcept {
  return (k_stride == 1 && row_stride >= std::max<std::int64_t>(k, 1)) ||
         (row_stride == 1 && k_stride >= std::max<std::int64_t>(rows, 1));
}

SgemmArguments direct_product(const MatrixBlock& a, const MatrixBlock& b, std::int64_t k, float* c, std::int64_t ldc) noexcept {
  const Packed pa = direct(a, a.data, k), pb = direct(b, b.data, k);
  return {!pa.k_inner, pb.k_inner, a.rows, b.rows, k, pa.data, pa.ld, pb.data, pb.ld, 0.0F, c, ldc};
}

bool tile_product(Sgemm sgemm, const MatrixBlock& a, const MatrixBlock& b, std::int64_t k, bool integer,
                  const chain::FusionChain& chain, const recipe::Binding& binding, float* c, std::int64_t ldc) noexcept {
  for (std::int64_t m = 0; m < a.rows && k == 0; ++m)
    std::memset(c + m * ldc, 0, static_cast<std::size_t>(b.rows) * sizeof(float));
  const bool a_direct = is_direct(a, k);
  const bool b_direct = is_direct(b, k);
  thread_local Arena arena_a, arena_b, arena_sum;
  const auto packed = [&](Arena& arena, std::int64_t rows) {
    return arena.take(static_cast<std::size_t>(rows * std::min(k, kPackedK)));
  };
  float* into_a = a_direct ? nullptr : packed(arena_a, a.rows);
  float* into_b = b_direct ? nullptr : packed(arena_b, b.rows);
  float* sum = integer ? arena_sum.take(static_cast<std::size_t>(a.rows * b.rows)) : nullptr;
  if (k > 0 && ((!a_direct && !into_a) || (!b_direct && !into_b) || (integer && !sum))) return false;
  const std::int64_t step = a_direct && b_direct ? std::max<std::int64_t>(k, 1) : kPackedK;
  for (std::int64_t k0 = 0; k0 < k; k0 += step) {
    const std::int64_t depth = std::min(step, k - k0);
    const Packed pa = pack(a, k0, depth, a_direct, chain, binding, into_a);
    const Packed pb = pack(b, k0, depth, b_direct, chain, binding, into_b);
    if (!pa.data || !pb.data) return false;
    float* into = integer ? sum : c;
    const std::int64_t ld = integer ? b.rows : ldc;
    sgemm({!pa.k_inner, pb.k_inner, a.rows, b.rows, depth, pa.data, pa.ld, pb.data, pb.ld, integer || k0 == 0 ? 0.0F : 1.0F, into,
           ld});
    if (!integer) continue;
    auto* sums = reinterpret_cast<std::int32_t*>(c);
    for (std::int64_t m = 0; m < a.rows; ++m)
      for (std::int64_t n = 0; n < b.rows; ++n) {
        const auto part = static_cast<std::uint32_t>(static_cast<std::int32_t>(into[m * ld + n]));
        std::int32_t& total = sums[m * ldc + n];
        total = static_cast<std::int32_t>(k0 == 0 ? part : static_cast<std::uint32_t>(total) + part);
      }
  }
  return true;
}

void loops_sgemm(const SgemmArguments& s) noexcept {
  constexpr std::int64_t kColumns = 256;
  float panel[kColumns * 8];  // eight rows of B with unit stride, when B is (n, k)
  for (std::int64_t m = 0; m < s.m; ++m)
    for (std::int64_t n = 0; n < s.n; ++n) s.c[m * s.ldc + n] = s.beta == 0.0F ? 0.0F : s.c[m * s.ldc + n];
  const auto a_at = [&](std::int64_t m, std::int64_t k) { return s.a_transposed ? s.a[k * s.lda + m] : s.a[m * s.lda + k]; };
  for (std::int64_t n0 = 0; n0 < s.n; n0 += kColumns) {
    const std::int64_t nn = std::min(kColumns, s.n - n0);
    for (std::int64_t k0 = 0; k0 < s.k; k0 += 8) {
      const std::int64_t kk = std::min<std::int64_t>(8, s.k - k0);
      const float* rows[8];
      for (std::int64_t q = 0; q < kk; ++q) {
        if (s.b_transposed)
          for (std::int64_t n = 0; n < nn; ++n) panel[q * kColumns + n] = s.b[(n0 + n) * s.ldb + k0 + q];
        rows[q] = s.b_transposed ? panel + q * kColumns : s.b + (k0 + q) * s.ldb + n0;
      }
      for (std::int64_t m = 0; m < s.m; ++m) {
        float* out = s.c + m * s.ldc + n0;
        for (std::int64_t q = 0; q < kk; ++q) {
          const float x = a_at(m, k0 + q);
          const float* row = rows[q];
          for (std::int64_t n = 0; n < nn; ++n) out[n] += x * row[n];
        }
      }
    }
  }
}

}  // namespace verglas::engine::cpu
