#include <gtest/gtest.h>

#include "beside_cpu.hpp"
#include "support/gpu.hpp"

// Matrices in bytes that consumers cast in registers, on every plan that does so: every byte there is, and the bits of the CPU
// engine.
namespace verglas {
namespace {

enum class Behind : std::uint8_t { nothing, bias_relu, residual, row_amax };
struct Case {
  std::int64_t l, m, n, k;
  DataType stored, to, out;
  bool of_b;  ///< else of A
  bool other_k_major = true;
  std::int64_t pad = 0;
  Behind behind = Behind::nothing;
};

void describe(Graph& g, const Case& c) {
  const auto [l, m, n, k] = std::array{c.l, c.m, c.n, c.k};
  const auto matrix = [&](const char* name, bool is_a, bool narrow) {
    const std::int64_t lines = is_a ? m : n, inner = narrow || c.other_k_major ? k : lines, pitch = inner + c.pad;
    const std::int64_t along_k = inner == k ? 1 : pitch, along_lines = inner == k ? pitch : 1;
    const std::int64_t batch = pitch * (narrow || c.other_k_major ? lines : k);
    return g.tensor({.name = name,
                     .dim = {l, is_a ? m : k, is_a ? k : n},
                     .stride = {batch, is_a ? along_lines : along_k, is_a ? along_k : along_lines},
                     .data_type = narrow ? c.stored : c.to});
  };
  const auto cast = [&](Tensor t, bool narrow) {
    return narrow ? g.pointwise(PointwiseMode::identity, {t}).set_data_type(c.to) : t;
  };
  const Tensor a = cast(matrix("a", true, !c.of_b), !c.of_b), b = cast(matrix("b", false, c.of_b), c.of_b);
  Tensor d = g.matmul(a, b);
  if (c.behind == Behind::bias_relu)
    d = g.relu(g.add(d, g.tensor({.name = "bias", .dim = {1, 1, n}, .stride = {n, n, 1}, .data_type = c.out})));
  if (c.behind == Behind::residual)
    d = g.add(d, g.tensor({.name = "r", .dim = {l, m, n}, .stride = {m * n, n, 1}, .data_type = c.out}));
  if (c.behind == Behind::row_amax)
    g.reduction(d, ReductionMode::amax).set_dim({l, m, 1}).set_stride({m, 1, 1}).set_output(true).set_data_type(DataType::fp32);
  g.pointwise(PointwiseMode::identity, {d}).set_output(true).set_data_type(c.out);
}

/// Of 8 bits all of them, but for NaN and infinity; else small integers.
void fill(const OperandInfo& o, gpu_test::Bytes& bytes, std::mt19937& random) {
  if (bytes_of(o.dtype) != 1) return gpu_test::put_integers(o, bytes, random, 2);
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(random());
    // Of fp8 what a sum of fp32 adds without rounding: few bits of one exponent beside another.
    if (o.dtype == DataType::fp8_e4m3) byte = static_cast<std::uint8_t>((byte & 0x9F) | 0x20);
    if (o.dtype == DataType::fp8_e5m2) byte = static_cast<std::uint8_t>((byte & 0x8F) | 0x30);
  }
}

/// `plans` of each case, of those that cast in registers.
void compare(const std::vector<Case>& cases, std::size_t plans) {
  gpu_test::each_on_device(plans * cases.size(), [&](std::size_t i) {
    const Case& c = cases[i / plans];
    SCOPED_TRACE(::testing::Message() << c.l << 'x' << c.m << 'x' << c.n << 'x' << c.k << ' ' << name_of(c.stored) << " to "
                                      << name_of(c.to) << " of " << (c.of_b ? 'b' : 'a') << " pad " << c.pad << " behind "
                                      << static_cast<int>(c.behind));
    const gpu_test::Operands operands{
        .poison = 0xFF, .fill = fill, .seed = static_cast<unsigned>(i / plans + 1), .knob = "A_IN_REGISTERS"};
    gpu_test::expect_same_bytes(gpu_test::run_beside_cpu([&](Graph& g) { describe(g, c); }, i % plans, operands));
  });
}

TEST(Sm90Cast, InRegistersGivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  using enum DataType;
  std::vector<Case> cases;
  for (const bool of_b : {false, true})
    for (const auto& [l, m, n, k, pad] : {std::array<std::int64_t, 5>{1, 144, 272, 208, 0},
                                          {2, 300, 530, 336, 16},
                                          {1, of_b ? 16 : 520, of_b ? 520 : 16, 1104, 0},
                                          {1, of_b ? 27 : 264, of_b ? 264 : 24, 528, 16}}) {
      for (const DataType out : {fp32, bf16}) cases.push_back({l, m, n, k, int8, bf16, out, of_b, true, pad});
      if (m % 8 == 0 && n % 8 == 0) cases.push_back({l, m, n, k, int8, bf16, fp32, of_b, false, pad});
    }
  compare(cases, 10);  // three tiles and two splits, with programmatic launch and without
}

TEST(Sm90Cast, OfEveryTypeGivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  using enum DataType;
  std::vector<Case> cases;
  for (const DataType stored : {int8, uint8, fp8_e4m3, fp8_e5m2})
    for (const DataType to : {bf16, fp16})
      for (const bool of_b : {false, true}) cases.push_back({1, 144, 272, 208, stored, to, fp32, of_b});
  compare(cases, 3);
}

TEST(Sm90Cast, BeforeAnEpilogueGivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  using enum DataType;
  std::vector<Case> cases;
  for (const Behind behind : {Behind::bias_relu, Behind::residual, Behind::row_amax})
    for (const bool of_b : {false, true}) {
      cases.push_back({1, 264, 520, 640, int8, bf16, bf16, of_b, true, 0, behind});
      cases.push_back({2, of_b ? 16 : 264, of_b ? 264 : 16, 640, int8, bf16, fp32, of_b, true, 0, behind});
    }
  compare(cases, 5);
}

}  // namespace
}  // namespace verglas
