#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// Every extent from 1 to 300 in each of M, N and K, by few kernels and live extents: exact on small integers, and nothing beside
// the output is written. The reference adds one k after the other to one matrix of sums.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::int64_t kMost = 300;
constexpr std::array<std::int64_t, 3> kElsewhere = {133, 197, 75};  ///< M, N, K while another one is swept

struct Kind {
  std::string name;
  bool a_k_major = true, b_k_major = true;
  std::int64_t pitch = 304;  ///< elements between rows of A, B and D
  DataType out = DataType::bf16, in = DataType::bf16;
  bool reduces = false;  ///< row sums and column maxima of D beside it
  bool pairs = false;    ///< a second product of the same matrices is subtracted twice
};

std::ostream& operator<<(std::ostream& o, const Kind& k) { return o << k.name; }

/// The bit pattern of an integer in a type, by table.
class Encoder {
 public:
  explicit Encoder(DataType t) {
    for (int v = -kLargest; v <= kLargest; ++v)
      bits_.push_back(static_cast<std::uint32_t>(oracle::encode(static_cast<oracle::Format>(t), v)));
  }
  std::uint32_t operator()(int v) const { return bits_[static_cast<std::size_t>(v + kLargest)]; }

 private:
  static constexpr int kLargest = static_cast<int>(kMost) * 4;
  std::vector<std::uint32_t> bits_;
};

class Sm90Ragged : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    VERGLAS_NEEDS_GPU();
    support::Random random(11);
    a_.resize(kMost * kMost);
    b_.resize(kMost * kMost);
    for (auto* v : {&a_, &b_})
      for (int& x : *v) x = static_cast<int>(random.between(-1, 1));
  }

  PlanList plans() const {
    const Kind& p = GetParam();
    Graph g({.io_data_type = p.in});
    const NodeAttributes attributes{.compute_data_type = p.in == DataType::fp32   ? DataType::tf32
                                                         : p.in == DataType::int8 ? DataType::int32
                                                                                  : DataType::not_set};
    const Tensor a = g.tensor({.name = "a", .dim = {264, 200}, .stride = {p.a_k_major ? p.pitch : 1, p.a_k_major ? 1 : p.pitch}});
    const Tensor b = g.tensor({.name = "b", .dim = {200, 264}, .stride = {p.b_k_major ? 1 : p.pitch, p.b_k_major ? p.pitch : 1}});
    Tensor d = g.matmul(a, b, attributes);
    if (p.pairs) {
      const Tensor other = g.matmul(a, b, {.name = "again"});
      d = g.pointwise(PointwiseMode::sub, {d, g.add(other, other)});
    }
    d.set_output(true).set_data_type(p.out).set_stride({p.pitch, 1});
    if (p.reduces) {
      g.reduction(d, ReductionMode::add).set_dim({264, 1}).set_output(true).set_data_type(DataType::fp32);
      g.reduction(d, ReductionMode::max).set_dim({1, 264}).set_output(true).set_data_type(DataType::fp32);
    }
    return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  }

  /// A matrix as stored, `rows_contiguous`: element (r, c) of the table lies at r + c · pitch.
  std::vector<std::uint8_t> stored(const std::vector<int>& values, bool rows_contiguous) const {
    const Encoder encode(GetParam().in);
    const auto pitch = static_cast<std::size_t>(GetParam().pitch), size = static_cast<std::size_t>(bytes_of(GetParam().in));
    std::vector<std::uint8_t> out(kMost * pitch * size, 0x7F);
    for (std::size_t r = 0; r < kMost; ++r)
      for (std::size_t c = 0; c < kMost; ++c) {
        const std::uint32_t bits = encode(values[r * kMost + c]);
        std::memcpy(&out[(rows_contiguous ? r + c * pitch : r * pitch + c) * size], &bits, size);
      }
    return out;
  }

  std::vector<int> a_, b_;  ///< (m, k) and (k, n)
};

