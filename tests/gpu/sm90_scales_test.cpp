#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "beside_cpu.hpp"
#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

// Products with scales of blocks on a device and by the CPU engine: small numbers, the same bits; padding is poisoned.
namespace verglas {
namespace {

struct Case {
  std::int64_t l, m, n, k;
  bool a_k_major, b_k_major, interleaved;
  DataType a, b, between;
  bool scaled_a = true, scaled_b = true;
  bool two = false;       ///< two products that meet
  bool nan = false;       ///< one scale is NaN
  std::size_t shift = 0;  ///< bytes by which scales are shifted
  std::int64_t block = 32, pad = 16;
  bool extreme = false;                    ///< of e8m0: scales of a from the smallest on, those of b up to nearly the largest
  DataType of_scales = DataType::not_set;  ///< where it is another than the block's usual one
  std::int64_t quantised = 0;              ///< blocks of the output: 16 to NVFP4, 32 to MXFP8
  bool along_m = false;                    ///< and theirs, else along N
  bool both = false;                       ///< along N and along M
  bool beside = false;                     ///< beside the values in bf16 and their amax
  DataType scale() const {
    return of_scales != DataType::not_set ? of_scales : block == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0;
  }
};

std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

/// The product that a case describes; scales of A (L, M, K/32), of B (L, K/32, N), plain ones with a gap behind each row.
void describe(Graph& g, const Case& c) {
  const std::int64_t blocks = ceil_div(c.k, c.block);
  const auto matrix = [&](const char* name, bool is_a, bool k_major, DataType t) {
    const std::int64_t rows = is_a ? c.m : c.n, pitch = (k_major ? c.k : rows) + c.pad;
    const std::int64_t along_k = k_major ? 1 : pitch, along_rows = k_major ? pitch : 1, batch = pitch * (k_major ? rows : c.k);
    return is_a ? g.tensor({.name = name, .dim = {c.l, c.m, c.k}, .stride = {batch, along_rows, along_k}, .data_type = t})
                : g.tensor({.name = name, .dim = {c.l, c.k, c.n}, .stride = {batch, along_k, along_rows}, .data_type = t});
  };
  const auto scaled = [&](Tensor x, const char* name, bool is_a) {
    const std::int64_t rows = is_a ? c.m : c.n;
    std::vector<std::int64_t> dim = is_a ? std::vector{c.l, rows, blocks} : std::vector{c.l, blocks, rows};
    std::vector<std::int64_t> stride = is_a ? std::vector{rows * (blocks + 1), blocks + 1, std::int64_t{1}}
                                            : std::vector{rows * (blocks + 1), std::int64_t{1}, blocks + 1};
    if (c.interleaved) {
      const std::int64_t r = ceil_div(rows, 128) * 128, b = ceil_div(blocks, 4) * 4;
      dim = is_a ? std::vector{c.l, r, b} : std::vector{c.l, b, r};
      stride = is_a ? std::vector{r * b, b, std::int64_t{1}} : std::vector{r * b, std::int64_t{1}, b};
    }
    const Tensor s = g.tensor({.name = name,
                               .dim = dim,
                               .stride = stride,
                               .data_type = c.scale(),
                               .reordering = c.interleaved ? TensorReordering::f8_128x4 : TensorReordering::none});
    return g
        .block_scale_dequantize(x, s, is_a ? std::vector<std::int64_t>{1, 1, c.block} : std::vector<std::int64_t>{1, c.block, 1})
        .set_data_type(c.between);
  };
  Tensor a = matrix("a", true, c.a_k_major, c.a), b = matrix("b", false, c.b_k_major, c.b);
  if (c.scaled_a) a = scaled(a, "sa", true);
  if (c.scaled_b) b = scaled(b, "sb", false);
  Tensor d = g.matmul(a, b);
  if (c.two) {
    const Tensor other = scaled(matrix("b2", false, c.b_k_major, c.b), "sb2", false);
    d = g.add(d, g.matmul(a, other));
  }
  if (c.quantised == 0) {
    g.pointwise(PointwiseMode::identity, {d}).set_output(true).set_data_type(DataType::fp32);
    return;
  }
  d.set_data_type(DataType::fp32);
  if (c.beside) {
    g.pointwise(PointwiseMode::identity, {d}).set_output(true).set_data_type(DataType::bf16);
    g.reduction(d, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true).set_data_type(DataType::fp32);
  }
  for (const bool along_m : {false, true}) {
    if (along_m != c.along_m && !c.both) continue;
    auto [y, s] = g.block_scale_quantize(d, c.quantised, {}, {}, along_m);
    const std::int64_t rows = ceil_div(along_m ? c.n : c.m, 128) * 128;
    const std::int64_t columns = ceil_div((along_m ? c.m : c.n) / c.quantised, 4) * 4;
    y.set_data_type(c.quantised == 16 ? DataType::fp4_e2m1 : DataType::fp8_e4m3).set_output(true);
    s.set_data_type(c.quantised == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0).set_output(true);
    s.set_dim({c.l, rows, columns}).set_stride({rows * columns, columns, 1}).set_reordering_type(TensorReordering::f8_128x4);
  }
}

/// Small numbers; padding of atoms, behind rows of plain scales, and gaps of matrices are `poison`.
gpu_test::Operands operands_of(const Case& c, std::uint8_t poison) {
  const auto fill = [c, poison](const OperandInfo& o, gpu_test::Bytes& bytes, std::mt19937& random) {
    if (o.name[0] != 's') return gpu_test::put_integers(o, bytes, random, 2);
    gpu_test::put_scales(c.scale(), c.interleaved, c.l, o.name == "sa" ? c.m : c.n, ceil_div(c.k, c.block), bytes, random);
    if (c.nan) bytes[0] = 0xFF;
    for (std::uint8_t& byte : bytes)
      if (c.extreme && byte != poison) byte = static_cast<std::uint8_t>((o.name == "sa" ? 0 : 251) + byte % 3);
  };
  const auto shift = [c](const OperandInfo& o) { return o.name[0] == 's' ? c.shift : 0; };
  return {.poison = poison, .fill = fill, .shift = shift, .seed = static_cast<unsigned>(c.m * 31 + c.n * 7 + c.k)};
}

/// `held`: of the plans that decode A to registers.
void compare(const Case& c, std::size_t plan_index, bool held = false) {
  SCOPED_TRACE(::testing::Message() << c.l << 'x' << c.m << 'x' << c.n << 'x' << c.k << (c.a_k_major ? " t" : " n")
                                    << (c.b_k_major ? "t " : "n ") << name_of(c.a) << ' ' << name_of(c.b)
                                    << (c.interleaved ? " interleaved" : "") << (c.two ? " two" : "") << " shift " << c.shift
                                    << " block " << c.block << " pad " << c.pad);
  gpu_test::Operands operands = operands_of(c, 0xFF);
  if (held) operands.knob = "A_IN_REGISTERS";
  const auto run = gpu_test::run_beside_cpu([&](Graph& g) { describe(g, c); }, plan_index, operands);
  if (c.quantised != 0) return gpu_test::expect_same_bytes(run);
  ASSERT_EQ(run.outputs.size(), 1U);
  const auto floats = [](const gpu_test::Bytes& bytes) {
    std::vector<float> all(bytes.size() / sizeof(float));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  };
  const std::vector<float> got = floats(run.outputs[0].got), want = floats(run.outputs[0].want);
  std::size_t wrong = 0, first = 0, nans = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float x = got[i], y = want[i];
    nans += x != x ? 1 : 0;
    if (x != y && (x == x || y == y) && wrong++ == 0) first = i;
  }
  EXPECT_EQ(wrong, 0U) << run.plan << ", first at " << first;
  EXPECT_EQ(nans > 0, c.nan);
}

TEST(Sm90Scales, GiveTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kE4m3 = DataType::fp8_e4m3, kE5m2 = DataType::fp8_e5m2, kFp32 = DataType::fp32, kBf16 = DataType::bf16;
  std::vector<Case> cases;
  for (const bool interleaved : {true, false}) {
    for (const bool ta : {true, false})
      for (const bool tb : {true, false}) cases.push_back({1, 144, 272, 416, ta, tb, interleaved, kE4m3, kE5m2, kFp32});
    cases.push_back({2, 300, 520, 1000, true, true, interleaved, kE4m3, kE4m3, kBf16});
    cases.push_back({1, 1, 7, 33, true, true, interleaved, kE5m2, kE4m3, kFp32});
    cases.push_back({3, 65, 131, 129, true, true, interleaved, kE5m2, kE5m2, kFp32, true, true, false, false, 1});
    cases.push_back({1, 129, 257, 288, true, true, interleaved, kE4m3, kE4m3, kFp32, true, false});
    cases.push_back({1, 129, 257, 288, true, true, interleaved, kE4m3, kE4m3, kFp32, false, true});
    cases.push_back({2, 140, 200, 320, true, true, interleaved, kE4m3, kE4m3, kFp32, true, true, true});
    cases.push_back({1, 64, 64, 128, true, true, interleaved, kE4m3, kE4m3, kFp32, true, true, false, true});
  }
  // Decoded to bf16 on their way: fp4 on one side and on both, fp8 beside bf16 and beside fp4, one product and two.
  constexpr DataType kFp4 = DataType::fp4_e2m1;
  const auto add = [&](Case c, std::int64_t block, std::int64_t pad, std::size_t shift) {
    c.block = block, c.pad = pad, c.shift = shift;
    for (const bool interleaved : {true, false}) {
      c.interleaved = interleaved;
      cases.push_back(c);
    }
  };
  for (const std::int64_t block : {16, 32})
    for (const std::int64_t pad : {0, 2}) {
      const std::size_t shift = pad == 0 ? 0 : 1;
      add({1, 144, 272, 416, true, true, true, kBf16, kFp4, kFp32, false, true}, block, pad, shift);
      add({1, 144, 272, 416, false, true, true, kBf16, kFp4, kBf16, false, true}, block, pad, shift);
      add({2, 300, 520, 994, true, true, true, kFp4, kFp4, kFp32}, block, pad, shift);
      add({3, 65, 131, 130, true, true, true, kFp4, kBf16, kFp32, true, false}, block, pad, shift);
      add({2, 140, 200, 320, true, true, true, kFp4, kFp4, kFp32, true, true, true}, block, pad, shift);
      add({1, 64, 64, 128, true, true, true, kFp4, kFp4, kFp32, true, true, false, true}, block, pad, shift);
      add({1, 16, 520, 1088, true, true, true, kBf16, kFp4, kFp32, false, true}, block, pad, shift);
      add({1, 7, 130, 1024, true, true, true, kBf16, kFp4, kFp32, false, true, true}, block, pad, shift);
    }
  for (const bool tb : {true, false})
    for (const std::int64_t pad : {0, 3}) {
      add({1, 144, 272, 416, true, tb, true, kBf16, kE4m3, kFp32, false, true}, 32, pad, 0);
      add({2, 67, 140, 77, true, tb, true, kBf16, kE5m2, kBf16, false, true}, 32, pad, 1);
      add({1, 16, 520, 1088, true, tb, true, kBf16, kE4m3, kFp32, false, true}, 32, pad, 0);
      add({1, 130, 140, 320, true, tb, true, kFp4, kE4m3, kFp32}, 32, pad == 0 ? 0 : 4, 0);
    }
  for (std::size_t i = 0; i < 4; ++i) {
    add({1, 530, 1030, 640, true, true, true, kBf16, kFp4, kFp32, false, true}, 16, 0, 0);
    add({1, 530, 1030, 640, true, true, true, kFp4, kFp4, kFp32}, 16, 0, 0);
  }
  for (std::size_t i = 0; i < 6; ++i) cases.push_back({1, 530, 1030, 640, true, true, true, kE4m3, kE4m3, kFp32});
  for (std::size_t i = 0; i < 4; ++i) {
    cases.push_back({1, 144, 272, 416, true, true, true, kE4m3, kE4m3, kFp32});
    cases.back().extreme = true;
  }
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { compare(cases[i], i); });
}

