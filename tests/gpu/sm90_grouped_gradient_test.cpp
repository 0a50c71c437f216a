#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// The gradient of the weights: each group sums over its own rows, and nothing of a neighbour's, which hold NaN and infinities in
// turn. Exact on small integers against plain loops, for generated sizes from none to 300.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kMostRows = 1200, kMostGroups = 40, kMostK = 150, kMostN = 140, kPitch = 144;  ///< of the result

struct Kind {
  std::string name;
  DataType in = DataType::bf16, out = DataType::fp32;
  bool accumulate = false, ends = false;
  bool along_rows = false;  ///< tokens are contiguous along rows, and dout is not
  std::int64_t pitch = 152;
};
std::ostream& operator<<(std::ostream& o, const Kind& k) { return o << k.name; }

class Sm90GroupedGradient : public support::GpuTest, public ::testing::WithParamInterface<Kind> {};

TEST_P(Sm90GroupedGradient, IsExactForGeneratedGroupings) {
  const Kind& p = GetParam();
  Graph g({.io_data_type = p.in});
  constexpr std::int64_t kG = 6, kRows = 700;
  const auto tokens = [&](const char* name, std::int64_t columns, bool along_rows) {
    return g.tensor({.name = name,
                     .dim = {1, kRows, columns},
                     .stride = along_rows ? std::vector<std::int64_t>{columns * kMostRows, 1, kMostRows}
                                          : std::vector<std::int64_t>{kRows * p.pitch, p.pitch, 1}});
  };
  const Tensor x = tokens("x", 136, p.along_rows);
  const Tensor dy = tokens("dy", 128, false);
  const Tensor o = g.tensor({.name = "o", .dim = {kG}, .stride = {1}, .data_type = DataType::int32});
  g.moe_grouped_matmul_bwd(x, dy, o, {.offsets = p.ends ? MoeOffsets::end : MoeOffsets::first_token, .accumulate = p.accumulate})
      .set_output(true)
      .set_name("dw")
      .set_data_type(p.out)
      .set_stride({136 * kPitch, kPitch, 1});
  const PlanList all = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GT(all.size(), 0U) << all.unsupported_text();
  std::vector<CompiledPlan> compiled(std::min<std::size_t>(all.size(), 6));
  {
    std::vector<std::jthread> compilers;
    for (std::size_t i = 0; i < compiled.size(); ++i)
      compilers.emplace_back([&, i] { compiled[i] = all.compile(i * all.size() / compiled.size()); });
  }

  support::Random random(23);
  const auto encode = [](DataType t, double v) {
    return static_cast<std::uint32_t>(oracle::encode(static_cast<oracle::Format>(t), v));
  };
  const auto put = [&](std::vector<std::uint8_t>& to, DataType t, std::int64_t at, double v) {
    const std::uint32_t bits = encode(t, v);
    std::memcpy(&to[static_cast<std::size_t>(at * bytes_of(t))], &bits, static_cast<std::size_t>(bytes_of(t)));
  };
  const auto bytes = [](std::int64_t elements, DataType t) { return static_cast<std::size_t>(elements * bytes_of(t)); };
  const std::int64_t x_elements = p.along_rows ? kMostK * kMostRows : kMostRows * p.pitch;
  support::DeviceBuffer vx(*driver_, bytes(x_elements, p.in), 0), vy(*driver_, bytes(kMostRows * p.pitch, p.in), 0),
      vo(*driver_, kMostGroups * 4, 0), vw(*driver_, bytes(kMostGroups * kMostK * kPitch, p.out), 0);
  for (int call = 0; call < 25 * static_cast<int>(compiled.size()); ++call) {
    const CompiledPlan& plan = compiled[static_cast<std::size_t>(call) % compiled.size()];
    const std::int64_t groups = random.chance(20) ? random.between(10, kMostGroups) : random.between(1, 9);
    const std::int64_t k = random.chance(50) ? 8 * random.between(1, kMostK / 8) : random.between(1, kMostK);
    const std::int64_t n = random.chance(50) ? 8 * random.between(1, kMostN / 8) : random.between(1, kMostN);
    std::vector<std::int64_t> begin = {0};
    for (std::int64_t i = 0; i < groups; ++i)
      begin.push_back(std::min(kMostRows - 30, begin.back() + (random.chance(30)   ? 0
                                                               : random.chance(10) ? 128
                                                                                   : random.between(0, 300))));
    if (!p.ends && random.chance(40)) begin[0] = begin[1] / 2;
    const std::int64_t rows = begin.back() + (p.ends ? random.between(0, 30) : 0);
    // One group's rows stand alone between infinities and NaN of the others, which give NaN themselves.
    const std::int64_t tame = random.between(0, groups - 1);
    const bool is_wild = random.chance(50);
    std::vector<int> tx(static_cast<std::size_t>(rows * k)), ty(static_cast<std::size_t>(rows * n));
    for (auto* v : {&tx, &ty})
      for (int& e : *v) e = static_cast<int>(random.between(-1, 1));
    std::vector<std::uint8_t> hx(vx.size()), hy(vy.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto t = static_cast<std::size_t>(tame);
      const bool in = !is_wild || (r >= begin[t] && r < begin[t + 1]);
      const double wild = r % 2 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
      for (std::int64_t c = 0; c < k; ++c)
        put(hx, p.in, p.along_rows ? c * kMostRows + r : r * p.pitch + c, in ? tx[static_cast<std::size_t>(r * k + c)] : wild);
      for (std::int64_t c = 0; c < n; ++c) put(hy, p.in, r * p.pitch + c, in ? ty[static_cast<std::size_t>(r * n + c)] : wild);
    }
    std::vector<std::int32_t> ho(kMostGroups);
    for (std::size_t i = 0; i < static_cast<std::size_t>(groups); ++i)
      ho[i] = static_cast<std::int32_t>(begin[p.ends ? i + 1 : i]);
    if (p.ends) begin[0] = 0;
    std::vector<std::uint8_t> before(vw.size(), 0xEE), want;
    if (p.accumulate)
      for (std::int64_t i = 0; i < groups * k * kPitch; ++i)
        put(before, p.out, i, i % 5 == 0 ? -0.0 : static_cast<double>(i % 7 - 3));
    want = before;
    vx.upload(hx.data());
    vy.upload(hy.data());
    vo.upload(ho.data());
    vw.upload(before.data());
    const TensorView view_x = p.along_rows
                                  ? TensorView::strided(vx.data(), p.in, {1, rows, k}, {k * kMostRows, 1, kMostRows}, kGpu)
                                  : TensorView::strided(vx.data(), p.in, {1, rows, k}, {rows * p.pitch, p.pitch, 1}, kGpu);
    const std::vector<TensorView> views = {view_x,
                                           TensorView::strided(vy.data(), p.in, {1, rows, n}, {rows * p.pitch, p.pitch, 1}, kGpu),
                                           TensorView::dense(vo.data(), DataType::int32, {groups}, kGpu),
                                           TensorView::strided(vw.data(), p.out, {groups, k, n}, {k * kPitch, kPitch, 1}, kGpu)};
    const Status s = plan.execute(views);
    ASSERT_TRUE(s.ok()) << plan.explain(s, views).what();
    const std::vector<std::uint8_t> got = vw.download();
    for (std::int64_t group = 0; group < groups; ++group) {
      const auto at = static_cast<std::size_t>(group);
      for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          const std::int64_t e = (group * k + i) * kPitch + j;
          if (begin[at + 1] == begin[at] && p.accumulate) continue;  // no bit changes
          if (is_wild && group != tame && begin[at + 1] > begin[at]) {
            std::memcpy(&want[bytes(e, p.out)], &got[bytes(e, p.out)], bytes(1, p.out));  // NaN, not compared
            continue;
          }
          double sum = p.accumulate ? (e % 5 == 0 ? 0.0 : static_cast<double>(e % 7 - 3)) : 0.0;
          for (std::int64_t r = begin[at]; r < begin[at + 1]; ++r)
            sum += tx[static_cast<std::size_t>(r * k + i)] * ty[static_cast<std::size_t>(r * n + j)];
          put(want, p.out, e, sum);
        }
    }
    if (got != want) {
      const auto at = (std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin()) / bytes_of(p.out);
      FAIL() << plan.name() << ", rows " << rows << ", groups " << groups << ", K " << k << ", N " << n << ", wild " << is_wild
             << ": first wrong element of group " << at / (k * kPitch) << " (" << at / kPitch % k << ", " << at % kPitch << ")";
    }
    plan.check();
  }
  EXPECT_EQ(vw.touched_guard_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Gpu, Sm90GroupedGradient,
    ::testing::Values(Kind{.name = "fp32"}, Kind{.name = "bf16", .out = DataType::bf16, .ends = true},
                      Kind{.name = "accumulate", .accumulate = true},
                      Kind{.name = "accumulate_bf16", .out = DataType::bf16, .accumulate = true, .ends = true},
                      Kind{.name = "along_rows", .along_rows = true}, Kind{.name = "odd_pitch", .pitch = 151},
                      Kind{.name = "fp8", .in = DataType::fp8_e5m2, .pitch = 160}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace verglas
