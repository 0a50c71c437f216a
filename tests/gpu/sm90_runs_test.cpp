#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>

#include "beside_cpu.hpp"
#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/run_graph.hpp"
#include "verglas/verglas.hpp"

// Products whose columns come in runs, on a real device: every plan, ragged live extents, bit for bit where small integers allow
// it; with scales of blocks and quantised results beside the CPU engine. Gaps and guards keep their poison.
namespace verglas {
namespace {

using support::RunGraph;
using enum DataType;

struct Case {
  RunGraph declared;
  std::vector<std::array<std::int64_t, 3>> calls;  ///< rows, pairs of runs, K
};
std::ostream& operator<<(std::ostream& o, const Case& c) { return o << c.declared; }

/// rows x columns with a line along the one or the other; lines begin 16 bytes apart at least where `pad` says so.
struct Laid {
  std::int64_t rows, columns, row_stride, column_stride;
  DataType type;
  Laid(std::int64_t r, std::int64_t c, bool along_columns, DataType t)
      : rows(r), columns(c), row_stride(along_columns ? c : 1), column_stride(along_columns ? 1 : r), type(t) {}
  std::size_t size() const { return static_cast<std::size_t>(bytes_of(type)); }
  std::size_t bytes() const { return static_cast<std::size_t>(rows * columns) * size(); }
  std::size_t at(std::int64_t r, std::int64_t c) const {
    return static_cast<std::size_t>(r * row_stride + c * column_stride) * size();
  }
};
using Bytes = std::vector<std::uint8_t>;
oracle::Format format(DataType t) { return static_cast<oracle::Format>(t); }
void put(Bytes& to, const Laid& l, std::int64_t r, std::int64_t c, double v) {
  const std::uint64_t bits = oracle::encode(format(l.type), v);
  std::memcpy(to.data() + l.at(r, c), &bits, l.size());
}
double get(const Bytes& from, const Laid& l, std::int64_t r, std::int64_t c) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from.data() + l.at(r, c), l.size());
  return oracle::decode(format(l.type), bits);
}

class Sm90Runs : public support::GpuTest, public ::testing::WithParamInterface<Case> {
 protected:
  /// One call of every plan on the same operands.
  void agree(const RunGraph& r, std::span<const CompiledPlan> plans) {
    const std::int64_t m = r.rows, n = 64 * r.pairs, k = r.k;
    const Laid a(m, k, r.a_k, r.in), b(n, k, r.b_k, r.in), ab(m, n, r.out_n, r.ab), c(m, n / 2, r.out_n, r.c);
    std::mt19937 random(static_cast<unsigned>(m * 31 + n * 7 + k));
    std::uniform_int_distribution<int> draw(-2, 2);
    const auto filled = [&](const Laid& l) {
      Bytes bytes(l.bytes());
      for (std::int64_t i = 0; i < l.rows; ++i)
        for (std::int64_t j = 0; j < l.columns; ++j) put(bytes, l, i, j, draw(random));
      return bytes;
    };
    const Bytes a_bytes = filled(a), b_bytes = filled(b);
    // Values of A and B as they lie, for the loops.
    std::vector<float> av, bv;
    for (std::int64_t i = 0; i < m * k; ++i) av.push_back(static_cast<float>(get(a_bytes, a, i / k, i % k)));
    for (std::int64_t i = 0; i < n * k; ++i) bv.push_back(static_cast<float>(get(b_bytes, b, i / k, i % k)));
    constexpr float kAlpha = 0.5F;
    std::vector<float> bias;
    for (std::int64_t j = 0; j < n; ++j) bias.push_back(static_cast<float>(j * 7 % 11 - 5));
    Bytes ab_want(ab.bytes());
    std::vector<double> c_want;
    double amax = 0;
    std::vector<double> row(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (std::int64_t x = 0; x < k; ++x)
          sum += av[static_cast<std::size_t>(i * k + x)] * bv[static_cast<std::size_t>(j * k + x)];
        const float product = kAlpha * sum + (r.has_bias ? bias[static_cast<std::size_t>(j)] : 0.0F);
        row[static_cast<std::size_t>(j)] = product;
        put(ab_want, ab, i, j, product);
      }
      for (std::int64_t j = 0; j < n / 2; ++j) {
        const auto at = static_cast<std::size_t>(j / 32 * 64 + j % 32);
        const double gate = row[at + 32], up = row[at];
        c_want.push_back(up * (r.linear ? std::max(gate, 0.0) : gate / (1 + std::exp(-gate))));
        amax = std::max(amax, std::abs(c_want.back()));
      }
    }
    support::DeviceBuffer a_device(*driver_, a.bytes(), 0xFF), b_device(*driver_, b.bytes(), 0xFF);
    support::DeviceBuffer ab_device(*driver_, ab.bytes(), 0xEE), c_device(*driver_, c.bytes(), 0xEE),
        amax_device(*driver_, 4, 0xEE), bias_device(*driver_, static_cast<std::size_t>(n) * 4, 0);
    bias_device.upload(bias.data());
    a_device.upload(a_bytes.data());
    b_device.upload(b_bytes.data());
    float alpha = kAlpha;
    const auto view = [&](const support::DeviceBuffer& in, const Laid& l) {
      return TensorView::strided(in.data(), l.type, {1, l.rows, l.columns}, {l.rows * l.columns, l.row_stride, l.column_stride},
                                 {DeviceType::cuda, 0});
    };
    const auto rows_of_b = [&] {
      return TensorView::strided(b_device.data(), b.type, {1, k, n}, {n * k, b.column_stride, b.row_stride},
                                 {DeviceType::cuda, 0});
    };
    for (const CompiledPlan& plan : plans) {
      {
        SCOPED_TRACE(plan.name());
        for (support::DeviceBuffer* out : {&ab_device, &c_device, &amax_device}) out->fill(0xEE);
        std::vector<TensorView> call;
        for (const OperandInfo& o : plan.operands())
          call.push_back(o.name == "a"   ? view(a_device, a)
                         : o.name == "b" ? rows_of_b()
                         : o.name == "bias"
                             ? TensorView::strided(bias_device.data(), fp32, {1, 1, n}, {n, n, 1}, {DeviceType::cuda, 0})
                         : o.name == "alpha" ? TensorView::address(&alpha)
                         : o.name == "ab"    ? view(ab_device, ab)
                         : o.name == "c"     ? view(c_device, c)
                                             : TensorView::address(amax_device.data()));
        const Status s = plan.execute(call);
        ASSERT_TRUE(s.ok()) << plan.explain(s, call).what();
        ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
        const Bytes got = ab_device.download();
        const auto wrong = std::mismatch(got.begin(), got.end(), ab_want.begin()).first - got.begin();
        ASSERT_EQ(static_cast<std::size_t>(wrong), got.size()) << "products, byte " << wrong;
        const Bytes c_got = c_device.download();
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n / 2; ++j) {
            const double want = c_want[static_cast<std::size_t>(i * (n / 2) + j)], is = get(c_got, c, i, j);
            const double held = oracle::decode(format(c.type), oracle::encode(format(c.type), want));
            const double step = c.type == fp32 ? 1e-6 : c.type == fp16 ? 1e-3 : 8e-3;
            ASSERT_NEAR(is, held, r.linear ? 0.0 : 1e-6 + step * std::abs(want)) << "C at " << i << ", " << j;
          }
        if (r.amax) {
          const Bytes bytes = amax_device.download();
          float is = 0;
          std::memcpy(&is, bytes.data(), 4);
          ASSERT_NEAR(is, amax, r.linear ? 0.0 : 1e-6 * amax);
        }
        for (const support::DeviceBuffer* x : {&a_device, &b_device, &ab_device, &c_device, &amax_device})
          ASSERT_EQ(x->touched_guard_bytes(), 0);
      }
    }
  }
};