// Decoded to fp16: blocks of 16 and 32 with scales of e4m3, on either side, one product and two.
TEST(Sm90Scales, Nvfp4BesideFp16GivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kFp4 = DataType::fp4_e2m1, kFp16 = DataType::fp16, kFp32 = DataType::fp32;
  std::vector<Case> cases;
  const auto add = [&](Case c, std::int64_t block, bool interleaved) {
    c.block = block, c.interleaved = interleaved, c.of_scales = DataType::fp8_e4m3, c.pad = interleaved ? 0 : 2;
    cases.push_back(c);
  };
  for (const std::int64_t block : {16, 32})
    for (const bool interleaved : {true, false}) {
      add({1, 144, 272, 416, true, true, true, kFp16, kFp4, kFp32, false, true}, block, interleaved);
      add({1, 144, 272, 416, false, true, true, kFp16, kFp4, kFp16, false, true}, block, interleaved);
      add({3, 65, 131, 130, true, false, true, kFp4, kFp16, kFp32, true, false}, block, interleaved);
      add({1, 16, 520, 1088, true, true, true, kFp16, kFp4, kFp32, false, true}, block, interleaved);
      add({2, 140, 200, 320, true, true, true, kFp16, kFp4, kFp32, false, true, true}, block, interleaved);
      add({1, 64, 64, 128, true, true, true, kFp4, kFp16, kFp32, true, false, false, true}, block, interleaved);
    }
  for (std::size_t i = 0; i < 6; ++i) add({1, 530, 1030, 640, true, true, true, kFp16, kFp4, kFp32, false, true}, 16, true);
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { compare(cases[i], i); });
}

