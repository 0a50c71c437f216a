#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <random>
#include <thread>

#include "numeric/convert.hpp"
#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

// Matrices that are converted on their way into the product, on a device and by the CPU engine: small integers, the same bits.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

using OnTheWay = std::function<Tensor(Graph&, Tensor)>;
struct Way {
  const char* name;
  DataType a, b, compute, out;
  OnTheWay on_a, on_b;
};

Tensor as_is(Graph&, Tensor t) { return t; }
OnTheWay cast(DataType to) {
  return [to](Graph& g, Tensor t) { return g.pointwise(PointwiseMode::identity, {t}).set_data_type(to); };
}
OnTheWay with_scalar(PointwiseMode mode, DataType type, DataType to, DataType compute = DataType::fp32) {
  return [=](Graph& g, Tensor t) {
    const Tensor s = g.tensor({.name = "s", .dim = {1}, .stride = {1}, .data_type = type});
    return g.pointwise(mode, {s, t}, {}, {.compute_data_type = compute}).set_data_type(to);
  };
}

std::vector<Way> ways() {
  using enum DataType;
  return {{"int8 as bf16", int8, bf16, fp32, fp32, cast(bf16), as_is},
          {"b int8 as fp16", fp16, int8, fp32, fp32, as_is, cast(fp16)},
          {"a scalar added", bf16, bf16, fp32, bf16, with_scalar(PointwiseMode::add, fp32, bf16), as_is},
          {"a scalar subtracted from both", bf16, bf16, fp32, fp32, with_scalar(PointwiseMode::sub, bf16, bf16),
           with_scalar(PointwiseMode::sub, int32, bf16)},
          {"fp32 as fp16", fp32, fp32, fp32, fp16, cast(fp16), cast(fp16)},
          {"bf16 as fp8", bf16, fp8_e5m2, fp32, bf16, cast(fp8_e4m3), as_is},
          {"fp8 as bf16", fp8_e4m3, uint8, fp32, fp32, cast(bf16), cast(bf16)},
          {"tf32", fp32, fp16, tf32, fp32, as_is, cast(fp32)},
          {"int8 in int32", int8, int32, int32, int32, with_scalar(PointwiseMode::max, int8, int8, int32), cast(int8)}};
}

struct Bytes {
  std::vector<char> memory;
  Bytes(std::int64_t count, DataType t, std::mt19937& g) : memory(static_cast<std::size_t>(count * bytes_of(t)), 0x7F) {
    std::uniform_int_distribution<int> draw(t == DataType::uint8 ? 0 : -3, 3);
    for (std::int64_t i = 0; i < count; ++i) {
      const int v = draw(g);
      if (t == DataType::int32) {
        std::memcpy(memory.data() + 4 * i, &v, 4);
      } else {
        numeric::from_float(static_cast<float>(v), memory.data() + i * bytes_of(t), t);
      }
    }
  }
};

void compare(const Way& w, const std::array<std::int64_t, 4>& extents, bool a_k_major, bool b_k_major, std::int64_t pad,
             std::size_t plan_index) {
  const auto [l, m, n, k] = extents;
  SCOPED_TRACE(::testing::Message() << w.name << ' ' << l << 'x' << m << 'x' << n << 'x' << k << (a_k_major ? " t" : " n")
                                    << (b_k_major ? "t" : "n") << " pad " << pad);
  std::mt19937 random(static_cast<unsigned>(m * 31 + n * 7 + k));
  const auto describe = [&](Graph& g) {
    const std::int64_t pa = (a_k_major ? k : m) + pad, pb = (b_k_major ? k : n) + pad;
    const Tensor a = g.tensor({.name = "a",
                               .dim = {l, m, k},
                               .stride = {pa * (a_k_major ? m : k), a_k_major ? pa : 1, a_k_major ? 1 : pa},
                               .data_type = w.a});
    const Tensor b = g.tensor({.name = "b",
                               .dim = {l, k, n},
                               .stride = {pb * (b_k_major ? n : k), b_k_major ? 1 : pb, b_k_major ? pb : 1},
                               .data_type = w.b});
    const Tensor x = w.on_a(g, a);
    g.matmul(x, w.on_b(g, b), {.compute_data_type = w.compute}).set_output(true).set_data_type(w.out);
  };
  Graph on_cpu, on_gpu;
  describe(on_cpu);
  describe(on_gpu);
  const CompiledPlan reference = on_cpu.compile();
  const PlanList plans = on_gpu.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GE(plans.size(), 1U) << plans.unsupported_text();
  const CompiledPlan plan = plans.compile(plan_index % plans.size());
  const cuda::DriverTable& driver = **cuda::driver();
  std::vector<Bytes> host;
  std::list<support::DeviceBuffer> device;
  std::vector<void*> host_calls, device_calls;
  for (const OperandInfo& o : reference.operands()) {
    std::int64_t count = 1;
    for (std::size_t i = 0; i < o.dim.size(); ++i) count += (o.dim[i] - 1) * o.stride[i];
    host.emplace_back(count, o.dtype, random);
    device.emplace_back(driver, host.back().memory.size(), 0xFF).upload(host.back().memory.data());
    device_calls.push_back(device.back().data());
  }
  for (Bytes& b : host) host_calls.push_back(b.memory.data());
  ASSERT_TRUE(reference.execute(host_calls).ok());
  ASSERT_TRUE(plan.execute(device_calls).ok()) << plan.name();
  ASSERT_EQ(driver.cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  const std::vector<std::uint8_t> got = device.back().download();
  const auto* want = reinterpret_cast<const std::uint8_t*>(host.back().memory.data());
  const auto size = static_cast<std::size_t>(bytes_of(w.out));
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < got.size() / size; ++i)
    if (std::memcmp(got.data() + i * size, want + i * size, size) != 0 && wrong++ == 0) first = i;
  EXPECT_EQ(wrong, 0U) << plan.name() << ", first at " << first;
  for (const support::DeviceBuffer& b : device) EXPECT_EQ(b.touched_guard_bytes(), 0);
}

TEST(Sm90Prologue, GivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  const cuda::PrimaryContext primary(**cuda::driver(), 0);
  struct Case {
    Way way;
    std::array<std::int64_t, 4> extents;
    bool ta, tb;
    std::int64_t pad;
  };
  std::vector<Case> cases;
  for (const Way& w : ways())
    for (const bool ta : {true, false})
      for (const bool tb : {true, false}) {
        cases.push_back({w, {1, 144, 272, 208}, ta, tb, 0});
        cases.push_back({w, {2, 67, 131, 77}, ta, tb, ta ? 1 : 3});
      }
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> workers;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t)
    workers.emplace_back([&] {
      const cuda::CurrentContext current(**cuda::driver(), primary.handle());
      for (std::size_t i = next++; i < cases.size(); i = next++)
        compare(cases[i].way, cases[i].extents, cases[i].ta, cases[i].tb, cases[i].pad, i);
    });
}

}  // namespace
}  // namespace verglas
