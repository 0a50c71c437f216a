// Reductions in the same pass: row sums, column maxima and the largest magnitude of c = a · b, beside c itself.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <vector>

#include "verglas/verglas.hpp"

using namespace verglas;

int main(int argc, char** argv) {
  constexpr std::int64_t M = 36, N = 50, K = 20;

  Graph graph({.name = "reductions", .io_data_type = DataType::fp32});
  const Tensor a = graph.tensor({.name = "a", .dim = {M, K}, .stride = {K, 1}});  // rank 2 is a batch of 1
  const Tensor b = graph.tensor({.name = "b", .dim = {K, N}, .stride = {N, 1}});
  Tensor c = graph.matmul(a, b);
  c.set_name("c").set_output(true);
  // The extents of a reduction's output say what is reduced: where they are 1.
  graph.reduction(c, ReductionMode::add).set_name("row_sum").set_dim({M, 1}).set_output(true);
  graph.reduction(c, ReductionMode::max).set_name("column_max").set_dim({1, N}).set_output(true);
  graph.reduction(c, ReductionMode::amax).set_name("amax").set_dim({1, 1}).set_output(true);
  if (argc > 1) std::ofstream(argv[1]) << graph.to_json();

  const CompiledPlan plan = graph.compile();
  std::printf("%s\n", summary_of(plan).c_str());

  std::vector<float> va(M * K), vb(K * N), vc(M * N), rows(M), columns(N), amax(1);
  for (std::size_t i = 0; i < va.size(); ++i) va[i] = static_cast<float>(i % 7) - 3;
  for (std::size_t i = 0; i < vb.size(); ++i) vb[i] = static_cast<float>(i % 5) - 2;
  const std::vector<void*> addresses = {va.data(), vb.data(), vc.data(), rows.data(), columns.data(), amax.data()};
  if (!plan.execute(addresses).ok()) return 1;

  std::vector<float> want_rows(M, 0.0F), want_columns(N, -INFINITY);
  float want_amax = 0;
  bool right = true;
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t n = 0; n < N; ++n) {
      float v = 0;
      for (std::int64_t k = 0; k < K; ++k) v += va[static_cast<std::size_t>(m * K + k)] * vb[static_cast<std::size_t>(k * N + n)];
      right = right && vc[static_cast<std::size_t>(m * N + n)] == v;
      want_rows[static_cast<std::size_t>(m)] += v;
      want_columns[static_cast<std::size_t>(n)] = std::max(want_columns[static_cast<std::size_t>(n)], v);
      want_amax = std::max(want_amax, std::fabs(v));
    }
  right = right && rows == want_rows && columns == want_columns && amax[0] == want_amax;
  std::printf("%s\n", right ? "all as plain loops have them" : "something differs");
  return right ? 0 : 1;
}
