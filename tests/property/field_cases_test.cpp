#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>

#include "oracle/graph.hpp"
#include "oracle/memory.hpp"
#include "support/cliff.hpp"
#include "support/poisoned_buffer.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// What went wrong for people who do this job, on the CPU engine. Each test is named after its case; integers from −3 to 3 make
// every sum exact, so that all comparisons are of bits.
namespace {

using namespace verglas;
using oracle::Format;
using support::PoisonedBuffer;
using Dims = std::vector<std::int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TensorView view(void* data, const Dims& dims, const Dims& strides, DataType t = DataType::fp32) {
  TensorView v;
  v.data = data;
  v.dtype = t;
  v.rank = static_cast<std::int8_t>(dims.size());
  std::copy(dims.begin(), dims.end(), v.extent.begin());
  std::copy(strides.begin(), strides.end(), v.stride.begin());
  return v;
}
TensorView view(const PoisonedBuffer& b, DataType t = DataType::fp32) { return view(b.data(), b.dims(), b.strides(), t); }

float small(std::int64_t i) { return static_cast<float>((i * 5 + i / 7 * 3) % 7 - 3); }

/// A buffer of small integers that differ from `seed` to `seed`.
PoisonedBuffer ints(const Dims& dims, const Dims& strides, std::int64_t seed, Format f = Format::fp32) {
  PoisonedBuffer b(f, dims, strides);
  std::int64_t i = seed * 1000003;
  b.fill([&] { return small(i++); });
  return b;
}
PoisonedBuffer ints(const Dims& dims, std::int64_t seed) { return ints(dims, oracle::packed_strides(dims), seed); }
PoisonedBuffer output(const Dims& dims, const Dims& strides) { return PoisonedBuffer(Format::fp32, dims, strides); }
PoisonedBuffer output(const Dims& dims) { return output(dims, oracle::packed_strides(dims)); }

double at(const PoisonedBuffer& b, const Dims& i) {
  std::int64_t offset = 0;
  for (std::size_t k = 0; k < i.size(); ++k) offset += (b.dims()[k] == 1 ? 0 : i[k]) * b.strides()[k];
  return oracle::value_at(b.format(), b.data(), offset);
}

Tensor declare(Graph& g, const Dims& dims, DataType t = DataType::fp32, const Dims& strides = {}) {
  return g.tensor({.dim = dims, .stride = strides.empty() ? oracle::packed_strides(dims) : strides, .data_type = t});
}

using Epilogue = std::function<Tensor(Graph&, Tensor)>;
/// y = epilogue(a · b), fp32 outside.
CompiledPlan product(const Dims& a, const Dims& b, DataType t = DataType::fp32, const Epilogue& epilogue = {}) {
  Graph g({.io_data_type = DataType::fp32});
  Tensor c = g.matmul(declare(g, a, t), declare(g, b, t));
  if (epilogue) c = epilogue(g, c);
  c.set_output(true);
  return g.compile();
}

/// Σ a·b of one element, in double.
double sum(const PoisonedBuffer& a, const PoisonedBuffer& b, std::int64_t l, std::int64_t m, std::int64_t n) {
  double s = 0;
  for (std::int64_t k = 0; k < a.dims()[2]; ++k) s += at(a, {l, m, k}) * at(b, {l, k, n});
  return s;
}
/// Number of elements of y that are not f(a · b).
std::int64_t wrong(const PoisonedBuffer& y, const PoisonedBuffer& a, const PoisonedBuffer& b,
                   const std::function<double(double, std::int64_t, std::int64_t, std::int64_t)>& f = {}) {
  std::int64_t count = y.stray_write().empty() ? 0 : 1000000;
  for (oracle::Walk w(y.dims()); w.more(); w.next()) {
    const Dims& i = w.at();
    const double c = sum(a, b, i[0], i[1], i[2]);
    const double want = f ? f(c, i[0], i[1], i[2]) : c;
    const double got = at(y, i);
    count += !(got == want || (std::isnan(got) && std::isnan(want)));
  }
  return count;
}

TEST(FieldCases, A02_ARowOfNansStaysInItsRow) {
  for (const std::int64_t k : {1, 7, 9, 15, 17, 31, 33, 63, 65, 127, 129})
    for (const float bad : {kNan, std::numeric_limits<float>::infinity()})
      for (const bool in_gap : {false, true}) {
        const std::int64_t pitch = in_gap ? k + 8 : k;
        PoisonedBuffer a(Format::bf16, {4, 32, k}, {32 * pitch, pitch, 1}), b(Format::bf16, {4, k, 64}, {k * 64, 64, 1});
        std::int64_t i = 0;
        a.fill([&] { return in_gap || i++ / k % 32 == 0 ? 1.0 : bad; });
        b.fill([] { return 1.0; });
        PoisonedBuffer y = output({4, 32, 64});
        product({4, 32, k}, {4, k, 64}, DataType::bf16)
            .run(std::vector{view(a, DataType::bf16), view(b, DataType::bf16), view(y)});
        for (oracle::Walk w(y.dims()); w.more(); w.next()) {
          const double got = at(y, w.at());
          if (in_gap || w.at()[1] == 0)
            ASSERT_EQ(got, static_cast<double>(k));
          else
            ASSERT_TRUE(std::isnan(bad) ? std::isnan(got) : std::isinf(got));
        }
      }
}

TEST(FieldCases, A06_OffsetsBeyond32Bits) {
  constexpr std::int64_t kPitch = std::int64_t{1} << 30;
  const std::size_t bytes = (2 * kPitch + 4096) * sizeof(float);
  const auto sparse = [&] {
    return static_cast<float*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  };
  float *const a = sparse(), *const x = sparse(), *const d = sparse();
  ASSERT_TRUE(a != MAP_FAILED && x != MAP_FAILED && d != MAP_FAILED);
  for (std::int64_t m = 0; m < 3; ++m)
    for (std::int64_t k = 0; k < 8; ++k) a[m * kPitch + k] = small(m * 8 + k), x[m * kPitch + k] = small(k - m + 50);
  PoisonedBuffer b = ints({1, 8, 8}, 2);
  const auto check = [&](const Dims& dims, const Dims& strides, bool batched) {
    Graph g({.io_data_type = DataType::fp32});
    const Tensor ta = declare(g, dims), tb = declare(g, {1, 8, 8});
    g.add(g.matmul(ta, tb), declare(g, dims)).set_output(true);
    g.compile().run(std::vector{view(a, dims, strides), view(b), view(x, dims, strides), view(d, dims, strides)});
    for (std::int64_t m = 0; m < 3; ++m)
      for (std::int64_t n = 0; n < 8; ++n) {
        double want = x[m * kPitch + n];
        for (std::int64_t k = 0; k < 8; ++k) want += a[m * kPitch + k] * at(b, {0, k, n});
        ASSERT_EQ(d[m * kPitch + n], want) << batched << ' ' << m << ' ' << n;
        d[m * kPitch + n] = kNan;
      }
  };
  check({1, 3, 8}, {0, kPitch, 1}, false);
  check({3, 1, 8}, {kPitch, 8, 1}, true);
  for (float* p : {a, x, d}) munmap(p, bytes);
}

TEST(FieldCases, A10_OneTensorInSeveralRoles) {
  const PoisonedBuffer x = ints({1, 64, 64}, 3);
  const auto graph = [&](const Epilogue& epilogue) {
    Graph g({.io_data_type = DataType::fp32});
    const Tensor t = declare(g, {1, 64, 64});
    Tensor c = g.matmul(t, t);
    (epilogue ? epilogue(g, g.add(c, t)) : c).set_output(true);
    return g.compile();
  };
  PoisonedBuffer y = output({1, 64, 64});
  graph({}).run(std::vector{view(x), view(y)});
  EXPECT_EQ(wrong(y, x, x), 0);
  y.clear();
  graph([](Graph& g, Tensor c) { return g.relu(c); }).run(std::vector{view(x), view(y)});
  EXPECT_EQ(wrong(y, x, x, [&](double c, auto l, auto m, auto n) { return std::max(c + at(x, {l, m, n}), 0.0); }), 0);
  // X · Xᵀ: two views of one storage.
  y.clear();
  product({1, 64, 64}, {1, 64, 64}).run(std::vector{view(x), view(x.data(), {1, 64, 64}, {4096, 1, 64}), view(y)});
  PoisonedBuffer transposed(Format::fp32, {1, 64, 64}, {4096, 64, 1});
  std::int64_t i = 0;
  transposed.fill([&] {
    const std::int64_t at_i = i++;
    return at(x, {0, at_i % 64, at_i / 64});
  });
  EXPECT_EQ(wrong(y, x, transposed), 0);
}

TEST(FieldCases, A11_ThreeWaysToPassBWhereNIsK) {
  for (const Dims& e : {Dims{2, 24, 64}, Dims{1, 3, 1}, Dims{2, 2, 2}})
    for (const bool k_major : {false, true}) {
      const std::int64_t l = e[0], m = e[1], n = e[2];
      const PoisonedBuffer a = ints({l, m, n}, 4);
      const PoisonedBuffer b = ints({l, n, n}, k_major ? Dims{n * n, 1, n} : Dims{n * n, n, 1}, 5);
      Graph g({.io_data_type = DataType::fp32});
      const Tensor tb = declare(g, b.dims(), DataType::fp32, b.strides());
      g.matmul(declare(g, a.dims()), tb).set_output(true);
      const CompiledPlan plan = g.compile();
      TensorView kernel = view(b.data(), {l, n, n}, {b.strides()[0], b.strides()[2], b.strides()[1]});
      kernel.order = AxisOrder::kernel;
      for (const TensorView& way : {view(b), TensorView::address(b.data()), kernel}) {
        PoisonedBuffer y = output({l, m, n});
        plan.run(std::vector{view(a), way, view(y)});
        EXPECT_EQ(wrong(y, a, b), 0) << n << k_major;
      }
    }
}

TEST(FieldCases, A12_BroadcastByStrideZero) {
  for (const bool a_repeats : {false, true})
    for (const bool b_repeats : {false, true}) {
      const PoisonedBuffer a = ints({8, 32, 96}, {a_repeats ? 0 : 32 * 96, 96, 1}, 6);
      const PoisonedBuffer b = ints({8, 96, 40}, {b_repeats ? 0 : 96 * 40, 40, 1}, 7);
      const PoisonedBuffer bias = ints({8, 1, 40}, {0, 0, 1}, 8), column = ints({8, 32, 40}, {0, 1, 0}, 9);
      PoisonedBuffer y = output({8, 32, 40});
      const CompiledPlan plan = product(a.dims(), b.dims(), DataType::fp32, [](Graph& g, Tensor c) {
        return g.add(g.add(c, declare(g, {8, 1, 40})), declare(g, {8, 32, 40}));
      });
      std::vector views{view(a), view(b), view(bias), view(column), view(y)};
      plan.run(views);
      EXPECT_EQ(wrong(y, a, b, [&](double c, auto l, auto m, auto n) { return c + at(bias, {l, 0, n}) + at(column, {l, m, n}); }),
                0);
      views[4].stride[0] = 0;
      EXPECT_EQ(plan.explain(plan.execute(views), views).rule(), "call.output_alias");
    }
}

TEST(FieldCases, A13_EveryBatchWhateverTheRows) {
  for (const std::int64_t m : {17, 1, 129, 257}) {
    const Dims sa{3, m, 64}, sb{3, 64, 72}, sy{3, m, 72};
    PoisonedBuffer a(Format::fp32, sa, {m * 64 + 32, 64, 1}), b(Format::fp32, sb, {64 * 72 + 40, 72, 1});
    std::int64_t i = 0, j = 0;
    a.fill([&] { return static_cast<double>(i++ / (m * 64) + 1); });
    b.fill([&] { return static_cast<double>(j++ / (64 * 72) + 1); });
    PoisonedBuffer y = output(sy, {m * 72 + 48, 72, 1});
    product(sa, sb).run(std::vector{view(a), view(b), view(y)});
    EXPECT_EQ(wrong(y, a, b, [](double, auto l, auto, auto) { return 64.0 * static_cast<double>((l + 1) * (l + 1)); }), 0) << m;
  }
}

TEST(FieldCases, A17_NanComesOutOfEveryActivation) {
  using enum PointwiseMode;
  for (const PointwiseMode mode : {relu, leaky_relu, elu, gelu, gelu_approx_tanh, sigmoid, swish, softplus, PointwiseMode::tanh,
                                   PointwiseMode::abs, PointwiseMode::max, PointwiseMode::min})
    for (const bool swapped : {false, true})
      for (const bool clipped : {false, true}) {
        PointwiseParameters p;
        if (mode == leaky_relu) p.negative_slope = 0.5F;
        if (mode == relu && clipped) p.upper_clip = 6.0F;
        PoisonedBuffer a = ints({1, 3, 5}, 10), b = ints({1, 5, 37}, 11);
        static_cast<float*>(a.data())[7] = kNan;
        Graph g({.io_data_type = DataType::fp32});
        Tensor c = g.matmul(declare(g, a.dims()), declare(g, b.dims()));
        std::vector<Tensor> in{c};
        if (arity_of(mode) == 2) in.insert(swapped ? in.begin() : in.end(), g.scalar(0));
        Tensor y = g.pointwise(mode, in, p);
        y.set_output(true);
        for (const ReductionMode r : {ReductionMode::amax, ReductionMode::max, ReductionMode::min})
          g.reduction(y, r).set_dim({1, 3, 1}).set_output(true);
        PoisonedBuffer out = output({1, 3, 37}), amax = output({1, 3, 1}), most = output({1, 3, 1}), least = output({1, 3, 1});
        g.compile().run(std::vector{view(a), view(b), view(out), view(amax), view(most), view(least)});
        for (oracle::Walk w(out.dims()); w.more(); w.next())
          ASSERT_EQ(std::isnan(at(out, w.at())), w.at()[1] == 1) << name_of(mode);
        for (std::int64_t m = 0; m < 3; ++m)
          for (const PoisonedBuffer* r : {&amax, &most, &least})
            ASSERT_EQ(std::isnan(at(*r, {0, m, 0})), m == 1) << name_of(mode);
      }
}

TEST(FieldCases, A18_ExtremesOfNegativeValues) {
  for (const bool corner : {false, true})
    for (const Dims& kept : {Dims{1, 130, 1}, Dims{1, 1, 70}, Dims{1, 1, 1}}) {
      PoisonedBuffer a(Format::fp32, {1, 130, 16}, {2080, 16, 1}), b(Format::fp32, {1, 16, 70}, {1120, 70, 1});
      a.fill([] { return 1.0; });
      b.fill([] { return -1.0; });
      PoisonedBuffer mask(Format::fp32, {1, 130, 70}, {9100, 70, 1});
      std::int64_t i = 0;
      mask.fill([&] { return ++i == 9100 && corner ? 15.0 : 0.0; });
      Graph g({.io_data_type = DataType::fp32});
      const Tensor c = g.add(g.matmul(declare(g, a.dims()), declare(g, b.dims())), declare(g, mask.dims()));
      std::vector<TensorView> views{view(a), view(b), view(mask)};
      std::vector<PoisonedBuffer> outs;
      for (const ReductionMode r : {ReductionMode::max, ReductionMode::amax, ReductionMode::min}) {
        g.reduction(c, r).set_dim(kept).set_output(true);
        outs.push_back(output(kept));
      }
      for (const PoisonedBuffer& o : outs) views.push_back(view(o));
      g.compile().run(views);
      for (oracle::Walk w(kept); w.more(); w.next()) {
        const bool has_corner = corner && (kept[1] == 1 || w.at()[1] == 129) && (kept[2] == 1 || w.at()[2] == 69);
        EXPECT_EQ(at(outs[0], w.at()), has_corner ? -1 : -16);
        EXPECT_EQ(at(outs[1], w.at()), 16);
        EXPECT_EQ(at(outs[2], w.at()), -16);
      }
    }
}

TEST(FieldCases, A23_BiasFollowsItsAxisInEveryLayoutOfTheOutput) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{40, 72}, {72, 40}, {64, 64}})
    for (const bool column_major : {false, true}) {
      const PoisonedBuffer a = ints({1, m, 8}, 12), b = ints({1, 8, n}, 13);
      PoisonedBuffer per_column(Format::fp32, {1, 1, n}, {n, n, 1}), per_row(Format::fp32, {1, m, 1}, {m, 1, 1});
      std::int64_t i = 0, j = 0;
      per_column.fill([&] { return 1000.0 * static_cast<double>(i++); });
      per_row.fill([&] { return static_cast<double>(j++); });
      Graph g({.io_data_type = DataType::fp32});
      Tensor c = g.matmul(declare(g, a.dims()), declare(g, b.dims()));
      Tensor y = g.add(g.add(c, declare(g, {1, 1, n})), declare(g, {1, m, 1}));
      y.set_output(true).set_stride(column_major ? Dims{m * n, 1, m} : Dims{m * n, n, 1});
      PoisonedBuffer out = output({1, m, n}, y.stride());
      g.compile().run(std::vector{view(a), view(b), view(per_column), view(per_row), view(out)});
      const auto want = [](double v, auto, auto row, auto column) { return v + 1000.0 * double(column) + double(row); };
      EXPECT_EQ(wrong(out, a, b, want), 0) << m << column_major;
    }
}

