#include "support/rope_graph.hpp"

#include <ostream>

namespace support {

using namespace verglas;

std::ostream& operator<<(std::ostream& o, const RopeGraph& g) {
  return o << g.rows << " x " << g.heads << " heads of " << g.head << " x " << g.k << ' ' << name_of(g.in)
           << (g.w_out_in ? "" : ", B along N") << (g.rows_only ? ", along N alone" : "")
           << (g.one_line ? ", tables of one row" : "");
}

Graph describe(const RopeGraph& r) {
  const std::int64_t m = r.rows, n = r.heads * r.head, k = r.k;
  Graph g({.io_data_type = DataType::bf16});
  const std::vector<std::int64_t> along_k = {n * k, 1, k}, along_n = {n * k, n, 1};
  Tensor a = g.tensor({.name = "a", .dim = {1, m, k}, .stride = {m * k, k, 1}, .data_type = r.in});
  Tensor b = g.tensor({.name = "b", .dim = {1, k, n}, .stride = r.w_out_in ? along_k : along_n, .data_type = r.in});
  if (r.in == DataType::fp8_e4m3) {
    const std::int64_t blocks = k / 32;
    const std::vector<std::int64_t> scales_along_k = {n * blocks, 1, blocks}, scales_along_n = {n * blocks, n, 1};
    const auto scale = [&](const char* name, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride) {
      return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = DataType::fp8_e8m0});
    };
    a = g.block_scale_dequantize(a, scale("sa", {1, m, blocks}, {m * blocks, blocks, 1}), {1, 1, 32});
    b = g.block_scale_dequantize(b, scale("sb", {1, blocks, n}, r.w_out_in ? scales_along_k : scales_along_n), {1, 32, 1});
  }
  const Tensor y = g.matmul(a, b).set_data_type(DataType::bf16);
  const std::int64_t lines = r.one_line ? 1 : m;
  const auto table = [&](const char* name) {
    return g.tensor({.name = name, .dim = {1, lines, 64}, .stride = {lines * 64, 64, 1}});
  };
  const Tensor z = g.rope(y, table("cos"), table("sin"), r.head);
  const auto store = [&](std::array<Tensor, 2> both, const char* data, const char* scale) {
    both[0].set_output(true).set_name(data).set_data_type(DataType::fp8_e4m3);
    both[1].set_output(true).set_name(scale).set_data_type(DataType::fp8_e8m0);
  };
  store(g.block_scale_quantize(z, 32), "row", "row_scale");
  if (!r.rows_only) store(g.block_scale_quantize(z, 32, 1), "col", "col_scale");
  return g;
}

}  // namespace support
