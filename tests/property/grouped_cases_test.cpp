#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/cliff.hpp"
#include "verglas/verglas.hpp"

// What went wrong for people with grouped products, on the CPU engine. Integers from −3 to 3 make every sum exact, so that all
// comparisons are of bits.
namespace {

using namespace verglas;
using Dims = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kPoison = -12345.0F;

float small(std::int64_t i) { return static_cast<float>((i * 5 + i / 7 * 3) % 7 - 3); }
Floats smalls(std::int64_t n, std::int64_t seed) {
  Floats v(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = small(i + seed * 1000003);
  return v;
}
Dims packed(const Dims& dim) {
  Dims s(dim.size(), 1);
  for (std::size_t i = dim.size(); i-- > 1;) s[i - 1] = s[i] * dim[i];
  return s;
}
Tensor declare(Graph& g, const Dims& dim, DataType t = DataType::fp32) {
  return g.tensor({.dim = dim, .stride = packed(dim), .data_type = t});
}
double element(const Floats& x, const Floats& w, std::int64_t row, std::int64_t expert, std::int64_t k, std::int64_t n,
               std::int64_t column) {
  double s = 0;
  for (std::int64_t i = 0; i < k; ++i)
    s += double{x[static_cast<std::size_t>(row * k + i)]} * w[static_cast<std::size_t>((expert * k + i) * n + column)];
  return s;
}

TEST(GroupedCases, A04_RowsBehindTheLastGroup) {
  constexpr std::int64_t kG = 4, kK = 64, kN = 48, kRows = 80, kOwned = 56;
  for (const bool zero_fill : {false, true}) {
    Graph g({.io_data_type = DataType::fp32});
    const Tensor x = declare(g, {1, kRows, kK});
    const Tensor w = declare(g, {kG, kK, kN});
    const Tensor ends = declare(g, {kG}, DataType::int32);
    Tensor y = g.moe_grouped_matmul(x, w, ends, {.offsets = MoeOffsets::end, .zero_fill = zero_fill});
    y.set_output(true);
    g.reduction(y, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true);
    Floats vx = smalls(kRows * kK, 1), vw = smalls(kG * kK * kN, 2), vy(kRows * kN, kPoison), most(1, kPoison);
    std::fill(vx.begin() + kOwned * kK, vx.end(), kNan);
    std::vector<std::int32_t> vo = {16, 32, 48, 56};
    ASSERT_TRUE(g.compile().execute(std::vector<void*>{vx.data(), vw.data(), vo.data(), vy.data(), most.data()}).ok());
    double want_most = 0;
    for (std::int64_t i = 0; i < kRows * kN; ++i) {
      const std::int64_t r = i / kN;
      const float want = r < kOwned  ? static_cast<float>(element(vx, vw, r, r < 48 ? r / 16 : 3, kK, kN, i % kN))
                         : zero_fill ? 0.0F
                                     : kPoison;
      ASSERT_EQ(vy[static_cast<std::size_t>(i)], want) << r;
      ASSERT_EQ(std::signbit(vy[static_cast<std::size_t>(i)]), std::signbit(want)) << r;
      if (r < kOwned) want_most = std::max(want_most, std::fabs(double{want}));
    }
    EXPECT_EQ(most[0], want_most);
  }
}

TEST(GroupedCases, A05_TheGradientOfAnEmptyExpertIsZero) {
  constexpr std::int64_t kK = 96, kN = 40;
  const std::vector<std::vector<std::int64_t>> all = {{19, 0, 130, 64, 0, 5}, {0, 0, 0, 0, 0, 0}};
  for (const auto& sizes : all)
    for (const bool accumulate : {false, true}) {
      const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
      const auto groups = static_cast<std::int64_t>(sizes.size());
      Graph g({.io_data_type = DataType::fp32});
      const Tensor x = declare(g, {1, rows, kK});
      const Tensor d = declare(g, {1, rows, kN});
      const Tensor o = declare(g, {groups}, DataType::int64);
      g.moe_grouped_matmul_bwd(x, d, o, {.accumulate = accumulate}).set_output(true);
      Floats vx = smalls(rows * kK, 1), vd = smalls(rows * kN, 2);
      Floats vw = accumulate ? smalls(groups * kK * kN, 3) : Floats(static_cast<std::size_t>(groups * kK * kN), kNan);
      if (accumulate) vw[static_cast<std::size_t>(kK * kN)] = -0.0F;  // of the empty expert 1
      const Floats before = vw;
      std::vector<std::int64_t> vo(1, 0);
      for (std::size_t i = 0; i + 1 < sizes.size(); ++i) vo.push_back(vo.back() + sizes[i]);
      ASSERT_TRUE(g.compile().execute(std::vector<void*>{vx.data(), vd.data(), vo.data(), vw.data()}).ok());
      for (std::int64_t i = 0; i < groups * kK * kN; ++i) {
        const std::int64_t e = i / (kK * kN), k = i / kN % kK, n = i % kN;
        const auto at = static_cast<std::size_t>(i);
        double want = accumulate ? before[at] : 0.0;
        for (std::int64_t r = 0; r < sizes[static_cast<std::size_t>(e)]; ++r) {
          const std::int64_t row = vo[static_cast<std::size_t>(e)] + r;
          want += double{vx[static_cast<std::size_t>(row * kK + k)]} * vd[static_cast<std::size_t>(row * kN + n)];
        }
        ASSERT_EQ(vw[at], want) << e;
        const bool is_negative = accumulate && std::signbit(before[at]);
        ASSERT_TRUE(sizes[static_cast<std::size_t>(e)] > 0 || std::signbit(vw[at]) == is_negative) << e;
      }
    }
}

/// Memory of which only the touched pages exist.
struct Reservation {
  explicit Reservation(std::size_t bytes)
      : size(bytes), data(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() { munmap(data, size); }
  std::size_t size;
  void* data;
};

TEST(GroupedCases, A06_OffsetsOfRowsAreOf64Bits) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30, kK = 8, kN = 8, kRows = 3;
  const Reservation far_x((kRows - 1) * kFar * 4 + 64), far_y((kRows - 1) * kFar * 4 + 64);
  ASSERT_NE(far_x.data, MAP_FAILED);
  ASSERT_NE(far_y.data, MAP_FAILED);
  for (const MoeMode mode : {MoeMode::none, MoeMode::gather, MoeMode::scatter}) {
    auto* const x = static_cast<float*>(far_x.data);
    auto* const y = static_cast<float*>(far_y.data);
    Graph g({.io_data_type = DataType::fp32});
    const Tensor tx = g.tensor({.dim = {1, kRows, kK}, .stride = {kRows * kFar, kFar, 1}});
    const Tensor tw = declare(g, {3, kK, kN});
    const Tensor to = declare(g, {3}, DataType::int32);
    Tensor ti, ts;
    if (mode != MoeMode::none) ti = declare(g, {1, kRows, 1}, DataType::int32);
    if (mode == MoeMode::scatter) ts = declare(g, {1, kRows, 1}, DataType::int32);
    g.moe_grouped_matmul(tx, tw, to, {.mode = mode}, ti, ts).set_stride({kRows * kFar, kFar, 1}).set_output(true);
    Floats w = smalls(3 * kK * kN, 2), plain_x(kRows * kK);
    for (std::int64_t i = 0; i < kRows * kK; ++i) x[i / kK * kFar + i % kK] = plain_x[static_cast<std::size_t>(i)] = small(i);
    std::vector<std::int32_t> o = {0, 1, 2}, index = {2, 0, 1}, slot = {0, 0, 0};
    std::vector<void*> addresses = {x, w.data(), o.data()};
    if (mode != MoeMode::none) addresses.push_back(index.data());
    if (mode == MoeMode::scatter) addresses.push_back(slot.data());
    addresses.push_back(y);
    ASSERT_TRUE(g.compile().execute(addresses).ok());
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t n = 0; n < kN; ++n) {
        const std::int64_t from = mode == MoeMode::gather ? index[static_cast<std::size_t>(r)] : r;
        const std::int64_t to_row = mode == MoeMode::scatter ? index[static_cast<std::size_t>(r)] : r;
        ASSERT_EQ(y[to_row * kFar + n], element(plain_x, w, from, r, kK, kN, n)) << r;
      }
  }
}

// −1 says that a row has no token; other numbers outside are taken for it, and told.
TEST(GroupedCases, A14_ARowToSkipIsNoIndex) {
  constexpr std::int64_t kG = 3, kK = 8, kN = 24, kRows = 768;
  const auto owner = [](std::int64_t row) -> std::size_t { return row < 384 ? 0 : row < 512 ? 1 : 2; };
  for (const MoeMode mode : {MoeMode::gather, MoeMode::scatter})
    for (const bool is_wild : {false, true}) {
      Graph g({.io_data_type = DataType::fp32});
      const Tensor x = declare(g, {1, kRows, kK}), w = declare(g, {kG, kK, kN});
      const Tensor o = declare(g, {kG}, DataType::int32), index = declare(g, {1, kRows, 1}, DataType::int32);
      const Tensor slot = mode == MoeMode::scatter ? declare(g, {1, kRows, 1}, DataType::int32) : Tensor();
      Tensor y = g.moe_grouped_matmul(x, w, o, {.mode = mode}, index, slot);
      y.set_output(true);
      g.reduction(y, ReductionMode::amax, {}, o).set_dim({kG, 1, 1}).set_output(true);
      std::vector<std::int32_t> vi(kRows), vs(kRows, 0), vo = {0, 384, 512};
      for (std::int64_t r = 0; r < kRows; ++r)
        vi[static_cast<std::size_t>(r)] = r / 128 == 2 || r / 128 == 4 || r % 29 == 7 ? -1 : static_cast<std::int32_t>(r);
      if (is_wild) vi[5] = kRows, vi[700] = 1 << 30, vi[701] = -2;
      const auto has_token = [&](std::int64_t r) {
        const std::int32_t i = vi[static_cast<std::size_t>(r)];
        return i >= 0 && i < kRows;
      };
      Floats vx = smalls(kRows * kK, 1), vw = smalls(kG * kK * kN, 2), vy(kRows * kN, kPoison), most(kG, kPoison);
      for (std::int64_t r = 0; r < kRows; ++r)
        if (!has_token(r)) std::fill_n(vx.begin() + r * kK, kK, kNan);
      std::vector<void*> addresses = {vx.data(), vw.data(), vo.data(), vi.data()};
      if (mode == MoeMode::scatter) addresses.push_back(vs.data());
      addresses.push_back(vy.data());
      addresses.push_back(most.data());
      const CompiledPlan plan = g.compile();
      ASSERT_TRUE(plan.execute(addresses).ok());
      Floats want_most(kG, 0);
      for (std::int64_t i = 0; i < kRows * kN; ++i) {
        const std::int64_t r = i / kN;
        const float want =
            has_token(r) ? static_cast<float>(element(vx, vw, r, static_cast<std::int64_t>(owner(r)), kK, kN, i % kN)) : kPoison;
        ASSERT_EQ(vy[static_cast<std::size_t>(i)], want) << r;
        if (has_token(r)) want_most[owner(r)] = std::max(want_most[owner(r)], std::fabs(want));
      }
      EXPECT_EQ(most, want_most);
      if (is_wild)
        EXPECT_THROW(plan.check(), Error);
      else
        EXPECT_NO_THROW(plan.check());
    }
}

// Places for the rows of each expert, of which some have a token.
TEST(GroupedCases, A15_AnyCapacity) {
  constexpr std::int64_t kG = 5, kK = 128, kN = 72;
  for (const std::int64_t capacity : {1, 8, 16, 33, 64, 65}) {
    const std::int64_t rows = kG * capacity, live[kG] = {0, 1, capacity, capacity - 1, std::min<std::int64_t>(3, capacity)};
    Graph g({.io_data_type = DataType::fp32});
    const Tensor x = declare(g, {1, rows, kK}), w = declare(g, {kG, kK, kN});
    const Tensor o = declare(g, {kG}, DataType::int32), index = declare(g, {1, rows, 1}, DataType::int32);
    g.moe_grouped_matmul(x, w, o, {.mode = MoeMode::gather}, index).set_output(true);
    Floats vx = smalls(rows * kK, 1), vw = smalls(kG * kK * kN, 2), vy(static_cast<std::size_t>(rows * kN), kPoison);
    std::vector<std::int32_t> vo, vi;
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool is_live = r % capacity < live[r / capacity];
      vi.push_back(is_live ? static_cast<std::int32_t>(r) : -1);
      if (!is_live) std::fill_n(vx.begin() + r * kK, kK, kNan);
      if (r % capacity == 0) vo.push_back(static_cast<std::int32_t>(r));
    }
    ASSERT_TRUE(g.compile().execute(std::vector<void*>{vx.data(), vw.data(), vo.data(), vi.data(), vy.data()}).ok());
    for (std::int64_t i = 0; i < rows * kN; ++i) {
      const std::int64_t r = i / kN;
      const float want =
          vi[static_cast<std::size_t>(r)] < 0 ? kPoison : static_cast<float>(element(vx, vw, r, r / capacity, kK, kN, i % kN));
      ASSERT_EQ(vy[static_cast<std::size_t>(i)], want) << capacity << " " << r;
    }
  }
}

