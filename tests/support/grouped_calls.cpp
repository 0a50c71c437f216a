#include "support/grouped_calls.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "oracle/formats.hpp"

namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kPoison = -0x1.dddddcp+94F;  ///< bytes 0xEE
constexpr int kLargest = 40000;              ///< of all sums
constexpr std::array<const char*, 5> kReduced = {"amax", "sums", "mean", "least", "most"};

std::size_t bytes(std::int64_t elements, DataType t) { return static_cast<std::size_t>(elements * bytes_of(t)); }
std::size_t elements_of_a(const GroupedKind& p) {
  return static_cast<std::size_t>(p.a_k_major ? kMostRows * p.pitch : kMostRows * kMostK);
}
std::int64_t matrix_of_b(const GroupedKind& p) { return p.b_k_major ? kMostN * p.pitch : kMostK * kMostN; }

}  // namespace

std::vector<std::int64_t> GroupedCalls::strides_of_b() const {
  const GroupedKind& p = kind_;
  if (p.b_k_major) return {kMostN * p.pitch, 1, p.pitch};
  return {kMostK * kMostN, kMostN, 1};
}

PlanList GroupedCalls::plans() const {
  const GroupedKind& p = kind_;
  const std::int64_t rows = p.is_short ? 300 : 900, depth = p.is_short ? 152 : kK;
  constexpr std::int64_t kG = 5;
  const std::int64_t tokens = p.mode == MoeMode::gather ? 400 : rows, results = p.combines() ? 330 : rows;
  Graph g({.io_data_type = p.in});
  const Tensor x = g.tensor(
      {.name = "x",
       .dim = {1, tokens, depth},
       .stride = {p.a_k_major ? tokens * p.pitch : depth * kMostRows, p.a_k_major ? p.pitch : 1, p.a_k_major ? 1 : kMostRows}});
  const Tensor o = g.tensor({.name = "o", .dim = {kG}, .stride = {1}, .data_type = p.offset});
  MoeAttributes attributes;
  attributes.mode = p.mode;
  attributes.offsets = p.ends ? MoeOffsets::end : MoeOffsets::first_token;
  attributes.top_k = p.top_k;
  attributes.zero_fill = p.zero_fill;
  const auto list = [&](const char* name) {
    return g.tensor({.name = name, .dim = {1, rows, 1}, .stride = {rows, 1, 1}, .data_type = DataType::int32});
  };
  const Tensor index = p.mode == MoeMode::none ? Tensor() : list("index");
  const Tensor slot = p.mode >= MoeMode::scatter ? list("slot") : Tensor();
  const Tensor score =
      p.combines() ? g.tensor({.name = "score", .dim = {results, p.top_k}, .stride = {p.top_k, 1}, .data_type = DataType::fp32})
                   : Tensor();
  const auto weights = [&](const char* name, int product) {
    return Tensor(g.tensor({.name = name, .dim = {kG, depth, kN}, .stride = strides_of_b()}))
        .set_by_pointers(p.is_by_address(product));
  };
  const Tensor w = weights("w", 0);
  Tensor y = g.moe_grouped_matmul(x, w, o, attributes, index, slot, score);
  if (p.pairs) {
    const Tensor v = p.in_tensor < 0 ? w : weights("v", 1);
    const Tensor other = g.moe_grouped_matmul(x, v, o, attributes, index, slot, score);
    y = g.pointwise(PointwiseMode::sub, {y, g.add(other, other)});
  }
  if (p.is_fused) {
    y.set_output(true).set_name("sum").set_data_type(DataType::fp32).set_stride({results * p.pitch_d, p.pitch_d, 1});
    const Tensor prob =
        g.tensor({.name = "prob", .dim = {1, results, 1}, .stride = {results, 1, 1}, .data_type = DataType::fp32});
    const Tensor bias = g.tensor(
        {.name = "bias", .dim = {p.combines() ? 1 : kG, 1, kN}, .stride = {kMostN, kMostN, 1}, .data_type = DataType::fp32});
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
    const std::int64_t each = p.combines() ? 1 : kG;
    reduce("amax", ReductionMode::amax, {each, 1, 1}, !p.combines());
    reduce("sums", ReductionMode::add, {each, 1, kN}, !p.combines());
    reduce("mean", ReductionMode::avg, {1, 1, 1}, false);
    reduce("least", ReductionMode::min, {1, 1, kN}, false);
    reduce("most", ReductionMode::max, {1, results, 1}, false);
  }
  y.set_output(true).set_name("y").set_data_type(p.out).set_stride({results * p.pitch_d, p.pitch_d, 1});
  return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
}

