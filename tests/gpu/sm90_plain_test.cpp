#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

// Plain products on a real device, bit for bit: small integers, every configuration, ragged extents, all majors, odd pitches.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

struct Case {
  std::int64_t l, m, n, k;
  bool a_k_major, b_k_major;
  DataType in, out;
  std::int64_t pad = 0;      ///< elements added to each row of A, B and D
  std::size_t misalign = 0;  ///< bytes by which A, B and D are shifted
  bool broadcast_a = false, broadcast_b = false;
  DataType in_b = DataType::not_set;  ///< of B where it is another
  bool fast = false;
};
DataType type_of_b(const Case& c) { return c.in_b == DataType::not_set ? c.in : c.in_b; }
DataType compute_of(const Case& c) {
  return c.in == DataType::int8 ? DataType::int32 : c.in == DataType::fp32 ? DataType::tf32 : DataType::fp32;
}

std::ostream& operator<<(std::ostream& o, const Case& c) {
  return o << name_of(c.in) << ' ' << name_of(type_of_b(c)) << (c.a_k_major ? " t" : " n") << (c.b_k_major ? "t " : "n ") << c.l
           << 'x' << c.m << 'x' << c.n << 'x' << c.k << " → " << name_of(c.out) << " pad " << c.pad << " misalign " << c.misalign
           << (c.broadcast_a ? " broadcast a" : "") << (c.broadcast_b ? " broadcast b" : "");
}

/// One matrix of the case: declared axes (L, rows, columns), its strides, and small integers.
struct Operand {
  std::vector<std::int64_t> dim, stride;
  std::vector<int> value;           ///< by declared (l, row, column), dense
  std::vector<std::uint8_t> bytes;  ///< as stored, padding poisoned

  Operand(std::int64_t l, std::int64_t rows, std::int64_t columns, bool columns_contiguous, std::int64_t pad, DataType t,
          std::mt19937& g) {
    const std::int64_t pitch = (columns_contiguous ? columns : rows) + pad;
    const std::int64_t lines = columns_contiguous ? rows : columns;
    dim = {l, rows, columns};
    stride = {pitch * lines, columns_contiguous ? pitch : 1, columns_contiguous ? 1 : pitch};
    const auto size = static_cast<std::size_t>(bytes_of(t));
    bytes.assign(static_cast<std::size_t>(l * pitch * lines) * size, 0xFF);  // NaN in every floating type
    value.resize(static_cast<std::size_t>(l * rows * columns));
    std::uniform_int_distribution<int> draw(-3, 3);
    for (std::int64_t i = 0; i < l; ++i)
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          const int v = draw(g);
          value[static_cast<std::size_t>((i * rows + r) * columns + c)] = v;
          const std::uint64_t bits = oracle::encode(static_cast<oracle::Format>(t), v);
          std::memcpy(bytes.data() + static_cast<std::size_t>(i * stride[0] + r * stride[1] + c * stride[2]) * size, &bits, size);
        }
  }
  int at(std::int64_t l, std::int64_t r, std::int64_t c) const {
    return value[static_cast<std::size_t>(((dim[0] == 1 ? 0 : l) * dim[1] + r) * dim[2] + c)];
  }
};

class Sm90Plain : public ::testing::Test {
  std::atomic<std::size_t> next_plan_{0};

