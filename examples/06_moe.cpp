// A layer of a mixture of experts: rows of tokens gathered by expert, a bias and the largest result of each expert.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "verglas/verglas.hpp"

using namespace verglas;

int main(int argc, char** argv) {
  constexpr std::int64_t kTokens = 24, kTopK = 2, kExperts = 4, K = 16, N = 32, kRows = kTokens * kTopK;

  Graph graph({.name = "moe", .io_data_type = DataType::fp32});
  const Tensor x = graph.tensor({.name = "x", .dim = {1, kTokens, K}, .stride = {kTokens * K, K, 1}});
  const Tensor w = graph.tensor({.name = "w", .dim = {kExperts, K, N}, .stride = {K * N, N, 1}});
  const Tensor offset = graph.tensor({.name = "offset", .dim = {kExperts}, .stride = {1}, .data_type = DataType::int32});
  const Tensor index =
      graph.tensor({.name = "index", .dim = {1, kRows, 1}, .stride = {kRows, 1, 1}, .data_type = DataType::int32});
  const Tensor bias = graph.tensor({.name = "bias", .dim = {kExperts, 1, N}, .stride = {N, N, 1}});
  const Tensor c = graph.moe_grouped_matmul(x, w, offset, {.mode = MoeMode::gather}, index);
  Tensor y = graph.relu(graph.add(c, bias));
  y.set_name("y").set_output(true);
  graph.reduction(y, ReductionMode::amax, {}, offset).set_name("most").set_dim({kExperts, 1, 1}).set_output(true);
  if (argc > 1) std::ofstream(argv[1]) << graph.to_json();

  const CompiledPlan plan = graph.compile();
  std::printf("%s\n", summary_of(plan).c_str());

  // Every token goes to expert 0 or 2, and to expert 3; expert 1 has none.
  std::vector<std::int32_t> vo, vi, expert_of;
  for (std::int32_t e = 0; e < kExperts; ++e) {
    vo.push_back(static_cast<std::int32_t>(vi.size()));
    for (std::int32_t t = 0; t < kTokens; ++t)
      if (e == t / 2 % 2 * 2 || e == 3) {
        vi.push_back(t);
        expert_of.push_back(e);
      }
  }
  std::vector<float> vx(kTokens * K), vw(kExperts * K * N), vb(kExperts * N), vy(kRows * N), most(kExperts);
  for (std::size_t i = 0; i < vx.size(); ++i) vx[i] = static_cast<float>(i % 7) - 3;
  for (std::size_t i = 0; i < vw.size(); ++i) vw[i] = static_cast<float>(i % 5) - 2;
  for (std::size_t i = 0; i < vb.size(); ++i) vb[i] = static_cast<float>(i % 3) - 1;
  const std::vector<void*> addresses = {vx.data(), vw.data(), vo.data(), vi.data(), vb.data(), vy.data(), most.data()};
  if (!plan.execute(addresses).ok()) return 1;
  plan.check();  // offsets and indices fitted, or this throws

  // Small integers: every sum is exact.
  std::int64_t wrong = 0;
  std::vector<float> largest(kExperts, 0.0F);
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t n = 0; n < N; ++n) {
      const auto e = expert_of[static_cast<std::size_t>(r)];
      float sum = vb[static_cast<std::size_t>(e * N + n)];
      for (std::int64_t k = 0; k < K; ++k)
        sum += vx[static_cast<std::size_t>(vi[static_cast<std::size_t>(r)] * K + k)] *
               vw[static_cast<std::size_t>((e * K + k) * N + n)];
      sum = std::max(sum, 0.0F);
      wrong += vy[static_cast<std::size_t>(r * N + n)] != sum;
      largest[static_cast<std::size_t>(e)] = std::max(largest[static_cast<std::size_t>(e)], sum);
    }
  std::printf("%lld elements wrong; largest results", static_cast<long long>(wrong));
  for (const float m : most) std::printf(" %g", static_cast<double>(m));
  std::printf("\n");
  return wrong == 0 && most == largest ? 0 : 1;
}