TEST(FieldCases, A24_DeepProductsTwiceOnOneOutput) {
  const PoisonedBuffer a = ints({1, 16, 32768}, 14), b = ints({1, 32768, 16}, 15);
  Graph g({.io_data_type = DataType::fp32});
  Tensor c = g.matmul(declare(g, a.dims()), declare(g, b.dims()));
  c.set_output(true);
  g.reduction(c, ReductionMode::add).set_dim({1, 1, 16}).set_output(true);
  const CompiledPlan plan = g.compile();
  PoisonedBuffer y = output({1, 16, 16}), s = output({1, 1, 16});
  std::vector<std::byte> first;
  for (int run = 0; run < 3; ++run) {
    plan.run(std::vector{view(a), view(b), view(y), view(s)});
    EXPECT_EQ(wrong(y, a, b), 0);
    if (run == 0) first = s.content();
    EXPECT_EQ(s.content(), first);
  }
}

TEST(FieldCases, A25_SlicesThatCannotBeFlattened) {
  const PoisonedBuffer b = ints({1, 64, 24}, 16);
  for (const Dims& strides : {Dims{512, 64, 1}, Dims{2000, 192, 1}}) {
    const PoisonedBuffer a = ints({2, 5, 64}, strides, 17);
    PoisonedBuffer y = output({2, 5, 24});
    product({2, 5, 64}, {1, 64, 24}).run(std::vector{view(a), view(b), view(y)});
    EXPECT_EQ(wrong(y, a, b), 0);
  }
}