// On every plan, A in registers among them.
TEST(Sm90Scales, Nvfp4ThatIsQuantisedGivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kFp4 = DataType::fp4_e2m1, kFp32 = DataType::fp32;
  std::vector<Case> cases;
  for (const std::int64_t quantised : {16, 32})
    for (const bool along_m : {false, true})
      for (int plan = 0; plan < 4; ++plan) {
        Case c{1, 544, 1056, 640, true, true, true, kFp4, kFp4, kFp32};
        c.block = 16, c.pad = 0, c.quantised = quantised, c.along_m = along_m;
        cases.push_back(c);
      }
  // Several outputs of one drain.
  for (const bool both : {true, false})
    for (int plan = 0; plan < 4; ++plan) {
      Case c{1, 544, 1056, 640, true, true, true, kFp4, kFp4, kFp32};
      c.block = 16, c.pad = 0, c.quantised = 32, c.both = both, c.beside = !both;
      cases.push_back(c);
    }
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { compare(cases[i], i % 4 / 2 * 2, i % 2 == 0); });
}

// Small enough for the sanitizers.
TEST(Sm90Scales, FewRowsBesideFp4GiveTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kFp4 = DataType::fp4_e2m1, kBf16 = DataType::bf16, kFp32 = DataType::fp32;
  std::vector<Case> cases;
  for (const std::int64_t rows : {7, 50}) {
    cases.push_back({1, rows, 264, 1088, true, true, true, kBf16, kFp4, kFp32, false, true});
    cases.push_back({1, 136, rows, 544, true, true, false, kFp4, kFp4, kFp32});
  }
  for (Case& c : cases) c.block = 16, c.pad = 0;
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { compare(cases[i], 0, true); });
}

