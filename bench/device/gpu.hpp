#pragma once
// What the device benchmarks share: a context, memory of random values, a probe of every SM's clock, kernels ready to launch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/driver_table.hpp"
#include "jit/kernel.hpp"
#include "jit/nvrtc.hpp"

namespace bench {

using namespace verglas;

inline double median_of(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// Is one of the parts, by commas, in the name, or with ^ before it at its beginning? An empty list wants everything.
inline bool is_wanted(const std::string& name, const std::string& parts) {
  std::istringstream list(parts);
  for (std::string part; std::getline(list, part, ',');)
    if (part.starts_with('^') ? name.starts_with(part.substr(1)) : name.find(part) != std::string::npos) return true;
  return parts.empty();
}

/// A device with its primary context current on this thread, and one stream.
class Gpu {
 public:
  Gpu() : driver(*value(cuda::driver())), nvrtc(*value(cuda::nvrtc())), primary_(driver, 0), current_(driver, primary_.handle()) {
    attribute(sm_count, cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    attribute(l2_bytes, cuda::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    char text[128] = {};
    ok(driver.cuDeviceGetName(text, sizeof text, primary_.device()));
    name = text;
    ok(driver.cuStreamCreate(&stream, cuda::kStreamNonBlocking));
    ok(driver.cuEventCreate(&begin_, cuda::kEventDefault));
    ok(driver.cuEventCreate(&end_, cuda::kEventDefault));
  }

  void ok(cuda::CUresult code) const { cuda::check(driver, code, "a driver call", "measuring"); }
  void synchronize() const { ok(driver.cuStreamSynchronize(stream)); }

  /// Microseconds of what `work` enqueues.
  template <class Work>
  double time_us(Work&& work) const {
    ok(driver.cuEventRecord(begin_, stream));
    work();
    ok(driver.cuEventRecord(end_, stream));
    ok(driver.cuEventSynchronize(end_));
    float ms = 0;
    ok(driver.cuEventElapsedTime(&ms, begin_, end_));
    return ms * 1e3;
  }

  std::shared_ptr<jit::LoadedKernel> load(const jit::CompiledKernel& kernel, int smem) const {
    auto loaded = jit::LoadedKernel::load(driver, kernel, {.dynamic_smem_bytes = smem});
    loaded->prepare(0);
    return loaded;
  }

  const cuda::DriverTable& driver;
  const cuda::NvrtcTable& nvrtc;
  cuda::CUstream stream = nullptr;
  int sm_count = 0, l2_bytes = 0;
  std::string name;

 private:
  template <class T>
  static T value(Result<T> r) {
    if (!r) throw std::runtime_error(r.error().text);
    return *r;
  }
  void attribute(int& to, cuda::CUdevice_attribute a) const { ok(driver.cuDeviceGetAttribute(&to, a, primary_.device())); }

  cuda::PrimaryContext primary_;
  cuda::CurrentContext current_;
  cuda::CUevent begin_ = nullptr, end_ = nullptr;
};

class DeviceMemory {
 public:
  DeviceMemory(const Gpu& gpu, std::size_t bytes) : gpu_(&gpu), bytes_(bytes) { gpu.ok(gpu.driver.cuMemAlloc(&address_, bytes)); }
  ~DeviceMemory() {
    if (address_) gpu_->driver.cuMemFree(address_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept : gpu_(other.gpu_), bytes_(other.bytes_), address_(other.address_) {
    other.address_ = 0;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  cuda::CUdeviceptr address() const noexcept { return address_; }
  std::size_t bytes() const noexcept { return bytes_; }
  void upload(const void* from, std::size_t bytes, std::size_t at = 0) {
    gpu_->ok(gpu_->driver.cuMemcpyHtoD(address_ + at, from, bytes));
  }
  template <class T>
  std::vector<T> download() const {
    std::vector<T> out(bytes_ / sizeof(T));
    gpu_->ok(gpu_->driver.cuMemcpyDtoH(out.data(), address_, out.size() * sizeof(T)));
    return out;
  }

 private:
  const Gpu* gpu_;
  std::size_t bytes_;
  cuda::CUdeviceptr address_ = 0;
};

/// Standard normal values in bf16, one long list that operands are cut from at different places.
class NormalPool {
 public:
  NormalPool() : values_(kCount) {
    std::mt19937_64 g(7);
    std::normal_distribution<float> draw;
    for (std::uint16_t& v : values_) {
      const float x = draw(g);
      v = static_cast<std::uint16_t>((__builtin_bit_cast(std::uint32_t, x) + 0x8000u) >> 16);
    }
  }
  void fill(DeviceMemory& memory, std::size_t from) const {
    for (std::size_t at = 0; at < memory.bytes();) {
      const std::size_t first = (from + at / 2) % kCount, count = std::min((memory.bytes() - at) / 2, kCount - first);
      memory.upload(values_.data() + first, count * 2, at);
      at += count * 2;
      if (count == 0) break;
    }
  }

 private:
  static constexpr std::size_t kCount = 8'388'593;  // a prime: no row of any matrix repeats the one before
  std::vector<std::uint16_t> values_;
};

/// Reads clock64 and the global timer on every SM; two readings give the mean SM clock and the cycles of what lay between.
class ClockProbe {
 public:
  struct Span {
    double cycles, ns;  ///< means over SMs
  };
  explicit ClockProbe(const Gpu& gpu) : gpu_(gpu), memory_(gpu, 2 * 2 * 8 * kSms) {
    jit::CompileRequest request;
    request.kernel = "clock_probe";
    request.source =
        "extern \"C\" __global__ void __launch_bounds__(128, 1) clock_probe(unsigned long long* out) {\n"
        "  extern __shared__ char memory[];\n"
        "  unsigned sm; unsigned long long t, c;\n"
        "  asm volatile(\"mov.u32 %0, %%smid;\" : \"=r\"(sm));\n"
        "  asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(t));\n"
        "  asm volatile(\"mov.u64 %0, %%clock64;\" : \"=l\"(c));\n"
        "  if (threadIdx.x == 0) { out[2 * sm] = c; out[2 * sm + 1] = t; }\n}\n";
    kernel_ = gpu.load(jit::compile(gpu.nvrtc, request), kSmem);
  }
  void read(int which) const {
    cuda::CUlaunchConfig launch{};
    launch.gridDimX = static_cast<unsigned>(gpu_.sm_count);  // one block an SM, by its shared memory
    launch.gridDimY = launch.gridDimZ = 1;
    launch.blockDimX = 128;
    launch.blockDimY = launch.blockDimZ = 1;
    launch.sharedMemBytes = kSmem;
    launch.hStream = gpu_.stream;
    cuda::CUdeviceptr to = memory_.address() + static_cast<unsigned>(which) * 2 * 8 * kSms;
    void* parameters[] = {&to};
    gpu_.ok(gpu_.driver.cuLaunchKernelEx(&launch, kernel_->function(0), parameters, nullptr));
  }
  Span span() const {
    gpu_.synchronize();
    const auto v = memory_.download<std::uint64_t>();
    double cycles = 0, ns = 0;
    for (std::size_t s = 0; s < static_cast<std::size_t>(gpu_.sm_count); ++s) {
      cycles += static_cast<double>(v[2 * kSms + 2 * s] - v[2 * s]);
      ns += static_cast<double>(v[2 * kSms + 2 * s + 1] - v[2 * s + 1]);
    }
    return {cycles / gpu_.sm_count, ns / gpu_.sm_count};
  }

 private:
  static constexpr std::size_t kSms = 256;
  static constexpr int kSmem = 200'000;
  const Gpu& gpu_;
  DeviceMemory memory_;
  std::shared_ptr<jit::LoadedKernel> kernel_;
};

}  // namespace bench