TEST(FieldCases, A26_StridesOfUnitAxesAndOfEmptyTensorsMeanNothing) {
  const PoisonedBuffer a = ints({1, 1, 64}, {7, 13, 1}, 18), b = ints({1, 64, 72}, 19), column = ints({1, 64, 1}, {64, 1, 1}, 20);
  PoisonedBuffer y = output({1, 1, 72}, {5, 3, 1}), one = output({1, 1, 1});
  product({1, 1, 64}, {1, 64, 72}).run(std::vector{view(a), view(b), view(y)});
  EXPECT_EQ(wrong(y, a, b), 0);
  product({1, 1, 64}, {1, 64, 1}).run(std::vector{view(a), view(column), view(one)});
  EXPECT_EQ(wrong(one, a, column), 0);
  const CompiledPlan plan = product({4, 3, 4}, {4, 4, 2});
  for (const Dims& strides : {Dims{0, 0, 0}, Dims{0, 4, 1}, Dims{-1, -9, 7}})
    EXPECT_TRUE(plan.execute(std::vector{view(nullptr, {4, 0, 4}, strides), view(b.data(), {4, 4, 2}, {8, 2, 1}),
                                         view(nullptr, {4, 0, 2}, strides)})
                    .ok());
}

TEST(FieldCases, A27_NoContractionGivesTheEpilogueOfZero) {
  const PoisonedBuffer bias = ints({1, 1, 24}, 21);
  PoisonedBuffer y = output({1, 8, 24}), most = output({1, 1, 1});
  Graph g({.io_data_type = DataType::fp32});
  Tensor r = g.relu(g.add(g.matmul(declare(g, {1, 8, 0}), declare(g, {1, 0, 24})), declare(g, {1, 1, 24})));
  r.set_output(true);
  g.reduction(r, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true);
  g.compile().run(
      std::vector{view(nullptr, {1, 8, 0}, {0, 0, 1}), view(nullptr, {1, 0, 24}, {0, 24, 1}), view(bias), view(y), view(most)});
  for (oracle::Walk w(y.dims()); w.more(); w.next()) ASSERT_EQ(at(y, w.at()), std::max(at(bias, {0, 0, w.at()[2]}), 0.0));
  EXPECT_EQ(at(most, {0, 0, 0}), 3);
}

