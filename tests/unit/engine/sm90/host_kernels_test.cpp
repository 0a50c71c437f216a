// The kernels' loads, stores and formulas, compiled for the host: what an epilogue touches, at every edge and alignment.
// Lanes are visited one after the other; nothing here exchanges values between them.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "pointwise.cuh"
#include "staging.cuh"

namespace {

using namespace vg;

std::mt19937 engine(7);
int between(int low, int high) { return low + static_cast<int>(engine() % static_cast<unsigned>(high - low + 1)); }

/// A small operand, packed or padded, at any alignment of its elements; strides of 1 or more along the columns.
template <class T, bool ROWS, bool COLS>
class Drawn {
 public:
  Drawn() {
    const int64 cols = between(0, 2) != 0 ? 1 : between(1, 3);
    int64 rows = n * cols + between(0, 3);
    if (between(0, 1) != 0) rows += rows % 2;
    int64 batches = rows * m + between(0, 3);
    if (between(0, 1) != 0) batches += batches % 2;
    aux = {nullptr, batches, ROWS ? rows : 0, COLS ? cols : 0};
    const int shift = between(0, 1) * T::BYTES;
    memory_.resize(static_cast<std::size_t>(2 * batches * T::BYTES) + 64);
    auto* const aligned = memory_.data() + (16 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 16) % 16;
    aux.address = aligned + shift;
    first_byte = aligned + shift;
    end_byte = first_byte + offset(1, m - 1, n - 1) + T::BYTES;
    for (const char* p = first_byte; p < end_byte; ++p) *const_cast<char*>(p) = static_cast<char>(0xAA);
  }
  int64 offset(int batch, int row, int col) const {
    return (batch * aux.batch_stride + row * aux.row_stride + col * aux.col_stride) * T::BYTES;
  }
  /// Do rows take pieces of so many bytes?
  bool takes(int piece) const {
    const int64 strides = (aux.row_stride | aux.batch_stride) * T::BYTES;
    return aux.col_stride == 1 && (static_cast<int64>(reinterpret_cast<std::uintptr_t>(aux.address)) | strides) % piece == 0;
  }
  char* at(int batch, int row, int col) const { return const_cast<char*>(first_byte) + offset(batch, row, col); }
  uint32 bits(int batch, int row, int col) const {
    uint32 v = 0;
    std::memcpy(&v, at(batch, row, col), T::BYTES);
    return v;
  }

  /// For each thread of a warpgroup on each unit of each row block.
  template <class F>
  void each_position(F&& f) const {
    for (int batch = 0; batch < 2; ++batch)
      for (int row = 0; row < m; row += 64)
        for (int col = 0; col < n; col += 16)
          for (int t = 0; t < 128; ++t) {
            threadIdx.x = static_cast<unsigned>(t);
            f(Position{batch,
                       row + 16 * (t / 32) + t % 32 / 4,
                       col + t % 4 * 2,
                       row / 64,
                       col / 16,
                       {0, 0, 0, threadIdx.x % 128},
                       {},
                       m});
          }
  }

  int m = between(1, 90), n = between(1, 50);
  Aux aux{};

