#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <thread>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// Products of groups that are known to the device alone: generated sizes from none to 300 rows, any number of groups, rows that
// nobody owns, offsets that do not fit. Exact on small integers against plain loops; nothing else is written. One kernel serves
// many groupings by live extents.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kMostRows = 1500, kMostGroups = 1024, kMostExperts = 6, kMostK = 100, kMostN = 200;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kPoison = -0x1.dddddcp+94F;  ///< bytes 0xEE
constexpr int kLargest = 2000;               ///< of all sums

struct Kind {
  std::string name;
  DataType in = DataType::bf16, out = DataType::bf16;
  DataType offset = DataType::int32;
  bool ends = false;
  bool a_k_major = true, b_k_major = true;
  std::int64_t pitch = 104, pitch_d = 208;  ///< elements between lines of A and B along K, and between rows of D
  bool zero_fill = false;
  bool is_fused = false;  ///< relu(prob · sum + bias of the group), and the sum beside it
  bool reduces = false;   ///< over groups, all rows and columns, beside it
  MoeMode mode = MoeMode::none;
  std::int64_t top_k = 1;
  bool pairs = false;  ///< a second product of the same groups is subtracted twice
};
std::ostream& operator<<(std::ostream& o, const Kind& k) { return o << k.name; }

/// One call: who owns what.
struct Grouping {
  std::int64_t rows = 0, groups = 1, experts = 1, n = 1, k = 1;
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> owner;        ///< group of each row, or −1
  std::vector<std::int32_t> index, slot;  ///< of each row, where the kind has them
  std::vector<std::int64_t> from, to;     ///< row of A and of D of each row
  std::int64_t tokens = 0;                ///< rows of A
  bool fits = true;
};