TEST_P(Sm90Runs, AgreeOnEveryPlan) {
  const Case& c = GetParam();
  const PlanList plans =
      support::describe(c.declared).plans({.device = {DeviceType::cuda, 0}, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GE(plans.size(), 1U) << plans.unsupported_text();
  const std::vector<CompiledPlan> compiled = support::compile_each_tile_once(plans);
  for (const auto& [rows, pairs, k] : c.calls) {
    RunGraph r = c.declared;
    r.rows = rows, r.pairs = pairs, r.k = k;
    SCOPED_TRACE(::testing::Message() << r);
    agree(r, compiled);
    if (HasFatalFailure()) return;
  }
}

/// By the CPU engine in exact arithmetic, batches among them; of swish nearly so.
void beside_cpu(const RunGraph& r, std::size_t plan_index) {
  SCOPED_TRACE(::testing::Message() << r);
  const auto fill = [&](const OperandInfo& o, gpu_test::Bytes& bytes, std::mt19937& random) {
    const float alpha = 0.5F;
    if (o.name == "alpha") return static_cast<void>(std::memcpy(bytes.data(), &alpha, sizeof alpha));
    if (o.name[0] != 's') return gpu_test::put_integers(o, bytes, random, 2);
    gpu_test::put_scales(o.dtype, true, r.batches, o.name == "sa" ? r.rows : 64 * r.pairs, (r.k + r.block - 1) / r.block, bytes,
                         random);
  };
  gpu_test::expect_same_bytes(gpu_test::run_beside_cpu([&](Graph& g) { g = support::describe(r); }, plan_index, {.fill = fill}));
}

TEST(Sm90ScaledRuns, GiveTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  std::vector<RunGraph> cases;
  for (const bool quantised : {false, true})
    for (const bool n_major : {true, false})
      for (const auto& [in, block] : {std::pair{fp8_e4m3, 32}, {fp8_e5m2, 32}, {fp4_e2m1, 32}, {fp4_e2m1, 16}})
        for (const auto& [l, m, pairs, k] : {std::array<std::int64_t, 4>{1, 200, 5, 96}, {2, 300, 7, 72}, {3, 7, 2, 160}}) {
          RunGraph r{.rows = m, .pairs = pairs, .k = k, .in = in, .out_n = n_major, .ab = fp32, .linear = true};
          r.c = quantised ? fp8_e4m3 : fp16;
          r.amax = cases.size() % 2 == 0;
          r.has_bias = cases.size() % 3 == 0;
          r.batches = l, r.block = block, r.is_quantised = quantised;
          cases.push_back(r);
        }
  for (int i = 0; i < 6; ++i)
    cases.push_back({.rows = 1030,
                     .pairs = 21,
                     .k = 256,
                     .in = fp8_e4m3,
                     .c = fp8_e4m3,
                     .amax = true,
                     .linear = true,
                     .block = 32,
                     .is_quantised = true});
  for (int i = 0; i < 6; ++i)
    cases.push_back(
        {.rows = 1030, .pairs = 21, .k = 256, .in = fp4_e2m1, .c = fp8_e4m3, .linear = true, .block = 16, .is_quantised = true});
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { beside_cpu(cases[i], i); });
}

// Quantisers take pairs that are not there beside the last one that is: what would stand in them, here -1, is in no sum.
TEST(Sm90RunSums, HaveNoColumnsBehindTheLastPair) {
  VERGLAS_NEEDS_GPU();
  const auto describe = [](Graph& g) {
    const Tensor a = g.tensor({.name = "a", .dim = {1, 146, 64}, .stride = {146 * 64, 64, 1}, .data_type = bf16});
    const Tensor b = g.tensor({.name = "b", .dim = {1, 64, 192}, .stride = {64 * 192, 1, 64}, .data_type = bf16});
    const Tensor x = g.matmul(a, b).set_data_type(fp32).set_output(true);
    const Tensor up = g.take_runs(x, 32, false), gate = g.relu(g.take_runs(x, 32, true));
    const Tensor c = g.add(g.add(up, gate), g.scalar(-1.0));
    auto [q, s] = g.block_scale_quantize(c, 32);
    q.set_data_type(fp8_e4m3).set_output(true);
    s.set_data_type(fp8_e8m0).set_output(true);
    for (const std::int64_t rows : {146, 1})
      g.reduction(c, ReductionMode::add).set_dim({1, rows, 1}).set_data_type(fp32).set_output(true);
  };
  const auto fill = [](const OperandInfo& o, gpu_test::Bytes& bytes, std::mt19937& random) {
    gpu_test::put_integers(o, bytes, random, 2);
  };
  gpu_test::each_on_device(
      12, [&](std::size_t i) { gpu_test::expect_same_bytes(gpu_test::run_beside_cpu(describe, i, {.fill = fill})); });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Sm90Runs,
    ::testing::Values(
        Case{{.rows = 512, .pairs = 20, .k = 192, .linear = true}, {{512, 20, 192}, {77, 3, 40}, {300, 7, 200}, {1, 1, 8}}},
        Case{{.rows = 700, .pairs = 20, .k = 192}, {{700, 20, 192}, {129, 5, 64}}},
        Case{{.rows = 512, .pairs = 8, .k = 64, .ab = fp32, .c = fp16, .linear = true}, {{512, 8, 64}, {131, 9, 72}}},
        Case{{.rows = 256, .pairs = 8, .k = 256, .in = fp8_e4m3, .ab = fp16, .c = fp32, .amax = true, .linear = true},
             {{256, 8, 256}, {99, 3, 272}}},
        Case{{.rows = 264,
              .pairs = 8,
              .k = 64,
              .in = fp16,
              .a_k = false,
              .b_k = false,
              .out_n = false,
              .ab = fp16,
              .linear = true},
             {{264, 8, 64}, {72, 5, 40}}},
        Case{{.rows = 200, .pairs = 6, .k = 64, .in = fp32, .b_k = false, .out_n = false, .ab = fp32, .c = fp32, .linear = true},
             {{200, 6, 64}, {68, 3, 36}}},
        Case{{.rows = 131, .pairs = 6, .k = 63, .ab = fp8_e4m3, .c = bf16, .amax = true, .linear = true},
             {{131, 6, 63}, {67, 3, 31}}},
        Case{{.rows = 131, .pairs = 6, .k = 64, .out_n = false, .linear = true}, {{131, 6, 64}, {67, 3, 48}}},
        Case{{.rows = 700, .pairs = 20, .k = 192, .has_bias = true, .linear = true}, {{700, 20, 192}, {129, 5, 64}}},
        Case{{.rows = 131, .pairs = 6, .k = 63, .ab = fp32, .c = fp32, .has_bias = true, .amax = true, .linear = true},
             {{131, 6, 63}, {67, 3, 31}}},
        Case{{.rows = 16, .pairs = 16, .k = 512, .linear = true}, {{16, 16, 512}, {3, 5, 520}}},
        Case{{.rows = 3000, .pairs = 40, .k = 64, .amax = true, .linear = true}, {{3000, 40, 64}}}));

}  // namespace
}  // namespace verglas
