#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/sparse_memory.hpp"
#include "verglas/verglas.hpp"

// What went wrong for people with grouped products, on a device, as tests/property/grouped_cases_test.cpp has it on the CPU.
// Small integers in bf16, sums in fp32: all comparisons are of bits. 0xA5 in what nobody writes.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::uint16_t kNan = 0x7FC0;
using Ints = std::vector<std::int32_t>;

int small(std::int64_t i) { return static_cast<int>((i * 5 + i / 7 * 3) % 7 - 3); }
std::uint16_t bf16(int v) { return static_cast<std::uint16_t>(oracle::encode(oracle::Format::bf16, v)); }
std::vector<std::uint16_t> smalls(std::int64_t n, std::int64_t seed) {
  std::vector<std::uint16_t> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(bf16(small(i + seed)));
  return v;
}
float as_float(std::uint32_t bits) {
  float f = 0;
  std::memcpy(&f, &bits, 4);
  return f;
}
const float kPoison = as_float(0xA5A5A5A5);

class Sm90GroupedCases : public support::GpuTest {
 protected:
  /// Memory with these values.
  template <class T>
  std::unique_ptr<support::DeviceBuffer> put(const std::vector<T>& values) const {
    auto b = std::make_unique<support::DeviceBuffer>(*driver_, std::max<std::size_t>(1, values.size()) * sizeof(T), 0);
    if (!values.empty()) b->upload(values.data());
    return b;
  }
  std::unique_ptr<support::DeviceBuffer> poison(std::int64_t floats) const {
    return std::make_unique<support::DeviceBuffer>(*driver_, static_cast<std::size_t>(std::max<std::int64_t>(1, floats)) * 4,
                                                   0xA5);
  }
  static std::vector<float> floats(const support::DeviceBuffer& b) {
    const std::vector<std::uint8_t> bytes = b.download();
    std::vector<float> v(bytes.size() / 4);
    std::memcpy(v.data(), bytes.data(), bytes.size());
    EXPECT_EQ(b.touched_guard_bytes(), 0);
    return v;
  }
  static PlanList offers_of(Graph& g) {
    PlanList all = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
    if (all.size() == 0) ADD_FAILURE() << all.unsupported_text();
    return all;
  }
  /// The first plan and the last.
  static std::vector<CompiledPlan> plans_of(Graph& g) {
    const PlanList all = offers_of(g);
    return {all.compile(0), all.compile(all.size() - 1)};
  }
  void run(const CompiledPlan& plan, const std::vector<TensorView>& views) const {
    const Status s = plan.execute(views);
    ASSERT_TRUE(s.ok()) << plan.explain(s, views).what();
    ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  }
  void run(const CompiledPlan& plan, const std::vector<void*>& addresses) const {
    const Status s = plan.execute(addresses);
    ASSERT_TRUE(s.ok()) << plan.name() << ": " << static_cast<int>(s.code);
    ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  }
};

Tensor declare(Graph& g, const char* name, std::vector<std::int64_t> dim, DataType t = DataType::bf16) {
  std::vector<std::int64_t> stride(dim.size(), 1);
  for (std::size_t i = dim.size() - 1; i-- > 0;) stride[i] = stride[i + 1] * dim[i + 1];
  return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
}
TensorView dense(void* data, DataType t, std::initializer_list<std::int64_t> dim) {
  return TensorView::dense(data, t, dim, kGpu);
}
/// Weights of experts, along K.
Tensor declare_weights(Graph& g, std::int64_t experts, std::int64_t k, std::int64_t n) {
  return g.tensor({.name = "w", .dim = {experts, k, n}, .stride = {k * n, 1, k}});
}
/// A row of tokens times a column of an expert's weights, as smalls(…, 1) and smalls(…, 2) have them.
float product(std::int64_t row, std::int64_t expert, std::int64_t k, std::int64_t n, std::int64_t column) {
  int sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum += small(row * k + i + 1) * small((expert * n + column) * k + i + 2);
  return static_cast<float>(sum);
}
void clear_row(std::vector<std::uint16_t>& x, std::int64_t row, std::int64_t k) { std::fill_n(x.begin() + row * k, k, kNan); }