TEST(FieldCases, A28_ATensorWithoutElementsNeedsNoAddress) {
  const CompiledPlan plan = product({1, 5, 8}, {1, 8, 6});
  const PoisonedBuffer b = ints({1, 8, 6}, 22);
  PoisonedBuffer y = output({1, 5, 6});
  const auto end = static_cast<char*>(y.data()) + y.span_bytes(), inside = static_cast<char*>(b.data()) + 5;
  for (void* nothing : {static_cast<void*>(nullptr), static_cast<void*>(end), static_cast<void*>(inside),
                        reinterpret_cast<void*>(std::uintptr_t{3})})
    EXPECT_TRUE(
        plan.execute(std::vector{view(nothing, {1, 0, 8}, {1, 1, 1}), view(b), view(nothing, {1, 0, 6}, {1, 1, 1})}).ok());
  EXPECT_EQ(y.any_write(), "");
}

TEST(FieldCases, A29_EverySizeOfEveryAxis) {
  const CompiledPlan plan = product({1, 8, 8}, {1, 8, 8});
  // One column of products is known by hand: rows of A are 1, 2, 3 … mod 5, B is ones.
  const auto check = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    std::vector<float> a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(k * n), 1.0F),
        y(static_cast<std::size_t>(m * n), kNan);
    for (std::int64_t i = 0; i < m * k; ++i) a[static_cast<std::size_t>(i)] = static_cast<float>(i / k % 5 + 1);
    plan.run(std::vector{view(a.data(), {1, m, k}, {m * k, k, 1}), view(b.data(), {1, k, n}, {k * n, n, 1}),
                         view(y.data(), {1, m, n}, {m * n, n, 1})});
    for (std::int64_t i = 0; i < m * n; ++i)
      if (y[static_cast<std::size_t>(i)] != static_cast<float>((i / n % 5 + 1) * k)) return false;
    return true;
  };
  std::vector<std::int64_t> sizes{1536, 2048, 3072, 4096};
  for (std::int64_t s = 1; s <= 600; ++s) sizes.push_back(s);
  for (const std::int64_t s : sizes) ASSERT_TRUE(check(s, 24, 16) && check(24, s, 16) && check(24, 16, s)) << s;
}

