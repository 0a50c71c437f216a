#include <gtest/gtest.h>

#include "beside_cpu.hpp"
#include "numeric/convert.hpp"
#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

// Quantised outputs on a device and by the CPU engine: the same bits of elements, scales and padding, beside dense outputs and a
// reduction or alone.
namespace verglas {
namespace {

struct Case {
  std::int64_t l, m, n, k;
  DataType data, scale;
  std::int64_t block;
  bool interleaved = true, dense = false, reduces = false, gap = false;
  DataType between = DataType::fp32;
  bool along_n = true, along_m = false, m_major = false;
  DataType operands = DataType::bf16;
  bool bytes = false;  ///< the value beside it, as the first output
  double vmax = 0;
  bool pairs = false;  ///< the value beside it in fp4, without scales
  bool residual = false;
  std::size_t shift = 0;  ///< bytes by which elements and scales begin later
};

std::int64_t ceil_to(std::int64_t x, std::int64_t y) { return (x + y - 1) / y * y; }

void describe(Graph& g, const Case& c) {
  const Tensor a = g.tensor({.name = "a", .dim = {c.l, c.m, c.k}, .stride = {c.m * c.k, c.k, 1}, .data_type = c.operands});
  const Tensor b = g.tensor({.name = "b", .dim = {c.l, c.k, c.n}, .stride = {c.n * c.k, 1, c.k}, .data_type = c.operands});
  const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, c.n}, .stride = {c.n, c.n, 1}, .data_type = DataType::fp32});
  Tensor x = g.add(g.matmul(a, b), bias).set_data_type(c.between);
  if (c.residual)
    x = g.add(x, g.tensor({.name = "r", .dim = {c.l, c.m, c.n}, .stride = {c.m * c.n, c.n, 1}, .data_type = c.between}))
            .set_data_type(c.between);
  const auto quantise = [&](int axis, const std::string& suffix) {
    auto [y, s] = g.block_scale_quantize(x, c.block, std::optional<int>(axis), {.name = "q" + suffix}, false, c.vmax);
    const std::int64_t pitch = (c.m_major ? c.m : c.n) + (c.gap ? 4 : 0);
    y.set_name("y" + suffix).set_data_type(c.data).set_output(true);
    y.set_stride(c.m_major ? std::vector{c.n * pitch, std::int64_t{1}, pitch} : std::vector{c.m * pitch, pitch, std::int64_t{1}});
    s.set_name("s" + suffix).set_data_type(c.scale).set_output(true);
    if (!c.interleaved) return;
    const std::int64_t rows = ceil_to(axis == 2 ? c.m : c.n, 128), columns = ceil_to((axis == 2 ? c.n : c.m) / c.block, 4);
    s.set_dim({c.l, rows, columns}).set_stride({rows * columns, columns, 1}).set_reordering_type(TensorReordering::f8_128x4);
  };
  if (c.bytes) g.pointwise(PointwiseMode::identity, {x}).set_output(true).set_data_type(DataType::fp8_e4m3);
  if (c.pairs) g.pointwise(PointwiseMode::identity, {x}).set_output(true).set_data_type(DataType::fp4_e2m1);
  if (c.along_n) quantise(2, "");
  if (c.along_m) quantise(1, " (columns)");
  if (c.dense) x.set_output(true);
  if (c.reduces) g.reduction(x, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true).set_data_type(DataType::fp32);
}

void compare(const Case& c, std::size_t plan_index) {
  SCOPED_TRACE(::testing::Message() << c.l << 'x' << c.m << 'x' << c.n << 'x' << c.k << ' ' << name_of(c.data) << " block "
                                    << c.block << (c.interleaved ? " interleaved" : "") << (c.gap ? " gap" : "")
                                    << (c.along_m ? c.along_n ? " both" : " columns" : "") << (c.m_major ? " m-major" : "")
                                    << (c.dense ? " dense" : "") << (c.reduces ? " amax" : "") << (c.bytes ? " bytes" : "")
                                    << (c.pairs ? " pairs" : "") << (c.residual ? " residual" : "") << " up to " << c.vmax
                                    << " from " << name_of(c.operands));
  const auto fill = [](const OperandInfo& o, gpu_test::Bytes& bytes, std::mt19937& random) {
    const auto size = static_cast<std::size_t>(bytes_of(o.dtype));
    for (std::size_t i = 0; i < bytes.size() / size; ++i) {
      // Some rows and columns are small, so that scales differ, and a few blocks are zeros.
      const int scale = i / 64 % 5 == 0 ? 0 : 1 << i / 64 % 4;
      numeric::from_float(static_cast<float>((static_cast<int>(random() % 7) - 3) * scale), &bytes[i * size], o.dtype);
    }
  };
  const auto shift = [&](const OperandInfo& o) { return o.is_output && bits_of(o.dtype) <= 8 ? c.shift : 0; };
  gpu_test::expect_same_bytes(
      gpu_test::run_beside_cpu([&](Graph& g) { describe(g, c); }, plan_index,
                               {.fill = fill, .shift = shift, .seed = static_cast<unsigned>(c.m * 31 + c.n * 7 + c.k)}));
}

