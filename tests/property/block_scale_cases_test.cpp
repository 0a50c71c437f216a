#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "oracle/block_scale.hpp"
#include "oracle/memory.hpp"
#include "support/cliff.hpp"
#include "verglas/verglas.hpp"

// What went wrong with narrow formats for people who do this job, on the CPU engine. Each test is named after its case.
namespace {

using namespace verglas;
using oracle::Format;
using Bytes = std::vector<unsigned char>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

double decoded(DataType t, const Bytes& bytes, std::size_t i) {
  return oracle::value_at(static_cast<Format>(t), bytes.data(), static_cast<std::int64_t>(i));
}

/// One row of numbers through a graph, quantised; also what a plain store of the same numbers gives in `plain`.
struct Row {
  Bytes data, scales, plain;
  float amax = 0;
};
Row quantised(const std::vector<float>& x, DataType data, DataType scale, int block, DataType plain = DataType::fp8_e4m3) {
  const auto n = static_cast<std::int64_t>(x.size());
  Graph g({.io_data_type = DataType::fp32});
  const Tensor one = g.tensor({.name = "one", .dim = {1, 1}, .stride = {1, 1}});
  const Tensor b = g.tensor({.name = "x", .dim = {1, n}, .stride = {n, 1}});
  const Tensor c = g.matmul(one, b);
  auto [q, s] = g.block_scale_quantize(c, block);
  q.set_name("q").set_data_type(data).set_output(true);
  s.set_name("s").set_data_type(scale).set_output(true);
  Tensor cast = g.pointwise(PointwiseMode::identity, {c});
  cast.set_name("plain").set_data_type(plain).set_output(true);
  g.reduction(c, ReductionMode::amax).set_name("amax").set_dim({1, 1}).set_output(true);
  const CompiledPlan plan = g.compile();
  Row r{Bytes(x.size() * static_cast<std::size_t>(bits_of(data)) / 8, 0xA5), Bytes(x.size() / static_cast<std::size_t>(block)),
        Bytes(x.size()), 0};
  float first = 1;
  std::vector<TensorView> views;
  for (const OperandInfo& o : plan.operands()) {
    void* const p = o.name == "one"    ? static_cast<void*>(&first)
                    : o.name == "x"    ? static_cast<void*>(const_cast<float*>(x.data()))
                    : o.name == "q"    ? static_cast<void*>(r.data.data())
                    : o.name == "s"    ? static_cast<void*>(r.scales.data())
                    : o.name == "amax" ? static_cast<void*>(&r.amax)
                                       : static_cast<void*>(r.plain.data());
    views.push_back(TensorView::address(p));
  }
  plan.run(views);
  return r;
}

struct Format4 {
  DataType data, scale;
  int block;
};
constexpr Format4 kMxfp8{DataType::fp8_e4m3, DataType::fp8_e8m0, 32}, kNvfp4{DataType::fp4_e2m1, DataType::fp8_e4m3, 16};

TEST(NarrowCases, A03_PaddingBytesOfScalesChangeNothing) {
  for (const Format4& f : {kMxfp8, kNvfp4}) {
    const std::int64_t m = 5, n = 40, k = 96, columns = (k + f.block - 1) / f.block;
    Graph g({.io_data_type = DataType::fp32});
    const auto matrix = [&](const char* name, std::int64_t rows, bool second) {
      return g.tensor({.name = name,
                       .dim = second ? std::vector{k, rows} : std::vector{rows, k},
                       .stride = second ? std::vector<std::int64_t>{1, k} : std::vector<std::int64_t>{k, 1},
                       .data_type = f.data});
    };
    const auto scales = [&](const char* name) {
      return g.tensor({.name = name,
                       .dim = {oracle::atom_bytes(1, 1, columns)},
                       .stride = {1},
                       .data_type = f.scale,
                       .reordering = TensorReordering::f8_128x4});
    };
    const Tensor a = matrix("a", m, false), b = matrix("b", n, true);
    g.matmul(g.block_scale_dequantize(a, scales("sa"), {f.block}), g.block_scale_dequantize(b, scales("sb"), {f.block}))
        .set_output(true);
    const CompiledPlan plan = g.compile();
    std::vector<std::vector<float>> results;
    for (const int poison : {0xFF, 0x00, 0xFE, 0x7F}) {
      const auto codes = [&](std::int64_t rows) {
        Bytes bytes(static_cast<std::size_t>(rows * k));
        for (std::int64_t i = 0; i < rows * k; ++i)
          oracle::put_at(static_cast<Format>(f.data), bytes.data(), i, static_cast<double>((i * 5 + i / 11) % 7 - 3));
        return bytes;
      };
      const auto blob = [&](std::int64_t rows) {
        Bytes bytes(static_cast<std::size_t>(oracle::atom_bytes(1, rows, columns)), static_cast<unsigned char>(poison));
        const auto one = static_cast<unsigned char>(oracle::encode(static_cast<Format>(f.scale), 1));
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < columns; ++c)
            bytes[static_cast<std::size_t>(oracle::atom_byte(rows, columns, 0, r, c))] = one;
        return bytes;
      };
      Bytes va = codes(m), vb = codes(n), sa = blob(m), sb = blob(n);
      std::vector<float> out(static_cast<std::size_t>(m * n), kNan);
      plan.run(std::vector<TensorView>{TensorView::address(va.data()), TensorView::address(vb.data()),
                                       TensorView::address(sa.data()), TensorView::address(sb.data()),
                                       TensorView::address(out.data())});
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          double want = 0;
          for (std::int64_t q = 0; q < k; ++q)
            want += oracle::value_at(static_cast<Format>(f.data), va.data(), i * k + q) *
                    oracle::value_at(static_cast<Format>(f.data), vb.data(), j * k + q);
          ASSERT_EQ(static_cast<double>(out[static_cast<std::size_t>(i * n + j)]), want) << poison;
        }
    }
  }
}

