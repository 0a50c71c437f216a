#include "engine/cpu/panels.hpp"

#include <algorithm>

#include "engine/cpu/arena.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#ifndef __clang__  // what the header leaves open on purpose: GCC bug 105593
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define VERGLAS_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw")))

namespace verglas::engine::cpu {
namespace {

constexpr std::int64_t kRows = kTurnRows;  ///< of A at once: with two registers a row, 28 sums
constexpr std::int64_t kColumns = 32;      ///< of B at once: two registers
constexpr std::int64_t kGroup = 16;        ///< elements along K of one row of A that lie together

/// Rows of an operand along K; one of the strides is 1.
struct Matrix {
  const float* data;
  std::int64_t rows, row_stride, k_stride;
};
/// Two rows that will be wanted soon.
struct Ahead {
  const float* line;
  std::int64_t row;  ///< elements to the second
};

VERGLAS_AVX512 inline __mmask16 first_lanes(std::int64_t n) noexcept {
  return n >= 16 ? __mmask16{0xFFFF} : n <= 0 ? __mmask16{0} : static_cast<__mmask16>((1U << n) - 1U);
}

/// One step along K.
template <int ROWS>
VERGLAS_AVX512 inline __attribute__((always_inline)) void step(const float* a, const float* b, __m512 (*sum)[2]) noexcept {
  constexpr std::int64_t kAhead = 8 * kColumns;  // lines of B come from the second cache: asked for eight steps before
  const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
  _mm_prefetch(reinterpret_cast<const char*>(b + kAhead), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(b + kAhead + 16), _MM_HINT_T0);
#pragma GCC unroll 14
  for (int r = 0; r < ROWS; ++r) {
    const __m512 x = _mm512_set1_ps(a[r * kGroup]);
    sum[r][0] = _mm512_fmadd_ps(x, b0, sum[r][0]);
    sum[r][1] = _mm512_fmadd_ps(x, b1, sum[r][1]);
  }
}

/// ROWS · 2 sums in registers, beside two of B and one of A.
template <int ROWS>
VERGLAS_AVX512 void multiply_rows(const float* a, const float* b, std::int64_t k, float* c, std::int64_t ldc,
                                  std::int64_t columns, bool add, Ahead ahead) noexcept {
  __m512 sum[ROWS][2];
  for (auto& row : sum) row[0] = row[1] = _mm512_setzero_ps();
  for (std::int64_t g = 0; g < k; g += kGroup) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead.line + g), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(ahead.line + ahead.row + g), _MM_HINT_T1);
    const std::int64_t steps = std::min(kGroup, k - g);
    std::int64_t q = 0;
    for (; q + 2 <= steps; q += 2, b += 2 * kColumns) {
      step<ROWS>(a + q, b, sum);
      step<ROWS>(a + q + 1, b + kColumns, sum);
    }
    if (q < steps) {
      step<ROWS>(a + q, b, sum);
      b += kColumns;
    }
    a += ROWS * kGroup;
  }
  const __mmask16 left = first_lanes(columns), right = first_lanes(columns - 16);
#pragma GCC unroll 14
  for (int r = 0; r < ROWS; ++r) {
    if (add) {
      sum[r][0] = _mm512_add_ps(sum[r][0], _mm512_maskz_loadu_ps(left, c + r * ldc));
      sum[r][1] = _mm512_add_ps(sum[r][1], _mm512_maskz_loadu_ps(right, c + r * ldc + 16));
    }
    _mm512_mask_storeu_ps(c + r * ldc, left, sum[r][0]);
    _mm512_mask_storeu_ps(c + r * ldc + 16, right, sum[r][1]);
  }
}

using Multiply = void (*)(const float*, const float*, std::int64_t, float*, std::int64_t, std::int64_t, bool, Ahead) noexcept;
constexpr Multiply kMultiply[kRows] = {multiply_rows<1>,  multiply_rows<2>,  multiply_rows<3>,  multiply_rows<4>,
                                       multiply_rows<5>,  multiply_rows<6>,  multiply_rows<7>,  multiply_rows<8>,
                                       multiply_rows<9>,  multiply_rows<10>, multiply_rows<11>, multiply_rows<12>,
                                       multiply_rows<13>, multiply_rows<14>};