TEST_F(Sm90GroupedCases, A04_RowsBehindTheLastGroup) {
  constexpr std::int64_t kG = 4, kK = 64, kN = 48, kRows = 80, kOwned = 56;
  std::vector<std::uint16_t> vx = smalls(kRows * kK, 1);
  for (std::int64_t r = kOwned; r < kRows; ++r) clear_row(vx, r, kK);
  const auto x = put(vx), w = put(smalls(kG * kK * kN, 2));
  const auto ends = put(Ints{16, 32, 48, 56});
  for (const bool zero_fill : {false, true}) {
    Graph g({.io_data_type = DataType::bf16});
    const Tensor tx = declare(g, "x", {1, kRows, kK}), to = declare(g, "o", {kG}, DataType::int32);
    const Tensor y =
        g.moe_grouped_matmul(tx, declare_weights(g, kG, kK, kN), to, {.offsets = MoeOffsets::end, .zero_fill = zero_fill});
    Tensor(y).set_output(true).set_data_type(DataType::fp32);
    g.reduction(y, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true).set_data_type(DataType::fp32);
    for (const CompiledPlan& plan : plans_of(g)) {
      const auto d = poison(kRows * kN), most = poison(1);
      run(plan, std::vector<void*>{x->data(), w->data(), ends->data(), d->data(), most->data()});
      const std::vector<float> got = floats(*d);
      float want_most = 0;
      for (std::int64_t i = 0; i < kRows * kN; ++i) {
        const std::int64_t r = i / kN;
        const float want = r < kOwned ? product(r, r < 48 ? r / 16 : 3, kK, kN, i % kN) : zero_fill ? 0.0F : kPoison;
        ASSERT_EQ(got[static_cast<std::size_t>(i)], want) << plan.name() << " row " << r;
        ASSERT_EQ(std::signbit(got[static_cast<std::size_t>(i)]), std::signbit(want));
        if (r < kOwned) want_most = std::max(want_most, std::fabs(want));
      }
      EXPECT_EQ(floats(*most)[0], want_most);
    }
  }
}

TEST_F(Sm90GroupedCases, A05_TheGradientOfAnEmptyExpertIsZero) {
  constexpr std::int64_t kK = 96, kN = 40;
  const std::vector<std::vector<std::int64_t>> all = {{19, 0, 130, 64, 0, 5}, {0, 0, 0, 0, 0, 0}};
  constexpr std::int64_t kG = 6, kMost = 218;
  for (const bool accumulate : {false, true}) {
    Graph g({.io_data_type = DataType::bf16});
    const Tensor tx = declare(g, "x", {1, kMost, kK}), td = declare(g, "d", {1, kMost, kN});
    const Tensor to = declare(g, "o", {kG}, DataType::int32);
    g.moe_grouped_matmul_bwd(tx, td, to, {.accumulate = accumulate}).set_output(true).set_data_type(DataType::fp32);
    for (const CompiledPlan& plan : plans_of(g))
      for (const auto& sizes : all) {
        const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
        Ints first;
        for (std::int64_t at = 0; const std::int64_t size : sizes) first.push_back(static_cast<std::int32_t>(at)), at += size;
        std::vector<float> before(kG * kK * kN, as_float(0xFFC00000));
        if (accumulate)
          for (std::size_t i = 0; i < before.size(); ++i) before[i] = i % 3 == 0 ? -0.0F : static_cast<float>(i % 11) - 5;
        const auto x = put(smalls(rows * kK, 1)), d = put(smalls(rows * kN, 2));
        const auto o = put(first);
        const auto w = put(before);
        run(plan, std::vector<TensorView>{
                      dense(x->data(), DataType::bf16, {1, rows, kK}), dense(d->data(), DataType::bf16, {1, rows, kN}),
                      dense(o->data(), DataType::int32, {kG}), dense(w->data(), DataType::fp32, {kG, kK, kN})});
        const std::vector<float> got = floats(*w);
        for (std::int64_t i = 0; i < kG * kK * kN; ++i) {
          const std::int64_t e = i / (kK * kN), k = i / kN % kK, n = i % kN;
          const auto at = static_cast<std::size_t>(i);
          float want = accumulate ? before[at] : 0.0F;
          for (std::int64_t r = first[static_cast<std::size_t>(e)];
               r < first[static_cast<std::size_t>(e)] + sizes[static_cast<std::size_t>(e)]; ++r)
            want += static_cast<float>(small(r * kK + k + 1) * small(r * kN + n + 2));
          ASSERT_EQ(got[at], want) << plan.name() << " expert " << e;
          ASSERT_TRUE(sizes[static_cast<std::size_t>(e)] > 0 || std::signbit(got[at]) == std::signbit(want)) << e;
        }
      }
  }
}

