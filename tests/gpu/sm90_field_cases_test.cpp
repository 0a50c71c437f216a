#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/sparse_memory.hpp"
#include "verglas/verglas.hpp"

// What went wrong for people who do this job and needs a device's memory, depth or concurrency to be seen; the other cases are
// met by generated chains (tests/gpu/sm90_chains_test.cpp). Each test is named after its case; small integers, compared by bits.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

int small(std::int64_t i) { return static_cast<int>((i * 5 + i / 7 * 3) % 7 - 3); }
std::uint16_t bf16(int v) { return static_cast<std::uint16_t>(oracle::encode(oracle::Format::bf16, v)); }

class Sm90FieldCases : public support::GpuTest {
 protected:
  static PlanList plans_of(Graph& g) { return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}); }
  void settle() const { ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS); }
};

// Rows, and matrices of a batch, that lie 2³⁰ elements apart and more: all offsets beyond 4 GiB, in A, a residual and D, by the
// copy engine and by threads.
TEST_F(Sm90FieldCases, A06_OffsetsBeyond32Bits) {
  constexpr std::int64_t kRows = 3, kK = 64, kN = 72;
  for (const bool batched : {false, true})
    for (const std::int64_t odd : {0, 1}) {
      const std::int64_t pitch = (std::int64_t{1} << 30) + odd, l = batched ? kRows : 1, m = batched ? 1 : kRows;
      const std::vector<std::int64_t> strides = {batched ? pitch : kRows * pitch, batched ? kK + 8 : pitch, 1};
      support::Sparse a(*driver_, 2 * (2 * pitch + 4096)), x(*driver_, 2 * (2 * pitch + 4096)), b(*driver_, 2 * kN * kK),
          d(*driver_, 2 * (2 * pitch + 4096));
      std::vector<std::uint16_t> weights;
      for (std::int64_t i = 0; i < kN * kK; ++i) weights.push_back(bf16(small(i)));
      b.put(0, weights);
      for (std::int64_t row = 0; row < kRows; ++row) {
        std::vector<std::uint16_t> values, residual;
        for (std::int64_t k = 0; k < kK; ++k) values.push_back(bf16(small(row * 11 + k)));
        for (std::int64_t n = 0; n < kN; ++n) residual.push_back(bf16(small(n - row + 50)));
        a.put(row * pitch, values);
        x.put(row * pitch, residual);
        d.put(row * pitch, std::vector<std::uint16_t>(kN, 0xFFFF));
      }
      Graph g({.io_data_type = DataType::bf16});
      const Tensor ta = g.tensor({.name = "a", .dim = {l, m, kK}, .stride = strides});
      const Tensor tb = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kN * kK, 1, kK}});
      const Tensor tx = g.tensor({.name = "x", .dim = {l, m, kN}, .stride = strides});
      g.add(g.matmul(ta, tb), tx).set_output(true).set_stride(strides);
      const PlanList plans = plans_of(g);
      ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
      const CompiledPlan plan = plans.compile(0);
      const std::vector<void*> call = {a.data(), b.data(), x.data(), d.data()};
      ASSERT_EQ(plan.operand_index("x"), 2);
      const Status s = plan.execute(call);
      ASSERT_TRUE(s.ok()) << static_cast<int>(s.code);
      settle();
      for (std::int64_t row = 0; row < kRows; ++row) {
        const auto got = d.get<std::uint16_t>(row * pitch, kN);
        for (std::int64_t n = 0; n < kN; ++n) {
          int want = small(n - row + 50);
          for (std::int64_t k = 0; k < kK; ++k) want += small(row * 11 + k) * small(n * kK + k);
          ASSERT_EQ(got[static_cast<std::size_t>(n)], bf16(want))
              << "batched " << batched << " odd " << odd << " (" << row << ", " << n << ") " << plan.name();
        }
      }
    }
}