/// Sixteen rows of sixteen, turned: pairs, then fours, then lanes of 128 bits.
VERGLAS_AVX512 inline __attribute__((always_inline)) void transpose(__m512* r) noexcept {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

/// out (columns, stride): up to sixteen rows of up to sixteen columns, turned; zeros where there is no row.
VERGLAS_AVX512 inline void turn(const float* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, float* out,
                                std::int64_t stride) noexcept {
  const __mmask16 lanes = first_lanes(columns);
  __m512 r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = i < rows ? _mm512_maskz_loadu_ps(lanes, from + i * ld) : _mm512_setzero_ps();
  transpose(r);
  if (columns >= 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_ps(out + i * stride, r[i]);
  } else {
    for (std::int64_t i = 0; i < columns; ++i) _mm512_storeu_ps(out + i * stride, r[i]);
  }
}

/// At most kRows rows: (k / 16, rows, 16).
VERGLAS_AVX512 void pack_a(const Matrix& a, std::int64_t k, float* out) noexcept {
  if (a.k_stride != 1) {
    for (std::int64_t g = 0; g < k; g += kGroup, out += a.rows * kGroup)
      for (std::int64_t q = 0; q < std::min(kGroup, k - g); ++q)
        for (std::int64_t r = 0; r < a.rows; ++r) out[r * kGroup + q] = a.data[r * a.row_stride + (g + q) * a.k_stride];
    return;
  }
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const float* from = a.data + r * a.row_stride;
    float* to = out + r * kGroup;
    for (std::int64_t g = 0; g < k; g += kGroup, to += a.rows * kGroup)
      _mm512_storeu_ps(to, _mm512_maskz_loadu_ps(first_lanes(k - g), from + g));
  }
}

/// (rows / 32, k, 32), with zeros behind the last row.
VERGLAS_AVX512 void pack_b(const Matrix& b, std::int64_t k, float* out) noexcept {
  for (std::int64_t p = 0; p < b.rows; p += kColumns, out += k * kColumns) {
    const std::int64_t rows = std::min(kColumns, b.rows - p);
    const float* from = b.data + p * b.row_stride;
    if (b.k_stride == 1) {
      for (std::int64_t half = 0; half < kColumns; half += 16) {
        const std::int64_t some = std::clamp<std::int64_t>(rows - half, 0, 16);
        const float* rows_at = from + half * b.row_stride;
        for (std::int64_t g = 0; g < k; g += kGroup)
          turn(rows_at + g, b.row_stride, some, k - g, out + g * kColumns + half, kColumns);
      }
      continue;
    }
    const __mmask16 left = first_lanes(rows), right = first_lanes(rows - 16);
    for (std::int64_t q = 0; q < k; ++q) {
      _mm512_storeu_ps(out + q * kColumns, _mm512_maskz_loadu_ps(left, from + q * b.k_stride));
      _mm512_storeu_ps(out + q * kColumns + 16, _mm512_maskz_loadu_ps(right, from + q * b.k_stride + 16));
    }
  }
}

/// B of a product from column n0 and depth k0 on, and some rows of A.
Matrix columns_of(const SgemmArguments& s, std::int64_t n0, std::int64_t columns, std::int64_t k0) noexcept {
  return s.b_transposed ? Matrix{s.b + n0 * s.ldb + k0, columns, s.ldb, 1} : Matrix{s.b + k0 * s.ldb + n0, columns, 1, s.ldb};
}
Matrix rows_of(const SgemmArguments& s, std::int64_t m0, std::int64_t rows, std::int64_t k0) noexcept {
  return s.a_transposed ? Matrix{s.a + k0 * s.lda + m0, rows, 1, s.lda} : Matrix{s.a + m0 * s.lda + k0, rows, s.lda, 1};
}

/// All columns of up to kRows rows, from packed operands. The rows behind them are asked for meanwhile, two a column panel.
VERGLAS_AVX512 void multiply_part(const float* a, const float* b, std::int64_t rows, std::int64_t columns, std::int64_t k,
                                  float* c, std::int64_t ldc, bool add, Ahead ahead) noexcept {
  for (std::int64_t p = 0; p < columns; p += kColumns, ahead.line += 2 * ahead.row)
    kMultiply[rows - 1](a, b + p * k, k, c + p, ldc, columns - p, add, ahead);
}
bool has_a_of(const SgemmArguments& s, const SgemmArguments& other) noexcept {
  return s.a == other.a && s.lda == other.lda && s.a_transposed == other.a_transposed;
}
Ahead behind(const SgemmArguments& s, std::int64_t row, std::int64_t k0, const float* of_a) noexcept {
  if (s.a_transposed) return {of_a, 0};
  return {s.a + std::min(row, s.m - 1) * s.lda + k0, s.lda};
}