// Rows of tokens and results that lie 2³⁰ elements apart: offsets beyond 4 GiB, by the copy engine and by threads.
TEST_F(Sm90GroupedCases, A06_OffsetsOfRowsAreOf64Bits) {
  constexpr std::int64_t kK = 64, kN = 72, kRows = 3;
  const Ints index = {2, 0, 1};
  const auto w = put(smalls(kRows * kK * kN, 2));
  const auto o = put(Ints{0, 1, 2}), at = put(index), slots = put(Ints{0, 0, 0});
  for (const std::int64_t pitch : {std::int64_t{1} << 30, (std::int64_t{1} << 30) + 1})
    for (const MoeMode mode : {MoeMode::none, MoeMode::gather, MoeMode::scatter}) {
      support::Sparse x(*driver_, 2 * (2 * pitch + 4096)), d(*driver_, 2 * (2 * pitch + 4096));
      for (std::int64_t r = 0; r < kRows; ++r) {
        x.put(r * pitch, smalls(kK, r * kK + 1));
        d.put(r * pitch, std::vector<std::uint16_t>(kN, kNan));
      }
      Graph g({.io_data_type = DataType::bf16});
      const std::vector<std::int64_t> strides = {kRows * pitch, pitch, 1};
      const Tensor tx = g.tensor({.name = "x", .dim = {1, kRows, kK}, .stride = strides}), tw = declare_weights(g, kRows, kK, kN);
      const Tensor to = declare(g, "o", {kRows}, DataType::int32);
      const Tensor ti = mode == MoeMode::none ? Tensor() : declare(g, "index", {1, kRows, 1}, DataType::int32);
      const Tensor ts = mode == MoeMode::scatter ? declare(g, "slot", {1, kRows, 1}, DataType::int32) : Tensor();
      g.moe_grouped_matmul(tx, tw, to, {.mode = mode}, ti, ts).set_output(true).set_stride(strides);
      std::vector<void*> addresses = {x.data(), w->data(), o->data()};
      if (mode != MoeMode::none) addresses.push_back(at->data());
      if (mode == MoeMode::scatter) addresses.push_back(slots->data());
      addresses.push_back(d.data());
      run(offers_of(g).compile(), addresses);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const std::int64_t other = index[static_cast<std::size_t>(r)], from = mode == MoeMode::gather ? other : r;
        const auto got = d.get<std::uint16_t>((mode == MoeMode::scatter ? other : r) * pitch, kN);
        for (std::int64_t n = 0; n < kN; ++n)
          ASSERT_EQ(got[static_cast<std::size_t>(n)], bf16(static_cast<int>(product(from, r, kK, kN, n)))) << r;
      }
    }
}