TEST(NarrowCases, A16_ALongSumOfFp8LosesNothing) {
  constexpr std::int64_t kM = 64, kN = 64, kK = 8192;
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}, .data_type = DataType::fp8_e4m3});
  const Tensor b = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}, .data_type = DataType::fp8_e4m3});
  g.matmul(a, b).set_output(true);
  Bytes x(static_cast<std::size_t>(kM * kK), static_cast<unsigned char>(oracle::encode(Format::e4m3, 0.25)));
  for (std::int64_t r = 0; r < kM; ++r)
    x[static_cast<std::size_t>(r * kK)] = static_cast<unsigned char>(oracle::encode(Format::e4m3, 256));
  std::vector<float> out(static_cast<std::size_t>(kM * kN));
  g.compile().run(
      std::vector<TensorView>{TensorView::address(x.data()), TensorView::address(x.data()), TensorView::address(out.data())});
  EXPECT_EQ(out, std::vector<float>(out.size(), 66047.9375F));
}

/// Zeros behind which no memory is.
class CliffBytes {
 public:
  explicit CliffBytes(std::int64_t bytes) : memory_(std::make_unique<support::Cliff>(static_cast<std::size_t>(bytes))) {}
  void* data() const { return memory_->data(); }
  unsigned char& operator[](std::int64_t i) const { return static_cast<unsigned char*>(data())[i]; }

 private:
  std::unique_ptr<support::Cliff> memory_;
};