 private:
  std::vector<char> memory_{};
};

Parameters parameters_of(int m, int n) {
  Parameters p{};
  p.m = m;
  p.n = n;
  return p;
}

/// What a thread holds a value of that type in.
template <class T>
using LaneOf = decltype(T::value(0));

constexpr int kTile = 192;  // one tile has all of it

template <class T, bool ROWS, bool COLS>
int wrong_loads() {
  const Drawn<T, ROWS, COLS> d;
  const Parameters p = parameters_of(d.m, d.n);
  for (int batch = 0; batch < 2; ++batch)
    for (int row = 0; row < (ROWS ? d.m : 1); ++row)
      for (int col = 0; col < (COLS ? d.n : 1); ++col) {
        const auto value = static_cast<uint32>(engine());
        const uint32 bits = T::BYTES == 4 ? value & 0x3fffffffU : T::BYTES == 2 ? value & 0x3fffU : value & 0xffU;
        std::memcpy(d.at(batch, row, col), &bits, T::BYTES);
      }
  faults = 0;
  int wrong = 0;
  std::vector<std::array<RowVector<T, kTile>, 128>> row(2);
  std::vector<std::array<ColumnVector<T, kTile / 64>, 128>> column(2);
  std::vector<std::array<OneValue<T>, 128>> one(2);
  constexpr uint32 kWords = 64;
  for (int batch = 0; batch < 2; ++batch)
    for (unsigned t = 0; t < 128; ++t) {
      threadIdx.x = t;
      const TilePiece tile{batch, 0, 0, 0, 0, 0, 0, d.m, batch, 1, 0, t};
      const auto b = static_cast<std::size_t>(batch);
      if (COLS && !ROWS) row[b][t].load(d.aux, p, tile);
      if (COLS && !ROWS) row[b][t].keep(kWords + static_cast<uint32>(batch) * 4 * kTile);
      if (ROWS && !COLS) column[b][t].load(d.aux, p, tile);
      if (!ROWS && !COLS) one[b][t].load(d.aux, tile);
    }
  d.each_position([&](const Position& at) {
    LaneOf<T> v[8];
    const auto b = static_cast<std::size_t>(at.batch);
    if constexpr (ROWS && COLS) {
      LaneOf<T> by_rows[8], in_lines[8] = {};
      load_aux<T, false, false>(v, d.aux, p, at);
      load_aux<T, false, true>(by_rows, d.aux, p, at);
      const bool has_lines = d.aux.col_stride == 1;
      if (has_lines) load_aux<T, true, true>(in_lines, d.aux, p, at);
      for (int i = 0; i < 8; ++i) {
        const bool counts = at.row + 8 * (i / 2 % 2) < d.m && at.col + 8 * (i / 4) + i % 2 < d.n;
        wrong += counts && (by_rows[i] != v[i] || (has_lines && in_lines[i] != v[i])) ? 1 : 0;
      }
    } else if constexpr (COLS) {
      RowVector<T, kTile>::read(v, kWords + static_cast<uint32>(at.batch) * 4 * kTile, at);
    } else if constexpr (ROWS) {
      column[b][threadIdx.x].read(v, at);
    } else {
      one[b][threadIdx.x].read(v);
    }
    for (int i = 0; i < 8; ++i) {
      const int row = at.row + 8 * (i / 2 % 2), col = at.col + 8 * (i / 4) + i % 2;
      if (row < d.m && col < d.n) wrong += v[i] != T::value(d.bits(at.batch, ROWS ? row : 0, COLS ? col : 0)) ? 1 : 0;
    }
  });
  return wrong + faults;
}

template <class T>
int wrong_stores() {
  const Drawn<T, true, true> d;
  const Parameters p = parameters_of(d.m, d.n);
  const auto value = [](int batch, int row, int col) { return static_cast<LaneOf<T>>((batch * 31 + row * 7 + col) % 64); };
  faults = 0;
  d.each_position([&](const Position& at) {
    LaneOf<T> v[8];
    for (int i = 0; i < 8; ++i) v[i] = value(at.batch, at.row + 8 * (i / 2 % 2), at.col + 8 * (i / 4) + i % 2);
    store_output<T>(d.aux, v, p, at);
  });
  int wrong = faults;
  for (int batch = 0; batch < 2; ++batch)
    for (int row = 0; row < d.m; ++row)
      for (int col = 0; col < d.n; ++col) {
        wrong += T::value(d.bits(batch, row, col)) != value(batch, row, col) ? 1 : 0;
        std::memset(d.at(batch, row, col), 0xAA, T::BYTES);
      }
  for (const char* q = first_byte; q < end_byte; ++q) wrong += *q != static_cast<char>(0xAA) ? 1 : 0;  // gaps keep their poison
  return wrong;
}

/// A chunk that holds rows and columns from (row, col) on, moved by threads: whole, or only what no map reaches.
template <class T, bool ALONG_M, int PIECE>
int wrong_chunks(int width) {
  auto drawn = std::make_unique<Drawn<T, true, true>>();
  while (PIECE > T::BYTES && !drawn->takes(PIECE)) drawn = std::make_unique<Drawn<T, true, true>>();
  const Drawn<T, true, true>& d = *drawn;
  const int row = d.m > 64 ? between(0, 1) * 64 : 0, col = between(0, (d.n - 1) / 16) * 16, piece = 16 / T::BYTES;
  const bool tail = PIECE == 0;
  const auto value = [&](int r, int c) { return static_cast<uint32>(r * 193 + c * 7 + 1) & 0xffffU; };
  const int columns = width / T::BYTES;
  for (int r = 0; r < 64; ++r)
    for (int c = 0; c < columns; ++c) {
      Piece<T::BYTES> x{};
      const uint32 bits = value(row + r, col + c);
      std::memcpy(&x, &bits, T::BYTES);
      put_shared(element_address<T, ALONG_M>(1024, width, r, c), x);
    }
  const Target to{const_cast<void*>(d.aux.address), d.aux.batch_stride, d.aux.row_stride, d.aux.col_stride};
  const int inner = ALONG_M ? d.m : d.n, mapped = inner - inner % piece;
  for (unsigned t = 0; t < 128; ++t) {
    threadIdx.x = t;
    if constexpr (PIECE == 0) {
      store_chunk<T, ALONG_M>(nullptr, false, 1024, width, to, 1, row, col, d.m, d.n);
    } else {
      store_by_threads<T, PIECE>(1024, width, to, 1, row, col, d.m, d.n);
    }
  }
  int wrong = 0;
  for (int r = 0; r < d.m; ++r)
    for (int c = 0; c < d.n; ++c) {
      const bool there = r >= row && r < row + 64 && c >= col && c < col + columns && (!tail || (ALONG_M ? r : c) >= mapped);
      const uint32 poison = T::BYTES == 4 ? 0xAAAAAAAAU : 0xAAAAU;
      wrong += d.bits(1, r, c) != (there ? value(r, c) : poison) ? 1 : 0;
      std::memset(d.at(1, r, c), 0xAA, T::BYTES);
    }
  for (const char* q = first_byte; q < end_byte; ++q) wrong += *q != static_cast<char>(0xAA) ? 1 : 0;
  return wrong;
}

TEST(HostKernels, StagedChunksGoWhereTheyBelongAndTailsAlone) {
  for (int i = 0; i < 60; ++i)
    for (const int width : {128, 64, 32}) {
      EXPECT_EQ((wrong_chunks<Bf16, false, 0>(width)), 0);
      EXPECT_EQ((wrong_chunks<Bf16, true, 0>(width)), 0);
      EXPECT_EQ((wrong_chunks<F32, false, 0>(width)), 0);
      EXPECT_EQ((wrong_chunks<F32, true, 0>(width)), 0);
      EXPECT_EQ((wrong_chunks<F16, false, 2>(width)), 0);
      EXPECT_EQ((wrong_chunks<F32, false, 4>(width)), 0);
      EXPECT_EQ((wrong_chunks<F16, false, 8>(width)), 0);
      EXPECT_EQ((wrong_chunks<F32, false, 16>(width)), 0);
    }
}

// Threads of a unit and the elements of a chunk: no two in one place, and all of them in their chunk.
TEST(HostKernels, UnitsFillTheirChunk) {
  const auto count = [](auto type, auto along_m, int width) {
    using T = decltype(type);
    std::vector<int> hits(static_cast<std::size_t>(64 * width), 0);
    for (unsigned t = 0; t < 128; ++t)
      for (int col = 0; col < width / T::BYTES; col += 16)
        for (int i = 0; i < 8; ++i) {
          threadIdx.x = t;
          ++hits.at(value_address<T, decltype(along_m)::value>({0, width, col, t}, i));
        }
    for (std::size_t byte = 0; byte < hits.size(); ++byte) EXPECT_EQ(hits[byte], byte % T::BYTES == 0 ? 1 : 0) << byte;
  };
  for (const int width : {128, 64}) {
    count(F32{}, std::false_type{}, width);
    count(F32{}, std::true_type{}, width);
    count(Bf16{}, std::false_type{}, width);
    count(Bf16{}, std::true_type{}, width);
  }
}

template <class T>
void expect_right_loads(const char* name) {
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ((wrong_loads<T, true, true>()), 0) << name << ", a matrix";
    EXPECT_EQ((wrong_loads<T, false, true>()), 0) << name << ", a row";
    EXPECT_EQ((wrong_loads<T, true, false>()), 0) << name << ", a column";
    EXPECT_EQ((wrong_loads<T, false, false>()), 0) << name << ", one value";
  }
}