// Nearly all of them without a token: no row is taken for that of those.
TEST_F(Sm90GroupedCases, A06_MoreRowsThanFit30Bits) {
  constexpr std::int64_t kK = 8, kTokens = 5, kRows = (std::int64_t{1} << 30) + 64;
  support::Sparse index(*driver_, 4 * kRows), d(*driver_, 2 * kRows);
  index.fill(0xFF, 4 * kRows);
  d.fill(0xA5, 2 * kRows);
  const std::vector<std::int64_t> owned = {3, kRows - 66, kRows - 62, kRows - 1};
  for (std::size_t i = 0; i < owned.size(); ++i) index.put(owned[i], Ints{static_cast<std::int32_t>(i + 1)});
  const auto x = put(smalls(kTokens * kK, 1)), w = put(smalls(2 * kK, 2)),
             o = put(Ints{0, static_cast<std::int32_t>(kRows - 65)});
  Graph g({.io_data_type = DataType::bf16});
  const Tensor tx = declare(g, "x", {1, kTokens, kK}), tw = declare_weights(g, 2, kK, 1);
  const Tensor to = declare(g, "o", {2}, DataType::int32), ti = declare(g, "index", {1, kRows, 1}, DataType::int32);
  g.moe_grouped_matmul(tx, tw, to, {.mode = MoeMode::gather}, ti).set_output(true);
  run(offers_of(g).compile(), {x->data(), w->data(), o->data(), index.data(), d.data()});
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const auto token = static_cast<std::int64_t>(i) + 1;
    EXPECT_EQ(d.get<std::uint16_t>(owned[i], 1)[0], bf16(static_cast<int>(product(token, i < 2 ? 0 : 1, kK, 1, 0)))) << owned[i];
  }
  for (const std::int64_t nobodys : {std::int64_t{0}, kRows - 65, kRows - 64, kRows - 63, kRows - 2})
    EXPECT_EQ(d.get<std::uint16_t>(nobodys, 1)[0], 0xA5A5) << nobodys;
}

// −1 says that a row has no token; other numbers outside are taken for it, and told.
TEST_F(Sm90GroupedCases, A14_ARowToSkipIsNoIndex) {
  constexpr std::int64_t kG = 3, kK = 64, kN = 72, kRows = 768;
  const auto owner = [](std::int64_t row) { return row < 384 ? 0 : row < 512 ? 1 : 2; };
  for (const MoeMode mode : {MoeMode::gather, MoeMode::scatter}) {
    Graph g({.io_data_type = DataType::bf16});
    const Tensor tx = declare(g, "x", {1, kRows, kK}), tw = declare_weights(g, kG, kK, kN);
    const Tensor to = declare(g, "o", {kG}, DataType::int32), ti = declare(g, "index", {1, kRows, 1}, DataType::int32);
    const Tensor ts = mode == MoeMode::scatter ? declare(g, "slot", {1, kRows, 1}, DataType::int32) : Tensor();
    const Tensor y = g.moe_grouped_matmul(tx, tw, to, {.mode = mode}, ti, ts);
    Tensor(y).set_output(true).set_data_type(DataType::fp32);
    g.reduction(y, ReductionMode::amax, {}, to).set_dim({kG, 1, 1}).set_output(true).set_data_type(DataType::fp32);
    for (const CompiledPlan& plan : plans_of(g))
      for (const int wild : {0, 1}) {
        Ints index(kRows);
        for (std::int64_t r = 0; r < kRows; ++r) {
          const std::int64_t block = r / 128;
          const bool skipped = block == 2 || block == 4 || r % 29 == 7;
          index[static_cast<std::size_t>(r)] = skipped ? -1 : static_cast<std::int32_t>(r);
        }
        if (wild != 0) index[5] = kRows, index[700] = 1 << 30, index[701] = -2;
        const auto has_token = [&](std::int64_t r) {
          const std::int32_t i = index[static_cast<std::size_t>(r)];
          return i >= 0 && i < kRows;
        };
        std::vector<std::uint16_t> vx = smalls(kRows * kK, 1);
        for (std::int64_t r = 0; r < kRows; ++r)
          if (!has_token(r)) clear_row(vx, r, kK);
        const auto x = put(vx), w = put(smalls(kG * kK * kN, 2));
        const auto o = put(Ints{0, 384, 512}), at = put(index), slots = put(Ints(kRows, 0));
        const auto d = poison(kRows * kN), most = poison(kG);
        std::vector<void*> addresses = {x->data(), w->data(), o->data(), at->data()};
        if (mode == MoeMode::scatter) addresses.push_back(slots->data());
        addresses.push_back(d->data());
        addresses.push_back(most->data());
        run(plan, addresses);
        const std::vector<float> got = floats(*d), got_most = floats(*most);
        float want_most[kG] = {};
        for (std::int64_t i = 0; i < kRows * kN; ++i) {
          const std::int64_t r = i / kN;
          const float want = has_token(r) ? product(r, owner(r), kK, kN, i % kN) : kPoison;
          ASSERT_EQ(got[static_cast<std::size_t>(i)], want) << plan.name() << " row " << r;
          if (has_token(r)) want_most[owner(r)] = std::max(want_most[owner(r)], std::fabs(want));
        }
        for (std::size_t e = 0; e < kG; ++e) EXPECT_EQ(got_most[e], want_most[e]) << e;
        if (wild != 0)
          EXPECT_THROW(plan.check(), Error);
        else
          EXPECT_NO_THROW(plan.check());
      }
  }
}

