#include "support/run_graph.hpp"

#include <ostream>

namespace support {

using namespace verglas;

std::ostream& operator<<(std::ostream& o, const RunGraph& g) {
  return o << g.batches << " x " << g.rows << " x " << 64 * g.pairs << " x " << g.k << ' ' << name_of(g.in)
           << (g.block != 0 ? " block " + std::to_string(g.block) : "") << (g.a_k ? "" : ", A along M")
           << (g.b_k ? "" : ", B along N") << (g.out_n ? "" : ", outputs along M") << ", products in " << name_of(g.ab)
           << ", C in " << name_of(g.c) << (g.is_quantised ? " quantised" : "") << (g.has_bias ? ", bias" : "")
           << (g.amax ? ", amax" : "") << (g.linear ? ", relu" : "");
}

Graph describe(const RunGraph& r) {
  const std::int64_t l = r.batches, m = r.rows, n = 64 * r.pairs, k = r.k;
  Graph g({.io_data_type = DataType::fp32});
  const auto matrix = [&](const char* name, bool is_a, bool k_major) {
    const std::int64_t rows = is_a ? m : n, row = k_major ? k : 1, depth = k_major ? 1 : rows;
    Tensor x = is_a ? g.tensor({.name = name, .dim = {l, m, k}, .stride = {m * k, row, depth}, .data_type = r.in})
                    : g.tensor({.name = name, .dim = {l, k, n}, .stride = {n * k, depth, row}, .data_type = r.in});
    if (r.block == 0) return x;
    const std::int64_t padded = (rows + 127) / 128 * 128, blocks = ((k + r.block - 1) / r.block + 3) / 4 * 4;
    const Tensor s = g.tensor({.name = is_a ? "sa" : "sb",
                               .dim = {l, is_a ? padded : blocks, is_a ? blocks : padded},
                               .stride = {padded * blocks, is_a ? blocks : 1, is_a ? 1 : blocks},
                               .data_type = r.scale(),
                               .reordering = TensorReordering::f8_128x4});
    return g.block_scale_dequantize(x, s,
                                    is_a ? std::vector<std::int64_t>{1, 1, r.block} : std::vector<std::int64_t>{1, r.block, 1});
  };
  const auto store = [&](Tensor x, DataType type, std::int64_t columns, const char* name) {
    x.set_output(true).set_name(name).set_data_type(type);
    x.set_stride({m * columns, r.out_n ? columns : 1, r.out_n ? 1 : m});
  };
  const Tensor alpha = g.tensor({.name = "alpha", .dim = {1, 1, 1}, .stride = {1, 1, 1}, .pass_by_value = true});
  const NodeAttributes computes = {.compute_data_type = r.in == DataType::fp32 ? DataType::tf32 : DataType::not_set};
  Tensor x = g.mul(g.matmul(matrix("a", true, r.a_k), matrix("b", false, r.b_k), computes), alpha);
  if (r.has_bias) x = g.add(x, g.tensor({.name = "bias", .dim = {1, 1, n}, .stride = {n, n, 1}}));
  const Tensor up = g.take_runs(x, 32, false), gate = g.take_runs(x, 32, true);
  const Tensor c = g.mul(up, r.linear ? g.relu(gate) : g.swish(gate));
  store(g.pointwise(PointwiseMode::identity, {x}), r.ab, n, "ab");
  if (r.is_quantised) {
    auto [data, scales] = g.block_scale_quantize(c, r.block);
    store(data, r.c, n / 2, "c");
    scales.set_output(true).set_name("sc").set_data_type(r.scale()).set_reordering_type(TensorReordering::f8_128x4);
  } else {
    store(g.pointwise(PointwiseMode::identity, {c}), r.c, n / 2, "c");
  }
  if (r.amax)
    g.reduction(c, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true).set_data_type(DataType::fp32).set_name("amax");
  return g;
}

}  // namespace support