TEST(Sm90Scales, AInRegistersGivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  constexpr DataType kFp4 = DataType::fp4_e2m1, kBf16 = DataType::bf16, kFp32 = DataType::fp32;
  std::vector<Case> cases;
  // Beside few rows the copy engine brings fp4: lines begin with whole pieces of 16 bytes.
  const auto add = [&](Case c, bool few = false) {
    c.between = DataType::fp32;
    const std::int64_t least = few ? ceil_div(c.k, 32) * 32 - c.k : 0;
    for (const bool interleaved : {true, false})
      for (const std::int64_t block : {16, 32})
        for (const std::int64_t more : {0, few ? 32 : 2}) {
          c.interleaved = interleaved, c.block = block, c.pad = least + more, c.shift = more == 0 ? 0 : 1;
          cases.push_back(c);
        }
  };
  for (const std::int64_t rows : {16, 32, 50}) {
    add({1, rows, 520, 1088, true, true, true, kBf16, kFp4, kBf16, false, true}, true);
    add({2, 130, rows, 930, true, true, true, kFp4, kBf16, kBf16, true, false}, true);
    add({1, rows, 264, 1100, false, true, true, kBf16, kFp4, kBf16, false, true}, true);
    add({1, rows, 264, 1100, true, true, true, kFp4, kFp4, kBf16}, true);
  }
  add({1, 7, 520, 1088, true, true, true, kBf16, kFp4, kBf16, false, true}, true);
  add({3, 1, 97, 64, true, true, true, kBf16, kFp4, kBf16, false, true}, true);
  add({1, 17, 700, 2310, true, true, true, kBf16, kFp4, kBf16, false, true}, true);
  add({2, 24, 140, 518, true, true, true, kFp4, kFp4, kBf16}, true);
  add({1, 16, 128, 512, true, true, true, kBf16, kFp4, kBf16, false, true, false, true}, true);
  // Scales of 2^-127 to 2^-125: one multiplication decodes them, and those from 2 on take two.
  for (const bool interleaved : {true, false}) {
    cases.push_back({1, 136, 16, 512, true, true, interleaved, kFp4, kBf16, kFp32, true, false});
    cases.back().extreme = true, cases.back().pad = 0;
  }
  add({1, 530, 1030, 642, true, true, true, kFp4, kFp4, kBf16});
  add({2, 260, 136, 130, true, true, true, kFp4, kFp4, kBf16});
  add({1, 300, 520, 192, true, true, true, kFp4, kFp4, kBf16});
  add({1, 64, 64, 128, true, true, true, kFp4, kFp4, kBf16, true, true, false, true});
  gpu_test::each_on_device(2 * cases.size(), [&](std::size_t i) { compare(cases[i / 2], i % 2 + i / 8, true); });
}