// Places for the rows of each expert, of which some have a token.
TEST_F(Sm90GroupedCases, A15_AnyCapacity) {
  constexpr std::int64_t kG = 5, kK = 128, kN = 72;
  Graph g({.io_data_type = DataType::bf16});
  const Tensor tx = declare(g, "x", {1, kG * 65, kK}), tw = declare_weights(g, kG, kK, kN);
  const Tensor to = declare(g, "o", {kG}, DataType::int32), ti = declare(g, "index", {1, kG * 65, 1}, DataType::int32);
  g.moe_grouped_matmul(tx, tw, to, {.mode = MoeMode::gather}, ti).set_output(true).set_data_type(DataType::fp32);
  for (const CompiledPlan& plan : plans_of(g))
    for (const std::int64_t capacity : {1, 8, 16, 33, 64, 65}) {
      const std::int64_t rows = kG * capacity, live[kG] = {0, 1, capacity, capacity - 1, std::min<std::int64_t>(3, capacity)};
      std::vector<std::uint16_t> vx = smalls(rows * kK, 1);
      Ints first, index;
      for (std::int64_t r = 0; r < rows; ++r) {
        const bool is_live = r % capacity < live[r / capacity];
        index.push_back(is_live ? static_cast<std::int32_t>(r) : -1);
        if (!is_live) clear_row(vx, r, kK);
        if (r % capacity == 0) first.push_back(static_cast<std::int32_t>(r));
      }
      const auto x = put(vx), w = put(smalls(kG * kK * kN, 2));
      const auto o = put(first), at = put(index);
      const auto d = poison(rows * kN);
      run(plan, std::vector<TensorView>{dense(x->data(), DataType::bf16, {1, rows, kK}),
                                        TensorView::strided(w->data(), DataType::bf16, {kG, kK, kN}, {kK * kN, 1, kK}, kGpu),
                                        dense(o->data(), DataType::int32, {kG}), dense(at->data(), DataType::int32, {1, rows, 1}),
                                        dense(d->data(), DataType::fp32, {1, rows, kN})});
      const std::vector<float> got = floats(*d);
      for (std::int64_t i = 0; i < rows * kN; ++i) {
        const std::int64_t r = i / kN;
        const float want = index[static_cast<std::size_t>(r)] >= 0 ? product(r, r / capacity, kK, kN, i % kN) : kPoison;
        ASSERT_EQ(got[static_cast<std::size_t>(i)], want) << plan.name() << " capacity " << capacity << " row " << r;
      }
    }
}