// More matrices than a grid has blocks along y or z.
TEST_F(Sm90FieldCases, A13_EveryBatchWhateverTheRows) {
  constexpr std::int64_t kBatch = 70000, kM = 2, kN = 8, kK = 8;
  support::DeviceBuffer a(*driver_, kBatch * kM * kK * 2, 0), b(*driver_, kBatch * kN * kK * 2, 0),
      d(*driver_, kBatch * kM * kN * 4, 0xFF);
  std::vector<std::uint16_t> va, vb;
  for (std::int64_t i = 0; i < kBatch * kM * kK; ++i) va.push_back(bf16(small(i)));
  for (std::int64_t i = 0; i < kBatch * kN * kK; ++i) vb.push_back(bf16(small(i + 13)));
  a.upload(va.data());
  b.upload(vb.data());
  Graph g({.io_data_type = DataType::bf16});
  const Tensor ta = g.tensor({.name = "a", .dim = {kBatch, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor tb = g.tensor({.name = "b", .dim = {kBatch, kK, kN}, .stride = {kN * kK, 1, kK}});
  g.matmul(ta, tb).set_output(true).set_data_type(DataType::fp32);
  const CompiledPlan plan = plans_of(g).compile();
  ASSERT_TRUE(plan.execute(std::vector<void*>{a.data(), b.data(), d.data()}).ok());
  settle();
  const auto bytes = d.download();
  std::int64_t wrong = 0;
  for (std::int64_t l = 0; l < kBatch; ++l)
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kN; ++n) {
        int want = 0;
        for (std::int64_t k = 0; k < kK; ++k) want += small((l * kM + m) * kK + k) * small((l * kN + n) * kK + k + 13);
        float got = 0;
        std::memcpy(&got, &bytes[static_cast<std::size_t>((l * kM + m) * kN + n) * 4], 4);
        wrong += got != static_cast<float>(want);
      }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(d.touched_guard_bytes(), 0);
}

// A deep product, twice on one output: the second call neither adds to the first nor sums in another order.
TEST_F(Sm90FieldCases, A24_DeepProductsTwiceOnOneOutput) {
  constexpr std::int64_t kM = 40, kN = 72, kK = 200'000;  // |sum| ≤ 9 · K stays below 2²⁴
  std::vector<int> ia(kM * kK), ib(kN * kK);
  std::vector<std::uint16_t> va(kM * kK), vb(kN * kK);
  for (std::size_t i = 0; i < ia.size(); ++i) va[i] = bf16(ia[i] = small(static_cast<std::int64_t>(i / 3)));
  for (std::size_t i = 0; i < ib.size(); ++i) vb[i] = bf16(ib[i] = small(static_cast<std::int64_t>(i + i / kK)));
  support::DeviceBuffer a(*driver_, va.size() * 2, 0), b(*driver_, vb.size() * 2, 0), d(*driver_, kM * kN * 4, 0xFF);
  a.upload(va.data());
  b.upload(vb.data());
  Graph g({.io_data_type = DataType::bf16});
  const Tensor ta = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}});
  const Tensor tb = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}});
  g.matmul(ta, tb).set_output(true).set_data_type(DataType::fp32);
  const PlanList plans = plans_of(g);
  std::vector<float> want;
  for (std::size_t m = 0; m < kM; ++m)
    for (std::size_t n = 0; n < kN; ++n) {
      int sum = 0;
      for (std::size_t k = 0; k < kK; ++k) sum += ia[m * kK + k] * ib[n * kK + k];
      want.push_back(static_cast<float>(sum));
    }
  for (const std::size_t i : {std::size_t{0}, plans.size() - 1}) {
    const CompiledPlan plan = plans.compile(i);
    for (int round = 0; round < 2; ++round) ASSERT_TRUE(plan.execute(std::vector<void*>{a.data(), b.data(), d.data()}).ok());
    settle();
    EXPECT_EQ(std::memcmp(d.download().data(), want.data(), want.size() * 4), 0) << plan.name();
  }
}