TEST(FieldCases, A33_LiveExtentsRuleEverything) {
  Graph g({.io_data_type = DataType::fp32});
  Tensor c = g.matmul(declare(g, {1, 4096, 32}), declare(g, {1, 32, 48}));
  c.set_output(true);
  g.reduction(c, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true);
  const CompiledPlan plan = g.compile();
  PoisonedBuffer a = ints({1, 128, 32}, 23), b = ints({1, 32, 48}, 24), y = output({1, 128, 48}), most = output({1, 1, 1});
  std::fill_n(static_cast<float*>(a.data()) + 64 * 32, 64 * 32, kNan);
  plan.run(std::vector{view(a.data(), {1, 64, 32}, a.strides()), view(b), view(y.data(), {1, 64, 48}, y.strides()), view(most)});
  double want = 0;
  for (std::int64_t m = 0; m < 128; ++m)
    for (std::int64_t n = 0; n < 48; ++n) {
      if (m >= 64) {
        ASSERT_TRUE(std::isnan(at(y, {0, m, n})));
        continue;
      }
      ASSERT_EQ(at(y, {0, m, n}), sum(a, b, 0, m, n));
      want = std::max(want, std::fabs(at(y, {0, m, n})));
    }
  EXPECT_EQ(at(most, {0, 0, 0}), want);
}