GroupedCalls::GroupedCalls(const cuda::DriverTable& driver, GroupedKind kind)
    : driver_(driver),
      kind_(std::move(kind)),
      x_(driver, elements_of_a(kind_) * static_cast<std::size_t>(bytes_of(kind_.in)), 0x7F),
      w_(driver, bytes(kMostExperts * matrix_of_b(kind_), kind_.in), 0x7F),
      table_(driver, kMostExperts * 8, 0),
      offsets_(driver, kMostGroups * 8, 0),
      index_(driver, kMostRows * 4, 0),
      slot_(driver, kMostRows * 4, 0),
      d_(driver, bytes(kMostRows * kind_.pitch_d, kind_.out), 0xEE),
      sum_(driver, bytes(kMostRows * kind_.pitch_d, DataType::fp32), 0xEE),
      of_rows_(driver, kMostRows * 4, 0),
      of_groups_(driver, kMostGroups * kMostN * 4, 0),
      of_places_(driver, kMostRows * 4, 0) {
  for (const char* name : kReduced) reduced_.try_emplace(name, driver, kMostGroups * kMostN * 4, 0xEE);
  support::Random random(5);
  const auto draw = [&](std::int64_t count) {
    std::vector<int> v(static_cast<std::size_t>(count));
    for (int& x : v) x = static_cast<int>(random.between(-1, 1));
    return v;
  };
  a_ = draw(kMostRows * kMostK);
  b_ = draw(kMostExperts * kMostN * kMostK);
  for (const DataType t : {kind_.in, kind_.out, DataType::fp32}) {
    std::vector<std::uint32_t>& of_type = bits_[t];
    of_type.clear();
    for (int v = -kLargest; v <= kLargest; ++v)
      of_type.push_back(static_cast<std::uint32_t>(oracle::encode(static_cast<oracle::Format>(t), v)));
  }
  fill_operands();
}

std::uint32_t GroupedCalls::encode(DataType t, int v) const { return bits_.at(t)[static_cast<std::size_t>(v + kLargest)]; }
void GroupedCalls::put(std::vector<std::uint8_t>& to, DataType t, std::int64_t at, int v) const {
  const std::uint32_t bits = encode(t, v);
  std::memcpy(&to[static_cast<std::size_t>(at * bytes_of(t))], &bits, static_cast<std::size_t>(bytes_of(t)));
}