TEST(HostKernels, LoadTheOperandsOfAnEpilogueAndNothingElse) {
  expect_right_loads<F32>("fp32");
  expect_right_loads<Bf16>("bf16");
  expect_right_loads<F16>("fp16");
  expect_right_loads<I8>("int8");
  expect_right_loads<U8>("uint8");
  expect_right_loads<Bool>("boolean");
  expect_right_loads<I32>("int32");
}

TEST(HostKernels, StoreFurtherOutputsAndNothingElse) {
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(wrong_stores<F32>(), 0);
    EXPECT_EQ(wrong_stores<Bf16>(), 0);
    EXPECT_EQ(wrong_stores<F16>(), 0);
    EXPECT_EQ(wrong_stores<I8>(), 0);
    EXPECT_EQ(wrong_stores<U8>(), 0);
    EXPECT_EQ(wrong_stores<I32>(), 0);
  }
}

TEST(HostKernels, RoundToBytesAsTheDocsSay) {
  EXPECT_EQ(I8::round(127.5F), 127);
  EXPECT_EQ(I8::round(-1000.0F), -128);
  EXPECT_EQ(I8::round(2.5F), 2);
  EXPECT_EQ(I8::round(1 << 30), 127);
  EXPECT_EQ(I8::round(NAN), 0);
  EXPECT_EQ(U8::round(-3.0F), 0);
  EXPECT_EQ(U8::round(200), 200);
  EXPECT_EQ(Bool::round(NAN), 1);
  EXPECT_EQ(E4m3::round(1000.0F), 448);
  EXPECT_EQ(E4m3::round(17.0F), 16);
  EXPECT_EQ(E5m2::round(-INFINITY), -57344);
  EXPECT_EQ(I8::pack(-1.0F, 3.0F), 0x03ff);
  EXPECT_EQ(div_int(-2147483647 - 1, -1), -2147483647 - 1);
  EXPECT_EQ(div_int(7, 0) + mod_int(7, 0) + mod_int(7, -1), 0);
  EXPECT_EQ(mul_int(1 << 20, 1 << 12), 0);
}