/// Elements behind which no memory is; each the i-th small integer that the type has.
class CliffArray {
 public:
  CliffArray(DataType type, std::int64_t count)
      : format_(static_cast<Format>(type)), count_(count), memory_(static_cast<std::size_t>(count * bytes_of(type))) {
    for (std::int64_t i = 0; i < count; ++i) oracle::put_at(format_, data(), i, is_signed() ? small(i) : std::abs(small(i)));
  }
  void* data() const { return memory_.data(); }
  std::vector<double> values() const {
    std::vector<double> v(static_cast<std::size_t>(count_));
    for (std::int64_t i = 0; i < count_; ++i) v[static_cast<std::size_t>(i)] = oracle::value_at(format_, memory_.data(), i);
    return v;
  }

 private:
  bool is_signed() const { return format_ != Format::uint8 && format_ != Format::boolean; }
  Format format_;
  std::int64_t count_;
  support::Cliff memory_;
};

/// a · b + full + row + column + scalar, the operands of the epilogue in type `aux`, the output in `out`; every plan.
void check_ends(DataType matrix, DataType aux, DataType out, std::int64_t n, bool by_rows) {
  constexpr std::int64_t kM = 129, kK = 9;
  const bool integer = matrix == DataType::int8;
  const DataType sum = integer ? DataType::int32 : DataType::fp32;
  const CliffArray a(matrix, kM * kK), b(matrix, kK * n), full(aux, kM * n), row(aux, n), column(aux, kM), one(aux, 1);
  const Dims of_a = by_rows ? Dims{kM * kK, kK, 1} : Dims{kM * kK, 1, kM},
             of_b = by_rows ? Dims{kK * n, n, 1} : Dims{kK * n, 1, kK};
  Graph g({.io_data_type = sum, .intermediate_data_type = sum, .compute_data_type = sum});
  Tensor c = g.matmul(declare(g, {1, kM, kK}, matrix, of_a), declare(g, {1, kK, n}, matrix, of_b));
  for (const Dims& d : {Dims{1, kM, n}, Dims{n}, Dims{1, kM, 1}, Dims{1}}) c = g.add(c, declare(g, d, aux));
  c.set_output(true).set_data_type(out);
  const std::vector<double> va = a.values(), vb = b.values(), rows = row.values(), columns = column.values();
  const auto at = [](const std::vector<double>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
  const double scalar = one.values()[0];
  std::vector<double> want = full.values();
  for (std::int64_t m = 0; m < kM; ++m)
    for (std::int64_t j = 0; j < n; ++j) {
      double& w = want[static_cast<std::size_t>(m * n + j)];
      w += at(rows, j) + at(columns, m) + scalar;
      for (std::int64_t k = 0; k < kK; ++k)
        w += at(va, by_rows ? m * kK + k : k * kM + m) * at(vb, by_rows ? k * n + j : j * kK + k);
    }
  const PlanList plans = g.plans();
  ASSERT_GT(plans.size(), 0U);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const CliffArray y(out, kM * n);
    const std::vector<void*> addresses{a.data(), b.data(), full.data(), row.data(), column.data(), one.data(), y.data()};
    ASSERT_TRUE(plans.compile(i).execute(addresses).ok());
    ASSERT_TRUE(y.values() == want) << plans.name(i) << ", n " << n << (by_rows ? "" : ", turned");
  }
}

TEST(FieldCases, A35_NoReadPastTheEndOfAnyOperand) {
  using enum DataType;
  for (const std::int64_t n : {144, 1, 33, 127})
    for (const bool by_rows : {true, false}) {
      for (const DataType matrix : {fp32, bf16, fp16, fp8_e4m3, fp8_e5m2, int8}) {
        SCOPED_TRACE(name_of(matrix));
        check_ends(matrix, fp32, fp32, n, by_rows);
        if (HasFatalFailure()) return;
      }
      for (const DataType aux : {bf16, fp16, fp8_e4m3, fp8_e5m2, int8, uint8, int32, boolean}) {
        SCOPED_TRACE(name_of(aux));
        check_ends(fp32, aux, fp16, n, by_rows);
        check_ends(int8, aux, int32, n, by_rows);
        if (HasFatalFailure()) return;
      }
    }
}