/// What is drawn, in the places of all strides; NaN between them.
void GroupedCalls::fill_operands() {
  const GroupedKind& p = kind_;
  std::vector<std::uint8_t> x(x_.size(), 0x7F), w(w_.size(), 0x7F);
  for (std::int64_t r = 0; r < kMostRows; ++r)
    for (std::int64_t k = 0; k < kMostK; ++k)
      put(x, p.in, p.a_k_major ? r * p.pitch + k : k * kMostRows + r, a_[static_cast<std::size_t>(r * kMostK + k)]);
  const auto s = strides_of_b();
  for (std::int64_t e = 0; e < kMostExperts; ++e)
    for (std::int64_t n = 0; n < kMostN; ++n)
      for (std::int64_t k = 0; k < kMostK; ++k)
        put(w, p.in, e * s[0] + k * s[1] + n * s[2], b_[static_cast<std::size_t>((e * kMostN + n) * kMostK + k)]);
  x_.upload(x.data());
  w_.upload(w.data());
  prob_.resize(kMostRows);
  bias_.resize(kMostGroups * kMostN);
  for (std::size_t r = 0; r < prob_.size(); ++r) prob_[r] = static_cast<float>(static_cast<int>(r % 3) - 1);
  for (std::size_t i = 0; i < bias_.size(); ++i) bias_[i] = static_cast<float>(static_cast<int>(i * 7 % 11) - 5);
  of_rows_.upload(prob_.data());
  of_groups_.upload(bias_.data());
  std::vector<float> scores;
  for (int i = 0; i < kMostRows; ++i) scores.push_back(static_cast<float>(score_.emplace_back(i * 5 % 4 - 1)));
  of_places_.upload(scores.data());
}

void GroupedCalls::upload(const Grouping& g) {
  std::vector<std::uint8_t> offsets(offsets_.size());
  for (std::size_t i = 0; i < g.offsets.size(); ++i) {
    const auto narrow = static_cast<std::int32_t>(g.offsets[i]);
    if (kind_.offset == DataType::int64)
      std::memcpy(&offsets[8 * i], &g.offsets[i], 8);
    else
      std::memcpy(&offsets[4 * i], &narrow, 4);
  }
  offsets_.upload(offsets.data());
  std::vector<std::int32_t> list(kMostRows, -1);
  std::copy(g.index.begin(), g.index.end(), list.begin());
  index_.upload(list.data());
  std::copy(g.slot.begin(), g.slot.end(), list.begin());
  slot_.upload(list.data());
  std::vector<std::uint64_t> table(kMostExperts);
  for (std::int64_t e = 0; e < kMostExperts; ++e) {
    const auto address = reinterpret_cast<std::uint64_t>(w_.data()) + bytes(e * strides_of_b()[0], kind_.in);
    table[static_cast<std::size_t>(e)] = e == g.null_expert ? 0 : address;
  }
  table_.upload(table.data());
  d_.fill(0xEE);
  sum_.fill(0xEE);
  for (auto& [name, buffer] : reduced_) buffer.fill(0xEE);
}

std::vector<TensorView> GroupedCalls::views(const CompiledPlan& plan, const Grouping& g) const {
  const GroupedKind& p = kind_;
  using List = std::initializer_list<std::int64_t>;
  const auto view = [&](const support::DeviceBuffer& x, DataType t, List dim, List stride) {
    return TensorView::strided(x.data(), t, dim, stride, kGpu);
  };
  const auto s = strides_of_b();
  const auto weights = [&](int product) {
    const auto behind = [](const support::DeviceBuffer& x, std::size_t n) { return static_cast<std::uint8_t*>(x.data()) + n; };
    if (p.is_by_address(product))
      return TensorView::strided(behind(table_, bytes(product, DataType::int64)), DataType::int64, {g.experts}, {1}, kGpu);
    return TensorView::strided(behind(w_, bytes(product * s[0], p.in)), p.in, {g.experts, g.k, g.n}, {s[0], s[1], s[2]}, kGpu);
  };
  const List of_rows = {1, g.results, g.n}, pitch_of_rows = {g.results * p.pitch_d, p.pitch_d, 1};
  const std::int64_t each = p.combines() ? 1 : g.groups;
  const std::map<std::string, TensorView> all = {
      {"x", p.a_k_major ? view(x_, p.in, {1, g.tokens, g.k}, {g.tokens * p.pitch, p.pitch, 1})
                        : view(x_, p.in, {1, g.tokens, g.k}, {g.k * kMostRows, 1, kMostRows})},
      {"w", weights(0)},
      {"v", weights(1)},
      {"o", view(offsets_, p.offset, {g.groups}, {1})},
      {"index", view(index_, DataType::int32, {1, g.rows, 1}, {g.rows, 1, 1})},
      {"slot", view(slot_, DataType::int32, {1, g.rows, 1}, {g.rows, 1, 1})},
      {"score", view(of_places_, DataType::fp32, {g.results, p.top_k}, {p.top_k, 1})},
      {"prob", view(of_rows_, DataType::fp32, {1, g.results, 1}, {g.results, 1, 1})},
      {"bias", view(of_groups_, DataType::fp32, {each, 1, g.n}, {kMostN, kMostN, 1})},
      {"amax", view(reduced_.at("amax"), DataType::fp32, {each, 1, 1}, {1, 1, 1})},
      {"sums", view(reduced_.at("sums"), DataType::fp32, {each, 1, g.n}, {g.n, g.n, 1})},
      {"mean", view(reduced_.at("mean"), DataType::fp32, {1, 1, 1}, {1, 1, 1})},
      {"least", view(reduced_.at("least"), DataType::fp32, {1, 1, g.n}, {g.n, g.n, 1})},
      {"most", view(reduced_.at("most"), DataType::fp32, {1, g.results, 1}, {g.results, 1, 1})},
      {"sum", view(sum_, DataType::fp32, of_rows, pitch_of_rows)},
      {"y", view(d_, p.out, of_rows, pitch_of_rows)}};
  std::vector<TensorView> call;
  for (const OperandInfo& info : plan.operands()) call.push_back(all.at(info.name));
  return call;
}