 protected:
  /// Compiling is what takes the time: many at once.
  void check_all(const std::vector<Case>& cases) {
    std::atomic<std::size_t> next{0};
    std::vector<std::jthread> workers;
    for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t)
      workers.emplace_back([&] {
        for (std::size_t i = next++; i < cases.size(); i = next++) check(cases[i]);
      });
  }
  void check(const Case& c) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const cuda::DriverTable& driver = **cuda::driver();
    const cuda::PrimaryContext primary(driver, 0);
    const cuda::CurrentContext current(driver, primary.handle());
    std::mt19937 g(static_cast<unsigned>(c.m * 7919 + c.n * 104729 + c.k));
    const Operand a(c.broadcast_a ? 1 : c.l, c.m, c.k, c.a_k_major, c.pad, c.in, g);
    const Operand b(c.broadcast_b ? 1 : c.l, c.k, c.n, !c.b_k_major, c.pad, type_of_b(c), g);
    const std::int64_t pitch = c.n + c.pad;
    const std::vector<std::int64_t> d_stride = {c.m * pitch, pitch, 1};
    const auto size = static_cast<std::size_t>(bytes_of(c.out));

    Graph graph({.io_data_type = c.in});
    const Tensor ta = graph.tensor({.name = "a", .dim = a.dim, .stride = a.stride});
    const Tensor tb = graph.tensor({.name = "b", .dim = b.dim, .stride = b.stride, .data_type = type_of_b(c)});
    graph.matmul(ta, tb, {.compute_data_type = compute_of(c)}, 0.0, c.fast)
        .set_output(true)
        .set_data_type(c.out)
        .set_stride(d_stride);
    const PlanList plans = graph.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
    ASSERT_GE(plans.size(), 1U) << plans.unsupported_text();

    // The exact integer, rounded once to the output's type; gaps between rows keep their poison.
    std::vector<std::uint8_t> want(static_cast<std::size_t>(c.l * c.m * pitch) * size, 0xEE);
    for (std::int64_t l = 0; l < c.l; ++l)
      for (std::int64_t m = 0; m < c.m; ++m)
        for (std::int64_t n = 0; n < c.n; ++n) {
          long sum = 0;
          for (std::int64_t k = 0; k < c.k; ++k) sum += a.at(l, m, k) * b.at(l, k, n);
          const std::uint64_t bits = oracle::encode(static_cast<oracle::Format>(c.out), static_cast<double>(sum));
          std::memcpy(want.data() + static_cast<std::size_t>(l * d_stride[0] + m * pitch + n) * size, &bits, size);
        }

    support::DeviceBuffer da(driver, a.bytes.size(), 0xFF, c.misalign), db(driver, b.bytes.size(), 0xFF, c.misalign),
        dd(driver, want.size(), 0xEE, c.misalign);
    da.upload(a.bytes.data());
    db.upload(b.bytes.data());
    const std::vector<void*> addresses = {da.data(), db.data(), dd.data()};
    // Compiling is what takes the time: some plans a case (VERGLAS_PLANS, 3), the next ones at the next.
    const char* few = std::getenv("VERGLAS_PLANS");
    std::vector<CompiledPlan> compiled(std::min<std::size_t>(few ? std::strtoul(few, nullptr, 10) : 3, plans.size()));
    {
      std::vector<std::jthread> compilers;
      for (CompiledPlan& plan : compiled)
        compilers.emplace_back([&plan, &plans, i = next_plan_++ % plans.size()] { plan = plans.compile(i); });
    }
    for (const CompiledPlan& plan : compiled) {
      SCOPED_TRACE(plan.name());
      ASSERT_EQ(plan.engine(), "sm90");
      dd.fill(0xEE);
      for (int round = 0; round < 2; ++round) {
        const Status s = plan.execute(addresses);
        if (!s.ok()) {
          std::vector<TensorView> views;
          for (void* p : addresses) views.push_back(TensorView::address(p));
          FAIL() << plan.explain(s, views).what();
        }
      }
      ASSERT_EQ(driver.cuCtxSynchronize(), cuda::CUDA_SUCCESS);
      const std::vector<std::uint8_t> got = dd.download();
      if (got != want) {
        const auto at = static_cast<std::size_t>(std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin()) / size;
        const auto wrong = std::inner_product(got.begin(), got.end(), want.begin(), std::size_t{0}, std::plus<>(),
                                              [](auto x, auto y) { return std::size_t{x != y}; });
        FAIL() << "first wrong element at (" << at / static_cast<std::size_t>(d_stride[0]) << ", "
               << at % static_cast<std::size_t>(d_stride[0]) / static_cast<std::size_t>(pitch) << ", "
               << at % static_cast<std::size_t>(pitch) << "), " << wrong << " wrong bytes of " << got.size();
      }
      EXPECT_EQ(dd.touched_guard_bytes(), 0);
    }
  }
};

TEST_F(Sm90Plain, IsExactAtRaggedExtents) {
  VERGLAS_NEEDS_GPU();
  std::mt19937 g(1);
  const std::vector<std::int64_t> edges = {1, 7, 8, 9, 31, 33, 63, 64, 65, 127, 128, 129, 177, 255, 256, 257, 300};
  std::uniform_int_distribution<std::size_t> draw(0, edges.size() - 1);
  for (int i = 0; i < 24; ++i)
    check({1, edges[draw(g)], edges[draw(g)], edges[draw(g)], i % 2 == 0, i % 4 < 2, i % 3 ? DataType::bf16 : DataType::fp16,
           i % 5 == 0 ? DataType::fp32
           : i % 3    ? DataType::bf16
                      : DataType::fp16});
}

TEST_F(Sm90Plain, IsExactOverSeveralWaves) {
  VERGLAS_NEEDS_GPU();
  check({1, 2048, 1536, 512, true, true, DataType::bf16, DataType::bf16});
  check({1, 3000, 2120, 264, true, true, DataType::bf16, DataType::fp32});
  check({1, 1032, 4104, 136, false, false, DataType::fp16, DataType::fp16});
}