class Sm90Grouped : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    VERGLAS_NEEDS_GPU();
    support::Random random(5);
    const auto draw = [&](std::int64_t count) {
      std::vector<int> v(static_cast<std::size_t>(count));
      for (int& x : v) x = static_cast<int>(random.between(-1, 1));
      return v;
    };
    a_ = draw(kMostRows * kMostK);
    b_ = draw(kMostExperts * kMostN * kMostK);
    for (const DataType t : {GetParam().in, GetParam().out, DataType::fp32}) {
      std::vector<std::uint32_t>& of_type = bits_[t];
      of_type.clear();
      for (int v = -kLargest; v <= kLargest; ++v)
        of_type.push_back(static_cast<std::uint32_t>(oracle::encode(static_cast<oracle::Format>(t), v)));
    }
  }

  PlanList plans() const {
    const Kind& p = GetParam();
    constexpr std::int64_t kG = 5, kRows = 900, kK = 72, kN = 168;
    const std::int64_t tokens = p.mode == MoeMode::gather ? 400 : kRows;
    Graph g({.io_data_type = p.in});
    const Tensor x = g.tensor(
        {.name = "x",
         .dim = {1, tokens, kK},
         .stride = {p.a_k_major ? tokens * p.pitch : kK * kMostRows, p.a_k_major ? p.pitch : 1, p.a_k_major ? 1 : kMostRows}});
    const auto weight = [&](const char* name) { return g.tensor({.name = name, .dim = {kG, kK, kN}, .stride = strides_of_b()}); };
    const Tensor o = g.tensor({.name = "o", .dim = {kG}, .stride = {1}, .data_type = p.offset});
    MoeAttributes attributes;
    attributes.mode = p.mode;
    attributes.offsets = p.ends ? MoeOffsets::end : MoeOffsets::first_token;
    attributes.top_k = p.top_k;
    attributes.zero_fill = p.zero_fill;
    const auto list = [&](const char* name) {
      return g.tensor({.name = name, .dim = {1, kRows, 1}, .stride = {kRows, 1, 1}, .data_type = DataType::int32});
    };
    const Tensor index = p.mode == MoeMode::none ? Tensor() : list("index");
    const Tensor slot = p.mode == MoeMode::scatter ? list("slot") : Tensor();
    const Tensor w = weight("w");
    Tensor y = g.moe_grouped_matmul(x, w, o, attributes, index, slot);
    if (p.pairs) {
      const Tensor other = g.moe_grouped_matmul(x, w, o, attributes, index, slot);
      y = g.pointwise(PointwiseMode::sub, {y, g.add(other, other)});
    }
    if (p.is_fused) {
      y.set_output(true).set_name("sum").set_data_type(DataType::fp32).set_stride({kRows * p.pitch_d, p.pitch_d, 1});
      const Tensor prob = g.tensor({.name = "prob", .dim = {1, kRows, 1}, .stride = {kRows, 1, 1}, .data_type = DataType::fp32});
      const Tensor bias =
          g.tensor({.name = "bias", .dim = {kG, 1, kN}, .stride = {kMostN, kMostN, 1}, .data_type = DataType::fp32});
      y = g.relu(g.add(g.mul(y, prob), bias));
    }
    if (p.reduces) {
      const auto reduce = [&](const char* name, ReductionMode mode, std::vector<std::int64_t> dim, bool of_groups) {
        g.reduction(y, mode, {}, of_groups ? o : Tensor())
            .set_dim(std::move(dim))
            .set_output(true)
            .set_name(name)
            .set_data_type(DataType::fp32);
      };
      reduce("amax", ReductionMode::amax, {kG, 1, 1}, true);
      reduce("sums", ReductionMode::add, {kG, 1, kN}, true);
      if (p.mode == MoeMode::none) reduce("mean", ReductionMode::avg, {1, 1, 1}, false);
      reduce("least", ReductionMode::min, {1, 1, kN}, false);
      reduce("most", ReductionMode::max, {1, kRows, 1}, false);
    }
    y.set_output(true).set_name("y").set_data_type(p.out).set_stride({kRows * p.pitch_d, p.pitch_d, 1});
    return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  }

  std::vector<std::int64_t> strides_of_b() const {
    const Kind& p = GetParam();
    if (p.b_k_major) return {kMostN * p.pitch, 1, p.pitch};
    return {kMostK * kMostN, kMostN, 1};
  }

  static Grouping draw(support::Random& r, const Kind& p) {
    Grouping g;
    g.groups = r.chance(3) ? kMostGroups : r.chance(20) ? r.between(20, 200) : r.between(1, 12);
    g.experts = r.between(1, std::min<std::int64_t>(g.groups, kMostExperts));
    g.n = r.chance(50) ? 8 * r.between(1, kMostN / 8) : r.between(1, kMostN);
    g.k = r.chance(50) ? 8 * r.between(1, kMostK / 8) : r.between(1, kMostK);
    const std::int64_t most = std::clamp<std::int64_t>(2400 / g.groups, 3, 300);
    std::int64_t at = r.chance(30) ? r.between(0, 90) : 0;
    if (p.ends) at = 0;
    std::vector<std::int64_t> first, last;
    for (std::int64_t i = 0; i < g.groups; ++i) {
      first.push_back(at);
      at = std::min<std::int64_t>(kMostRows, at + (r.chance(30) ? 0 : r.chance(10) ? 128 : r.between(0, most)));
      last.push_back(at);
    }
    g.rows = std::min<std::int64_t>(kMostRows, p.ends ? at + (r.chance(50) ? r.between(0, 90) : 0) : at);
    if (g.rows == 0) g.rows = 1;
    g.offsets = p.ends ? last : first;
    if (r.chance(8))
      g.offsets[static_cast<std::size_t>(r.between(0, g.groups - 1))] =
          r.pick({std::int64_t{-7}, g.rows + 1, std::int64_t{0}, std::int64_t{2000000000}});
    g.owner.assign(static_cast<std::size_t>(g.rows), -1);
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < g.groups; ++i) {
      std::int64_t& o = g.offsets[static_cast<std::size_t>(i)];
      g.fits = g.fits && o >= before && o <= g.rows;
      const std::int64_t held = std::clamp(o, before, g.rows);
      if (p.ends)
        std::fill(g.owner.begin() + before, g.owner.begin() + held, i);
      else
        std::fill(g.owner.begin() + held, g.owner.end(), i);
      before = held;
    }
    find_rows(r, p, g);
    return g;
  }

  /// Where each row comes from and goes to; rows whose index is none have no owner.
  static void find_rows(support::Random& r, const Kind& p, Grouping& g) {
    g.tokens = p.mode == MoeMode::gather ? r.between(1, kMostRows) : g.rows;
    std::vector<std::int64_t> places(static_cast<std::size_t>(g.rows / p.top_k * p.top_k));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
    r.shuffle(places);
    const bool is_wild = r.chance(8);
    for (std::int64_t row = 0; row < g.rows; ++row) {
      const auto at = static_cast<std::size_t>(row);
      g.from.push_back(row);
      g.to.push_back(row);
      if (p.mode == MoeMode::none) continue;
      const bool gathers = p.mode == MoeMode::gather;
      const std::int64_t tokens = gathers ? g.tokens : g.rows / p.top_k;
      std::int64_t token = gathers ? r.between(0, tokens - 1) : at < places.size() ? places[at] / p.top_k : -1;
      std::int64_t slot = gathers || at >= places.size() ? 0 : places[at] % p.top_k;
      if (r.chance(7)) token = -1;
      if (is_wild && r.chance(5)) token = r.pick({tokens, std::int64_t{-2}, std::int64_t{2000000000}});
      if (is_wild && !gathers && r.chance(5)) slot = r.pick({p.top_k, std::int64_t{-1}});
      g.index.push_back(static_cast<std::int32_t>(token));
      g.slot.push_back(static_cast<std::int32_t>(slot));
      const bool has_token = token >= 0 && token < tokens, has_slot = gathers || (slot >= 0 && slot < p.top_k);
      if (g.owner[at] >= 0) g.fits = g.fits && (has_token || token == -1) && (!has_token || has_slot);
      if (!has_token || !has_slot) g.owner[at] = -1;
      if (gathers)
        g.from[at] = token;
      else
        g.to[at] = token * p.top_k + slot;
    }
  }

  std::uint32_t encode(DataType t, int v) const { return bits_.at(t)[static_cast<std::size_t>(v + kLargest)]; }
  void put(std::vector<std::uint8_t>& to, DataType t, std::int64_t at, int v) const {
    const std::uint32_t bits = encode(t, v);
    std::memcpy(&to[static_cast<std::size_t>(at * bytes_of(t))], &bits, static_cast<std::size_t>(bytes_of(t)));
  }

  std::vector<int> a_, b_;  ///< (row, k), (expert, n, k)
  std::map<DataType, std::vector<std::uint32_t>> bits_;
};