/// Sizes of groups: empty first, in the middle, last, and all of them.
const std::vector<std::vector<std::int64_t>> kSizes = {{5, 3, 0}, {0, 5, 3}, {5, 0, 3}, {0, 0, 0}};

TEST(GroupedCases, A28_AnEmptyGroupAtTheEndOfAllMemory) {
  constexpr std::int64_t kK = 9, kN = 17;
  for (const auto& sizes : kSizes) {
    const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    Graph g({.io_data_type = DataType::fp32});
    const Tensor tx = declare(g, {1, rows, kK});
    const Tensor tw = declare(g, {3, kK, kN});
    const Tensor to = declare(g, {3}, DataType::int32);
    g.moe_grouped_matmul(tx, tw, to).set_output(true);
    const support::Cliff x(static_cast<std::size_t>(rows * kK) * 4), w(3 * kK * kN * 4), o(3 * 4),
        y(static_cast<std::size_t>(rows * kN) * 4);
    Floats plain_x(static_cast<std::size_t>(rows * kK)), plain_w(3 * kK * kN);
    for (std::size_t i = 0; i < plain_x.size(); ++i) x.data()[i] = plain_x[i] = small(static_cast<std::int64_t>(i));
    for (std::size_t i = 0; i < plain_w.size(); ++i) w.data()[i] = plain_w[i] = small(static_cast<std::int64_t>(i) + 77);
    const std::int32_t offsets[] = {0, static_cast<std::int32_t>(sizes[0]), static_cast<std::int32_t>(sizes[0] + sizes[1])};
    std::memcpy(o.data(), offsets, sizeof offsets);
    const CompiledPlan plan = g.compile();
    ASSERT_TRUE(plan.execute(std::vector<void*>{x.data(), w.data(), o.data(), y.data()}).ok());
    for (std::int64_t i = 0; i < rows * kN; ++i) {
      const std::int64_t r = i / kN, e = r >= offsets[2] ? 2 : r >= offsets[1] ? 1 : 0;
      ASSERT_EQ(y.data()[i], element(plain_x, plain_w, r, e, kK, kN, i % kN));
    }
    EXPECT_NO_THROW(plan.check());
  }
}