TEST_P(Sm90Ragged, IsExactForEveryExtent) {
  const Kind& p = GetParam();
  const cuda::DriverTable& driver = **cuda::driver();
  const cuda::PrimaryContext primary(driver, 0);
  const cuda::CurrentContext current(driver, primary.handle());
  const PlanList all = plans();
  ASSERT_GT(all.size(), 0U) << all.unsupported_text();
  const std::vector<CompiledPlan> compiled = support::compile_each_tile_once(all, 6);

  const auto pitch = static_cast<std::size_t>(p.pitch), size = static_cast<std::size_t>(bytes_of(p.out));
  const auto size_in = static_cast<std::size_t>(bytes_of(p.in));
  support::DeviceBuffer a(driver, kMost * pitch * size_in, 0), b(driver, kMost * pitch * size_in, 0),
      d(driver, kMost * pitch * size, 0xEE), rows(driver, kMost * 4, 0), cols(driver, kMost * 4, 0);
  a.upload(stored(a_, !p.a_k_major).data());
  b.upload(stored(b_, p.b_k_major).data());
  const Encoder encode(p.out);
  std::vector<int> sums(kMost * kMost);
  std::vector<std::uint8_t> want(kMost * pitch * size);
  std::int64_t summed = 0;  // how many k are in `sums`
  const auto check = [&](const CompiledPlan& plan, std::int64_t m, std::int64_t n, std::int64_t k) {
    if (k < summed) std::fill(sums.begin(), sums.end(), summed = 0);
    for (; summed < k; ++summed)
      for (std::size_t i = 0; i < kMost; ++i) {
        const int x = a_[i * kMost + static_cast<std::size_t>(summed)];
        for (std::size_t j = 0; x != 0 && j < kMost; ++j)
          sums[i * kMost + j] += x * b_[static_cast<std::size_t>(summed) * kMost + j];
      }
    std::vector<TensorView> call = {
        TensorView::strided(a.data(), p.in, {m, k}, {p.a_k_major ? p.pitch : 1, p.a_k_major ? 1 : p.pitch}, kGpu),
        TensorView::strided(b.data(), p.in, {k, n}, {p.b_k_major ? 1 : p.pitch, p.b_k_major ? p.pitch : 1}, kGpu),
        TensorView::strided(d.data(), p.out, {m, n}, {p.pitch, 1}, kGpu)};
    if (p.reduces) {
      call.push_back(TensorView::dense(rows.data(), DataType::fp32, {m, 1}, kGpu));
      call.push_back(TensorView::dense(cols.data(), DataType::fp32, {1, n}, kGpu));
    }
    d.fill(0xEE);
    rows.fill(0xEE);
    cols.fill(0xEE);
    const Status s = plan.execute(call);
    ASSERT_TRUE(s.ok()) << plan.explain(s, call).what();
    std::fill(want.begin(), want.end(), 0xEE);
    std::vector<std::uint32_t> row_bits(kMost, 0xEEEEEEEE), col_bits(kMost, 0xEEEEEEEE);
    std::vector<float> row_sum(kMost, 0.0F), col_max(kMost, -1e9F);
    for (std::size_t i = 0; i < static_cast<std::size_t>(m); ++i)
      for (std::size_t j = 0; j < static_cast<std::size_t>(n); ++j) {
        const int v = p.pairs ? -sums[i * kMost + j] : sums[i * kMost + j];
        const std::uint32_t bits = encode(v);
        std::memcpy(&want[(i * pitch + j) * size], &bits, size);
        row_sum[i] += static_cast<float>(v);
        col_max[j] = std::max(col_max[j], static_cast<float>(v));
      }
    const std::vector<std::uint8_t> got = d.download();
    if (got != want) {
      const auto at = static_cast<std::size_t>(std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin()) / size;
      FAIL() << "M N K " << m << ' ' << n << ' ' << k << ": first wrong element (" << at / pitch << ", " << at % pitch << ")";
    }
    if (!p.reduces) return;
    for (std::size_t i = 0; i < static_cast<std::size_t>(m); ++i) std::memcpy(&row_bits[i], &row_sum[i], 4);
    for (std::size_t j = 0; j < static_cast<std::size_t>(n); ++j) std::memcpy(&col_bits[j], &col_max[j], 4);
    ASSERT_EQ(std::memcmp(rows.download().data(), row_bits.data(), kMost * 4), 0) << "rows, M N K " << m << ' ' << n << ' ' << k;
    ASSERT_EQ(std::memcmp(cols.download().data(), col_bits.data(), kMost * 4), 0)
        << "columns, M N K " << m << ' ' << n << ' ' << k;
  };
  for (const CompiledPlan& plan : compiled) {
    SCOPED_TRACE(plan.name());
    ASSERT_EQ(plan.engine(), "sm90");
    for (std::size_t axis = 0; axis < 3; ++axis)
      for (std::int64_t extent = 1; extent <= kMost; ++extent) {
        std::array<std::int64_t, 3> mnk = kElsewhere;
        mnk[axis] = extent;
        check(plan, mnk[0], mnk[1], mnk[2]);
        if (HasFatalFailure()) return;
      }
    EXPECT_EQ(d.touched_guard_bytes(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpu, Sm90Ragged,
    ::testing::Values(
        Kind{.name = "copy_engine"}, Kind{.name = "mn_major", .a_k_major = false, .b_k_major = false, .out = DataType::fp32},
        Kind{.name = "odd_pitch", .pitch = 303}, Kind{.name = "reductions", .out = DataType::fp32, .reduces = true},
        Kind{.name = "two_products", .pairs = true}, Kind{.name = "tf32", .out = DataType::fp32, .in = DataType::fp32},
        Kind{.name = "fp8", .out = DataType::fp32, .in = DataType::fp8_e4m3},
        Kind{.name = "int8", .out = DataType::int32, .in = DataType::int8},
        Kind{.name = "int8_mn_major", .a_k_major = false, .b_k_major = false, .out = DataType::int32, .in = DataType::int8}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace verglas
