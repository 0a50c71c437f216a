#include <cmath>
#include <limits>
#include <vector>

#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Rules graph.*: what a description says wrong in itself.
namespace {

using namespace verglas;
using refusal::said;
using Dims = std::vector<std::int64_t>;

/// a (4, 8) · b (8, 6), fp32.
struct Small {
  Graph g{{.io_data_type = DataType::fp32}};
  Tensor a = g.tensor({.name = "a", .dim = {4, 8}, .stride = {8, 1}});
  Tensor b = g.tensor({.name = "b", .dim = {8, 6}, .stride = {6, 1}});
  Tensor c;
  Small() {
    c = g.matmul(a, b, {.name = "mm"});
    c.set_name("c");
  }
  std::string validated() {
    return said([&] { g.validate(); });
  }
};

REFUSES(graph_handle) {
  Small s, other;
  EXPECT_EQ(said([&] { s.g.matmul(s.a, other.b); }),
            "invalid_graph [graph.handle] matmul: an operand is a tensor of another graph, or none");
  EXPECT_EQ(said([&] { s.g.matmul(s.a, s.b); }), "");
}

REFUSES(graph_frozen) {
  Small s;
  EXPECT_EQ(said([&] { s.a.set_name("x"); }), "");
  s.g.plans();
  EXPECT_EQ(said([&] { s.a.set_name("y"); }),
            "invalid_graph [graph.frozen] tensor 'x' cannot change any more: the graph has been planned");
  EXPECT_EQ(s.a.name(), "x");
}

REFUSES(graph_empty) {
  Graph g({.name = "nothing"});
  EXPECT_EQ(said([&] { g.validate(); }), "invalid_graph [graph.empty] graph 'nothing': got no nodes, wanted at least a matmul");
  EXPECT_EQ(Small().validated(), "");
}

REFUSES(graph_uid_unique) {
  Small s;
  s.a.set_uid(7);
  EXPECT_EQ(said([&] { s.b.set_uid(7); }),
            "invalid_graph [graph.uid_unique] tensor 'b': got uid 7, which 'a' has, wanted a uid of its own");
  EXPECT_EQ(said([&] { s.b.set_uid(8); }), "");
  // A tensor that is refused is not in the graph, which would want its extents.
  const std::size_t before = s.g.tensor_count();
  EXPECT_EQ(said([&] { s.g.tensor({.name = "d", .uid = 8}); }),
            "invalid_graph [graph.uid_unique] tensor 'd': got uid 8, which 'b' has, wanted a uid of its own");
  EXPECT_EQ(s.g.tensor_count(), before);
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_dim_unset) {
  Small s;
  s.a.set_dim({});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.dim_unset] tensor 'a': got no extents, wanted extents");
  s.a.set_dim({4, 8});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_stride_unset) {
  Small s;
  s.a.set_stride({});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.stride_unset] tensor 'a': got no strides, wanted one for each extent of (4, 8)");
  s.a.set_stride({1, 4});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_rank) {
  Small s;
  s.a.set_stride({32, 8, 1});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.rank] tensor 'a': got 3 strides for extents (4, 8), wanted 2 strides");
  s.a.set_dim({1, 1, 4, 8}).set_stride({32, 32, 8, 1});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.rank] matmul 'mm', tensor 'a': got rank 4, wanted 2 or 3");
  s.a.set_dim({4, 8}).set_stride({8, 1});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_extent) {
  Small s;
  s.a.set_dim({-4, 8});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.extent] tensor 'a': got extents (-4, 8), wanted none below 0");
  s.a.set_dim({4, 8}).set_stride({-8, 1});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.extent] tensor 'a': got strides (-8, 1), wanted none below 0");
  s.a.set_dim({0, 8}).set_stride({0, 1});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_overflow) {
  Small s;
  s.a.set_stride({std::int64_t{1} << 60, 1});
  EXPECT_EQ(s.validated(),
            "invalid_graph [graph.overflow] tensor 'a': got extents (4, 8) with strides (1152921504606846976, 1), wanted a byte "
            "offset below 2^63");
  s.a.set_stride({std::int64_t{1} << 57, 1});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_dtype) {
  Small s;
  s.a.set_data_type(DataType::tf32);
  EXPECT_EQ(s.validated(), "invalid_graph [graph.dtype] tensor 'a': got tf32, wanted a storage type");
  s.a.set_data_type(DataType::fp32);
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_by_value) {
  Small s;
  Tensor alpha = s.g.tensor({.name = "alpha", .dim = {2}, .stride = {1}, .pass_by_value = true});
  s.g.mul(s.c, alpha);
  EXPECT_EQ(s.validated(), "invalid_graph [graph.by_value] tensor 'alpha': got extents (2), wanted one element");
  alpha.set_dim({1});
  EXPECT_EQ(s.validated(), "");
  alpha.set_data_type(DataType::int8).set_value(128);
  EXPECT_EQ(s.validated(), "invalid_graph [graph.by_value] tensor 'alpha': got 128.000000, wanted a value of type int8");
  alpha.set_value(127);
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_arity) {
  Small s;
  s.g.pointwise(PointwiseMode::add, {s.c}, {}, {.name = "sum"});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.arity] add 'sum': got 1 operands, wanted 2");
  Small t;
  t.g.pointwise(PointwiseMode::add, {t.c, t.c});
  EXPECT_EQ(t.validated(), "");
  t.g.pointwise(static_cast<PointwiseMode>(kPointwiseModeCount), {t.c}, {}, {.name = "made up"});
  EXPECT_EQ(t.validated(), "invalid_graph [graph.arity] no mode 'made up': got 1 operands, wanted 0");
}

