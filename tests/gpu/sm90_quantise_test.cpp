#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <list>
#include <random>
#include <thread>

#include "numeric/convert.hpp"
#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

// Quantised outputs on a device and by the CPU engine: the same bits of elements, scales and padding, beside dense outputs and a
// reduction or alone.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

struct Case {
  std::int64_t l, m, n, k;
  DataType data, scale;
  std::int64_t block;
  bool interleaved = true, dense = false, reduces = false, gap = false;
  DataType between = DataType::fp32;
};

std::int64_t ceil_to(std::int64_t x, std::int64_t y) { return (x + y - 1) / y * y; }

void describe(Graph& g, const Case& c) {
  const Tensor a = g.tensor({.name = "a", .dim = {c.l, c.m, c.k}, .stride = {c.m * c.k, c.k, 1}, .data_type = DataType::bf16});
  const Tensor b = g.tensor({.name = "b", .dim = {c.l, c.k, c.n}, .stride = {c.n * c.k, 1, c.k}, .data_type = DataType::bf16});
  const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, c.n}, .stride = {c.n, c.n, 1}, .data_type = DataType::fp32});
  Tensor x = g.add(g.matmul(a, b), bias).set_data_type(c.between);
  auto [y, s] = g.block_scale_quantize(x, c.block, std::optional<int>(2), {.name = "q"});
  const std::int64_t pitch = c.n + (c.gap ? 4 : 0);
  y.set_name("y").set_data_type(c.data).set_stride({c.m * pitch, pitch, 1}).set_output(true);
  s.set_name("s").set_data_type(c.scale).set_output(true);
  if (c.interleaved) {
    const std::int64_t rows = ceil_to(c.m, 128), columns = ceil_to(c.n / c.block, 4);
    s.set_dim({c.l, rows, columns}).set_stride({rows * columns, columns, 1}).set_reordering_type(TensorReordering::f8_128x4);
  }
  if (c.dense) x.set_output(true);
  if (c.reduces) g.reduction(x, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true).set_data_type(DataType::fp32);
}

void compare(const Case& c, std::size_t plan_index) {
  SCOPED_TRACE(::testing::Message() << c.l << 'x' << c.m << 'x' << c.n << 'x' << c.k << ' ' << name_of(c.data) << " block "
                                    << c.block << (c.interleaved ? " interleaved" : "") << (c.gap ? " gap" : "")
                                    << (c.dense ? " dense" : "") << (c.reduces ? " amax" : ""));
  std::mt19937 random(static_cast<unsigned>(c.m * 31 + c.n * 7 + c.k));
  Graph on_cpu, on_gpu;
  describe(on_cpu, c);
  describe(on_gpu, c);
  const CompiledPlan reference = on_cpu.compile();
  const PlanList plans = on_gpu.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GE(plans.size(), 1U) << plans.unsupported_text();
  const CompiledPlan plan = plans.compile(plan_index % plans.size());
  const cuda::DriverTable& driver = **cuda::driver();
  std::list<std::vector<std::uint8_t>> host;
  std::list<support::DeviceBuffer> device;
  std::vector<void*> host_call, device_call;
  for (const OperandInfo& o : reference.operands()) {
    std::int64_t count = 1;
    for (std::size_t i = 0; i < o.dim.size(); ++i) count += (o.dim[i] - 1) * o.stride[i];
    auto& bytes = host.emplace_back(static_cast<std::size_t>((count * bits_of(o.dtype) + 7) / 8), std::uint8_t{0xFF});
    if (!o.is_output)
      for (std::int64_t i = 0; i < count; ++i) {
        // Some rows and columns are small, so that scales differ, and a few blocks are zeros.
        const int size = i / 64 % 5 == 0 ? 0 : 1 << i / 64 % 4;
        numeric::from_float(static_cast<float>(static_cast<int>(random() % 7) - 3) * static_cast<float>(size),
                            bytes.data() + i * bytes_of(o.dtype), o.dtype);
      }
    device.emplace_back(driver, bytes.size(), 0xFF).upload(bytes.data());
    host_call.push_back(bytes.data());
    device_call.push_back(device.back().data());
  }
  ASSERT_TRUE(reference.execute(host_call).ok());
  ASSERT_TRUE(plan.execute(device_call).ok()) << plan.name();
  ASSERT_EQ(driver.cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  auto want = host.begin();
  auto got = device.begin();
  for (const OperandInfo& o : reference.operands()) {
    const std::vector<std::uint8_t> bytes = got->download();
    std::size_t wrong = 0, first = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] != (*want)[i] && wrong++ == 0) first = i;
    EXPECT_EQ(wrong, 0U) << plan.name() << ", '" << o.name << "' first at " << first;
    EXPECT_EQ(got->touched_guard_bytes(), 0) << o.name;
    ++want, ++got;
  }
}

TEST(Sm90Quantise, GivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  const cuda::PrimaryContext primary(**cuda::driver(), 0);
  constexpr DataType kE4m3 = DataType::fp8_e4m3, kE5m2 = DataType::fp8_e5m2, kFp4 = DataType::fp4_e2m1,
                     kE8m0 = DataType::fp8_e8m0;
  std::vector<Case> cases;
  for (const bool interleaved : {true, false})
    for (const bool gap : {false, true}) {
      cases.push_back({1, 300, 544, 72, kE4m3, kE8m0, 32, interleaved, false, false, gap});
      cases.push_back({2, 130, 288, 64, kFp4, kE4m3, 16, interleaved, true, false, gap});
      cases.push_back({1, 64, 96, 40, kE5m2, kE8m0, 32, interleaved, false, true, gap});
      cases.push_back({1, 7, 1056, 64, kFp4, kE8m0, 32, interleaved, false, false, gap});
      cases.push_back({3, 65, 160, 24, kFp4, kE4m3, 32, interleaved, true, true, gap});
      cases.push_back({1, 129, 208, 64, kFp4, kE8m0, 16, interleaved, false, false, gap, DataType::bf16});
      cases.push_back({1, 257, 320, 0, kE4m3, kE8m0, 32, interleaved, false, false, gap});
    }
  for (std::size_t i = 0; i < 6; ++i) cases.push_back({1, 1030, 1056, 128, kE4m3, kE8m0, 32});
  for (std::size_t i = 0; i < 6; ++i) cases.push_back({1, 1030, 1040, 128, kFp4, kE4m3, 16, true, true});
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> workers;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t)
    workers.emplace_back([&] {
      const cuda::CurrentContext current(**cuda::driver(), primary.handle());
      for (std::size_t i = next++; i < cases.size(); i = next++) compare(cases[i], i);
    });
}

}  // namespace
}  // namespace verglas