VERGLAS_AVX512 void multiply(const SgemmArguments& s) noexcept {
  thread_local Arena arena;
  for (std::int64_t k0 = 0; k0 < s.k; k0 += kTurnDepth) {
    const std::int64_t k = std::min(kTurnDepth, s.k - k0);
    const std::int64_t width = columns_in_turns(k, 1);
    float* const of_b = arena.take(static_cast<std::size_t>(width * k + kRows * (k + kGroup)));
    if (!of_b) return loops_sgemm(s);
    float* const of_a = of_b + width * k;
    const bool add = k0 > 0 || s.beta != 0.0F;
    for (std::int64_t n0 = 0; n0 < s.n; n0 += width) {
      const std::int64_t n = std::min(width, s.n - n0);
      pack_b(columns_of(s, n0, n, k0), k, of_b);
      const std::int64_t parts = (s.m + kRows - 1) / kRows;
      for (std::int64_t part = 0; part < parts; ++part) {  // of about one size
        const std::int64_t m0 = s.m * part / parts, m = s.m * (part + 1) / parts - m0;
        pack_a(rows_of(s, m0, m, k0), k, of_a);
        multiply_part(of_a, of_b, m, n, k, s.c + m0 * s.ldc + n0, s.ldc, add, behind(s, m0 + m, k0, of_a));
      }
    }
  }
}

bool has_avx512() noexcept {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
}

}  // namespace

Sgemm panels_sgemm() noexcept {
  static const Sgemm multiplies = has_avx512() ? &multiply : nullptr;
  return multiplies;
}

std::int64_t columns_in_turns(std::int64_t k, std::int64_t products) noexcept {
  constexpr std::int64_t kWeights = std::int64_t{1} << 18;  // floats of packed B: half of a second cache of 2 MB
  constexpr std::int64_t kLeast = 64, kMost = 1024;
  return std::clamp(kWeights / (k * products) / kColumns * kColumns, kLeast, kMost);
}

bool multiply_in_turns(std::span<const Turn> turns, FunctionRef<void(std::int64_t first, std::int64_t rows)> summed) noexcept {
  thread_local Arena arena;
  const SgemmArguments& one = turns.front().product;
  const std::int64_t k = one.k, of_one = (one.n + kColumns - 1) / kColumns * kColumns * k;
  const auto products = static_cast<std::int64_t>(turns.size());
  float* const of_b = arena.take(static_cast<std::size_t>(of_one * products + kRows * (k + kGroup)));
  if (!of_b) return false;
  float* const of_a = of_b + of_one * products;
  for (std::size_t g = 0; g < turns.size(); ++g)
    pack_b(columns_of(turns[g].product, 0, one.n, 0), k, of_b + static_cast<std::int64_t>(g) * of_one);
  const std::int64_t parts = (one.m + kRows - 1) / kRows;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t m0 = one.m * part / parts, m = one.m * (part + 1) / parts - m0;
    for (std::size_t g = 0; g < turns.size(); ++g) {
      const SgemmArguments& s = turns[g].product;
      if (g == 0 || !has_a_of(s, turns[g - 1].product)) pack_a(rows_of(s, m0, m, 0), k, of_a);
      multiply_part(of_a, of_b + static_cast<std::int64_t>(g) * of_one, m, s.n, k, s.c + m0 * turns[g].c_step, s.ldc, false,
                    behind(s, m0 + m, 0, of_a));
    }
    summed(m0, m);
  }
  return true;
}

}  // namespace verglas::engine::cpu

#else

namespace verglas::engine::cpu {

Sgemm panels_sgemm() noexcept { return nullptr; }
std::int64_t columns_in_turns(std::int64_t, std::int64_t) noexcept { return 0; }
bool multiply_in_turns(std::span<const Turn>, FunctionRef<void(std::int64_t, std::int64_t)>) noexcept { return false; }

}  // namespace verglas::engine::cpu

#endif