/// Sums of every plan over a K far beyond all blocks of it, and at the edges of those that are packed.
TEST(FieldCases, A39_ProductsOfGreatDepth) {
  struct Shape {
    std::int64_t m, n, k;
  };
  for (const Shape& s :
       {Shape{6, 10, 147456}, {24, 16, 2048}, {12, 32, 4096}, {5, 7, 1023}, {5, 7, 1025}, {5, 7, 2047}, {5, 7, 2049}})
    for (const DataType type : {DataType::fp32, DataType::bf16, DataType::int8}) {
      SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k << ' ' << name_of(type));
      const auto format = static_cast<Format>(type);
      const PoisonedBuffer a = ints({1, s.m, s.k}, {s.m * s.k, s.k, 1}, 27, format),
                           b = ints({1, s.k, s.n}, {s.k * s.n, 1, s.k}, 28, format);
      const DataType sum = type == DataType::int8 ? DataType::int32 : DataType::fp32;
      Graph g({.io_data_type = sum, .intermediate_data_type = sum, .compute_data_type = sum});
      g.matmul(declare(g, a.dims(), type, a.strides()), declare(g, b.dims(), type, b.strides())).set_output(true);
      std::vector<int> va, vb;
      for (std::int64_t i = 0; i < s.m * s.k; ++i) va.push_back(static_cast<int>(oracle::value_at(format, a.data(), i)));
      for (std::int64_t i = 0; i < s.n * s.k; ++i) vb.push_back(static_cast<int>(oracle::value_at(format, b.data(), i)));
      const PlanList plans = g.plans();
      for (std::size_t p = 0; p < plans.size(); ++p) {
        PoisonedBuffer y(static_cast<Format>(sum), {1, s.m, s.n}, {s.m * s.n, s.n, 1});
        plans.compile(p).run(std::vector{view(a, type), view(b, type), view(y, sum)});
        for (std::int64_t i = 0; i < s.m * s.n; ++i)
          ASSERT_EQ(at(y, {0, i / s.n, i % s.n}), std::inner_product(va.begin() + i / s.n * s.k, va.begin() + (i / s.n + 1) * s.k,
                                                                     vb.begin() + i % s.n * s.k, 0))
              << plans.name(p) << ' ' << i;
      }
    }
}

TEST(FieldCases, A40_OutputsWhoseElementsMeet) {
  const auto rule = [](const Dims& dims, const Dims& strides) {
    const PoisonedBuffer a = ints({dims[0], dims[1], 4}, 25), b = ints({dims[0], 4, dims[2]}, 26);
    PoisonedBuffer y(Format::fp32, {4096}, {1});
    const CompiledPlan plan = product(a.dims(), b.dims());
    const std::vector views{view(a), view(b), view(y.data(), dims, strides)};
    const Status status = plan.execute(views);
    if (status.ok()) return std::string();
    EXPECT_EQ(y.any_write(), "");
    return plan.explain(status, views).rule();
  };
  EXPECT_EQ(rule({1, 2, 2}, {4, 2, 2}), "call.output_alias");
  EXPECT_EQ(rule({1, 4, 4}, {16, 3, 1}), "call.output_alias");
  EXPECT_EQ(rule({2, 4, 4}, {8, 4, 1}), "call.output_alias");
  EXPECT_EQ(rule({1, 4, 4}, {16, 1, 4}), "");
  EXPECT_EQ(rule({1, 4, 1}, {16, 1, 999}), "");
  EXPECT_EQ(rule({2, 4, 4}, {24, 4, 1}), "");
  EXPECT_EQ(rule({1, 2, 2}, {0, 3, 2}), "");
}

/// Threads with buffers of their own, each full of its number. Operands are converted and reductions have partial results, so
/// that all scratch there is is in use.
TEST(FieldCases, A44_ManyThreadsOnePlan) {
  constexpr std::int64_t kM = 70, kN = 150, kK = 24, kThreads = 8;
  Graph g({.io_data_type = DataType::fp32});
  const Tensor c = g.matmul(declare(g, {1, kM, kK}, DataType::bf16), declare(g, {1, kK, kN}, DataType::bf16));
  Tensor y = g.relu(g.add(c, declare(g, {1, 1, kN}, DataType::bf16)));
  y.set_output(true);
  for (const Dims& kept : {Dims{1, kM, 1}, Dims{1, 1, kN}}) g.reduction(y, ReductionMode::add).set_dim(kept).set_output(true);
  const PlanList plans = g.plans();
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const CompiledPlan plan = plans.compile(p);
    std::array<int, kThreads> bad{};
    {
      std::vector<std::jthread> threads;
      for (std::size_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&plan, &bad, t] {
          const auto filled = [](std::int64_t count, double value) {
            std::vector<std::uint16_t> v(static_cast<std::size_t>(count));
            for (std::int64_t i = 0; i < count; ++i) oracle::put_at(Format::bf16, v.data(), i, value);
            return v;
          };
          const auto number = static_cast<float>(t);
          std::vector<std::uint16_t> a = filled(kM * kK, number), b = filled(kK * kN, 1), bias = filled(kN, 2);
          std::vector<float> out(kM * kN), rows(kM), columns(kN);
          const std::vector<void*> addresses{a.data(), b.data(), bias.data(), out.data(), rows.data(), columns.data()};
          for (int call = 0; call < 170; ++call) {
            for (std::vector<float>* v : {&out, &rows, &columns}) std::fill(v->begin(), v->end(), kNan);
            bool fine = plan.execute(addresses).ok();
            const auto all = [](const std::vector<float>& v, float want) { return std::ranges::count(v, want) == std::ssize(v); };
            const float want = kK * number + 2;
            fine &= all(out, want) && all(rows, kN * want) && all(columns, kM * want);
            bad[t] += fine ? 0 : 1;
          }
        });
    }
    for (const int count : bad) EXPECT_EQ(count, 0) << plan.name();
  }
}

