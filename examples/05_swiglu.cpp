// SwiGLU: two products that share A, joined in the epilogue. y = swish(x · G) ∘ (x · U) without storing either product.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <vector>

#include "verglas/verglas.hpp"

using namespace verglas;

int main(int argc, char** argv) {
  constexpr std::int64_t M = 32, N = 56, K = 24;

  Graph graph({.name = "swiglu", .io_data_type = DataType::fp32});
  const Tensor x = graph.tensor({.name = "x", .dim = {1, M, K}, .stride = {M * K, K, 1}});
  const Tensor gate = graph.tensor({.name = "gate", .dim = {1, K, N}, .stride = {K * N, 1, K}});
  const Tensor up = graph.tensor({.name = "up", .dim = {1, K, N}, .stride = {K * N, 1, K}});
  const Tensor g = graph.matmul(x, gate);  // a statement each: the order of description is the order of a call's buffers
  const Tensor u = graph.matmul(x, up);
  graph.mul(graph.swish(g), u).set_name("y").set_output(true);
  if (argc > 1) std::ofstream(argv[1]) << graph.to_json();

  const CompiledPlan plan = graph.compile();
  std::printf("%s\n", summary_of(plan).c_str());

  std::vector<float> vx(M * K), vg(K * N), vu(K * N), vy(M * N);
  for (std::size_t i = 0; i < vx.size(); ++i) vx[i] = static_cast<float>(i % 7) / 8 - 0.375F;
  for (std::size_t i = 0; i < vg.size(); ++i) vg[i] = static_cast<float>(i % 5) / 2 - 1;
  for (std::size_t i = 0; i < vu.size(); ++i) vu[i] = static_cast<float>(i % 3) - 1;
  const std::vector<void*> addresses = {vx.data(), vg.data(), vu.data(), vy.data()};
  if (!plan.execute(addresses).ok()) return 1;

  // These sums are exact in fp32, so only swish and the last product round: a few units of 2⁻²⁴ of the result.
  double worst = 0;
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t n = 0; n < N; ++n) {
      double sum_g = 0, sum_u = 0;
      for (std::int64_t k = 0; k < K; ++k) {
        sum_g += double{vx[static_cast<std::size_t>(m * K + k)]} * vg[static_cast<std::size_t>(n * K + k)];
        sum_u += double{vx[static_cast<std::size_t>(m * K + k)]} * vu[static_cast<std::size_t>(n * K + k)];
      }
      const double want = sum_g / (1 + std::exp(-sum_g)) * sum_u;
      const double error = std::fabs(vy[static_cast<std::size_t>(m * N + n)] - want);
      if (error > 0) worst = std::fmax(worst, error / std::fabs(want) * 0x1p24);
    }
  std::printf("largest relative error %.2f units of 2^-24\n", worst);
  return worst <= 16 ? 0 : 1;
}