GroupedCalls::Want GroupedCalls::wanted(const Grouping& g) const {
  const GroupedKind& p = kind_;
  Want want{std::vector<std::uint8_t>(d_.size(), 0xEE),
            std::vector<std::uint8_t>(sum_.size(), 0xEE),
            {{"amax", std::vector<float>(static_cast<std::size_t>(p.combines() ? 1 : g.groups), 0.0F)},
             {"sums", std::vector<float>(static_cast<std::size_t>(p.combines() ? g.n : g.groups * g.n), 0.0F)},
             {"mean", {0.0F}},
             {"least", std::vector<float>(static_cast<std::size_t>(g.n), kInfinity)},
             {"most", std::vector<float>(static_cast<std::size_t>(g.results), kPoison)}}};
  double total = 0;
  std::int64_t owned = 0;
  const auto keep_zero = [&](std::int64_t to, std::int64_t n) {
    put(want.d, p.out, to * p.pitch_d + n, 0);
    if (p.is_fused) put(want.sum, DataType::fp32, to * p.pitch_d + n, 0);
    want.reduced["most"][static_cast<std::size_t>(to)] = -kInfinity;
  };
  // Of what stands behind the product; `owner` of combine is none.
  const auto keep = [&](std::int64_t to, std::int64_t n, std::int64_t owner, int v) {
    const std::int64_t at = to * p.pitch_d + n;
    if (p.is_fused) {
      put(want.sum, DataType::fp32, at, v);
      v = std::max(0, v * static_cast<int>(prob_[static_cast<std::size_t>(to)]) +
                          static_cast<int>(bias_[static_cast<std::size_t>(owner * kMostN + n)]));
    }
    put(want.d, p.out, at, v);
    const auto x = static_cast<float>(v);
    const auto join = [&](const char* name, std::int64_t i, auto f) {
      float& held = want.reduced[name][static_cast<std::size_t>(i)];
      held = f(held);
    };
    join("amax", owner, [x](float y) { return std::max(y, std::abs(x)); });
    join("sums", owner * g.n + n, [x](float y) { return y + x; });
    join("least", n, [x](float y) { return std::min(y, x); });
    join("most", to, [x, n](float y) { return n == 0 ? x : std::max(y, x); });
    total += v;
    ++owned;
  };
  const bool is_scattered = p.mode == MoeMode::scatter;
  std::vector<int> sums(static_cast<std::size_t>(p.combines() ? g.results * g.n : 0));
  for (std::int64_t r = 0; is_scattered && p.zero_fill && r < g.results; ++r)
    for (std::int64_t n = 0; n < g.n; ++n) keep_zero(r, n);
  for (std::int64_t r = 0; r < g.rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    const std::int64_t owner = g.owner[row], from = g.from[row], to = g.to[row];
    if (owner < 0 && (is_scattered || p.combines() || !(owner == kNoGroup && p.zero_fill))) continue;
    for (std::int64_t n = 0; n < g.n; ++n) {
      if (owner < 0) {
        keep_zero(to, n);
        continue;
      }
      const auto product = [&](std::int64_t expert) {
        const std::int64_t row_of_b = (expert * kMostN + n) * kMostK;
        int sum = 0;
        for (std::int64_t k = 0; k < g.k; ++k)
          sum += a_[static_cast<std::size_t>(from * kMostK + k)] * b_[static_cast<std::size_t>(row_of_b + k)];
        return sum;
      };
      const std::int64_t expert = owner % g.experts;
      int v = product(expert);
      if (p.pairs) v -= 2 * (p.in_tensor < 0 ? v : product(expert + 1));
      if (p.combines())
        sums[static_cast<std::size_t>(to * g.n + n)] += v * score_[static_cast<std::size_t>(to * p.top_k + g.slot[row])];
      else
        keep(to, n, owner, v);
    }
  }
  for (std::int64_t i = 0; i < std::ssize(sums); ++i) keep(i / g.n, i % g.n, 0, sums[static_cast<std::size_t>(i)]);
  want.reduced["mean"][0] = owned == 0 ? 0.0F : static_cast<float>(total) / static_cast<float>(owned);
  return want;
}