TEST(Sm90Quantise, GivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kE4m3 = DataType::fp8_e4m3, kE5m2 = DataType::fp8_e5m2, kFp4 = DataType::fp4_e2m1,
                     kE8m0 = DataType::fp8_e8m0;
  std::vector<Case> cases;
  for (const bool interleaved : {true, false})
    for (const bool gap : {false, true}) {
      cases.push_back({1, 300, 544, 72, kE4m3, kE8m0, 32, interleaved, false, false, gap});
      cases.push_back({2, 130, 288, 64, kFp4, kE4m3, 16, interleaved, true, false, gap});
      cases.push_back({1, 64, 96, 40, kE5m2, kE8m0, 32, interleaved, false, true, gap});
      cases.push_back({1, 7, 1056, 64, kFp4, kE8m0, 32, interleaved, false, false, gap});
      cases.push_back({3, 65, 160, 24, kFp4, kE4m3, 32, interleaved, true, true, gap});
      cases.push_back({1, 129, 208, 64, kFp4, kE8m0, 16, interleaved, false, false, gap, DataType::bf16});
      cases.push_back({1, 257, 320, 0, kE4m3, kE8m0, 32, interleaved, false, false, gap});
    }
  const auto columns = [&](Case c, bool both) {
    c.along_m = true, c.along_n = both;
    cases.push_back(c);
  };
  for (const bool interleaved : {true, false})
    for (const bool both : {false, true}) {
      columns({1, 320, 544, 72, kE4m3, kE8m0, 32, interleaved, false, false, both}, both);
      columns({2, 160, 288, 64, kFp4, kE4m3, 16, interleaved, true, false, false}, both);
      columns({1, 64, 96, 40, kE5m2, kE8m0, 32, interleaved, false, true, false, DataType::bf16}, both);
      columns({3, 32, 1056, 64, kFp4, kE8m0, 32, interleaved, false, false, false}, both);
      columns({1, 16, 160, 24, kE4m3, kE4m3, 16, interleaved, true, true, true}, both);
      columns({2, 288, 224, 0, kE5m2, kE8m0, 16, interleaved, false, false, false}, both);
      Case turned{1, 224, 192, 64, kE4m3, kE8m0, 32, interleaved, true};
      turned.m_major = true;
      columns(turned, both);
    }
  for (std::int64_t n : {std::int64_t{7}, std::int64_t{130}}) columns({2, 96, n, 64, kE4m3, kE8m0, 32}, false);
  for (std::size_t i = 0; i < 6; ++i) columns({1, 1056, 1056, 128, kE4m3, kE8m0, 32, true, i % 2 == 0}, i % 3 == 0);
  for (std::size_t i = 0; i < 6; ++i) columns({1, 1040, 1040, 128, kFp4, kE4m3, 16, true, true, true}, i % 3 == 0);
  for (std::size_t i = 0; i < 6; ++i) cases.push_back({1, 1030, 1056, 128, kE4m3, kE8m0, 32});
  for (std::size_t i = 0; i < 6; ++i) cases.push_back({1, 1030, 1040, 128, kFp4, kE4m3, 16, true, true});
  // Sums of fp8 are promoted, which takes registers.
  for (std::size_t i = 0; i < 5; ++i)
    for (const bool fp4 : {false, true}) {
      Case c{1, 1056, 1120, 256, fp4 ? kFp4 : kE4m3, fp4 ? kE4m3 : kE8m0, fp4 ? 16 : 32, true, i % 2 == 0, i % 2 == 0};
      c.operands = kE4m3;
      columns(c, i % 3 == 0);
    }
  // What is made of them is stored in pieces of 16 bytes where these fit, and byte by byte.
  for (std::size_t i = 0; i < 3; ++i)
    for (const bool gap : {false, true})
      for (const bool fp4 : {false, true}) {
        Case c{2, 300, 544, 128, fp4 ? kFp4 : kE4m3, fp4 ? kE4m3 : kE8m0, fp4 ? 16 : 32, !gap, i == 1, i == 1, gap};
        c.operands = kE4m3;
        cases.push_back(c);
        c.m = 288, c.m_major = i == 2 && !fp4;  // pairs of fp4 lie along N
        columns(c, i != 0);
        c.n = 130, c.m_major = false;
        columns(c, false);
      }
  // Beside an operand that lies where D will.
  for (std::size_t i = 0; i < 4; ++i) {
    Case c{1, 96, 96, 128, kE4m3, kE8m0, 32, true, true, false, false, DataType::bf16};
    c.operands = kE4m3, c.residual = true;
    cases.push_back(c);
    columns(c, i % 2 == 0);
  }
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { compare(cases[i], i); });
}