// Exchanged operands, and K that two blocks of a cluster share: one tile, several a cluster, parts of unequal length or empty.
TEST_F(Sm90Plain, IsExactForFewRowsOrColumns) {
  VERGLAS_NEEDS_GPU();
  for (const std::int64_t few : {1, 8, 16, 17, 32, 50, 64, 100, 128, 200}) {
    check({1, few, 1000, 640, true, true, DataType::bf16, DataType::bf16});
    check({1, 712, few, 328, true, true, DataType::bf16, few % 16 ? DataType::fp32 : DataType::bf16});
  }
}

// Several tiles a cluster, and so little K that a block is done before the other has drained.
TEST_F(Sm90Plain, IsExactForManyTilesOfFewRows) {
  VERGLAS_NEEDS_GPU();
  check({1, 16, 4200, 520, true, true, DataType::bf16, DataType::bf16});
  check({1, 16, 20000, 72, true, true, DataType::bf16, DataType::bf16});
  check({1, 30, 9000, 72, true, false, DataType::fp16, DataType::fp32, 8});
  check({5, 24, 3000, 200, false, true, DataType::bf16, DataType::bf16, 8});
  check({2, 33, 500, 131, false, false, DataType::fp16, DataType::fp16, 3});
}

// So many tiles of 128x64 as there are SMs, but for a few.
TEST_F(Sm90Plain, IsExactForOneWaveOfNarrowTiles) {
  VERGLAS_NEEDS_GPU();
  check({1, 250, 4100, 264, true, true, DataType::bf16, DataType::bf16});
  check({1, 250, 4090, 136, false, false, DataType::fp16, DataType::fp32, 6});
}

TEST_F(Sm90Plain, IsExactForBatchesAndBroadcasts) {
  VERGLAS_NEEDS_GPU();
  for (const bool ba : {false, true})
    for (const bool bb : {false, true})
      if (!ba || !bb) check({3, 17, 72, 64, true, true, DataType::bf16, DataType::bf16, 0, 0, ba, bb});
  check({5, 130, 264, 40, false, true, DataType::bf16, DataType::fp32});
  check({3, 129, 72, 64, true, false, DataType::bf16, DataType::bf16, 8, 0, true, false});
}

TEST_F(Sm90Plain, IsExactWhereTheCopyEngineCannotGo) {
  VERGLAS_NEEDS_GPU();
  for (const std::int64_t pad : {0, 1, 2, 4})
    for (const std::int64_t k : {31, 64, 130}) check({1, 70, 90, k, true, true, DataType::bf16, DataType::bf16, pad});
  check({2, 65, 131, 33, false, false, DataType::fp16, DataType::fp16, 3});
  check({1, 128, 128, 64, true, true, DataType::bf16, DataType::fp32, 1});
}

// Rows of whole 16-byte pieces, of which the last is not full: what lies behind N stays as it was.
TEST_F(Sm90Plain, KeepsTheGapBehindEveryN) {
  VERGLAS_NEEDS_GPU();
  for (std::int64_t n = 1; n <= 20; ++n)
    for (const DataType out : {DataType::bf16, DataType::fp32}) check({2, 3, n, 16, true, true, DataType::bf16, out, 40 - n});
  for (const std::int64_t n : {63, 65, 127, 175, 177, 255, 257, 299})
    check({1, 70, n, 16, true, true, DataType::bf16, DataType::bf16, 320 - n});
}

// What wgmma reads along K only: along M or N in memory it is turned by threads, in pieces or element by element.
constexpr DataType kFp32 = DataType::fp32, kInt8 = DataType::int8, kInt32 = DataType::int32, kE4m3 = DataType::fp8_e4m3,
                   kE5m2 = DataType::fp8_e5m2, kBf16 = DataType::bf16;

TEST_F(Sm90Plain, IsExactForEveryTypeAndMajor) {
  VERGLAS_NEEDS_GPU();
  std::vector<Case> cases;
  for (const bool ta : {true, false})
    for (const bool tb : {true, false}) {
      cases.push_back({1, 130, 264, 160, ta, tb, kFp32, kFp32});
      cases.push_back({2, 136, 72, 96, ta, tb, kFp32, kBf16, 1});
      cases.push_back({1, 144, 272, 400, ta, tb, kInt8, kInt32});
      cases.push_back({2, 67, 129, 131, ta, tb, kInt8, DataType::int8, 1});
      cases.push_back({1, 144, 272, 400, ta, tb, kE4m3, kBf16, 0, 0, false, false, kE5m2});
      cases.push_back({2, 67, 129, 131, ta, tb, kE5m2, kE4m3, 1, 0, false, false, kE4m3});
      cases.push_back({1, 260, 520, 270, ta, tb, kE4m3, kE5m2, 2});
      cases.push_back({1, 260, 520, 270, ta, tb, kE5m2, kFp32, 4});
      cases.push_back({1, 260, 520, 400, ta, tb, kE4m3, kBf16, 0, 0, false, false, kE4m3, true});
    }
  check_all(cases);
}