/// All elements are 1, scales 1, 2 or 4 by row: data and scales end where memory does.
void check_ends_of_scales(const Format4& f, std::int64_t k, bool in_atoms) {
  SCOPED_TRACE(std::string(name_of(f.data)) + (in_atoms ? " in atoms" : " in plain order") + ", K " + std::to_string(k));
  constexpr std::int64_t kM = 193, kN = 97;
  const std::int64_t columns = (k + f.block - 1) / f.block;
  Graph g({.io_data_type = DataType::fp32});
  struct Side {
    CliffBytes data, scales;
  };
  const auto scale_of = [](std::int64_t row) { return std::ldexp(1.0, static_cast<int>(row % 3)); };
  const auto side = [&](std::int64_t rows, bool is_b, Tensor& entering) {
    const std::int64_t bytes = in_atoms ? oracle::atom_bytes(1, rows, columns) : rows * columns;
    Side s{CliffBytes(rows * k * bits_of(f.data) / 8), CliffBytes(bytes)};
    for (std::int64_t i = 0; i < rows * k; ++i) oracle::put_at(static_cast<Format>(f.data), s.data.data(), i, 1);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        s.scales[in_atoms ? oracle::atom_byte(rows, columns, 0, r, c) : r * columns + c] =
            static_cast<unsigned char>(oracle::encode(static_cast<Format>(f.scale), scale_of(r)));
    using Dims = std::vector<std::int64_t>;
    const Tensor matrix =
        g.tensor({.dim = is_b ? Dims{k, rows} : Dims{rows, k}, .stride = is_b ? Dims{1, k} : Dims{k, 1}, .data_type = f.data});
    const Tensor scales =
        in_atoms ? g.tensor({.dim = {bytes}, .stride = {1}, .data_type = f.scale, .reordering = TensorReordering::f8_128x4})
                 : g.tensor({.dim = is_b ? Dims{columns, rows} : Dims{rows, columns},
                             .stride = is_b ? Dims{1, columns} : Dims{columns, 1},
                             .data_type = f.scale});
    entering = g.block_scale_dequantize(matrix, scales, {f.block});
    return s;
  };
  Tensor ta, tb;
  const Side a = side(kM, false, ta), b = side(kN, true, tb);
  g.matmul(ta, tb).set_output(true);
  const CliffBytes out(kM * kN * 4);
  const PlanList plans = g.plans();
  ASSERT_GT(plans.size(), 0U);
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const Status status =
        plans.compile(p).execute(std::vector<void*>{a.data.data(), b.data.data(), a.scales.data(), b.scales.data(), out.data()});
    ASSERT_TRUE(status.ok());
    for (std::int64_t i = 0; i < kM * kN; ++i)
      ASSERT_EQ(oracle::value_at(Format::fp32, out.data(), i), static_cast<double>(k) * scale_of(i / kN) * scale_of(i % kN)) << i;
  }
}

TEST(NarrowCases, A36_NoReadPastTheEndOfScales) {
  for (const bool in_atoms : {true, false}) {
    for (const std::int64_t k : {128, 144}) check_ends_of_scales(kMxfp8, k, in_atoms);
    for (const std::int64_t k : {128, 136}) check_ends_of_scales(kNvfp4, k, in_atoms);
  }
}

TEST(NarrowCases, A19_BeyondTheRangeOfFp8) {
  std::vector<float> x = {448, 464, 465, 480, 1000, -1000, kInf, -kInf, kNan};
  x.resize(32, 1);
  const Row e4m3 = quantised(x, DataType::fp8_e4m3, DataType::fp8_e8m0, 32);
  const Bytes want = {0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0xFE};
  EXPECT_EQ(Bytes(e4m3.plain.begin(), e4m3.plain.begin() + 8), want);
  EXPECT_EQ(e4m3.plain[8] & 0x7F, 0x7F);
  EXPECT_TRUE(std::isnan(e4m3.amax));
  x = {57344, 61439, 61440, 61441, -61441, kInf};
  x.resize(32, 1);
  const Row e5m2 = quantised(x, DataType::fp8_e5m2, DataType::fp8_e8m0, 32, DataType::fp8_e5m2);
  EXPECT_EQ(Bytes(e5m2.plain.begin(), e5m2.plain.begin() + 6), (Bytes{0x7B, 0x7B, 0x7B, 0x7B, 0xFB, 0x7B}));
  EXPECT_EQ(e5m2.amax, kInf) << "amax is of the value before it saturates";
}

TEST(NarrowCases, A20_BlocksOfNothingAndOfAlmostNothing) {
  for (const Format4& f : {kMxfp8, kNvfp4, Format4{DataType::fp8_e5m2, DataType::fp8_e8m0, 32},
                           Format4{DataType::fp4_e2m1, DataType::fp8_e8m0, 32}}) {
    std::vector<float> x;
    for (const float v : {0.0F, 0x1p-133F, 5e-37F, 1e-40F, 1e-38F, 1e30F})
      for (int i = 0; i < f.block; ++i) x.push_back(v == 1e-38F && i > 0 ? 0 : v);
    const Row r = quantised(x, f.data, f.scale, f.block);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double s = decoded(f.scale, r.scales, i / static_cast<std::size_t>(f.block)), q = decoded(f.data, r.data, i);
      ASSERT_FALSE(std::isnan(s) || std::isnan(q)) << x[i];
      if (x[i] == 0 || s == 0) {
        ASSERT_EQ(q, 0) << x[i] << " under a scale of " << s;
      }
      // Half a step of the elements, at either end of their range; scales of e4m3 begin at 2^-9.
      const double off = static_cast<double>(x[i]) / 4 + s + (f.scale == DataType::fp8_e8m0 ? 0x1p-126 : 0x1p-8);
      if (x[i] < 1e29F) {
        ASSERT_LE(std::fabs(q * s - static_cast<double>(x[i])), off) << x[i];
      }
    }
    EXPECT_EQ(r.scales[0], 0) << "a block of zeros";
  }
}

