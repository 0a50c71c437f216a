// A linear layer with bias and GELU in one pass over memory: y = gelu(x · Wᵀ + bias), bf16 in and out, sums in fp32.
#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <vector>

#include "verglas/verglas.hpp"

using namespace verglas;

namespace {

// bf16 is the upper half of a float; rounding is to nearest even.
std::uint16_t to_bf16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
float from_bf16(std::uint16_t h) { return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16); }

}  // namespace

int main(int argc, char** argv) {
  constexpr std::int64_t M = 40, N = 96, K = 64;

  // Types: tensors that are passed have the io type, what stays inside the intermediate type, sums the compute type.
  Graph graph({.name = "bias_gelu",
               .io_data_type = DataType::bf16,
               .intermediate_data_type = DataType::fp32,
               .compute_data_type = DataType::fp32});
  const Tensor x = graph.tensor({.name = "x", .dim = {1, M, K}, .stride = {M * K, K, 1}});
  const Tensor w = graph.tensor({.name = "w", .dim = {1, K, N}, .stride = {K * N, 1, K}});
  const Tensor bias = graph.tensor({.name = "bias", .dim = {1, 1, N}, .stride = {N, N, 1}});  // broadcasts along M
  graph.gelu(graph.add(graph.matmul(x, w), bias)).set_name("y").set_output(true);
  if (argc > 1) std::ofstream(argv[1]) << graph.to_json();

  const CompiledPlan plan = graph.compile();
  std::printf("%s\n", summary_of(plan).c_str());

  std::vector<std::uint16_t> vx(M * K), vw(N * K), vb(N), vy(M * N);
  for (std::size_t i = 0; i < vx.size(); ++i) vx[i] = to_bf16(static_cast<float>(i % 9) / 4 - 1);
  for (std::size_t i = 0; i < vw.size(); ++i) vw[i] = to_bf16(static_cast<float>(i % 11) / 16 - 0.3125F);
  for (std::size_t i = 0; i < vb.size(); ++i) vb[i] = to_bf16(static_cast<float>(i % 3) - 1);

  // A buffer may describe itself. Then every call is checked against the plan, and a plan serves other M, N and K too.
  const std::vector<TensorView> buffers = {
      TensorView::dense(vx.data(), DataType::bf16, {1, M, K}),
      TensorView::strided(vw.data(), DataType::bf16, {1, K, N}, {K * N, 1, K}),
      TensorView::dense(vb.data(), DataType::bf16, {1, 1, N}),
      TensorView::dense(vy.data(), DataType::bf16, {1, M, N}),
  };
  plan.run(buffers);  // as execute, and throws what explain says of a call that is refused

  double worst = 0;  // in half units of the last place of bf16
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t n = 0; n < N; ++n) {
      double sum = from_bf16(vb[static_cast<std::size_t>(n)]);
      for (std::int64_t k = 0; k < K; ++k)
        sum += double{from_bf16(vx[static_cast<std::size_t>(m * K + k)])} * from_bf16(vw[static_cast<std::size_t>(n * K + k)]);
      const double want = 0.5 * sum * std::erfc(-sum / std::sqrt(2.0));
      const double half_ulp = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 8);
      worst = std::fmax(worst, std::fabs(from_bf16(vy[static_cast<std::size_t>(m * N + n)]) - want) / half_ulp);
    }
  std::printf("largest error %.4f half units in the last place of bf16\n", worst);
  return worst <= 1.01 ? 0 : 1;  // one rounding to bf16, and a little for the sum and the function in fp32
}