void GroupedCalls::compare(const Want& want, const Grouping& g) const {
  const GroupedKind& p = kind_;
  const auto equal = [&](const char* name, const std::vector<std::uint8_t>& got, const std::vector<std::uint8_t>& wanted,
                         int size) {
    const auto at = (std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin()) / size;
    ASSERT_TRUE(got == wanted) << name << ", rows " << g.rows << ", groups " << g.groups << ", experts " << g.experts << ", N "
                               << g.n << ", K " << g.k << ": first wrong element (" << at / p.pitch_d << ", " << at % p.pitch_d
                               << ")";
  };
  equal("y", d_.download(), want.d, bytes_of(p.out));
  if (p.is_fused) equal("sum", sum_.download(), want.sum, 4);
  for (const char* name : kReduced) {
    if (!p.reduces) continue;
    const std::vector<float>& wanted = want.reduced.at(name);
    const std::vector<std::uint8_t> all = reduced_.at(name).download();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      float x = 0;
      std::memcpy(&x, &all[4 * i], 4);
      ASSERT_EQ(x, wanted[i]) << name << " " << i << ", rows " << g.rows << ", groups " << g.groups << ", N " << g.n;
    }
  }
}

void GroupedCalls::check(const CompiledPlan& plan, const Grouping& g) {
  upload(g);
  const std::vector<TensorView> call = views(plan, g);
  const Status status = plan.execute(call);
  ASSERT_TRUE(status.ok()) << plan.explain(status, call).what();
  compare(wanted(g), g);
  // What did not fit is told by the next call, and forgotten by check.
  EXPECT_EQ(plan.execute(call).ok(), g.fits);
  cuda::check(driver_, driver_.cuCtxSynchronize(), "cuCtxSynchronize", "a second call");
  bool told = false;
  try {
    plan.check();
  } catch (const Error& e) {
    told = e.rule() == "call.data";
  }
  ASSERT_EQ(told, !g.fits);
}

int GroupedCalls::touched_guard_bytes() const { return d_.touched_guard_bytes() + sum_.touched_guard_bytes(); }

}  // namespace verglas
