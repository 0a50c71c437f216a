#include "support/run_graph.hpp"

#include <ostream>

namespace support {

using namespace verglas;

std::ostream& operator<<(std::ostream& o, const RunGraph& g) {
  return o << g.rows << " x " << 64 * g.pairs << " x " << g.k << ' ' << name_of(g.in) << (g.a_k ? "" : ", A along M")
           << (g.b_k ? "" : ", B along N") << (g.out_n ? "" : ", outputs along M") << ", products in " << name_of(g.ab)
           << ", C in " << name_of(g.c) << (g.amax ? ", amax" : "") << (g.linear ? ", relu" : "");
}

Graph describe(const RunGraph& r) {
  const std::int64_t m = r.rows, n = 64 * r.pairs, k = r.k;
  Graph g({.io_data_type = DataType::fp32});
  const std::vector<std::int64_t> a_stride =
      r.a_k ? std::vector{m * k, k, std::int64_t{1}} : std::vector{m * k, std::int64_t{1}, m};
  const std::int64_t row = r.b_k ? k : 1, depth = r.b_k ? 1 : n;
  const Tensor a = g.tensor({.name = "a", .dim = {1, m, k}, .stride = a_stride, .data_type = r.in});
  const auto half = [&](const char* name) {
    return g.tensor({.name = name, .dim = {r.pairs, k, 32}, .stride = {64 * row, depth, row}, .data_type = r.in});
  };
  const auto store = [&](const Tensor& x, DataType type, std::int64_t columns, std::int64_t step, const char* name) {
    const std::int64_t line = r.out_n ? columns : 1, column = r.out_n ? 1 : m;
    g.pointwise(PointwiseMode::identity, {x})
        .set_output(true)
        .set_name(name)
        .set_data_type(type)
        .set_stride({step * column, line, column});
  };
  const Tensor alpha = g.tensor({.name = "alpha", .dim = {1, 1, 1}, .stride = {1, 1, 1}, .pass_by_value = true});
  const auto product = [&](const char* name) {
    const NodeAttributes computes = {.compute_data_type = r.in == DataType::fp32 ? DataType::tf32 : DataType::not_set};
    return g.mul(g.matmul(a, half(name), computes), alpha);
  };
  const Tensor up = product("up"), gate = product("gate");
  store(up, r.ab, n, 64, "ab (up)");
  store(gate, r.ab, n, 64, "ab (gate)");
  const Tensor c = g.mul(up, r.linear ? g.relu(gate) : g.swish(gate));
  store(c, r.c, n / 2, 32, "c");
  if (r.amax) g.reduction(c, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true).set_data_type(DataType::fp32);
  return g;
}

}  // namespace support