TEST_P(Sm90Grouped, IsExactForGeneratedGroupings) {
  const Kind& p = GetParam();
  const cuda::DriverTable& driver = **cuda::driver();
  const cuda::PrimaryContext primary(driver, 0);
  const cuda::CurrentContext current(driver, primary.handle());
  const PlanList all = plans();
  ASSERT_GT(all.size(), 0U) << all.unsupported_text();
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all.knobs(i).at("PROGRAMMATIC") == static_cast<std::int64_t>(i / 2 % 2)) chosen.push_back(i);
  std::vector<CompiledPlan> compiled(std::min<std::size_t>(chosen.size(), 5));
  {
    std::vector<std::jthread> compilers;
    for (std::size_t i = 0; i < compiled.size(); ++i) compilers.emplace_back([&, i] { compiled[i] = all.compile(chosen[i]); });
  }

  const auto bytes = [](std::int64_t elements, DataType t) { return static_cast<std::size_t>(elements * bytes_of(t)); };
  const std::int64_t a_elements = p.a_k_major ? kMostRows * p.pitch : kMostRows * kMostK,
                     b_elements = kMostExperts * strides_of_b()[0];
  const std::int64_t d_elements = kMostRows * p.pitch_d;
  std::vector<std::uint8_t> va(bytes(a_elements, p.in), 0x7F), vb(bytes(b_elements, p.in), 0x7F);
  for (std::int64_t r = 0; r < kMostRows; ++r)
    for (std::int64_t k = 0; k < kMostK; ++k)
      put(va, p.in, p.a_k_major ? r * p.pitch + k : k * kMostRows + r, a_[static_cast<std::size_t>(r * kMostK + k)]);
  for (std::int64_t e = 0; e < kMostExperts; ++e)
    for (std::int64_t n = 0; n < kMostN; ++n)
      for (std::int64_t k = 0; k < kMostK; ++k) {
        const auto s = strides_of_b();
        put(vb, p.in, e * s[0] + k * s[1] + n * s[2], b_[static_cast<std::size_t>((e * kMostN + n) * kMostK + k)]);
      }
  std::vector<float> vprob(kMostRows), vbias(kMostGroups * kMostN);
  for (std::int64_t r = 0; r < kMostRows; ++r) vprob[static_cast<std::size_t>(r)] = static_cast<float>(r % 3 - 1);
  for (std::int64_t i = 0; i < kMostGroups * kMostN; ++i) vbias[static_cast<std::size_t>(i)] = static_cast<float>(i * 7 % 11 - 5);
  support::DeviceBuffer a(driver, va.size(), 0), b(driver, vb.size(), 0), o(driver, kMostGroups * 8, 0),
      index(driver, kMostRows * 4, 0), slot(driver, kMostRows * 4, 0), d(driver, bytes(d_elements, p.out), 0xEE),
      sum(driver, bytes(d_elements, DataType::fp32), 0xEE), prob(driver, kMostRows * 4, 0),
      bias(driver, kMostGroups * kMostN * 4, 0);
  a.upload(va.data());
  b.upload(vb.data());
  prob.upload(vprob.data());
  bias.upload(vbias.data());

  constexpr std::array<const char*, 5> kReduced = {"amax", "sums", "mean", "least", "most"};
  std::map<std::string, support::DeviceBuffer> reduced;
  for (const char* name : kReduced) reduced.try_emplace(name, driver, kMostGroups * kMostN * 4, 0xEE);

  support::Random random(17);
  const auto check = [&](const CompiledPlan& plan, const Grouping& g) {
    std::vector<std::uint8_t> vo(o.size());
    for (std::size_t i = 0; i < g.offsets.size(); ++i) {
      const auto narrow = static_cast<std::int32_t>(g.offsets[i]);
      if (p.offset == DataType::int64)
        std::memcpy(&vo[8 * i], &g.offsets[i], 8);
      else
        std::memcpy(&vo[4 * i], &narrow, 4);
    }
    o.upload(vo.data());
    std::vector<std::int32_t> list(kMostRows, -1);
    std::copy(g.index.begin(), g.index.end(), list.begin());
    index.upload(list.data());
    std::copy(g.slot.begin(), g.slot.end(), list.begin());
    slot.upload(list.data());
    d.fill(0xEE);
    sum.fill(0xEE);
    for (auto& [name, buffer] : reduced) buffer.fill(0xEE);
    using List = std::initializer_list<std::int64_t>;
    const auto view = [&](const support::DeviceBuffer& x, DataType t, List dim, List stride) {
      return TensorView::strided(x.data(), t, dim, stride, kGpu);
    };
    const auto s = strides_of_b();
    const TensorView vx = p.a_k_major ? view(a, p.in, {1, g.tokens, g.k}, {g.tokens * p.pitch, p.pitch, 1})
                                      : view(a, p.in, {1, g.tokens, g.k}, {g.k * kMostRows, 1, kMostRows});
    const TensorView vw = view(b, p.in, {g.experts, g.k, g.n}, {s[0], s[1], s[2]});
    const TensorView vy = view(d, p.out, {1, g.rows, g.n}, {g.rows * p.pitch_d, p.pitch_d, 1});
    std::vector<TensorView> call;
    for (const OperandInfo& info : plan.operands())
      call.push_back(info.name == "x"       ? vx
                     : info.name == "w"     ? vw
                     : info.name == "o"     ? view(o, p.offset, {g.groups}, {1})
                     : info.name == "index" ? view(index, DataType::int32, {1, g.rows, 1}, {g.rows, 1, 1})
                     : info.name == "slot"  ? view(slot, DataType::int32, {1, g.rows, 1}, {g.rows, 1, 1})
                     : info.name == "prob"  ? view(prob, DataType::fp32, {1, g.rows, 1}, {g.rows, 1, 1})
                     : info.name == "bias"  ? view(bias, DataType::fp32, {g.groups, 1, g.n}, {kMostN, kMostN, 1})
                     : info.name == "amax"  ? view(reduced.at("amax"), DataType::fp32, {g.groups, 1, 1}, {1, 1, 1})
                     : info.name == "sums"  ? view(reduced.at("sums"), DataType::fp32, {g.groups, 1, g.n}, {g.n, g.n, 1})
                     : info.name == "mean"  ? view(reduced.at("mean"), DataType::fp32, {1, 1, 1}, {1, 1, 1})
                     : info.name == "least" ? view(reduced.at("least"), DataType::fp32, {1, 1, g.n}, {g.n, g.n, 1})
                     : info.name == "most"  ? view(reduced.at("most"), DataType::fp32, {1, g.rows, 1}, {g.rows, 1, 1})
                     : info.name == "sum"   ? view(sum, DataType::fp32, {1, g.rows, g.n}, {g.rows * p.pitch_d, p.pitch_d, 1})
                                            : vy);
    const Status status = plan.execute(call);
    ASSERT_TRUE(status.ok()) << plan.explain(status, call).what();
    std::map<std::string, std::vector<float>> want_reduced = {
        {"amax", std::vector<float>(static_cast<std::size_t>(g.groups), 0.0F)},
        {"sums", std::vector<float>(static_cast<std::size_t>(g.groups * g.n), 0.0F)},
        {"mean", {0.0F}},
        {"least", std::vector<float>(static_cast<std::size_t>(g.n), kInfinity)},
        {"most", std::vector<float>(static_cast<std::size_t>(g.rows), kPoison)}};
    double total = 0;
    std::int64_t owned = 0;
    std::vector<std::uint8_t> want(d.size(), 0xEE), want_sum(sum.size(), 0xEE);
    for (std::int64_t r = 0; r < g.rows; ++r) {
      const std::int64_t owner = g.owner[static_cast<std::size_t>(r)], e = owner % g.experts;
      const std::int64_t from = g.from[static_cast<std::size_t>(r)], to = g.to[static_cast<std::size_t>(r)];
      for (std::int64_t n = 0; n < g.n; ++n) {
        const std::int64_t at = to * p.pitch_d + n;
        if (owner < 0) {
          if (p.zero_fill) put(want, p.out, at, 0);
          continue;
        }
        int v = 0;
        for (std::int64_t k = 0; k < g.k; ++k)
          v += a_[static_cast<std::size_t>(from * kMostK + k)] * b_[static_cast<std::size_t>((e * kMostN + n) * kMostK + k)];
        if (p.pairs) v = -v;
        if (p.is_fused) {
          put(want_sum, DataType::fp32, at, v);
          v = std::max(0, v * static_cast<int>(vprob[static_cast<std::size_t>(to)]) +
                              static_cast<int>(vbias[static_cast<std::size_t>(owner * kMostN + n)]));
        }
        put(want, p.out, at, v);
        const auto x = static_cast<float>(v);
        const auto keep = [&](const char* name, std::int64_t i, auto join) {
          float& to = want_reduced[name][static_cast<std::size_t>(i)];
          to = join(to);
        };
        keep("amax", owner, [x](float y) { return std::max(y, std::abs(x)); });
        keep("sums", owner * g.n + n, [x](float y) { return y + x; });
        keep("least", n, [x](float y) { return std::min(y, x); });
        keep("most", to, [x, n](float y) { return n == 0 ? x : std::max(y, x); });
        total += v;
        ++owned;
      }
    }
    want_reduced["mean"][0] = owned == 0 ? 0.0F : static_cast<float>(total) / static_cast<float>(owned);
    const auto where = [&](const std::vector<std::uint8_t>& got, const std::vector<std::uint8_t>& wanted, int size) {
      const auto at = (std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin()) / size;
      return "rows " + std::to_string(g.rows) + ", groups " + std::to_string(g.groups) + ", experts " +
             std::to_string(g.experts) + ", N " + std::to_string(g.n) + ", K " + std::to_string(g.k) + ": first wrong element (" +
             std::to_string(at / p.pitch_d) + ", " + std::to_string(at % p.pitch_d) + ")";
    };
    const std::vector<std::uint8_t> got = d.download();
    ASSERT_TRUE(got == want) << where(got, want, bytes_of(p.out));
    if (p.is_fused) {
      const std::vector<std::uint8_t> got_sum = sum.download();
      ASSERT_TRUE(got_sum == want_sum) << "sum, " << where(got_sum, want_sum, 4);
    }
    for (const char* name : p.reduces ? kReduced : decltype(kReduced){}) {
      if (name == nullptr || (p.mode != MoeMode::none && name == std::string("mean"))) continue;
      const std::vector<float>& wanted = want_reduced[name];
      const std::vector<std::uint8_t> all_bytes = reduced.at(name).download();
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        float x = 0;
        std::memcpy(&x, &all_bytes[4 * i], 4);
        ASSERT_EQ(x, wanted[i]) << name << " " << i << ", rows " << g.rows << ", groups " << g.groups << ", N " << g.n;
      }
    }
    // What did not fit is told by the next call, and forgotten by check.
    EXPECT_EQ(plan.execute(call).ok(), g.fits);
    cuda::check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize", "a second call");
    bool told = false;
    try {
      plan.check();
    } catch (const Error& e) {
      told = e.rule() == "call.data";
    }
    ASSERT_EQ(told, !g.fits);
  };
  for (const CompiledPlan& plan : compiled) {
    SCOPED_TRACE(plan.name());
    ASSERT_EQ(plan.engine(), "sm90");
    for (int i = 0; i < 20; ++i) {
      check(plan, draw(random, p));
      if (HasFatalFailure()) return;
    }
    Grouping none;  // all groups are empty
    none.rows = 40, none.groups = 7, none.n = 64, none.k = 64;
    none.offsets.assign(7, p.ends ? 0 : 40);
    none.owner.assign(40, -1);
    find_rows(random, p, none);
    none.fits = true;
    check(plan, none);
    EXPECT_EQ(d.touched_guard_bytes() + sum.touched_guard_bytes(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpu, Sm90Grouped,
    ::testing::Values(
        Kind{.name = "plain"},
        Kind{.name = "wide_ends", .out = DataType::fp32, .offset = DataType::int64, .ends = true, .b_k_major = false},
        Kind{.name = "zero_fill", .ends = true, .zero_fill = true},
        Kind{.name = "odd_pitch", .pitch = 103, .pitch_d = 203, .zero_fill = true},
        Kind{.name = "tokens_along_rows", .a_k_major = false}, Kind{.name = "fused", .is_fused = true},
        Kind{.name = "reductions", .out = DataType::fp32, .reduces = true},
        Kind{.name = "reductions_ends", .out = DataType::fp32, .ends = true, .reduces = true},
        Kind{.name = "gather", .mode = MoeMode::gather},
        Kind{.name = "gather_fused", .ends = true, .is_fused = true, .mode = MoeMode::gather},
        Kind{.name = "gather_reduces", .out = DataType::fp32, .pitch = 103, .reduces = true, .mode = MoeMode::gather},
        Kind{.name = "scatter", .mode = MoeMode::scatter, .top_k = 2},
        Kind{.name = "scatter_fused", .offset = DataType::int64, .is_fused = true, .mode = MoeMode::scatter, .top_k = 3},
        Kind{.name = "scatter_reduces", .out = DataType::fp32, .reduces = true, .mode = MoeMode::scatter},
        Kind{.name = "pairs", .out = DataType::fp32, .pairs = true},
        Kind{.name = "fp8", .in = DataType::fp8_e4m3, .out = DataType::fp32, .pitch = 112}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace verglas
