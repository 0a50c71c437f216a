#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "verglas/verglas.hpp"

// Weights with scales of blocks that lie expert by expert where tables say, on the CPU engine, beside plain loops. Elements and
// scales are few powers of two and small integers, so that every sum is exact.
namespace {

using namespace verglas;
using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t kRows = 14, kN = 19, kK = 96, kExperts = 3;
constexpr float kPoison = -12345.0F;

struct Format {
  DataType type, scale;
  std::int64_t block;
  bool in_atoms, scales_in_tensor;
};

struct Weights {
  std::vector<double> value;  ///< (n, k)
  Bytes data, scales;
};

/// Where the scale of a row and a block lies.
std::size_t place(const Format& f, std::int64_t n, std::int64_t block) {
  if (!f.in_atoms) return static_cast<std::size_t>(n * (kK / f.block) + block);
  const std::int64_t across = (kK / f.block + 3) / 4;
  return static_cast<std::size_t>((n / 128 * across + block / 4) * 512 + n % 32 * 16 + n % 128 / 32 * 4 + block % 4);
}
std::size_t scale_bytes(const Format& f) {
  return static_cast<std::size_t>(f.in_atoms ? (kN + 127) / 128 * ((kK / f.block + 3) / 4) * 512 : kN * (kK / f.block));
}

Weights weights(const Format& f, std::int64_t seed) {
  constexpr std::array<std::uint8_t, 3> kE8m0 = {126, 127, 128}, kE4m3 = {0x30, 0x38, 0x40}, kOfFp8 = {0x38, 0xC0, 0x00},
                                        kOfFp4 = {0x2, 0xC, 0x0};
  constexpr std::array<double, 3> kScale = {0.5, 1.0, 2.0}, kElement = {1, -2, 0};
  const bool is_fp4 = f.type == DataType::fp4_e2m1;
  Weights w{std::vector<double>(kN * kK), Bytes(static_cast<std::size_t>(kN * kK / (is_fp4 ? 2 : 1))),
            Bytes(scale_bytes(f), 0xFF)};
  for (std::int64_t n = 0; n < kN; ++n)
    for (std::int64_t k = 0; k < kK; ++k) {
      const auto at = static_cast<std::size_t>(n * kK + k), i = static_cast<std::size_t>(n * 7 + k * 5 + k / 3 + seed) % 3,
                 s = static_cast<std::size_t>(n * 2 + k / f.block + seed) % 3;
      w.value[at] = kElement[i] * kScale[s];
      if (is_fp4)
        w.data[at / 2] = static_cast<std::uint8_t>(w.data[at / 2] | kOfFp4[i] << 4 * (at % 2));
      else
        w.data[at] = kOfFp8[i];
      w.scales[place(f, n, k / f.block)] = (f.scale == DataType::fp8_e8m0 ? kE8m0 : kE4m3)[s];
    }
  return w;
}

class GroupedScales : public ::testing::TestWithParam<Format> {};

TEST_P(GroupedScales, LieWhereTablesSay) {
  const Format f = GetParam();
  const std::int64_t blocks = kK / f.block, of_row = f.in_atoms ? (blocks + 3) / 4 * 4 : blocks,
                     rows = f.in_atoms ? (kN + 127) / 128 * 128 : kN;
  Graph g({.io_data_type = DataType::fp32});
  const auto input = [&](const char* name, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride, DataType t) {
    return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
  };
  const Tensor x = input("x", {1, kRows, kK}, {kRows * kK, kK, 1}, DataType::fp32);
  Tensor w = input("w", {kExperts, kK, kN}, {kN * kK, 1, kK}, f.type);
  Tensor s = input("s", {kExperts, of_row, rows}, {rows * of_row, 1, of_row}, f.scale);
  if (f.in_atoms) s.set_reordering_type(TensorReordering::f8_128x4);
  w.set_by_pointers(true);
  s.set_by_pointers(!f.scales_in_tensor);
  const Tensor o = input("o", {kExperts}, {1}, DataType::int32);
  g.moe_grouped_matmul(x, g.block_scale_dequantize(w, s, {f.block, 1}), o).set_output(true).set_name("y");
  const CompiledPlan plan = g.compile();

  std::vector<Weights> all;
  Bytes scales_in_tensor;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    all.push_back(weights(f, e));
    scales_in_tensor.insert(scales_in_tensor.end(), all.back().scales.begin(), all.back().scales.end());
  }
  std::vector<float> tokens(kRows * kK);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<float>(static_cast<int>(i * 11 % 5) - 2);
  const std::vector<std::int32_t> first = {1, 6, 11};
  constexpr std::array<std::size_t, 3> kWhose = {2, 0, 1};  // of each expert, in a tensor scales are in their order
  for (int without = -1; without < kExperts; ++without) {   // whose scales, or else weights, have no address
    std::vector<const std::uint8_t*> of_w, of_s;
    for (std::size_t e = 0; e < kExperts; ++e) {
      const std::size_t from = f.scales_in_tensor ? e : kWhose[e];
      const bool lacks = static_cast<int>(e) == without;
      of_w.push_back(lacks && f.scales_in_tensor ? nullptr : all[from].data.data());
      of_s.push_back(lacks ? nullptr : all[from].scales.data());
    }
    std::vector<float> y(kRows * kN, kPoison);
    const std::map<std::string, const void*> operands = {
        {"x", tokens.data()},
        {"w", of_w.data()},
        {"s", f.scales_in_tensor ? static_cast<const void*>(scales_in_tensor.data()) : of_s.data()},
        {"o", first.data()},
        {"y", y.data()}};
    std::vector<void*> call;
    for (const OperandInfo& info : plan.operands()) call.push_back(const_cast<void*>(operands.at(info.name)));
    const Status status = plan.execute(call);
    ASSERT_TRUE(status.ok()) << plan.name();
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t n = 0; n < kN; ++n) {
        const int expert = r < first[0] ? -1 : r < first[1] ? 0 : r < first[2] ? 1 : 2;
        double want = expert < 0 || expert == without ? kPoison : 0;
        if (want == 0) {
          const Weights& of =
              all[f.scales_in_tensor ? static_cast<std::size_t>(expert) : kWhose[static_cast<std::size_t>(expert)]];
          for (std::int64_t k = 0; k < kK; ++k)
            want += tokens[static_cast<std::size_t>(r * kK + k)] * of.value[static_cast<std::size_t>(n * kK + k)];
        }
        ASSERT_EQ(y[static_cast<std::size_t>(r * kN + n)], want) << r << ", " << n << ", without " << without;
      }
    if (without < 0)
      EXPECT_NO_THROW(plan.check());
    else
      EXPECT_THROW(plan.check(), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GroupedScales,
                         ::testing::Values(Format{DataType::fp8_e4m3, DataType::fp8_e8m0, 32, false, false},
                                           Format{DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true, false},
                                           Format{DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true, true},
                                           Format{DataType::fp4_e2m1, DataType::fp8_e4m3, 16, false, false},
                                           Format{DataType::fp4_e2m1, DataType::fp8_e4m3, 16, true, false},
                                           Format{DataType::fp4_e2m1, DataType::fp8_e4m3, 16, false, true},
                                           Format{DataType::fp4_e2m1, DataType::fp8_e8m0, 32, false, false}));

}  // namespace
