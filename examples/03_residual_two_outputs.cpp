// A residual connection, and two outputs of one kernel: h = x · W + r is stored for the backward pass, y = relu(h) goes on.
#include <cstdio>
#include <fstream>
#include <vector>

#include "verglas/verglas.hpp"

using namespace verglas;

int main(int argc, char** argv) {
  constexpr std::int64_t L = 2, M = 24, N = 40, K = 16;

  Graph graph({.name = "residual_two_outputs", .io_data_type = DataType::fp32});
  const Tensor x = graph.tensor({.name = "x", .dim = {L, M, K}, .stride = {M * K, K, 1}});
  const Tensor w = graph.tensor({.name = "w", .dim = {1, K, N}, .stride = {K * N, N, 1}});  // one W for both batches
  const Tensor r = graph.tensor({.name = "r", .dim = {L, M, N}, .stride = {M * N, N, 1}});
  Tensor h = graph.add(graph.matmul(x, w), r);
  h.set_name("h").set_output(true);
  graph.relu(h).set_name("y").set_output(true);
  if (argc > 1) std::ofstream(argv[1]) << graph.to_json();

  const CompiledPlan plan = graph.compile();
  std::printf("%s\n", summary_of(plan).c_str());
  for (const OperandInfo& o : plan.operands()) std::printf("  %s is %s\n", o.name.c_str(), o.roles.c_str());

  std::vector<float> vx(L * M * K), vw(K * N), vr(L * M * N), vh(L * M * N), vy(L * M * N);
  for (std::size_t i = 0; i < vx.size(); ++i) vx[i] = static_cast<float>(i % 7) - 3;
  for (std::size_t i = 0; i < vw.size(); ++i) vw[i] = static_cast<float>(i % 5) - 2;
  for (std::size_t i = 0; i < vr.size(); ++i) vr[i] = static_cast<float>(i % 13) - 6;
  const std::vector<void*> addresses = {vx.data(), vw.data(), vr.data(), vh.data(), vy.data()};
  if (!plan.execute(addresses).ok()) return 1;

  for (std::int64_t l = 0; l < L; ++l)
    for (std::int64_t m = 0; m < M; ++m)
      for (std::int64_t n = 0; n < N; ++n) {
        const auto at = static_cast<std::size_t>((l * M + m) * N + n);
        float want = vr[at];
        for (std::int64_t k = 0; k < K; ++k)
          want += vx[static_cast<std::size_t>((l * M + m) * K + k)] * vw[static_cast<std::size_t>(k * N + n)];
        if (vh[at] == want && vy[at] == (want > 0 ? want : 0)) continue;
        std::printf("(%ld, %ld, %ld) is %g and %g; h should be %g\n", l, m, n, vh[at], vy[at], want);
        return 1;
      }
  std::printf("%ld elements of each output, all as plain loops have them\n", L * M * N);
}
