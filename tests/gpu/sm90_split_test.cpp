#include <gtest/gtest.h>

#include <cstring>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// Plans that split K over two blocks, called with more tiles than there are clusters: the sums of one tile must not land on those
// of the tile before, whose drain still reads them.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kM = 1000, kN = 4160;

class Sm90Split : public support::GpuTest {
 protected:
  std::vector<int> fill(support::DeviceBuffer& buffer, std::uint64_t seed) const {
    support::Random random(seed);
    std::vector<int> values(buffer.size() / 2);
    std::vector<std::uint16_t> bits;
    for (int& v : values) {
      v = static_cast<int>(random.between(-1, 1));
      bits.push_back(static_cast<std::uint16_t>(oracle::encode(oracle::Format::bf16, v)));
    }
    buffer.upload(bits.data());
    return values;
  }
};

/// Weights along K and along N, rows for narrow tiles, which exchange them, and for wide ones: whichever operand is read once.
TEST_F(Sm90Split, IsExactForManyTilesOfACluster) {
  int plans_seen = 0;
  struct Kind {
    std::int64_t k, rows;
    bool along_k;
  };
  for (const auto& [k, rows, along_k] : {Kind{72, 128, true},
                                         {200, 128, true},
                                         {328, 128, true},
                                         {200, 128, false},
                                         {328, 64, false},
                                         {200, 16, true},
                                         {328, 16, false},
                                         {72, 32, false}}) {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {rows, k}, .stride = {k, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {k, 512}, .stride = {along_k ? 1 : 512, along_k ? k : 1}});
    g.matmul(a, b).set_output(true);
    const PlanList plans = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});

    const auto bytes = [](std::int64_t x, std::int64_t y) { return static_cast<std::size_t>(x * y) * 2; };
    support::DeviceBuffer da(*driver_, bytes(kM, k), 0), db(*driver_, bytes(kN, k), 0), dd(*driver_, bytes(kM, kN), 0);
    const std::vector<int> va = fill(da, 1), vb = fill(db, 2);
    std::vector<std::uint16_t> want;
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kN; ++n) {
        int sum = 0;
        for (std::int64_t i = 0; i < k; ++i)
          sum += va[static_cast<std::size_t>(m * k + i)] * vb[static_cast<std::size_t>(along_k ? n * k + i : i * kN + n)];
        want.push_back(static_cast<std::uint16_t>(oracle::encode(oracle::Format::bf16, sum)));
      }
    const std::vector<TensorView> call = {
        TensorView::dense(da.data(), DataType::bf16, {kM, k}, kGpu),
        TensorView::strided(db.data(), DataType::bf16, {k, kN}, {along_k ? 1 : kN, along_k ? k : 1}, kGpu),
        TensorView::dense(dd.data(), DataType::bf16, {kM, kN}, kGpu)};
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (plans.knobs(i).at("SPLIT") == 1) continue;
      SCOPED_TRACE(plans.name(i));
      const CompiledPlan plan = plans.compile(i);
      for (int round = 0; round < 8; ++round) {
        dd.fill(0xEE);
        for (int again = 0; again < 4; ++again) {
          const Status s = plan.execute(call);
          ASSERT_TRUE(s.ok()) << plan.explain(s, call).what();
        }
        ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
        const auto got = dd.download();
        ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << "round " << round;
        EXPECT_EQ(dd.touched_guard_bytes(), 0);
      }
      ++plans_seen;
    }
  }
  EXPECT_GE(plans_seen, 32) << "two tiles, with programmatic launch and without, for eight kinds";
}

}  // namespace
}  // namespace verglas