TEST_F(Sm90GroupedCases, A28_EmptyExpertsMayLieNowhere) {
  constexpr std::int64_t kK = 72, kN = 24;
  const std::vector<std::vector<std::int64_t>> all = {{5, 3, 0}, {0, 5, 3}, {5, 0, 3}, {0, 0, 0}};
  for (const bool by_address : {false, true}) {
    Graph g({.io_data_type = DataType::bf16});
    const Tensor tx = declare(g, "x", {1, 8, kK});
    Tensor tw = declare_weights(g, 3, kK, kN);
    tw.set_by_pointers(by_address);
    const Tensor to = declare(g, "o", {3}, DataType::int32);
    g.moe_grouped_matmul(tx, tw, to).set_output(true).set_data_type(DataType::fp32);
    for (const CompiledPlan& plan : plans_of(g))
      for (const auto& sizes : all)
        for (const std::uint64_t nowhere : {0, 8, 1}) {  // null, not aligned, behind the end of the weights
          const std::int64_t rows = sizes[0] + sizes[1] + sizes[2];
          const auto x = put(smalls(rows * kK, 1)), w = put(smalls(3 * kK * kN, 2));
          const auto o = put(Ints{0, static_cast<std::int32_t>(sizes[0]), static_cast<std::int32_t>(sizes[0] + sizes[1])});
          const auto begin = reinterpret_cast<std::uint64_t>(w->data());
          std::vector<std::uint64_t> addresses;
          for (std::size_t e = 0; e < 3; ++e)
            addresses.push_back(sizes[e] > 0   ? begin + e * kK * kN * 2
                                : nowhere == 1 ? begin + std::uint64_t{3 * kK * kN * 2} + (std::uint64_t{1} << 40)
                                               : nowhere);
          const auto table = put(addresses);
          const auto d = poison(rows * kN);
          run(plan,
              std::vector<TensorView>{
                  dense(rows == 0 ? nullptr : x->data(), DataType::bf16, {1, rows, kK}),
                  by_address ? dense(table->data(), DataType::int64, {3})
                             : TensorView::strided(w->data(), DataType::bf16, {3, kK, kN}, {kK * kN, 1, kK}, kGpu),
                  dense(o->data(), DataType::int32, {3}), dense(rows == 0 ? nullptr : d->data(), DataType::fp32, {1, rows, kN})});
          const std::vector<float> got = floats(*d);
          for (std::int64_t i = 0; i < rows * kN; ++i) {
            const std::int64_t r = i / kN, e = r >= sizes[0] + sizes[1] ? 2 : r >= sizes[0] ? 1 : 0;
            ASSERT_EQ(got[static_cast<std::size_t>(i)], product(r, e, kK, kN, i % kN)) << plan.name();
          }
          EXPECT_NO_THROW(plan.check());
        }
  }
}

// Many tiles a block with short main loops, beside another launch that keeps memory busy: every run has the same bits.
TEST_F(Sm90GroupedCases, A34_TheDrainReadsBeforeItReleases) {
  constexpr std::int64_t kG = 6, kK = 64, kN = 512, kRows = 4096, kRuns = 300;
  Graph g({.io_data_type = DataType::bf16});
  const Tensor tx = declare(g, "x", {1, kRows, kK}), tw = declare_weights(g, kG, kK, kN);
  const Tensor to = declare(g, "o", {kG}, DataType::int32);
  g.moe_grouped_matmul(tx, tw, to).set_output(true).set_data_type(DataType::fp32);
  const Ints first = {0, 1000, 1001, 1100, 3000, 3333};
  const auto x = put(smalls(kRows * kK, 1)), w = put(smalls(kG * kK * kN, 2));
  const auto o = put(first);
  const auto d = poison(kRows * kN), from = poison(1 << 23), to_memory = poison(1 << 23);
  std::vector<float> want;
  for (std::int64_t i = 0; i < kRows * kN; ++i) {
    const auto e = std::upper_bound(first.begin(), first.end(), static_cast<std::int32_t>(i / kN)) - first.begin() - 1;
    want.push_back(product(i / kN, e, kK, kN, i % kN));
  }
  cuda::CUstream other = nullptr;
  ASSERT_EQ(driver_->cuStreamCreate(&other, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
  for (const CompiledPlan& plan : plans_of(g))
    for (int run_number = 0; run_number < kRuns; ++run_number) {
      d->fill(0xA5);
      ASSERT_EQ(driver_->cuMemcpyDtoDAsync(reinterpret_cast<cuda::CUdeviceptr>(to_memory->data()),
                                           reinterpret_cast<cuda::CUdeviceptr>(from->data()), from->size(), other),
                cuda::CUDA_SUCCESS);
      run(plan, std::vector<void*>{x->data(), w->data(), o->data(), d->data()});
      const std::vector<std::uint8_t> got = d->download();
      ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << plan.name() << " run " << run_number;
    }
  driver_->cuStreamDestroy(other);
}

}  // namespace
}  // namespace verglas