TEST(NarrowCases, A21_TiesOfFp4GoToTheEvenCode) {
  std::vector<float> x, want;
  const std::vector<std::pair<float, float>> middles = {{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2},
                                                        {2.5F, 2},  {3.5F, 4},  {5, 4}};
  const std::vector<float> values = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (std::size_t i = 0; i < middles.size(); ++i)
    for (const float sign : {1.0F, -1.0F}) {
      const float v = middles[i].first;
      for (const auto& [in, out] : {std::pair(v, middles[i].second), std::pair(std::nextafter(v, 9.0F), values[i + 1]),
                                    std::pair(std::nextafter(v, -9.0F), values[i])}) {
        x.push_back(sign * in);
        want.push_back(sign * out);
      }
    }
  while (x.size() % 15 != 0) {
    x.push_back(1);
    want.push_back(1);
  }
  // A 6 in each block of 16 makes its scale 1.
  for (std::size_t i = 0; i < x.size(); i += 16) {
    x.insert(x.begin() + static_cast<std::ptrdiff_t>(i), 6);
    want.insert(want.begin() + static_cast<std::ptrdiff_t>(i), 6);
  }
  const Row r = quantised(x, kNvfp4.data, kNvfp4.scale, kNvfp4.block);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(decoded(DataType::fp4_e2m1, r.data, i), static_cast<double>(want[i])) << x[i];
    EXPECT_EQ(std::signbit(decoded(DataType::fp4_e2m1, r.data, i)), std::signbit(want[i])) << x[i];
  }
}

TEST(NarrowCases, A22_ThePowerOfTwoOfABlockNeverClips) {
  for (const DataType data : {DataType::fp8_e4m3, DataType::fp4_e2m1})
    for (const float most : {1.0F, 1.5F, 1.53125F, 1.75F, 1.9375F, 6.0F, 448.0F, 0x1p-118F, 0x1p127F}) {
      std::vector<float> x(32, 0);
      x[7] = most;
      const Row r = quantised(x, data, DataType::fp8_e8m0, 32);
      const double limit = data == DataType::fp8_e4m3 ? 448 : 6, s = decoded(DataType::fp8_e8m0, r.scales, 0);
      EXPECT_GE(s * limit, static_cast<double>(most)) << most;
      EXPECT_LT(s / 2 * limit, static_cast<double>(most)) << most << ": the next smaller power would do";
      EXPECT_NEAR(decoded(data, r.data, 7) * s, static_cast<double>(most), static_cast<double>(most) / 4);
    }
}

TEST(NarrowCases, A30_ExtentsOfFp4CountElements) {
  const auto said = [](std::int64_t scales, std::int64_t k, std::int64_t stride) {
    Graph g({.io_data_type = DataType::fp32});
    const Tensor a = g.tensor({.name = "a", .dim = {64, k}, .stride = {stride, 1}, .data_type = DataType::fp4_e2m1});
    const Tensor s = g.tensor({.name = "s", .dim = {64, scales}, .stride = {scales, 1}, .data_type = DataType::fp8_e4m3});
    const Tensor b = g.tensor({.name = "b", .dim = {k, 8}, .stride = {8, 1}});
    g.matmul(g.block_scale_dequantize(a, s, {1, 16}, {.name = "dq"}), b).set_output(true);
    try {
      g.compile();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(said(8, 128, 128), "");
  for (const std::int64_t wrong : {4, 16})
    EXPECT_NE(said(wrong, 128, 128).find("wanted (64, 8) for data (64, 128) in blocks of 16"), std::string::npos);
  EXPECT_NE(said(8, 127, 128).find("graph.packed"), std::string::npos);
  EXPECT_NE(said(8, 128, 129).find("graph.packed"), std::string::npos);
  // An fp4 output of N = 48 has 24 bytes a row; what lies behind is left alone.
  const Row r = quantised(std::vector<float>(48, 3), kNvfp4.data, kNvfp4.scale, kNvfp4.block);
  EXPECT_EQ(r.data.size(), 24U);
}

}  // namespace
