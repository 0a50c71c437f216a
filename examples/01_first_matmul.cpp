// One matrix product: describe it, compile it, run it.
#include <cstdio>
#include <fstream>
#include <vector>

#include "verglas/verglas.hpp"

using namespace verglas;

int main(int argc, char** argv) {
  constexpr std::int64_t M = 64, N = 48, K = 32;

  // 1. Describe. A is (L, M, K), B is (L, K, N); L is the batch, 1 here. Strides are in elements: B is stored with K contiguous,
  //    which is how the weights of a linear layer lie in memory.
  Graph graph({.name = "first_matmul", .io_data_type = DataType::fp32});
  const Tensor a = graph.tensor({.name = "a", .dim = {1, M, K}, .stride = {M * K, K, 1}});
  const Tensor b = graph.tensor({.name = "b", .dim = {1, K, N}, .stride = {K * N, 1, K}});
  graph.matmul(a, b).set_name("c").set_output(true);
  if (argc > 1) std::ofstream(argv[1]) << graph.to_json();  // for `verglas run` and `verglas explain`

  // 2. Compile. Engines are asked best first; the plan can be kept and called any number of times, from any thread.
  const CompiledPlan plan = graph.compile();
  std::printf("%s\n", summary_of(plan).c_str());

  // 3. Run. The memory is yours. Small integers make every sum exact, so the result can be compared with ==.
  std::vector<float> va(M * K), vb(N * K), vc(M * N, -1.0F);
  for (std::size_t i = 0; i < va.size(); ++i) va[i] = static_cast<float>(i % 7) - 3;
  for (std::size_t i = 0; i < vb.size(); ++i) vb[i] = static_cast<float>(i % 5) - 2;
  const std::vector<void*> addresses = {va.data(), vb.data(), vc.data()};  // in the order of plan.operands()
  const Status status = plan.execute(addresses);
  if (!status.ok()) return 1;

  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t n = 0; n < N; ++n) {
      float want = 0;
      for (std::int64_t k = 0; k < K; ++k)
        want += va[static_cast<std::size_t>(m * K + k)] * vb[static_cast<std::size_t>(n * K + k)];
      if (vc[static_cast<std::size_t>(m * N + n)] == want) continue;
      std::printf("(%ld, %ld) is %g and should be %g\n", m, n, vc[static_cast<std::size_t>(m * N + n)], want);
      return 1;
    }
  std::printf("%ld elements, all as plain loops have them\n", M * N);
}