// Small enough for the sanitizers: rows of two warps and of one meet in shared memory.
TEST(Sm90Quantise, ColumnsGiveTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kE4m3 = DataType::fp8_e4m3, kFp4 = DataType::fp4_e2m1, kE8m0 = DataType::fp8_e8m0;
  std::vector<Case> cases;
  for (const bool both : {true, false}) {
    Case c{1, 160, 544, 128, kE4m3, kE8m0, 32};
    c.along_m = true, c.along_n = both;
    cases.push_back(c);
    c.data = kFp4, c.scale = kE4m3, c.block = 16;
    cases.push_back(c);
    c.operands = kE4m3;
    cases.push_back(c);
  }
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { compare(cases[i], 0); });
}

// A chunk of bytes has 128 columns, of which quantisers take 32, 64 or all at once.
TEST(Sm90Quantise, GivesTheBitsOfTheCpuEngineBesideBytes) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kE4m3 = DataType::fp8_e4m3, kFp4 = DataType::fp4_e2m1, kE8m0 = DataType::fp8_e8m0;
  std::vector<Case> cases;
  for (const std::int64_t k : {128, 63})  // threads load rows of odd length
    for (const bool both : {true, false}) {
      Case c{1, 288, 544, k, kE4m3, kE8m0, 32};
      c.bytes = true, c.along_m = both;
      cases.push_back(c);
      c.data = kFp4, c.scale = kE4m3, c.block = 16, c.n = 208, c.reduces = true;
      cases.push_back(c);
    }
  gpu_test::each_on_device(3 * cases.size(), [&](std::size_t i) { compare(cases[i / 3], i % 3); });
}

TEST(Sm90Quantise, BlocksOfLessThanTheLargestNumberGiveTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  std::vector<Case> cases;
  for (const DataType scale : {DataType::fp8_e8m0, DataType::fp8_e4m3})
    for (const bool both : {false, true}) {
      Case c{2, 160, 544, 72, DataType::fp8_e5m2, scale, 32};
      c.vmax = 128, c.along_m = both, c.reduces = both;
      cases.push_back(c);
    }
  gpu_test::each_on_device(2 * cases.size(), [&](std::size_t i) { compare(cases[i / 2], i % 2); });
}

TEST(Sm90Quantise, PairsWithoutScalesGiveTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  std::vector<Case> cases;
  for (const std::int64_t n : {2, 30, 130, 544, 1040})
    for (const bool more : {false, true}) {
      Case c{2, n == 1040 ? 1030 : 131, n, 72, DataType::fp4_e2m1, DataType::fp8_e4m3, 16};
      c.pairs = true, c.along_n = more && n % 16 == 0, c.dense = more, c.reduces = more;
      cases.push_back(c);
    }
  gpu_test::each_on_device(3 * cases.size(), [&](std::size_t i) { compare(cases[i / 3], i % 3); });
}

TEST(Sm90Quantise, WritesAtAnyAddress) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kE4m3 = DataType::fp8_e4m3, kFp4 = DataType::fp4_e2m1, kE8m0 = DataType::fp8_e8m0;
  std::vector<Case> cases;
  for (const std::size_t shift : {1, 2, 3})
    for (const bool both : {false, true}) {
      Case c{2, 160, 544, 72, kE4m3, kE8m0, 32, true, shift == 2};
      c.along_m = both, c.shift = shift;
      cases.push_back(c);
      c.data = kFp4, c.scale = kE4m3, c.block = 16;
      cases.push_back(c);
      c.operands = kE4m3, c.k = 128;
      cases.push_back(c);
    }
  gpu_test::each_on_device(3 * cases.size(), [&](std::size_t i) { compare(cases[i / 3], i % 3); });
}

}  // namespace
}  // namespace verglas