TEST(FieldCases, A60_TheReasonStandsInEveryAnswer) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {4, 8}, .stride = {8, 1}, .data_type = DataType::int64});
  g.matmul(a, declare(g, {8, 4})).set_output(true);
  const PlanList plans = g.plans();
  EXPECT_EQ(plans.size(), 0U);
  EXPECT_NE(plans.unsupported_text().find("[chain.dtype_not_yet] tensor 'a' is int64"), std::string::npos);
  try {
    plans.compile();
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(plans.unsupported_text()), std::string::npos);
  }
}

TEST(FieldCases, A68_TheSameCallHasTheSameBits) {
  support::Random random(68);
  PoisonedBuffer a(Format::fp16, {2, 70, 90}, {6300, 90, 1}), b(Format::fp16, {2, 90, 600}, {54000, 600, 1});
  a.fill([&] { return random.normal(); });
  b.fill([&] { return random.normal(); });
  Graph g({.io_data_type = DataType::fp32});
  Tensor y = g.gelu(g.matmul(declare(g, a.dims(), DataType::fp16), declare(g, b.dims(), DataType::fp16)));
  y.set_output(true);
  std::vector<PoisonedBuffer> outs;
  outs.push_back(output({2, 70, 600}));
  for (const Dims& kept : {Dims{2, 70, 1}, Dims{1, 1, 600}, Dims{1, 1, 1}})
    for (const ReductionMode mode : {ReductionMode::add, ReductionMode::norm2}) {
      g.reduction(y, mode).set_dim(kept).set_output(true);
      outs.push_back(output(kept));
    }
  const CompiledPlan plan = g.compile();
  std::vector views{view(a, DataType::fp16), view(b, DataType::fp16)};
  for (const PoisonedBuffer& o : outs) views.push_back(view(o));
  std::vector<std::vector<std::byte>> first;
  for (int run = 0; run < 50; ++run) {
    for (PoisonedBuffer& o : outs) o.clear();
    plan.run(views);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      if (run == 0) first.push_back(outs[i].content());
      ASSERT_EQ(outs[i].content(), first[i]) << run;
    }
  }
}

// ---- Laws

TEST(Laws, PermutingTheBatchPermutesTheOutputAndSplittingTheRowsChangesNothing) {
  support::Random random(5);
  constexpr std::int64_t kL = 4, kM = 50, kN = 33, kK = 40;
  PoisonedBuffer a(Format::fp32, {kL, kM, kK}, {kM * kK, kK, 1}), b(Format::fp32, {kL, kK, kN}, {kK * kN, kN, 1});
  a.fill([&] { return random.normal(); });
  b.fill([&] { return random.normal(); });
  Graph g({.io_data_type = DataType::fp32});
  g.gelu(g.matmul(declare(g, a.dims()), declare(g, b.dims()))).set_output(true);
  const PlanList plans = g.plans();
  const auto moved = [](const PoisonedBuffer& x, std::int64_t l, std::int64_t m) {
    return static_cast<float*>(x.data()) + l * x.strides()[0] + m * x.strides()[1];
  };
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const CompiledPlan plan = plans.compile(i);
    PoisonedBuffer whole = output({kL, kM, kN}), parts = output({kL, kM, kN});
    plan.run(std::vector{view(a), view(b), view(whole)});
    // oneDNN may sum in another order for another number of rows; our loops and panels never do.
    const bool splits = plan.name().find("PRODUCT=1") == std::string::npos;
    const std::int64_t step = splits ? 13 : kM;
    for (const std::int64_t l : {2, 0, 3, 1})
      for (std::int64_t m = 0; m < kM; m += step) {
        const std::int64_t rows = std::min(step, kM - m);
        plan.run(std::vector{view(moved(a, l, m), {1, rows, kK}, a.strides()), view(moved(b, l, 0), {1, kK, kN}, b.strides()),
                             view(moved(parts, l, m), {1, rows, kN}, parts.strides())});
      }
    EXPECT_TRUE(parts.content() == whole.content()) << plan.name();
  }
}

}  // namespace