TEST(GroupedCases, A28_AddressesOfEmptyExpertsMayBeAnything) {
  constexpr std::int64_t kK = 9, kN = 17;
  for (const auto& sizes : kSizes)
    for (float* const nowhere : {static_cast<float*>(nullptr), reinterpret_cast<float*>(8)}) {
      const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
      Graph g({.io_data_type = DataType::fp32});
      const Tensor tx = declare(g, {1, rows, kK});
      Tensor tw = declare(g, {3, kK, kN});
      tw.set_by_pointers(true);
      const Tensor to = declare(g, {3}, DataType::int32);
      g.moe_grouped_matmul(tx, tw, to).set_output(true);
      Floats x = smalls(rows * kK, 1), w = smalls(3 * kK * kN, 2), y(static_cast<std::size_t>(rows * kN), kPoison);
      std::vector<float*> table(3);
      for (std::size_t e = 0; e < 3; ++e) table[e] = sizes[e] == 0 ? nowhere : w.data() + static_cast<std::int64_t>(e) * kK * kN;
      std::vector<std::int32_t> o = {0, static_cast<std::int32_t>(sizes[0]), static_cast<std::int32_t>(sizes[0] + sizes[1])};
      const CompiledPlan plan = g.compile();
      const std::vector<void*> addresses = {x.data(), static_cast<void*>(table.data()), o.data(), y.data()};
      ASSERT_TRUE(plan.execute(addresses).ok());
      for (std::int64_t i = 0; i < rows * kN; ++i) {
        const std::int64_t r = i / kN, e = r >= o[2] ? 2 : r >= o[1] ? 1 : 0;
        ASSERT_EQ(y[static_cast<std::size_t>(i)], element(x, w, r, e, kK, kN, i % kN));
      }
      EXPECT_NO_THROW(plan.check());
      if (rows == 0) continue;
      const std::size_t used = sizes[0] > 0 ? 0 : 1;  // a null one that is needed: those rows stay, and it is told
      table[used] = nullptr;
      std::fill(y.begin(), y.end(), kPoison);
      ASSERT_TRUE(plan.execute(addresses).ok());
      for (std::int64_t i = 0; i < rows * kN; ++i) {
        const std::int64_t r = i / kN;
        const std::size_t e = r >= o[2] ? 2 : r >= o[1] ? 1 : 0;
        ASSERT_EQ(y[static_cast<std::size_t>(i)] == kPoison, e == used);
      }
      EXPECT_THROW(plan.check(), Error);
    }
}

