#include "beside_cpu.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <list>
#include <thread>

#include "numeric/block_scale.hpp"
#include "numeric/convert.hpp"
#include "support/gpu.hpp"

namespace gpu_test {

using namespace verglas;

namespace {
constexpr Device kGpu{DeviceType::cuda, 0};
}

const Output& Run::named(const std::string& name) const {
  for (const Output& o : outputs)
    if (o.name == name) return o;
  throw std::runtime_error("no output is named " + name);
}

Run run_beside_cpu(const std::function<void(Graph&)>& describe, std::size_t plan_index, const Operands& operands) {
  std::mt19937 random(operands.seed);
  Graph on_cpu, on_gpu;
  describe(on_cpu);
  describe(on_gpu);
  const CompiledPlan reference = on_cpu.compile();
  const PlanList plans = on_gpu.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  std::vector<std::size_t> offered;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto knob = plans.knobs(i).find(operands.knob);
    if (operands.knob.empty() || (knob != plans.knobs(i).end() && knob->second != 0)) offered.push_back(i);
  }
  EXPECT_GE(offered.size(), 1U) << plans.unsupported_text();
  if (offered.empty()) return {};
  const CompiledPlan plan = plans.compile(offered[plan_index % offered.size()]);
  const cuda::DriverTable& driver = **cuda::driver();
  std::list<Bytes> host;
  std::list<support::DeviceBuffer> device;
  std::vector<TensorView> host_call, device_call;
  for (const OperandInfo& o : reference.operands()) {
    Bytes& bytes = host.emplace_back(span_bytes(o), operands.poison);
    if (!o.is_output) operands.fill(o, bytes, random);
    host_call.push_back(TensorView::address(bytes.data()));
    const std::size_t shift = operands.shift ? operands.shift(o) : 0;
    device.emplace_back(driver, bytes.size(), operands.poison, shift).upload(bytes.data());
    device_call.push_back(TensorView::address(o.is_host_scalar ? static_cast<void*>(bytes.data()) : device.back().data()));
  }
  Run run{plan.name(), {}};
  const Status by_cpu = reference.execute(host_call), by_gpu = plan.execute(device_call);
  EXPECT_TRUE(by_cpu.ok()) << reference.explain(by_cpu, host_call).what();
  EXPECT_TRUE(by_gpu.ok()) << plan.name() << ": " << plan.explain(by_gpu, device_call).what();
  if (!by_cpu.ok() || !by_gpu.ok()) return run;
  const cuda::CUresult code = driver.cuCtxSynchronize();
  EXPECT_EQ(code, cuda::CUDA_SUCCESS) << plan.name();
  if (code != cuda::CUDA_SUCCESS) return run;
  auto want = host.begin();
  auto got = device.begin();
  for (const OperandInfo& o : reference.operands()) {
    EXPECT_EQ(got->touched_guard_bytes(), 0) << plan.name() << ", " << o.name;
    if (o.is_output) run.outputs.push_back({o.name, o.dtype, *want, got->download()});
    ++want, ++got;
  }
  return run;
}

void expect_same_bytes(const Run& run) {
  for (const Output& o : run.outputs) {
    std::size_t wrong = 0, first = 0;
    for (std::size_t i = 0; i < o.got.size(); ++i)
      if (o.got[i] != o.want[i] && wrong++ == 0) first = i;
    EXPECT_EQ(wrong, 0U) << run.plan << ", '" << o.name << "' first at byte " << first << " of " << o.got.size();
  }
}

void each_on_device(std::size_t count, const std::function<void(std::size_t)>& f) {
  const cuda::PrimaryContext primary(**cuda::driver(), 0);
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> workers;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t)
    workers.emplace_back([&] {
      const cuda::CurrentContext current(**cuda::driver(), primary.handle());
      for (std::size_t i = next++; i < count; i = next++) f(i);
    });
}

std::size_t span_bytes(const OperandInfo& o) {
  std::int64_t count = 1;
  for (std::size_t i = 0; i < o.dim.size(); ++i) count += (o.dim[i] - 1) * o.stride[i];
  return static_cast<std::size_t>((count * bits_of(o.dtype) + 7) / 8);
}

void put_integers(const OperandInfo& o, Bytes& bytes, std::mt19937& random, int most) {
  std::array<std::int64_t, 3> dim{1, 1, 1}, stride{};
  std::copy(o.dim.begin(), o.dim.end(), dim.end() - std::ssize(o.dim));
  std::copy(o.stride.begin(), o.stride.end(), stride.end() - std::ssize(o.stride));
  for (std::int64_t i = 0; i < dim[0]; ++i)
    for (std::int64_t j = 0; j < dim[1]; ++j)
      for (std::int64_t k = 0; k < dim[2]; ++k) {
        const auto at = static_cast<std::size_t>(i * stride[0] + j * stride[1] + k * stride[2]);
        if (o.dtype == DataType::fp4_e2m1) {
          std::uint8_t& pair = bytes[at / 2];
          const auto code = static_cast<unsigned>(random() % 16);
          pair = static_cast<std::uint8_t>(at % 2 == 0 ? (pair & 0xF0U) | code : (pair & 0x0FU) | code << 4);
        } else {
          const int value = static_cast<int>(random() % static_cast<unsigned>(2 * most + 1)) - most;
          numeric::from_float(static_cast<float>(value), &bytes[at * static_cast<std::size_t>(bytes_of(o.dtype))], o.dtype);
        }
      }
}

void put_scales(DataType type, bool is_interleaved, std::int64_t batches, std::int64_t rows, std::int64_t columns, Bytes& bytes,
                std::mt19937& random) {
  const numeric::ScaleShape shape{.batches = batches, .rows = rows, .columns = columns};
  for (std::int64_t l = 0; l < batches; ++l)
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t at = is_interleaved ? numeric::scale_offset(shape, l, r, c) : (l * rows + r) * (columns + 1) + c;
        std::uint8_t& to = bytes[static_cast<std::size_t>(at)];
        const float scale = 0.5F * static_cast<float>(1 + random() % 4);
        if (type == DataType::fp8_e8m0)
          to = static_cast<std::uint8_t>(125 + random() % 5);
        else
          numeric::from_float(random() % 2 != 0 ? scale : -scale, &to, type);
      }
}

}  // namespace gpu_test