TEST(HostKernels, FormulasAreThoseOfTheDocs) {
  const auto close = [](float got, double want, double x) {
    EXPECT_NEAR(got, want, (6e-7 + 1.3e-7 * std::fabs(x)) * std::fabs(want) + 1e-37) << "at " << x;  // e^x by 2^y
  };
  for (double x = -20; x <= 20; x += 0.0371) {
    const auto f = static_cast<float>(x);
    const double v = f, e = std::exp(-v), s = 1 / (1 + e);
    close(vg::sigmoid(f), s, x);
    close(vg::sigmoid_slope(f), std::exp(-std::fabs(v)) / std::pow(1 + std::exp(-std::fabs(v)), 2), x);
    close(vg::swish(f, 1.0F), v * s, x);
    const double inner = 0.7978845608028654 * (v + 0.044715 * v * v * v), tanh = v / (1 + std::exp(-2 * inner));
    EXPECT_NEAR(vg::gelu_tanh(f), tanh, (6e-7 + 4e-7 * std::fabs(inner)) * std::fabs(tanh) + 1e-37) << x;
    const double gelu = 0.5 * v * std::erfc(-v * std::sqrt(0.5));  // its tail multiplies the rounding of its argument by x²
    EXPECT_NEAR(vg::gelu(f), gelu, (6e-7 + 1.2e-7 * v * v) * std::fabs(gelu) + 1e-37) << x;
    close(vg::leaky(f, 0.25F), v > 0 ? v : 0.25 * v, x);
  }
  EXPECT_EQ(vg::softplus(INFINITY, 1.0F), INFINITY);
  EXPECT_EQ(vg::softplus(-INFINITY, 2.0F), 0.0F);
  EXPECT_TRUE(std::isnan(vg::softplus(NAN, 1.0F)));
  EXPECT_TRUE(std::isnan(vg::max_nan(NAN, 1.0F)) && std::isnan(vg::max_nan(1.0F, NAN)));
  EXPECT_TRUE(std::isnan(vg::min_nan(NAN, 1.0F)) && std::isnan(vg::sigmoid(NAN)) && std::isnan(vg::swish(NAN, 1.0F)));
}

}  // namespace