REFUSES(graph_parameters) {
  Small s;
  s.g.pointwise(PointwiseMode::leaky_relu, {s.c}, {}, {.name = "act"});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.parameters] leaky_relu 'act': got no negative_slope, wanted one");
  Small t;
  t.g.pointwise(PointwiseMode::leaky_relu, {t.c}, {.negative_slope = 0.5F});
  EXPECT_EQ(t.validated(), "");
  t.g.pointwise(PointwiseMode::gen_index, {t.c}, {.axis = 2}, {.name = "index"});
  EXPECT_EQ(t.validated(), "invalid_graph [graph.parameters] gen_index 'index': got axis 2, wanted 0 to 1");
  Small u;
  u.g.pointwise(PointwiseMode::gen_index, {u.c}, {.axis = 1});
  EXPECT_EQ(u.validated(), "");
  u.g.reduction(u.c, static_cast<ReductionMode>(kReductionModeCount), {.name = "r"}).set_dim({1, 6});
  EXPECT_EQ(u.validated(), "invalid_graph [graph.parameters] reduction 'r': got mode 9, wanted a ReductionMode");
  const auto up_to = [](double vmax) {
    Graph g;
    const Tensor x = g.tensor({.dim = {32, 32}, .stride = {32, 1}});
    auto [y, s] = g.block_scale_quantize(g.matmul(x, x), 32, {}, {.name = "q"}, false, vmax);
    y.set_data_type(DataType::fp8_e5m2).set_output(true);
    s.set_data_type(DataType::fp8_e8m0).set_output(true);
    try {
      g.validate();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const double fits : {0.0, 2.0, 2.25, 448.0, 57344.0}) EXPECT_EQ(up_to(fits), "");
  for (const double wrong : {-1.0, 1.0, 2.125, 57345.0, std::nan(""), double{INFINITY}})
    EXPECT_NE(up_to(wrong).find("[graph.parameters] block_scale_quantize 'q': got vmax"), std::string::npos) << wrong;
}

REFUSES(graph_dangling) {
  Small s;
  s.a.set_is_virtual(true);
  EXPECT_EQ(s.validated(),
            "invalid_graph [graph.dangling] matmul 'mm', tensor 'a': got a virtual tensor that nothing computes, wanted an input "
            "or a result");
  s.a.set_is_virtual(false);
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_matmul_inner) {
  Small s;
  s.b.set_dim({7, 6});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.matmul_inner] matmul 'mm': got K = 7 from b (7, 6), wanted 8 as in a (4, 8)");
  s.b.set_dim({8, 6});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_matmul_batch) {
  Small s;
  s.a.set_dim({2, 4, 8}).set_stride({32, 8, 1});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.matmul_batch] matmul 'mm': got a of rank 3 and b of rank 2, wanted equal ranks");
  s.b.set_dim({3, 8, 6}).set_stride({48, 6, 1});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.matmul_batch] matmul 'mm': got batches 2 and 3, wanted equal ones, or a 1");
  s.b.set_dim({1, 8, 6});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_broadcast) {
  Small s;
  Tensor bias = s.g.tensor({.name = "bias", .dim = {5}, .stride = {1}});
  s.g.pointwise(PointwiseMode::add, {s.c, bias}, {}, {.name = "sum"});
  EXPECT_EQ(s.validated(),
            "invalid_graph [graph.broadcast] add 'sum', tensor 'bias': got extents (5), wanted each 1 or as in (4, 6)");
  bias.set_dim({6});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_output_dim) {
  Small s;
  s.c.set_dim({4, 7});
  EXPECT_EQ(s.validated(), "invalid_graph [graph.output_dim] matmul 'mm', tensor 'c': got extents (4, 7), wanted (4, 6)");
  s.c.set_dim({4, 6});
  EXPECT_EQ(s.validated(), "");
}

REFUSES(graph_reduction_dim) {
  Small s;
  Tensor r = s.g.reduction(s.c, ReductionMode::add, {.name = "total"});
  r.set_name("r").set_dim({4, 6});
  EXPECT_EQ(
      s.validated(),
      "invalid_graph [graph.reduction_dim] reduction 'total': got output extents (4, 6) for input (4, 6), wanted each 1 or the "
      "full one, and a reduced axis");
  r.set_dim({4, 1});
  EXPECT_EQ(s.validated(), "");
}

}  // namespace