/// What lies in gaps of matrices, behind rows of scales and in the padding of atoms is nobody's: whatever it is, no bit changes.
TEST(Sm90Scales, PaddingNeverMatters) {
  VERGLAS_NEEDS_GPU();
  using enum DataType;
  std::vector<Case> cases;
  const auto add = [&](DataType a, DataType b, std::int64_t block, DataType scale) {
    for (const bool interleaved : {true, false})
      for (const auto& [l, m, n, k] : {std::array<std::int64_t, 4>{1, 67, 141, 130}, {2, 130, 60, 90}}) {
        Case c{l, m, n, k, true, true, interleaved, a, b, fp32};
        c.scaled_a = a != bf16, c.scaled_b = b != bf16;
        c.block = block, c.of_scales = scale, c.pad = 14;
        cases.push_back(c);
      }
  };
  for (const DataType a : {fp8_e4m3, fp8_e5m2}) add(a, fp8_e4m3, 32, fp8_e8m0);
  for (const DataType a : {fp4_e2m1, bf16})
    for (const std::int64_t block : {16, 32})
      for (const DataType scale : {fp8_e8m0, fp8_e4m3}) add(a, fp4_e2m1, block, scale);
  add(bf16, fp8_e4m3, 32, fp8_e8m0);
  add(fp4_e2m1, fp8_e5m2, 32, fp8_e8m0);
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) {
    gpu_test::Bytes first;
    for (const std::uint8_t poison : std::array<std::uint8_t, 3>{0xFF, 0x00, 0x7F}) {
      const auto run = gpu_test::run_beside_cpu([&](Graph& g) { describe(g, cases[i]); }, i, operands_of(cases[i], poison));
      if (run.outputs.size() != 1) continue;
      if (first.empty()) first = run.outputs[0].got;
      EXPECT_EQ(run.outputs[0].got, first) << run.plan << ", case " << i << ", " << int{poison};
      EXPECT_EQ(run.outputs[0].got, run.outputs[0].want) << run.plan << ", case " << i << ", " << int{poison};
    }
  });
}

}  // namespace
}  // namespace verglas
