#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/context.hpp"
#include "ops/plan_cache.hpp"
#include "ops/repeat.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// Operations from C++: values against plain loops, and what the cache of plans keeps. tests/python/ops has every type and layout.
namespace verglas::ops {
namespace {

/// Small integers, so that every sum is exact.
std::vector<float> numbers(std::int64_t count, int seed) {
  std::vector<float> v(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>((static_cast<int>(i) * 7 + seed * 5) % 7 - 3);
  return v;
}

struct Sizes {
  std::int64_t m = 5, n = 64, k = 3, l = 2;
};

/// k-major matrices, the batch outermost: what a stack of row-major matrices is.
struct Product {
  explicit Product(Sizes s) : size(s), a(numbers(s.m * s.k * s.l, 1)), b(numbers(s.n * s.k * s.l, 2)) {}
  TensorView a_view() {
    return TensorView::strided(a.data(), DataType::fp32, {size.m, size.k, size.l}, {size.k, 1, size.m * size.k});
  }
  TensorView b_view() {
    return TensorView::strided(b.data(), DataType::fp32, {size.n, size.k, size.l}, {size.k, 1, size.n * size.k});
  }
  double at(std::int64_t m, std::int64_t n, std::int64_t l) const {
    double sum = 0;
    for (std::int64_t i = 0; i < size.k; ++i)
      sum += double{a[static_cast<std::size_t>((l * size.m + m) * size.k + i)]} *
             b[static_cast<std::size_t>((l * size.n + n) * size.k + i)];
    return sum;
  }
  Sizes size;
  std::vector<float> a, b;
};

TEST(Operations, AmaxIsOfTheUnroundedProduct) {
  Product x({});
  const GemmAmaxResult r = gemm_amax_forward(x.a_view(), x.b_view());
  double largest = 0;
  for (std::int64_t l = 0; l < 2; ++l)
    for (std::int64_t m = 0; m < 5; ++m)
      for (std::int64_t n = 0; n < 64; ++n) {
        largest = std::max(largest, std::abs(x.at(m, n, l)));
        EXPECT_EQ(r.c.data<float>()[(l * 5 + m) * 64 + n], x.at(m, n, l));
      }
  EXPECT_EQ(*r.amax.data<float>(), largest);
}

TEST(Operations, SwigluPairsRunsOf32Columns) {
  Product x({.m = 3, .n = 192, .k = 4, .l = 3});
  const GemmSwigluResult r = gemm_swiglu_forward(x.a_view(), x.b_view(), 0.5F, {.c_dtype = DataType::fp32});
  for (std::int64_t l = 0; l < 3; ++l)
    for (std::int64_t m = 0; m < 3; ++m) {
      for (std::int64_t n = 0; n < 192; ++n) ASSERT_EQ(r.ab12.data<float>()[(l * 3 + m) * 192 + n], 0.5 * x.at(m, n, l));
      for (std::int64_t c = 0; c < 96; ++c) {
        const double up = 0.5 * x.at(m, 64 * (c / 32) + c % 32, l), gate = 0.5 * x.at(m, 64 * (c / 32) + 32 + c % 32, l);
        const double want = up * gate / (1 + std::exp(-gate));
        ASSERT_NEAR(r.c.data<float>()[(l * 3 + m) * 96 + c], want, 1e-5 * std::abs(want)) << c;
      }
    }
}

TEST(Operations, OfFp32RunOnAGpuToo) {
  const support::RecordingDriver driver;
  support::FakeNvrtc nvrtc;
  Product x({.m = 8, .n = 64, .k = 8, .l = 1});
  TensorView a = x.a_view(), b = x.b_view();
  a.device = b.device = {DeviceType::cuda, 0};
  for (const char* name : {"gemm_swiglu", "gemm_amax", "gemm_srelu"}) {
    const Operation operation = Operation::named(name);
    std::vector<TensorView> tensors(operation.tensors().size());
    tensors[0] = a, tensors[1] = b;
    if (std::string(name) == "gemm_srelu")
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (operation.tensors()[i].name == "prob")
          tensors[i] = TensorView::strided(a.data, DataType::fp32, {8, 1, 1}, {1, 1, 8}, a.device);
    const auto outputs = operation.outputs(tensors, {});
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].dtype != DataType::not_set) tensors[i] = outputs[i];
    EXPECT_EQ(operation.plan(tensors, {}).engine(), "sm90") << name;
  }
  plan_cache().clear();  // the driver goes
}

// A class of sizes that comes first while a stream is captured is compiled then: nothing of that is on the stream.
TEST(Operations, OfANewClassOfSizesAreOneNodeOfACapture) {
  clear_plan_cache();
  support::RecordingDriver driver;
  support::FakeNvrtc nvrtc;
  const cuda::DriverTable& d = driver.table();
  constexpr Device kGpu{DeviceType::cuda, 0};
  {
    const cuda::PrimaryContext primary(d, 0);
    const cuda::CurrentContext current(d, primary.handle());
    cuda::CUstream stream = nullptr;
    ASSERT_EQ(d.cuStreamCreate(&stream, 1), cuda::CUDA_SUCCESS);
    ASSERT_EQ(d.cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
    const auto before = plan_cache_statistics().compiled;
    for (const std::int64_t m : {8, 16, 17, 400}) {
      const auto matrix = [](std::uintptr_t megabyte, DataType type, std::int64_t rows, std::int64_t columns) {
        return TensorView::strided(reinterpret_cast<void*>(megabyte << 20), type, {rows, columns, 1},
                                   {columns, 1, rows * columns}, kGpu);
      };
      const std::vector<TensorView> tensors = {matrix(64, DataType::bf16, m, 64),
                                               matrix(128, DataType::bf16, 128, 64),
                                               matrix(192, DataType::bf16, m, 128),
                                               matrix(256, DataType::bf16, m, 128),
                                               {},
                                               {},
                                               {},
                                               {},
                                               {},
                                               {}};
      Operation::named("gemm_srelu").run(tensors, {}, 1.0F, {stream});
    }
    EXPECT_EQ(plan_cache_statistics().compiled, before + 3) << "up to 16, 64 and 1,024 rows";
    cuda::CUgraph graph = nullptr;
    ASSERT_EQ(d.cuStreamEndCapture(stream, &graph), cuda::CUDA_SUCCESS) << "nothing spoilt the capture";
    std::size_t nodes = 0;
    ASSERT_EQ(d.cuGraphGetNodes(graph, nullptr, &nodes), cuda::CUDA_SUCCESS);
    EXPECT_EQ(nodes, 4U);
    EXPECT_TRUE(driver.untouched()) << "beside the graph";
    d.cuGraphDestroy(graph);
    d.cuStreamDestroy(stream);
  }
  clear_plan_cache();  // the driver goes
}

TEST(Operations, AlphaMayLieWhereTheTensorsAre) {
  Product x({});
  Array ab12(TensorView::strided(nullptr, DataType::fp32, {5, 64, 2}, {64, 1, 320}));
  Array c(TensorView::strided(nullptr, DataType::fp16, {5, 32, 2}, {32, 1, 160}));
  const std::vector<TensorView> tensors = {x.a_view(), x.b_view(), ab12.view(), c.view(), {}, {}, {}, {}, {}};
  for (float alpha : {0.5F, -2.0F}) {
    Operation::named("gemm_swiglu").run(tensors, {}, TensorView::dense(&alpha, DataType::fp32, {}));
    for (std::int64_t i = 0; i < 640; ++i) ASSERT_EQ(ab12.data<float>()[i], alpha * x.at(i / 64 % 5, i % 64, i / 320));
  }
}

TEST(Operations, SreluAndItsGradient) {
  Product x({.m = 4, .n = 6, .k = 3, .l = 1});
  std::vector<float> prob = {1, 2, -3, 0}, dy = numbers(24, 3);
  const TensorView p = TensorView::dense(prob.data(), DataType::fp32, {4, 1, 1});
  const Options fp32{.c_dtype = DataType::fp32, .d_dtype = DataType::fp32};
  const GemmSreluResult r = gemm_srelu_forward(x.a_view(), x.b_view(), p, 2.0F, fp32);
  const GemmSreluGradients g =
      gemm_srelu_backward(x.a_view(), x.b_view(), TensorView::dense(dy.data(), DataType::fp32, {4, 6, 1}), p, 2.0F, fp32);
  for (std::int64_t m = 0; m < 4; ++m) {
    double dprob = 0;
    for (std::int64_t n = 0; n < 6; ++n) {
      const auto i = static_cast<std::size_t>(m * 6 + n);
      const double c = 2 * x.at(m, n, 0), relu = std::max(c, 0.0);
      EXPECT_EQ(r.c.data<float>()[i], c);
      EXPECT_EQ(r.d.data<float>()[i], relu * relu * prob[static_cast<std::size_t>(m)]);
      EXPECT_EQ(g.d.data<float>()[i], 2 * relu * dy[i] * prob[static_cast<std::size_t>(m)]);
      dprob += relu * relu * dy[i];
    }
    EXPECT_EQ(g.dprob.data<float>()[m], dprob);
  }
}

TEST(Operations, OfNothing) {
  Product x({.m = 0, .n = 64, .k = 3, .l = 1});
  EXPECT_EQ(*gemm_amax_forward(x.a_view(), x.b_view()).amax.data<float>(), -std::numeric_limits<float>::infinity());
  Product zero({.m = 2, .n = 64, .k = 0, .l = 1});
  const GemmAmaxResult r = gemm_amax_forward(zero.a_view(), zero.b_view());
  EXPECT_EQ(*r.amax.data<float>(), 0.0F);
  EXPECT_EQ(r.c.data<float>()[127], 0.0F);
}

TEST(PlanCache, OnePlanForEverySizeAndScalar) {
  clear_plan_cache();
  const std::uint64_t before = plan_cache_statistics().compiled;
  for (const std::int64_t m : {1, 5, 64})
    for (const float alpha : {1.0F, 2.0F, -1.0F}) {
      Product x({.m = m, .n = 64 * m, .k = m, .l = 1});
      gemm_swiglu_forward(x.a_view(), x.b_view(), alpha);
    }
  EXPECT_EQ(plan_cache_statistics().compiled, before + 1);
  Product x({});
  gemm_swiglu_forward(x.a_view(), x.b_view(), 1.0F, {.c_dtype = DataType::bf16});
  EXPECT_EQ(plan_cache_statistics().compiled, before + 2);
  EXPECT_EQ(plan_cache_statistics().plans, 2U);
}

TEST(PlanCache, APlanForAGpuIsOfASizeClassAndServesAnySize) {
  const auto key = [](std::int64_t m, std::int64_t n, std::int64_t k, Device device = {DeviceType::cuda, 0}) {
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
      TensorView v;
      v.dtype = DataType::bf16, v.device = device, v.rank = 3;
      v.extent = {rows, columns, 1}, v.stride = {columns, 1, rows * columns};
      return v;
    };
    std::array<TensorView, 6> given{matrix(m, k), matrix(n, k)};
    return key_of(problem_of(gemm_amax(), given, {}));
  };
  const Key large = key(4096, 4096, 4096);
  EXPECT_EQ(key(1025, 2048, 4095 / 8 * 8), large);
  EXPECT_EQ(key(16, 4096, 4096), key(1, 4096, 4096));
  for (const Key& other : {key(4097, 4096, 4096), key(1024, 4096, 4096), key(4096, 8192, 4096), key(4096, 4096, 1024)}) {
    EXPECT_NE(other, large);
    EXPECT_TRUE(is_served(large, other));
  }
  EXPECT_FALSE(is_served(large, key(4096, 4096, 4096, {DeviceType::cuda, 1})));
  EXPECT_EQ(key(1, 64, 64, {}), key(4096, 4096, 64, {}));
}

TEST(PlanCache, KeepsWhatWasUsedLast) {
  PlanCache cache(2);
  const auto key = [](std::uint8_t i) {
    Key k{};
    k[0] = i;
    return k;
  };
  cache.put(key(1), std::make_shared<Built>());
  cache.put(key(2), std::make_shared<Built>());
  EXPECT_NE(cache.find(key(1)), nullptr);
  cache.put(key(3), std::make_shared<Built>());
  EXPECT_NE(cache.find(key(1)), nullptr);
  EXPECT_EQ(cache.find(key(2)), nullptr);
  const auto first = cache.find(key(3));
  EXPECT_EQ(cache.put(key(3), std::make_shared<Built>()), first) << "the first result is kept";
}

TEST(PlanCache, ServesThreads) {
  clear_plan_cache();
  Product x({});
  const GemmSreluResult want = gemm_srelu_forward(x.a_view(), x.b_view());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        if (t == 0) clear_plan_cache();
        const GemmSreluResult r = gemm_srelu_forward(x.a_view(), x.b_view());
        wrong += std::memcmp(r.d.data<char>(), want.d.data<char>(), 2 * 5 * 64 * 2) != 0;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Prepared, ChecksCompilesAndRuns) {
  Product x({});
  std::vector<float> ab12(640), c(320);
  const auto view = [](std::vector<float>& v, std::int64_t n) {
    return TensorView::strided(v.data(), DataType::fp32, {5, n, 2}, {n, 1, 5 * n});
  };
  const std::vector<TensorView> tensors = {x.a_view(), x.b_view(), view(ab12, 64), view(c, 32), {}, {}, {}, {}, {}};
  Prepared op(Operation::named("gemm_swiglu"), tensors, {}, 2.0F);
  EXPECT_TRUE(op.check_support());
  op.compile();
  op.execute(tensors);
  EXPECT_EQ(ab12[0], 2 * x.at(0, 0, 0)) << "the alpha of the constructor";
  op.execute(tensors, 3.0F);
  EXPECT_EQ(ab12[0], 3 * x.at(0, 0, 0));
}

/// gemm_srelu of one batch, whose class repeats calls.
struct Repeated {
  explicit Repeated(std::int64_t m = 4, int seed = 1)
      : x({.m = m, .n = 6, .k = 3, .l = 1}), out(static_cast<std::size_t>(12 * m)) {
    x.a = numbers(m * 3, seed);
    const auto place = [&](std::int64_t at) {
      return TensorView::strided(out.data() + at, DataType::fp32, {m, 6, 1}, {6, 1, 6 * m});
    };
    tensors = {x.a_view(), x.b_view(), place(0), place(6 * m), {}, {}, {}, {}, {}, {}};
  }
  bool is_right(float alpha) const {
    bool right = true;
    for (std::int64_t i = 0; i < 6 * x.size.m; ++i) {
      const double c = alpha * x.at(i / 6, i % 6, 0), relu = std::max(c, 0.0);
      right &= out[static_cast<std::size_t>(i)] == c && out[static_cast<std::size_t>(6 * x.size.m + i)] == relu * relu;
    }
    return right;
  }
  Product x;
  std::vector<float> out;
  std::vector<TensorView> tensors;
};

TEST(Prepared, AnswersForNewAddressesScalarsAndSizes) {
  Repeated first, second(4, 3), larger(9, 5);
  Prepared op(Operation::named("gemm_srelu"), first.tensors, {}, 2.0F);
  op.compile();
  for (const float alpha : {1.0F, -2.0F})
    for (Repeated* r : {&first, &second, &second, &larger, &first, &larger, &larger}) {
      std::fill(r->out.begin(), r->out.end(), 99.0F);
      op.execute(r->tensors, alpha);
      EXPECT_TRUE(r->is_right(alpha));
    }
}

TEST(Prepared, RefusesAfterAGoodCallInTheSameWordsAsAtFirst) {
  const auto said = [](const Prepared& op, const std::vector<TensorView>& tensors) -> std::string {
    try {
      op.execute(tensors);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const std::vector<std::pair<const char*, void (*)(std::vector<TensorView>&)>> wrong = {
      {"call.null", [](auto& t) { t[1].data = nullptr; }},
      {"call.overlap", [](auto& t) { t[3].data = t[2].data; }},
      {"call.overlap", [](auto& t) { t[2].data = t[0].data; }},
      {"call.alignment", [](auto& t) { t[0].data = static_cast<char*>(t[0].data) + 1; }},
      {"call.read_only", [](auto& t) { t[3].read_only = true; }},
      {"call.span", [](auto& t) { t[0].observed_bytes = 8; }},
      {"op.extent", [](auto& t) { t[1].extent[1] = 2; }},
      {"op.layout", [](auto& t) { t[0].stride[0] = 4; }},
      {"op.rank", [](auto& t) { t[0].rank = 2; }},
      {"op.device", [](auto& t) { t[1].device = {DeviceType::cuda, 0}; }},
      {"op.missing", [](auto& t) { t[2] = {}; }},
      {"op.sample", [](auto& t) { t[3].dtype = DataType::bf16; }},
      {"op.dtype", [](auto& t) { t[0].dtype = DataType::int8; }},
  };
  Repeated r;
  Prepared fresh(Operation::named("gemm_srelu"), r.tensors, {}), used(Operation::named("gemm_srelu"), r.tensors, {});
  fresh.compile();
  used.compile();
  for (const auto& [rule, change] : wrong) {
    used.execute(r.tensors);
    std::fill(r.out.begin(), r.out.end(), 99.0F);
    std::vector<TensorView> tensors = r.tensors;
    change(tensors);
    const std::string text = said(used, tensors);
    EXPECT_EQ(text, said(fresh, tensors));
    EXPECT_NE(text.find(rule), std::string::npos) << rule << ": " << text;
    for (const float v : r.out) ASSERT_EQ(v, 99.0F) << rule;
  }
  used.execute(r.tensors);
  EXPECT_TRUE(r.is_right(1.0F));
}

TEST(Prepared, ServesThreads) {
  Repeated sample;
  Prepared op(Operation::named("gemm_srelu"), sample.tensors, {});
  op.compile();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      Repeated r(3 + t % 3, t);
      for (int i = 0; i < 50; ++i) {
        op.execute(r.tensors, static_cast<float>(i % 3));
        wrong += !r.is_right(static_cast<float>(i % 3));
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Repeat, IsToldByAllButAddresses) {
  Repeated r;
  const Operation op = Operation::named("gemm_srelu");
  const auto repeat = Repeat::after(op, r.tensors, {}, 1.0F, {});
  ASSERT_NE(repeat, nullptr);
  EXPECT_TRUE(r.is_right(1.0F));
  const std::vector<TensorView> inputs = {r.tensors[0], r.tensors[1], {}, {}, {}, {}, {}, {}, {}, {}};
  EXPECT_TRUE(repeat->is_like(r.tensors, Repeat::Of::all));
  EXPECT_TRUE(repeat->is_like(inputs, Repeat::Of::inputs));
  EXPECT_FALSE(repeat->is_like(inputs, Repeat::Of::all));
  std::vector<TensorView> moved = r.tensors;
  moved[0].data = r.out.data();
  EXPECT_TRUE(repeat->is_like(moved, Repeat::Of::all));
  const std::vector<void (*)(TensorView&)> changes = {[](TensorView& v) { v.dtype = DataType::bf16; },
                                                      [](TensorView& v) { v.rank = 2; },
                                                      [](TensorView& v) { v.extent[2] = 2; },
                                                      [](TensorView& v) { v.stride[1] = 2; },
                                                      [](TensorView& v) { v.device.id = 1; },
                                                      [](TensorView& v) { v.device.type = DeviceType::cuda; },
                                                      [](TensorView& v) { v.observed_bytes = 4; },
                                                      [](TensorView& v) { v.read_only = true; },
                                                      [](TensorView& v) { v = {}; }};
  for (const auto& change : changes) {
    std::vector<TensorView> other = r.tensors;
    change(other[1]);
    EXPECT_FALSE(repeat->is_like(other, Repeat::Of::inputs)) << &change - changes.data();
  }
  EXPECT_NE(repeat->find(), nullptr);
  clear_plan_cache();
  EXPECT_EQ(repeat->find(), nullptr) << "an emptied cache has no plan for it";
}

TEST(Repeat, TakesBatchesInOneLaunch) {
  Product x({});
  std::vector<float> out(960);
  const auto view = [&](std::int64_t at, std::int64_t n) {
    return TensorView::strided(out.data() + at, DataType::fp32, {5, n, 2}, {n, 1, 5 * n});
  };
  const std::vector<TensorView> two_batches = {x.a_view(), x.b_view(), view(0, 64), view(640, 32), {}, {}, {}, {}, {}};
  const auto repeat = Repeat::after(Operation::named("gemm_swiglu"), two_batches, {}, 1.0F, {});
  EXPECT_EQ(out[0], x.at(0, 0, 0));
  float alpha = 2.0F;
  EXPECT_TRUE(repeat->launch(*repeat->find(), two_batches, TensorView::address(&alpha), {}));
  EXPECT_EQ(out[0], 2 * x.at(0, 0, 0));
}

TEST(Operations, OutputsThatMeetInputsAreRefusedBeforeAnythingIsWritten) {
  std::vector<float> memory(16384, 7.0F);
  const auto view = [&](std::int64_t at, std::int64_t r, std::int64_t c) {
    return TensorView::strided(memory.data() + at, DataType::fp32, {r, c, 2}, {c, 1, r * c});
  };
  // The first batch of C lies where the second of A is.
  const std::vector<TensorView> tensors = {
      view(0, 2, 32), view(512, 64, 32), view(8192, 2, 64), view(64, 2, 32), {}, {}, {}, {}, {}};
  EXPECT_THROW(Operation::named("gemm_swiglu").run(tensors), Error);
  for (const float v : memory) ASSERT_EQ(v, 7.0F);
}

}  // namespace
}  // namespace verglas::ops