// Its rows are as those of nobody: not written, not even by a reduction of each row, or zeros.
TEST(GroupedCases, AGroupWithoutWeightsOwnsNoRow) {
  constexpr std::int64_t kRows = 12, kK = 9, kN = 17;
  const Floats x = smalls(kRows * kK, 1), w = smalls(3 * kK * kN, 2);
  std::vector<std::int32_t> o = {2, 5, 9}, index = {-1, 3, 1, 0, -1, 5, 4, 7, 11, 2, 6, 10};
  for (const bool zero_fill : {false, true})
    for (const bool gathers : {false, true})
      for (const std::size_t off : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {  // null, or not that of an element
        Graph g({.io_data_type = DataType::fp32});
        const Tensor tx = declare(g, {1, kRows, kK});
        Tensor tw = declare(g, {3, kK, kN});
        tw.set_by_pointers(true);
        const Tensor to = declare(g, {3}, DataType::int32), ti = gathers ? declare(g, {1, kRows, 1}, DataType::int32) : Tensor();
        Tensor y =
            g.moe_grouped_matmul(tx, tw, to, {.mode = gathers ? MoeMode::gather : MoeMode::none, .zero_fill = zero_fill}, ti);
        y.set_output(true);
        g.reduction(y, ReductionMode::max).set_dim({1, kRows, 1}).set_output(true);
        const auto* const first = reinterpret_cast<const char*>(w.data());
        std::vector<const char*> table = {first, off == 0 ? nullptr : first + kK * kN * 4 + off, first + 2 * kK * kN * 4};
        Floats vy(kRows * kN, kPoison), most(kRows, kPoison);
        std::vector<void*> addresses = {const_cast<float*>(x.data()), table.data(), o.data()};
        if (gathers) addresses.push_back(index.data());
        addresses.insert(addresses.end(), {vy.data(), most.data()});
        const CompiledPlan plan = g.compile();
        ASSERT_TRUE(plan.execute(addresses).ok());
        for (std::int64_t r = 0; r < kRows; ++r) {
          const auto at = static_cast<std::size_t>(r);
          const std::int64_t e = r < 2 ? -1 : r < 5 ? 0 : r < 9 ? 1 : 2, from = gathers ? index[at] : r;
          const bool is_owned = e != -1 && e != 1 && from >= 0;
          float largest = -std::numeric_limits<float>::infinity();
          for (std::int64_t n = 0; n < kN; ++n) {
            const float want = is_owned ? static_cast<float>(element(x, w, from, e, kK, kN, n)) : zero_fill ? 0.0F : kPoison;
            ASSERT_EQ(vy[static_cast<std::size_t>(r * kN + n)], want) << r;
            if (is_owned) largest = std::max(largest, want);
          }
          ASSERT_EQ(most[at], is_owned || zero_fill ? largest : kPoison) << r;
        }
        EXPECT_THROW(plan.check(), Error);
      }
}

// Of two products one has its weights by address, by experts in any order, and one in a tensor.
TEST(GroupedCases, WeightsByAddressBesideThoseOfATensor) {
  constexpr std::int64_t kRows = 12, kK = 9, kN = 17;
  const Floats x = smalls(kRows * kK, 1), w = smalls(3 * kK * kN, 2), v = smalls(3 * kK * kN, 3);
  const std::vector<std::int32_t> o = {0, 5, 9};
  const std::vector<const float*> table = {w.data() + kK * kN, w.data(), w.data() + 2 * kK * kN};
  for (const bool is_first : {false, true}) {
    Graph g({.io_data_type = DataType::fp32});
    const Tensor tx = declare(g, {1, kRows, kK});
    const Tensor to = declare(g, {3}, DataType::int32);
    Tensor by_address = declare(g, {3, kK, kN}), in_tensor = declare(g, {3, kK, kN});
    by_address.set_by_pointers(true);
    const auto product = [&](Tensor weights) { return g.moe_grouped_matmul(tx, weights, to); };
    const Tensor first = product(is_first ? by_address : in_tensor), second = product(is_first ? in_tensor : by_address);
    g.pointwise(PointwiseMode::sub, {first, second}).set_output(true);
    const CompiledPlan plan = g.compile();
    Floats y(kRows * kN, kPoison);
    const std::map<std::string, const void*> all = {
        {"a", x.data()}, {"b", v.data()}, {"b_addresses", table.data()}, {"group_offset", o.data()}, {"output", y.data()}};
    std::vector<void*> addresses;
    for (const OperandInfo& info : plan.operands()) addresses.push_back(const_cast<void*>(all.at(info.roles)));
    ASSERT_TRUE(plan.execute(addresses).ok());
    for (std::int64_t i = 0; i < kRows * kN; ++i) {
      const std::int64_t r = i / kN, e = r < 5 ? 0 : r < 9 ? 1 : 2, by_table = e == 2 ? 2 : 1 - e;
      const double of_w = element(x, w, r, by_table, kK, kN, i % kN), of_v = element(x, v, r, e, kK, kN, i % kN);
      ASSERT_EQ(y[static_cast<std::size_t>(i)], is_first ? of_w - of_v : of_v - of_w) << r << ", " << is_first;
    }
  }
}

TEST(GroupedCases, WithoutExpertsNoRowIsComputedAndItIsTold) {
  constexpr std::int64_t kRows = 5, kK = 9, kN = 17;
  for (const bool zero_fill : {false, true})
    for (const bool by_address : {false, true}) {
      Graph g({.io_data_type = DataType::fp32});
      const Tensor tx = declare(g, {1, kRows, kK});
      Tensor tw = declare(g, {3, kK, kN});
      tw.set_by_pointers(by_address);
      const Tensor to = declare(g, {2}, DataType::int32);
      g.moe_grouped_matmul(tx, tw, to, {.zero_fill = zero_fill}).set_output(true);
      const CompiledPlan plan = g.compile();
      const Floats x = smalls(kRows * kK, 1);
      Floats y(static_cast<std::size_t>(kRows * kN), kPoison);
      for (const std::int32_t first : {2, 5}) {
        const std::vector<std::int32_t> o = {first, 5};
        const std::vector<TensorView> views = {TensorView::dense(const_cast<float*>(x.data()), DataType::fp32, {1, kRows, kK}),
                                               by_address ? TensorView::dense(nullptr, DataType::int64, {0})
                                                          : TensorView::dense(nullptr, DataType::fp32, {0, kK, kN}),
                                               TensorView::dense(const_cast<std::int32_t*>(o.data()), DataType::int32, {2}),
                                               TensorView::dense(y.data(), DataType::fp32, {1, kRows, kN})};
        const Status status = plan.execute(views);
        ASSERT_TRUE(status.ok()) << plan.explain(status, views).what();
        EXPECT_EQ(y, Floats(y.size(), zero_fill ? 0.0F : kPoison));
        if (first < kRows)
          EXPECT_THROW(plan.check(), Error);
        else
          EXPECT_NO_THROW(plan.check());
      }
    }
}

TEST(GroupedCases, A62_AnyNumberOfGroups) {
  constexpr std::int64_t kK = 64, kN = 24;
  for (const std::int64_t groups : {1, 2, 31, 33, 129, 257, 513, 1025, 4096}) {
    std::vector<std::int64_t> o(static_cast<std::size_t>(groups));
    std::int64_t rows = 0;
    std::vector<std::int64_t> owner;
    for (std::int64_t i = 0; i < groups; ++i) {
      o[static_cast<std::size_t>(i)] = rows;
      for (std::int64_t k = 0; k < i * 7 % 4; ++k) owner.push_back(i);
      rows = static_cast<std::int64_t>(owner.size());
    }
    Graph g({.io_data_type = DataType::fp32});
    const Tensor tx = declare(g, {1, rows, kK});
    const Tensor tw = declare(g, {groups, kK, kN});
    const Tensor to = declare(g, {groups}, DataType::int64);
    g.moe_grouped_matmul(tx, tw, to).set_output(true);
    Floats x = smalls(rows * kK, 1), w = smalls(groups * kK * kN, 2), y(static_cast<std::size_t>(rows * kN), kPoison);
    ASSERT_TRUE(g.compile().execute(std::vector<void*>{x.data(), w.data(), o.data(), y.data()}).ok());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < rows * kN; ++i)
      wrong += y[static_cast<std::size_t>(i)] !=
               static_cast<float>(element(x, w, i / kN, owner[static_cast<std::size_t>(i / kN)], kK, kN, i % kN));
    EXPECT_EQ(wrong, 0) << groups;
  }
}

}  // namespace