// One plan in eight threads, each with a stream and buffers of its own; sums of rows need scratch memory of each stream.
TEST_F(Sm90FieldCases, A44_ManyThreadsOnePlan) {
  constexpr std::int64_t kM = 200, kN = 600, kK = 72;
  constexpr int kThreads = 8, kCalls = 100;
  Graph g({.io_data_type = DataType::bf16});
  const Tensor ta = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}});
  const Tensor tb = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}});
  const Tensor td = g.matmul(ta, tb).set_output(true).set_data_type(DataType::fp32);
  g.reduction(td, ReductionMode::add).set_dim({kM, 1}).set_output(true).set_data_type(DataType::fp32);
  const CompiledPlan plan = plans_of(g).compile();
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        const cuda::CurrentContext here(*driver_, primary_->handle());
        cuda::CUstream stream = nullptr;
        wrong += driver_->cuStreamCreate(&stream, cuda::kStreamNonBlocking) != cuda::CUDA_SUCCESS;
        support::DeviceBuffer a(*driver_, kM * kK * 2, 0), b(*driver_, kN * kK * 2, 0), d(*driver_, kM * kN * 4, 0xFF),
            rows(*driver_, kM * 4, 0xFF);
        std::vector<std::uint16_t> va, vb;
        for (std::int64_t i = 0; i < kM * kK; ++i) va.push_back(bf16(small(i + t)));
        for (std::int64_t i = 0; i < kN * kK; ++i) vb.push_back(bf16(small(i * 3 + t)));
        a.upload(va.data());
        b.upload(vb.data());
        driver_->cuCtxSynchronize();
        for (int i = 0; i < kCalls; ++i)
          wrong += plan.execute(std::vector<void*>{a.data(), b.data(), d.data(), rows.data()}, {stream}).ok() ? 0 : 1;
        wrong += driver_->cuStreamSynchronize(stream) != cuda::CUDA_SUCCESS;
        const auto bytes = rows.download();
        for (std::int64_t m = 0; m < kM; ++m) {
          std::int64_t want = 0;
          for (std::int64_t n = 0; n < kN; ++n)
            for (std::int64_t k = 0; k < kK; ++k) want += small(m * kK + k + t) * small((n * kK + k) * 3 + t);
          float got = 0;
          std::memcpy(&got, &bytes[static_cast<std::size_t>(m) * 4], 4);
          wrong += got != static_cast<float>(want);
        }
        driver_->cuStreamDestroy(stream);
      });
  }
  EXPECT_EQ(wrong, 0);
}

// What does not hold is 0, and its negation −0: bits of 0x8000, by a comparison and by a boolean that is read again.
TEST_F(Sm90FieldCases, ANegatedTruthKeepsTheSignOfZero) {
  constexpr std::int64_t kM = 72, kN = 40, kK = 16;
  support::DeviceBuffer a(*driver_, kM * kK * 2, 0), b(*driver_, kN * kK * 2, 0), compared(*driver_, kM * kN * 2, 0xFF),
      stored(*driver_, kM * kN * 2, 0xFF);
  std::vector<std::uint16_t> va, vb, want_compared, want_stored;
  for (std::int64_t i = 0; i < kM * kK; ++i) va.push_back(bf16(small(i)));
  for (std::int64_t i = 0; i < kN * kK; ++i) vb.push_back(bf16(small(i + 13)));
  a.upload(va.data());
  b.upload(vb.data());
  for (std::int64_t m = 0; m < kM; ++m)
    for (std::int64_t n = 0; n < kN; ++n) {
      int sum = 0;
      for (std::int64_t k = 0; k < kK; ++k) sum += small(m * kK + k) * small(n * kK + k + 13);
      want_compared.push_back(sum > 0 ? bf16(-1) : 0x8000);
      want_stored.push_back(sum != 0 ? bf16(-1) : 0x8000);
    }
  Graph g({.io_data_type = DataType::bf16});
  const Tensor ta = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}});
  const Tensor tb = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}});
  const Tensor c = g.matmul(ta, tb).set_data_type(DataType::fp32);
  using enum PointwiseMode;
  const Tensor positive = g.pointwise(cmp_gt, {c, g.pointwise(sub, {c, c})});
  g.pointwise(neg, {positive}).set_output(true);
  const Tensor nonzero = g.pointwise(identity, {c}).set_data_type(DataType::boolean);
  g.pointwise(neg, {nonzero}).set_output(true);
  const PlanList plans = plans_of(g);
  for (std::size_t i = 0; i < plans.size(); i += 3) {
    const CompiledPlan plan = plans.compile(i);
    ASSERT_TRUE(plan.execute(std::vector<void*>{a.data(), b.data(), compared.data(), stored.data()}).ok());
    settle();
    EXPECT_EQ(std::memcmp(compared.download().data(), want_compared.data(), want_compared.size() * 2), 0) << plan.name();
    EXPECT_EQ(std::memcmp(stored.download().data(), want_stored.data(), want_stored.size() * 2), 0) << plan.name();
  }
}

}  // namespace
}  // namespace verglas
