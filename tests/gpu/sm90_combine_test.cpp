#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "support/combine_problem.hpp"
#include "support/gpu.hpp"

// COMBINE on a device, as tests/property/combine_cases_test.cpp has it on the CPU: what drawn groupings (sm90_grouped_test.cpp)
// do not reach.
namespace {

using namespace support::combine;

class Sm90Combine : public support::GpuTest {
 protected:
  using Buffer = support::DeviceBuffer;
  std::unique_ptr<Buffer> put(const void* data, std::size_t bytes) const {
    auto b = std::make_unique<Buffer>(*driver_, std::max<std::size_t>(1, bytes), 0xA5);
    if (bytes != 0) b->upload(data);
    return b;
  }
  /// The operands of a call in the order of its plan, and the result.
  struct Call {
    std::vector<std::unique_ptr<Buffer>> memory;
    std::vector<void*> addresses;
    std::size_t results;
  };
  Call call_of(const Problem& p, const Data& d) const {
    const Bytes offsets = stored(p.bounds, p.offset);
    Call c;
    c.results = static_cast<std::size_t>(p.tokens * p.n);
    const auto add = [&](const auto& v) { c.memory.push_back(put(v.data(), v.size() * sizeof(v[0]))); };
    add(d.token.stored), add(d.weight.stored), add(offsets), add(p.index), add(p.slot), add(d.score.stored);
    c.memory.push_back(std::make_unique<Buffer>(*driver_, std::max<std::size_t>(4, 4 * c.results), 0xA5));
    for (const auto& b : c.memory) c.addresses.push_back(b->data());
    return c;
  }
  std::vector<float> result_of(const Call& c) const {
    EXPECT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
    EXPECT_EQ(c.memory.back()->touched_guard_bytes(), 0);
    const std::vector<std::uint8_t> bytes = c.memory.back()->download();
    std::vector<float> y(c.results);
    if (c.results != 0) std::memcpy(y.data(), bytes.data(), 4 * c.results);
    return y;
  }
  static Tensor describe(Built& b, const Problem& p) {
    const Tensor w = b.g.tensor({.dim = {p.experts, p.k, p.n}, .stride = {p.k * p.n, p.n, 1}, .data_type = p.type});
    return b.product(w).set_output(true);
  }
  static PlanList plans_of(Built& b) {
    return b.g.plans({.device = {DeviceType::cuda, 0}, .deselect_engines = {"cpu", "cublaslt"}});
  }
  /// By the first plan and the last, each called three times: what one call leaves behind the next one meets.
  void expect_combined(Problem p) {
    if (p.index.empty()) p.route();
    Built b(p);
    describe(b, p);
    const Data d(p);
    const std::vector<float> want = d.want(p);
    const PlanList plans = plans_of(b);
    ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
    for (const std::size_t i : {std::size_t{0}, plans.size() - 1}) {
      const CompiledPlan plan = plans.compile(i);
      const Call c = call_of(p, d);
      for (int turn = 0; turn < 3; ++turn) {
        c.memory.back()->fill(0xA5);
        ASSERT_TRUE(plan.execute(c.addresses).ok()) << plan.name();
        ASSERT_EQ(result_of(c), want) << plan.name() << ", call " << turn;
        EXPECT_NO_THROW(plan.check());
      }
    }
  }
};

TEST_F(Sm90Combine, RowsThatNoGroupOwnsAndExtentsOfNothing) {
  for (Problem p : {Problem{.bounds = {40, 40, 40, 40}}, Problem{.offsets = MoeOffsets::end, .bounds = {0, 0, 0}},
                    Problem{.rows = 0, .bounds = {0, 0}}, Problem{.experts = 1, .bounds = {0}}, Problem{.tokens = 0},
                    Problem{.k = 0}, Problem{.score = DataType::bf16, .bounds = {7, 12, 12, 12}},
                    Problem{.score = DataType::fp16, .offset = DataType::int64}}) {
    p.type = DataType::bf16;
    expect_combined(p);
  }
}

// More rows of one place than a list is walked for, and more tokens than a launch has pieces of.
TEST_F(Sm90Combine, ManyRowsOfOnePlaceAndManyTokens) {
  Problem one{.tokens = 3, .rows = 9000, .k = 8, .n = 16, .type = DataType::bf16, .bounds = {11, 100, 4000, 8000}};
  for (std::int32_t r = 0; r < 9000; ++r) one.index.push_back(r % 8 == 0 ? 0 : 1);
  one.slot.assign(9000, 1);
  expect_combined(one);
  expect_combined(
      {.tokens = 41000, .rows = 9001, .k = 8, .n = 40, .top_k = 3, .type = DataType::bf16, .bounds = {0, 17, 3000, 3000}});
  expect_combined(
      {.tokens = 130, .rows = 300, .experts = 5, .k = 40, .n = 700, .type = DataType::bf16, .bounds = {0, 17, 100, 170, 250}});
}

TEST_F(Sm90Combine, SumsRunBySlotAndThenByRow) {
  for (const int many : {4, 40}) {  // with 40 rows lists are not walked
    Problem p{.tokens = 1, .rows = many, .experts = 1, .k = 1, .n = 1, .top_k = 3, .type = DataType::bf16, .bounds = {0}};
    p.index.assign(static_cast<std::size_t>(many), 0);
    for (const bool is_one_slot : {false, true}) {
      p.slot = is_one_slot ? Ints{1, 1, 1, 1} : Ints{2, 1, 0, 1};
      p.slot.resize(static_cast<std::size_t>(many), 1);
      Built b(p);
      describe(b, p);
      Data d(p);
      // By slots: row 2, rows 1 and 3, row 0; what follows in slot 1 is zeros.
      std::vector<float> x(static_cast<std::size_t>(many), 0.0F);
      x[0] = 1, x[1] = -0x1p60F, x[2] = 0x1p60F, x[3] = 0x1p-3F;
      for (std::size_t i = 0; i < x.size(); ++i) numeric::from_float(x[i], d.token.stored.data() + 2 * i, p.type);
      numeric::from_float(1.0F, d.weight.stored.data(), p.type);
      for (int s = 0; s < 3; ++s) numeric::from_float(1.0F, d.score.stored.data() + 4 * s, DataType::fp32);
      const Call c = call_of(p, d);
      ASSERT_TRUE(plans_of(b).compile().execute(c.addresses).ok());
      EXPECT_EQ(result_of(c)[0], is_one_slot ? 0x1p-3F : 1.125F) << many;
    }
  }
}

// Each stream has lists of its own, and blocks of two launches do not wait for each other.
TEST_F(Sm90Combine, RunsOnTwoStreamsAtOnce) {
  Problem p{.tokens = 700, .rows = 1400, .experts = 4, .k = 256, .n = 512, .type = DataType::bf16, .bounds = {0, 300, 301, 900}};
  p.route();
  Built b(p);
  describe(b, p);
  const Data d(p);
  const std::vector<float> want = d.want(p);
  const CompiledPlan plan = plans_of(b).compile();
  std::vector<cuda::CUstream> streams(2);
  std::vector<Call> calls;
  for (cuda::CUstream& s : streams) {
    ASSERT_EQ(driver_->cuStreamCreate(&s, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
    calls.push_back(call_of(p, d));
  }
  for (int turn = 0; turn < 50; ++turn)
    for (std::size_t i = 0; i < 2; ++i) ASSERT_TRUE(plan.execute(calls[i].addresses, {streams[i]}).ok());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result_of(calls[i]), want);
    EXPECT_EQ(driver_->cuStreamDestroy(streams[i]), cuda::CUDA_SUCCESS);
  }
}

}  // namespace
