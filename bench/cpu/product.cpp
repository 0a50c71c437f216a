#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "../side_by_side.hpp"
#include "verglas/verglas.hpp"

// A plain fp32 product through a checked call, against oneDNN's own dnnl_sgemm with its own threads; first oneDNN against itself.

using namespace verglas;

namespace {

using Sgemm = int (*)(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*, std::int64_t, const float*,
                      std::int64_t, float, float*, std::int64_t);

Sgemm open_sgemm() {
  for (const char* name : {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"})
    if (void* h = dlopen(name, RTLD_NOW)) return reinterpret_cast<Sgemm>(dlsym(h, "dnnl_sgemm"));
  return nullptr;
}

std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937 g(seed);
  std::normal_distribution<float> d;
  std::vector<float> v(n);
  for (float& x : v) x = d(g);
  return v;
}

}  // namespace

int main(int argc, char** argv) {
  const int batches = argc > 1 ? std::atoi(argv[1]) : 6;
  const Sgemm sgemm = open_sgemm();
  if (sgemm == nullptr) {
    fmt::print(stderr, "libdnnl is not there: nothing to compare with\n");
    return 1;
  }
  fmt::print("{{\n  \"benchmark\": \"bench/cpu/product\", \"rival\": \"dnnl_sgemm\", \"batches\": {},\n  \"rows\": [\n", batches);
  const std::vector<std::array<std::int64_t, 3>> sizes = {
      {1024, 1024, 1024}, {2048, 2048, 2048}, {3072, 3072, 3072}, {240, 1536, 384}, {4096, 1024, 1024}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto [m, n, k] = sizes[i];
    const auto a = normal(static_cast<std::size_t>(m * k), 1), b = normal(static_cast<std::size_t>(n * k), 2);
    std::vector<float> c(static_cast<std::size_t>(m * n)), d(c.size());
    Graph g({.io_data_type = DataType::fp32});
    const Tensor ta = g.tensor({.name = "a", .dim = {m, k}, .stride = {k, 1}});
    const Tensor tb = g.tensor({.name = "b", .dim = {k, n}, .stride = {1, k}});
    g.matmul(ta, tb).set_output(true);
    const CompiledPlan plan = g.compile();
    const std::vector<void*> buffers = {const_cast<float*>(a.data()), const_cast<float*>(b.data()), c.data()};
    const auto ours = [&] {
      if (!plan.execute(buffers).ok()) std::abort();
    };
    const auto rival = [&] { sgemm('N', 'T', m, n, k, 1.0F, a.data(), k, b.data(), k, 0.0F, d.data(), n); };
    const bench::Ratio same = bench::side_by_side(rival, rival, 2);
    const bench::Ratio r = bench::side_by_side(ours, rival, batches);
    const double gflops = 2e-6 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    fmt::print(
        "    {{\"m\": {}, \"n\": {}, \"k\": {}, \"plan\": \"{}\", \"ours_ms\": {:.3f}, \"rival_ms\": {:.3f}, \"ratio\": {:.3f}, "
        "\"low\": {:.3f}, "
        "\"high\": {:.3f}, \"noise\": {:.3f}, \"ours_gflops\": {:.1f}}}{}\n",
        m, n, k, plan.name(), r.ours_ms, r.rival_ms, r.ratio, r.low, r.high, same.ratio, gflops / r.ours_ms,
        i + 1 < sizes.size() ? "," : "");
  }
  fmt::print("  ]\n}}\n");
  return 0;
}
