// SwiGLU of MXFP8 beside our plain product of the same matrices, on one GPU.
//   verglas_bench_gpu_scaled_swiglu
// Random data; outputs in bf16, the products stored too. Contenders in turn, the order reversed each round: 0.05 s of the
// contender itself, then a window of 20 ms, the median of three.
#include <functional>

#include "gpu.hpp"
#include "numeric/convert.hpp"
#include "verglas/ops/operation.hpp"
#include "verglas/verglas.hpp"

namespace {

using namespace bench;
using enum DataType;

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::array<std::int64_t, 3> kShapes[] = {{4096, 4096, 4096}, {8192, 8192, 8192}, {4096, 28672, 4096}};

struct Contender {
  std::string name;
  std::function<void()> launch;
  std::vector<double> us{}, mhz{};
};

void* pointer(const DeviceMemory& m) { return reinterpret_cast<void*>(m.address()); }
void fill(DeviceMemory& m, const std::vector<char>& values) {
  for (std::size_t at = 0; at < m.bytes(); at += values.size())
    m.upload(values.data(), std::min(values.size(), m.bytes() - at), at);
}

CompiledPlan product(std::int64_t m, std::int64_t n, std::int64_t k) {
  Graph g;
  const std::int64_t blocks = k / 32;
  const Tensor a = g.tensor({.name = "a", .dim = {m, k}, .stride = {k, 1}, .data_type = fp8_e4m3});
  const Tensor b = g.tensor({.name = "b", .dim = {k, n}, .stride = {1, k}, .data_type = fp8_e4m3});
  const auto scales = [&](const char* name, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride) {
    return g.tensor({.name = name,
                     .dim = std::move(dim),
                     .stride = std::move(stride),
                     .data_type = fp8_e8m0,
                     .reordering = TensorReordering::f8_128x4});
  };
  const Tensor left = g.block_scale_dequantize(a, scales("sa", {m, blocks}, {blocks, 1}), {1, 32});
  const Tensor right = g.block_scale_dequantize(b, scales("sb", {blocks, n}, {1, blocks}), {32, 1});
  g.matmul(left, right).set_output(true).set_data_type(bf16);
  return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}).compile();
}

void measure(const Gpu& gpu, const ClockProbe& probe, std::int64_t m, std::int64_t n, std::int64_t k) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<char> values(1'048'573), powers(4093);
  for (char& v : values) numeric::from_float(normal(random), &v, fp8_e4m3);
  for (char& p : powers) p = static_cast<char>(124 + random() % 6);
  const auto bytes = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  DeviceMemory a(gpu, bytes(m * k)), b(gpu, bytes(n * k)), sa(gpu, bytes(m * k / 32)), sb(gpu, bytes(n * k / 32)),
      ab(gpu, bytes(2 * m * n)), c(gpu, bytes(m * n));
  fill(a, values), fill(b, values), fill(sa, powers), fill(sb, powers);

  std::vector<Contender> all;
  const CompiledPlan plain = product(m, n, k);
  std::vector<void*> buffers;
  for (const OperandInfo& o : plain.operands())
    buffers.push_back(pointer(o.name == "a" ? a : o.name == "b" ? b : o.name == "sa" ? sa : o.name == "sb" ? sb : ab));
  all.push_back({plain.name(), [&] {
                   if (!plain.execute(buffers, {gpu.stream}).ok()) throw std::runtime_error("the product refused its call");
                 }});

  const auto matrix = [](const DeviceMemory& x, DataType t, std::int64_t rows, std::int64_t columns) {
    return TensorView::strided(pointer(x), t, {rows, columns, 1}, {columns, 1, rows * columns}, kGpu);
  };
  const auto atoms = [&](const DeviceMemory& x, std::int64_t rows) {
    const std::int64_t r = rows / 128, q = k / 128;
    return TensorView::strided(pointer(x), fp8_e8m0, {32, 4, r, 4, q, 1}, {16, 4, 512 * q, 1, 512, 512 * q * r}, kGpu);
  };
  const std::vector<TensorView> tensors = {matrix(a, fp8_e4m3, m, k),
                                           matrix(b, fp8_e4m3, n, k),
                                           matrix(ab, bf16, m, n),
                                           matrix(c, bf16, m, n / 2),
                                           atoms(sa, m),
                                           atoms(sb, n),
                                           {},
                                           {},
                                           {}};
  ops::Prepared swiglu(ops::Operation::named("gemm_swiglu"), tensors);
  swiglu.compile();
  all.push_back({"swiglu", [&] { swiglu.execute(tensors, {}, {gpu.stream}); }});

  for (int round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < all.size(); ++i) {
      Contender& x = all[round % 2 ? all.size() - 1 - i : i];
      const auto burst = [&](int count) {
        for (int j = 0; j < count; ++j) x.launch();
      };
      const double us = gpu.time_us([&] { burst(4); }) / 4;
      burst(static_cast<int>(5e4 / us));
      const int count = std::max(4, static_cast<int>(2e4 / us));
      probe.read(0);
      x.us.push_back(gpu.time_us([&] { burst(count); }) / count);
      probe.read(1);
      x.mhz.push_back(1e3 * probe.span().cycles / probe.span().ns);
    }
  for (const Contender& x : all)
    fmt::print("{} x {} x {} {:<84} {:8.1f} us {:5.0f} MHz, plain / this {:.3f}\n", m, n, k, x.name, median_of(x.us),
               median_of(x.mhz), median_of(all[0].us) / median_of(x.us));
}

}  // namespace

int main() {
  try {
    const Gpu gpu;
    const ClockProbe probe(gpu);
    for (const auto& [m, n, k] : kShapes) measure(gpu, probe, m, n, k);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
  return 0;
}
