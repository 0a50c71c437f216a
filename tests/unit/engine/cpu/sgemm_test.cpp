#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/cpu/panels.hpp"
#include "engine/cpu/product.hpp"

// Who multiplies on the CPU: plain loops, panels by AVX-512 and oneDNN, on small integers, where every order of a sum is exact.
namespace verglas::engine::cpu {
namespace {

struct Multiplier {
  const char* name;
  Sgemm sgemm;
};

std::vector<Multiplier> multipliers() {
  std::vector<Multiplier> all = {{"loops", &loops_sgemm}};
  if (panels_sgemm()) all.push_back({"panels", panels_sgemm()});
  if (onednn_sgemm()) all.push_back({"oneDNN", onednn_sgemm()});
  return all;
}

float number(std::int64_t i) { return static_cast<float>(i * 7 % 11 - 5); }

/// Leading dimensions are three elements more than they must be, and what lies between is NaN in the operands, −7 in C.
void check(const Multiplier& by, std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, float beta) {
  SCOPED_TRACE(::testing::Message() << by.name << " m " << m << " n " << n << " k " << k << " ta " << ta << " tb " << tb
                                    << " beta " << beta);
  const std::int64_t lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 3, ldc = n + 3;
  const auto filled = [](std::int64_t rows, std::int64_t columns, std::int64_t ld) {
    std::vector<float> v(static_cast<std::size_t>(rows * ld), std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) v[static_cast<std::size_t>(r * ld + c)] = number(r * 31 + c * 5 + rows);
    return v;
  };
  const std::vector<float> a = filled(ta ? k : m, ta ? m : k, lda), b = filled(tb ? n : k, tb ? k : n, ldb);
  std::vector<float> c(static_cast<std::size_t>(m * ldc), -7.0F);
  by.sgemm({ta, tb, m, n, k, a.data(), lda, b.data(), ldb, beta, c.data(), ldc});
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < ldc; ++j) {
      double want = j < n && beta == 0.0F ? 0.0 : -7.0;
      for (std::int64_t q = 0; q < k && j < n; ++q)
        want += double{a[static_cast<std::size_t>(ta ? q * lda + i : i * lda + q)]} *
                double{b[static_cast<std::size_t>(tb ? j * ldb + q : q * ldb + j)]};
      ASSERT_EQ(c[static_cast<std::size_t>(i * ldc + j)], static_cast<float>(want)) << "row " << i << " column " << j;
    }
}

void check_layouts(const Multiplier& by, std::int64_t m, std::int64_t n, std::int64_t k) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) check(by, m, n, k, ta, tb, tb == ta ? 0.0F : 1.0F);
}

TEST(Sgemm, MultipliesEveryTailOfRowsAndColumns) {
  for (const Multiplier& by : multipliers())
    for (const std::int64_t m : {1, 2, 13, 14, 15, 27, 43})
      for (const std::int64_t n : {1, 15, 16, 17, 31, 32, 33, 70}) check_layouts(by, m, n, 19);
}

TEST(Sgemm, MultipliesEveryTailOfK) {
  for (const Multiplier& by : multipliers())
    for (const std::int64_t k : {1, 2, 3, 15, 16, 17, 31, 32, 33, 48}) check_layouts(by, 17, 35, k);
}

TEST(Sgemm, GoesOnWhereAPartOfKEndsAndWhereAWidthEnds) {
  for (const Multiplier& by : multipliers()) {
    for (const std::int64_t k : {1023, 1024, 1025, 2050}) check_layouts(by, 15, 33, k);
    check_layouts(by, 15, 300, 1024);  // packed 256 columns at a time
    check_layouts(by, 16, 1060, 40);   // at most 1024
  }
}

TEST(Sgemm, PanelsGiveOneBitPatternWhateverTheTile) {
  const Sgemm sgemm = panels_sgemm();
  if (!sgemm) GTEST_SKIP() << "no AVX-512";
  constexpr std::int64_t kM = 40, kN = 90, kK = 70;
  std::vector<float> a(kM * kK), b(kN * kK), whole(kM * kN), part(kM * kN);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = std::cos(static_cast<float>(i));
  sgemm({false, true, kM, kN, kK, a.data(), kK, b.data(), kK, 0.0F, whole.data(), kN});
  for (std::int64_t m = 0; m < kM; m += 8)
    for (std::int64_t n = 0; n < kN; n += 30)
      sgemm({false, true, 8, 30, kK, a.data() + m * kK, kK, b.data() + n * kK, kK, 0.0F, part.data() + m * kN + n, kN});
  EXPECT_EQ(whole, part);
}

/// One buffer as A of the first product and, read along the other axis, of the second; then a third of another A.
TEST(Sgemm, ProductsThatTakeTurnsHaveTheBitsOfEachAlone) {
  const Sgemm sgemm = panels_sgemm();
  if (!sgemm) GTEST_SKIP() << "no AVX-512";
  for (const std::int64_t m : {1, 13, 14, 15, 29, 100})
    for (const std::int64_t n : {1, 32, 33, 70})
      for (const std::int64_t k : {1, 16, 37, 1024}) {
        SCOPED_TRACE(::testing::Message() << "m " << m << " n " << n << " k " << k);
        const std::int64_t edge = std::max(m, k);
        const auto matrix = [](std::int64_t rows, std::int64_t columns, float from) {
          std::vector<float> v(static_cast<std::size_t>(rows * columns));
          for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(from + static_cast<float>(i));
          return v;
        };
        const std::vector<float> x = matrix(edge, edge, 1), y = matrix(m, k, 2), b = matrix(n, k, 3), bt = matrix(k, n, 4);
        std::vector<float> band(static_cast<std::size_t>(kTurnRows * n)), rows(static_cast<std::size_t>(m * n)), last = rows;
        const Turn turns[] = {{{false, true, m, n, k, x.data(), edge, b.data(), k, 0.0F, band.data(), n}, 0},
                              {{true, true, m, n, k, x.data(), edge, b.data(), k, 0.0F, rows.data(), n}, n},
                              {{false, false, m, n, k, y.data(), k, bt.data(), n, 0.0F, last.data(), n}, n}};
        std::vector<std::vector<float>> want;
        for (const Turn& t : turns) {
          want.emplace_back(static_cast<std::size_t>(m * n));
          SgemmArguments alone = t.product;
          alone.c = want.back().data();
          sgemm(alone);
        }
        std::int64_t next = 0;
        ASSERT_TRUE(multiply_in_turns(turns, [&](std::int64_t first, std::int64_t count) {
          EXPECT_EQ(first, next);
          EXPECT_LE(count, kTurnRows);
          next = first + count;
          for (std::int64_t i = 0; i < count * n; ++i)
            ASSERT_EQ(band[static_cast<std::size_t>(i)], want[0][static_cast<std::size_t>(first * n + i)]);
        }));
        EXPECT_EQ(next, m);
        EXPECT_EQ(rows, want[1]);
        EXPECT_EQ(last, want[2]);
      }
}

}  // namespace
}  // namespace verglas::engine::cpu