TEST_F(Sm90Plain, IsExactForEveryTypeAtRaggedExtents) {
  VERGLAS_NEEDS_GPU();
  std::vector<Case> cases;
  std::mt19937 g(2);
  const std::vector<std::int64_t> edges = {1, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 177, 255, 256, 257, 300};
  std::uniform_int_distribution<std::size_t> draw(0, edges.size() - 1);
  const std::vector<std::pair<DataType, std::vector<DataType>>> types = {
      {kFp32, {kFp32, kBf16, kInt32}},
      {kInt8, {kInt32, DataType::int8, kFp32, kBf16, DataType::uint8, DataType::fp16}},
      {kE4m3, {kBf16, kFp32, kE4m3}},
      {kE5m2, {kE5m2, DataType::int8}}};
  for (int i = 0; i < 24; ++i) {
    const auto& [in, out] = types[static_cast<std::size_t>(i) % types.size()];
    cases.push_back({1, edges[draw(g)], edges[draw(g)], edges[draw(g)], i % 2 == 0, i % 4 < 2, in,
                     out[static_cast<std::size_t>(i) % out.size()]});
  }
  check_all(cases);
}

TEST_F(Sm90Plain, IsExactForEveryTypeOverSeveralWavesAndBatches) {
  VERGLAS_NEEDS_GPU();
  std::vector<Case> cases;
  cases.push_back({1, 2048, 1536, 256, true, true, kFp32, kFp32});
  cases.push_back({1, 2048, 1536, 1024, true, true, kInt8, kInt32});
  cases.push_back({1, 2048, 1536, 1024, true, true, kE4m3, kBf16});
  cases.push_back({3, 160, 144, 1040, true, false, kE4m3, kE4m3, 16, 0, true, false, kE5m2});
  cases.push_back({5, 130, 272, 48, false, true, kInt8, DataType::int8, 0, 0, false, true});
  check_all(cases);
}

TEST_F(Sm90Plain, IsZeroForEmptyK) {
  VERGLAS_NEEDS_GPU();
  check({1, 70, 200, 0, true, true, DataType::bf16, DataType::bf16});
  check({2, 8, 24, 0, false, false, DataType::bf16, DataType::fp32});
  check({1, 70, 200, 0, true, false, kInt8, kInt32});
  check({1, 70, 200, 0, false, true, kE4m3, kE4m3});
}

TEST_F(Sm90Plain, IsZeroWhenACallOfAnyPlanHasNoK) {
  VERGLAS_NEEDS_GPU();
  const cuda::DriverTable& driver = **cuda::driver();
  const cuda::PrimaryContext primary(driver, 0);
  const cuda::CurrentContext current(driver, primary.handle());
  std::size_t graphs = 0;
  for (const std::int64_t k : {64, 7})  // by the copy engine, and by threads
    for (const bool k_major : {true, false}) {
      constexpr std::int64_t kM = 130, kN = 264;
      Graph g({.io_data_type = DataType::bf16});
      const Tensor a = g.tensor({.name = "a", .dim = {kM, k}, .stride = {k_major ? k : 1, k_major ? 1 : kM + 6}});
      const Tensor b = g.tensor({.name = "b", .dim = {k, kN}, .stride = {k_major ? 1 : kN, k_major ? k : 1}});
      g.matmul(a, b).set_output(true);
      const PlanList plans = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
      support::DeviceBuffer d(driver, static_cast<std::size_t>(kM * kN) * 2, 0xEE);
      const std::vector<TensorView> call = {TensorView::strided(nullptr, DataType::bf16, {kM, 0}, {1, 1}, kGpu),
                                            TensorView::strided(nullptr, DataType::bf16, {0, kN}, {1, 1}, kGpu),
                                            TensorView::dense(d.data(), DataType::bf16, {kM, kN}, kGpu)};
      for (std::size_t i = graphs++; i < plans.size(); i += 4) {  // each plan of one of the four graphs
        SCOPED_TRACE(plans.name(i));
        const CompiledPlan plan = plans.compile(i);
        d.fill(0xEE);
        const Status s = plan.execute(call);
        ASSERT_TRUE(s.ok()) << plan.explain(s, call).what();
        ASSERT_EQ(driver.cuCtxSynchronize(), cuda::CUDA_SUCCESS);
        EXPECT_EQ(d.download(), std::vector<std::uint8_t>(static_cast<std::size_t>(kM * kN) * 2, 0));
        EXPECT_EQ(d.touched_guard_bytes(), 0);
      }
    }
}

}  // namespace
}  // namespace verglas
