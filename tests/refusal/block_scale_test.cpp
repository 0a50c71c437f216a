#include <functional>
#include <vector>

#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Scales of blocks: what descriptions, chains and calls with them are refused for.
namespace {

using namespace verglas;
using refusal::said;
using Dims = std::vector<std::int64_t>;

/// What a test changes about y (4, 6) = dequantize(a (4, 64)) · dequantize(b (64, 6)), quantised or not.
struct Scaled {
  DataType data = DataType::fp8_e4m3, other = DataType::fp8_e5m2, scale = DataType::fp8_e8m0, between = DataType::fp32;
  DataType compute = DataType::not_set;
  std::int64_t block = 32;
  Dims block_size = {1, 32}, a_stride = {64, 1}, scale_dim = {4, 2}, scale_stride = {2, 1};
  Dims b_block_size = {32, 1}, b_scale_dim = {2, 6};
  DataType b_scale = DataType::fp8_e8m0;
  TensorReordering reordering = TensorReordering::none, a_reordering = TensorReordering::none;
  bool is_negative = false, is_stored = false;
  std::int64_t k = 64;

  Graph graph() const {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {4, k}, .stride = a_stride, .data_type = data, .reordering = a_reordering});
    const Tensor sa =
        g.tensor({.name = "sa", .dim = scale_dim, .stride = scale_stride, .data_type = scale, .reordering = reordering});
    const Tensor b = g.tensor({.name = "b", .dim = {k, 6}, .stride = {1, k}, .data_type = other});
    const Tensor sb = g.tensor({.name = "sb", .dim = b_scale_dim, .stride = {1, b_scale_dim[0]}, .data_type = b_scale});
    Tensor x = g.block_scale_dequantize(a, sa, block_size, {.name = "dqa", .compute_data_type = compute}, is_negative);
    x.set_data_type(between).set_output(is_stored);
    const Tensor y = g.block_scale_dequantize(b, sb, b_block_size, {.name = "dqb"});
    g.matmul(x, y, {.name = "mm"}).set_output(true);
    return g;
  }
};

std::string validated(const std::function<void(Scaled&)>& change) {
  Scaled s;
  change(s);
  return said([&] { s.graph().validate(); });
}
/// Why the graph is no chain: "rule text"; "" when it is served.
std::string declined(const std::function<void(Scaled&)>& change) {
  Scaled s;
  change(s);
  const PlanList plans = s.graph().plans();
  return plans.size() > 0 ? std::string() : plans.declines().front().rule + " " + plans.declines().front().text;
}
void unchanged(Scaled&) {}

/// relu(a (4, 8) · b (8, n)), fp32, quantised along an axis.
struct Quantised {
  std::int64_t m = 32, n = 32, block = 32;
  std::optional<int> axis;
  DataType data = DataType::fp8_e4m3, scale = DataType::fp8_e8m0;
  Dims data_stride;
  bool store_scale = true, is_read = false;
  double vmax = 0;

  Graph graph() const {
    Graph g({.io_data_type = DataType::fp32});
    const Tensor a = g.tensor({.name = "a", .dim = {m, 8}, .stride = {8, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {8, n}, .stride = {n, 1}});
    auto [y, s] = g.block_scale_quantize(g.relu(g.matmul(a, b)), block, axis, {.name = "q"}, false, vmax);
    y.set_name("y").set_data_type(data).set_output(true);
    if (!data_stride.empty()) y.set_stride(data_stride);
    s.set_name("s").set_data_type(scale).set_output(store_scale);
    if (is_read) g.relu(y).set_output(true);
    return g;
  }
};
std::string quantised(const std::function<void(Quantised&)>& change) {
  Quantised q;
  change(q);
  std::string text;
  const std::string thrown = said([&] {
    const PlanList plans = q.graph().plans();
    if (plans.size() == 0) text = plans.declines().front().rule + " " + plans.declines().front().text;
  });
  return thrown + text;
}

REFUSES(graph_block_size) {
  EXPECT_EQ(
      validated([](Scaled& s) { s.block_size = {32, 32}; }),
      "invalid_graph [graph.block_size] block_scale_dequantize 'dqa': got block_size (32, 32), wanted at most 2 numbers, one "
      "of them 2 or more and the others 1");
  EXPECT_EQ(validated([](Scaled& s) { s.block_size = {1}; }),
            "invalid_graph [graph.block_size] block_scale_dequantize 'dqa': got block_size (1), wanted 2 elements or more");
  EXPECT_EQ(validated([](Scaled& s) { s.block_size = {32}; }), "");
  EXPECT_EQ(quantised([](Quantised& q) { q.block = 0; }),
            "invalid_graph [graph.block_size] block_scale_quantize 'q': got block_size (0), wanted one number, 2 or more");
}

REFUSES(graph_block_divides) {
  EXPECT_EQ(
      quantised([](Quantised& q) { q.n = 40; }),
      "invalid_graph [graph.block_divides] block_scale_quantize 'q', tensor 'relu_1::out': got extent 40, wanted a multiple "
      "of 32");
  EXPECT_EQ(quantised([](Quantised& q) {
              q.n = 40;
              q.axis = 0;
            }),
            "");
}

REFUSES(graph_scale_extent) {
  EXPECT_EQ(validated([](Scaled& s) { s.scale_dim = {4, 3}; }),
            "invalid_graph [graph.scale_extent] block_scale_dequantize 'dqa', tensor 'sa': got extents (4, 3), wanted (4, 2) for "
            "data (4, 64) in blocks of 32");
  const auto blob = [](std::int64_t bytes, std::int64_t stride) {
    return [=](Scaled& s) {
      s.reordering = TensorReordering::f8_128x4;
      s.scale_dim = {bytes};
      s.scale_stride = {stride};
    };
  };
  EXPECT_EQ(
      validated(blob(511, 1)),
      "invalid_graph [graph.scale_extent] block_scale_dequantize 'dqa', tensor 'sa': got extents (511), wanted 512 bytes in "
      "whole atoms of 128 by 4, or (4, 2) for data (4, 64) in blocks of 32");
  EXPECT_EQ(validated(blob(512, 2)),
            "invalid_graph [graph.scale_extent] block_scale_dequantize 'dqa', tensor 'sa': got extents (512) with strides (2), "
            "wanted a dense run");
  EXPECT_EQ(validated(blob(512, 1)), "");
  EXPECT_EQ(validated([](Scaled& s) { s.reordering = TensorReordering::f8_128x4; }), "");  // its logical extents
}

REFUSES(graph_packed) {
  const auto build = [](std::int64_t k, Dims stride) {
    return [=](Scaled& s) {
      s.data = DataType::fp4_e2m1;
      s.k = k;
      s.a_stride = stride;
      s.scale_dim = {4, (k + 31) / 32};
      s.scale_stride = {s.scale_dim[1], 1};
      s.b_scale_dim = {(k + 31) / 32, 6};
    };
  };
  EXPECT_EQ(
      validated(build(63, {64, 1})),
      "invalid_graph [graph.packed] tensor 'a': got extents (4, 63) with strides (64, 1), wanted fp4 in pairs: stride 1 along "
      "an even extent, other strides even");
  EXPECT_EQ(
      validated(build(62, {63, 1})),
      "invalid_graph [graph.packed] tensor 'a': got extents (4, 62) with strides (63, 1), wanted fp4 in pairs: stride 1 along "
      "an even extent, other strides even");
  EXPECT_EQ(validated(build(62, {64, 1})), "");
}

REFUSES(chain_block_scale_format) {
  EXPECT_EQ(declined([](Scaled& s) { s.scale = DataType::fp8_e4m3; }),
            "chain.block_scale_format node 'dqa' has data fp8_e4m3 in blocks of 32 with scales fp8_e4m3");
  EXPECT_EQ(declined([](Scaled& s) { s.data = DataType::bf16; }),
            "chain.block_scale_format node 'dqa' has data bf16 in blocks of 32 with scales fp8_e8m0");
  const auto fp4_of_16 = [](Scaled& s) {
    s.data = DataType::fp4_e2m1;
    s.block_size = {1, 16};
    s.scale_dim = {4, 4};
    s.scale_stride = {4, 1};
  };
  EXPECT_EQ(declined(fp4_of_16), "chain.block_scale_format matmul 'mm' has scales fp8_e8m0 of 16 on a and fp8_e8m0 of 32 on b");
  EXPECT_EQ(declined([](Scaled& s) { s.data = DataType::fp4_e2m1; }), "");  // beside fp8_e5m2 in blocks of 32 too
  EXPECT_EQ(declined(unchanged), "");
}

REFUSES(chain_block_scale_operand) {
  EXPECT_EQ(declined([](Scaled& s) { s.is_negative = true; }), "chain.block_scale_operand node 'dqa' has is_negative_scale");
  EXPECT_EQ(declined([](Scaled& s) { s.is_stored = true; }),
            "chain.block_scale_operand node 'dqa' has an output that is marked as one of the graph");
  EXPECT_EQ(declined([](Scaled& s) { s.between = DataType::fp8_e4m3; }),
            "chain.block_scale_operand node 'dqa' computes in fp32 to fp8_e4m3");
  EXPECT_EQ(declined([](Scaled& s) { s.between = DataType::bf16; }), "");
  EXPECT_EQ(declined([](Scaled& s) {
              s.block_size = {32, 1};
              s.scale_dim = {1, 64};
              s.scale_stride = {64, 1};
            }),
            "chain.block_scale_operand node 'dqa' has blocks along axis 0 of a");
  // Anything between the scales and the matmul, or a reader that is none.
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {4, 64}, .stride = {64, 1}, .data_type = DataType::fp8_e4m3});
  const Tensor sa = g.tensor({.name = "sa", .dim = {4, 2}, .stride = {2, 1}, .data_type = DataType::fp8_e8m0});
  const Tensor b = g.tensor({.name = "b", .dim = {64, 64}, .stride = {64, 1}});
  const Tensor x = g.block_scale_dequantize(a, sa, {32}, {.name = "dq"});
  g.matmul(g.relu(x), b).set_output(true);
  EXPECT_EQ(g.plans().declines().front().text, "node 'dq' is read by a node before a matmul");
}

REFUSES(chain_reordering) {
  EXPECT_EQ(declined([](Scaled& s) { s.a_reordering = TensorReordering::f8_128x4; }),
            "chain.reordering tensor 'a' is reordered to f8_128x4");
  EXPECT_EQ(declined(unchanged), "");
}

REFUSES(chain_packed_axis) {
  const auto build = [](Dims stride) {
    return [=](Scaled& s) {
      s.data = DataType::fp4_e2m1;
      s.a_stride = stride;
    };
  };
  EXPECT_EQ(declined(build({1, 4})), "chain.packed_axis tensor 'a' has stride 4 and extent 64 along K");
  EXPECT_EQ(declined(build({64, 1})), "");
  const auto output = [](Dims stride) {
    return [=](Quantised& q) {
      q.data = DataType::fp4_e2m1;
      q.data_stride = stride;
    };
  };
  EXPECT_EQ(quantised(output({1, 32})), "chain.packed_axis tensor 'y' has stride 32 and extent 32 along N");
  EXPECT_EQ(quantised(output({32, 1})), "");
}

REFUSES(chain_quantise) {
  EXPECT_EQ(quantised([](Quantised& q) { q.store_scale = false; }),
            "chain.quantise node 'q' has scales that are not marked as an output");
  EXPECT_EQ(quantised([](Quantised& q) { q.block = 8; }), "chain.quantise node 'q' has blocks of 8");
  EXPECT_EQ(quantised([](Quantised& q) { q.data = DataType::bf16; }), "chain.quantise node 'q' stores data as bf16");
  EXPECT_EQ(quantised([](Quantised& q) { q.scale = DataType::fp32; }), "chain.quantise node 'q' stores scales as fp32");
  EXPECT_EQ(quantised([](Quantised& q) { q.is_read = true; }), "chain.quantise tensor 'y' is quantised, and read by 'relu_3'");
  EXPECT_EQ(quantised([](Quantised& q) { q.vmax = 512; }), "chain.quantise node 'q' brings fp8_e4m3 to 512, which ends at 448");
  EXPECT_EQ(quantised([](Quantised& q) { q.vmax = 448; }), "");
  EXPECT_EQ(quantised([](Quantised&) {}), "");
  EXPECT_EQ(quantised([](Quantised& q) {
              q.data = DataType::fp4_e2m1;
              q.block = 16;
              q.scale = DataType::fp8_e4m3;
            }),
            "");
}

REFUSES(sm90_block_scale) {
  // Without a device it declines for want of one what it would serve.
  const auto said_by_sm90 = [](Graph g) {
    const PlanList plans = g.plans({.device = {DeviceType::cuda, 0}});
    for (const DeclineRecord& d : plans.declines())
      if (d.engine == "sm90" && d.rule.starts_with("sm90.b")) return d.rule + " " + d.text;
    return std::string();
  };
  const auto scaled = [&](DataType data, DataType between) {
    Scaled s;
    s.data = data;
    s.between = between;
    return said_by_sm90(s.graph());
  };
  const auto beside = [&](DataType other, DataType scale = DataType::fp8_e4m3) {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {4, 64}, .stride = {64, 1}, .data_type = DataType::fp4_e2m1});
    const Tensor s = g.tensor({.name = "s", .dim = {4, 4}, .stride = {4, 1}, .data_type = scale});
    const Tensor b = g.tensor({.name = "b", .dim = {64, 8}, .stride = {1, 64}, .data_type = other});
    g.matmul(g.block_scale_dequantize(a, s, {1, 16}), b).set_output(true).set_data_type(DataType::fp32);
    return said_by_sm90(g);
  };
  EXPECT_EQ(beside(DataType::bf16), "");
  EXPECT_EQ(beside(DataType::fp8_e4m3), "");
  EXPECT_EQ(beside(DataType::fp16), "");
  // A scale of e8m0 may be more than fp16 holds.
  EXPECT_EQ(beside(DataType::fp16, DataType::fp8_e8m0), "sm90.block_scale b 'b' is fp16 beside what is decoded to bf16");
  EXPECT_EQ(beside(DataType::fp32), "sm90.block_scale b 'b' is fp32 beside what is decoded to bf16");
  EXPECT_EQ(scaled(DataType::fp4_e2m1, DataType::fp32), "");
  const auto pair = [&](std::int64_t block, std::int64_t other) {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {4, 64}, .stride = {64, 1}, .data_type = DataType::bf16});
    const auto product = [&](const char* name, std::int64_t share) {
      const Tensor b = g.tensor({.name = name, .dim = {64, 8}, .stride = {1, 64}, .data_type = DataType::fp4_e2m1});
      const Tensor s =
          g.tensor({.name = "s", .dim = {64 / share, 8}, .stride = {1, 64 / share}, .data_type = DataType::fp8_e4m3});
      return g.matmul(a, g.block_scale_dequantize(b, s, {share, 1}));
    };
    g.mul(product("b", block), product("other", other)).set_output(true).set_data_type(DataType::fp32);
    return said_by_sm90(g);
  };
  // Threads that gather rows of groups load them as they are.
  const auto gathered = [&](MoeMode mode, DataType type) {
    Graph g;
    const Tensor t = g.tensor({.name = "t", .dim = {1, 12, 64}, .stride = {768, 64, 1}, .data_type = type});
    const Tensor st = g.tensor({.name = "st", .dim = {1, 12, 2}, .stride = {24, 2, 1}, .data_type = DataType::fp8_e8m0});
    const Tensor w = g.tensor({.name = "w", .dim = {3, 64, 8}, .stride = {512, 1, 64}, .data_type = type});
    const Tensor sw = g.tensor({.name = "sw", .dim = {3, 2, 8}, .stride = {16, 1, 2}, .data_type = DataType::fp8_e8m0});
    const Tensor o = g.tensor({.name = "o", .dim = {4}, .stride = {1}, .data_type = DataType::int32});
    const Tensor i = g.tensor({.name = "i", .dim = {1, 12, 1}, .stride = {12, 1, 1}, .data_type = DataType::int32});
    g.moe_grouped_matmul(g.block_scale_dequantize(t, st, {1, 32}), g.block_scale_dequantize(w, sw, {32, 1}), o, {.mode = mode},
                         mode == MoeMode::none ? Tensor() : i)
        .set_output(true)
        .set_data_type(DataType::bf16);
    return said_by_sm90(g);
  };
  EXPECT_EQ(gathered(MoeMode::gather, DataType::fp4_e2m1), "sm90.block_scale a 't' is decoded, and its rows are gathered");
  EXPECT_EQ(gathered(MoeMode::none, DataType::fp4_e2m1), "");
  EXPECT_EQ(gathered(MoeMode::gather, DataType::fp8_e4m3), "");
  EXPECT_EQ(pair(16, 32), "sm90.block_scale b 'b' has other blocks than b 'other'");
  EXPECT_EQ(pair(16, 16), "");
  EXPECT_EQ(scaled(DataType::fp8_e4m3, DataType::fp16), "sm90.block_scale a 'a' is rounded to fp16 with its scales");
  EXPECT_EQ(scaled(DataType::fp8_e4m3, DataType::bf16), "");
  EXPECT_EQ(scaled(DataType::fp4_e2m1, DataType::fp16), "sm90.block_scale a 'a' is rounded to fp16 with its scales");
  EXPECT_EQ(scaled(DataType::fp8_e4m3, DataType::fp32), "");
  EXPECT_EQ(said_by_sm90(Quantised().graph()), "");
  Quantised along_m;
  along_m.axis = 0;
  EXPECT_EQ(said_by_sm90(along_m.graph()), "");
}

// ---- calls

/// y (4, 6) = a · b with interleaved scales on a and plain ones on b, y quantised along N = 32 to fp4.
struct Sample {
  std::vector<unsigned char> memory = std::vector<unsigned char>(1 << 16, 0x38);
  std::vector<TensorView> views;
  CompiledPlan plan;
  enum { kA, kB, kSa, kSb, kY, kS };

  Sample() {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {4, 64}, .stride = {64, 1}, .data_type = DataType::fp4_e2m1});
    const Tensor sa = g.tensor(
        {.name = "sa", .dim = {512}, .stride = {1}, .data_type = DataType::fp8_e4m3, .reordering = TensorReordering::f8_128x4});
    const Tensor b = g.tensor({.name = "b", .dim = {64, 32}, .stride = {1, 64}, .data_type = DataType::fp4_e2m1});
    const Tensor sb = g.tensor({.name = "sb", .dim = {4, 32}, .stride = {1, 4}, .data_type = DataType::fp8_e4m3});
    const Tensor c = g.matmul(g.block_scale_dequantize(a, sa, {1, 16}), g.block_scale_dequantize(b, sb, {16, 1}));
    auto [y, s] = g.block_scale_quantize(c, 16);
    y.set_name("y").set_data_type(DataType::fp4_e2m1).set_output(true);
    s.set_name("s").set_data_type(DataType::fp8_e4m3).set_reordering_type(TensorReordering::f8_128x4).set_output(true);
    plan = g.compile();
    unsigned char* const p = memory.data();
    views = {TensorView::dense(p, DataType::fp4_e2m1, {4, 64}),
             TensorView::strided(p + 1024, DataType::fp4_e2m1, {64, 32}, {1, 64}),
             TensorView::dense(p + 4096, DataType::fp8_e4m3, {512}),
             TensorView::strided(p + 8192, DataType::fp8_e4m3, {4, 32}, {1, 4}),
             TensorView::dense(p + 16384, DataType::fp4_e2m1, {4, 32}),
             TensorView::dense(p + 32768, DataType::fp8_e4m3, {128, 4})};
  }
};

/// What the CPU plan says after `change`; "" when it serves the call.
std::string after(const std::function<void(std::vector<TensorView>&)>& change) {
  Sample s;
  change(s.views);
  const auto before = s.memory;
  const Status status = s.plan.execute(s.views);
  if (status.ok()) return {};
  EXPECT_EQ(s.memory, before) << "a refused call wrote";
  return s.plan.explain(status, s.views).what();
}
using Views = std::vector<TensorView>;

REFUSES(call_packed) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].extent[1] = v[Sample::kB].extent[0] = 63; }),
            "invalid_call [call.packed] a 'a': got shape (4, 63) with strides (64, 1), wanted stride 1 along an even K and even "
            "strides along the other axes");
  EXPECT_EQ(after([](Views& v) { v[Sample::kY].stride[0] = 33; }),
            "invalid_call [call.packed] output 'y': got shape (4, 32) with strides (33, 1), wanted stride 1 along an even N and "
            "even strides along the other axes");
  EXPECT_EQ(after([](Views& v) { v[Sample::kY].stride[0] = 34; }), "");
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].extent[1] = v[Sample::kB].extent[0] = 62; }), "");  // a short last block
}

REFUSES(call_block_divides) {
  const auto build = [](std::int64_t n) {
    return [n](Views& v) { v[Sample::kB].extent[1] = v[Sample::kSb].extent[1] = v[Sample::kY].extent[1] = n; };
  };
  EXPECT_EQ(after(build(24)), "invalid_call [call.block_divides] output_scale 's': got N = 24, wanted a multiple of 16");
  EXPECT_EQ(after(build(16)), "");
}

REFUSES(call_scale_extent) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kSb].extent[0] = 3; }),
            "invalid_call [call.scale_extent] b_scale 'sb': got shape (3, 32), wanted (4, 32) for blocks of 16");
  EXPECT_EQ(
      after([](Views& v) { v[Sample::kSa].stride[0] = 2; }),
      "invalid_call [call.scale_extent] a_scale 'sa': got shape (512) with strides (2), wanted a dense run of rank 1 or more");
  EXPECT_EQ(after([](Views& v) { v[Sample::kSa].rank = 0; }),
            "invalid_call [call.scale_extent] a_scale 'sa': got shape () with strides (), wanted a dense run of rank 1 or more");
  EXPECT_EQ(
      after([](Views& v) { v[Sample::kSb] = TensorView::strided(v[Sample::kSb].data, DataType::uint8, {1, 4, 32}, {9, 64, 1}); }),
      "");
}

REFUSES(call_scale_size) {
  EXPECT_EQ(
      after([](Views& v) { v[Sample::kSa].extent[0] = 511; }),
      "invalid_call [call.scale_size] a_scale 'sa': got 511 bytes in shape (511), wanted 512 bytes: 1 atoms of 128 by 4 for 4 "
      "rows of 4 scales");
  EXPECT_EQ(
      after([](Views& v) { v[Sample::kS] = TensorView::dense(v[Sample::kS].data, DataType::uint8, {1, 4, 127}); }),
      "invalid_call [call.scale_size] output_scale 's': got 508 bytes in shape (1, 4, 127), wanted 512 bytes: 1 atoms of 128 "
      "by 4 for 4 rows of 2 scales");
  EXPECT_EQ(after([](Views& v) { v[Sample::kSa] = TensorView::dense(v[Sample::kSa].data, DataType::uint8, {1, 128, 4}); }), "");
  EXPECT_EQ(after([](Views& v) { v[Sample::kSa].dtype = DataType::fp8_e8m0; }),
            "invalid_call [call.dtype] a_scale 'sa': got fp8_e8m0, wanted fp8_e4m3 as declared");
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].dtype = DataType::uint8; }),
            "invalid_call [call.dtype] a 'a': got uint8, wanted fp4_e2m1 as declared");
}

// Rows of fp4 are pairs: what would be two halves of one tensor by strides in elements meets in bytes.
TEST(RefusesPacked, TwoOutputsWhoseRowsMeet) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {4, 8}, .stride = {8, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {8, 128}, .stride = {128, 1}});
  const Tensor c = g.matmul(a, b);
  for (const char* name : {"y", "z"}) {
    auto [q, s] = g.block_scale_quantize(c, 16);
    q.set_name(name).set_data_type(DataType::fp4_e2m1).set_output(true);
    s.set_name(std::string(name) + " scales").set_data_type(DataType::fp8_e4m3).set_output(true);
  }
  const CompiledPlan plan = g.compile();
  std::vector<float> inputs(2048, 1.0F);
  std::vector<unsigned char> memory(4096, 0xA5);
  const auto rule_of = [&](std::int64_t apart) {
    std::vector<TensorView> views;
    for (const OperandInfo& o : plan.operands()) {
      const bool is_data = o.name == "y" || o.name == "z";
      unsigned char* const p = memory.data() + (o.name == "z" ? apart : o.name == "y" ? 0 : o.name == "y scales" ? 2048 : 3072);
      views.push_back(is_data ? TensorView::strided(p, o.dtype, {4, 128}, {256, 1})
                              : TensorView::address(o.is_output ? static_cast<void*>(p) : inputs.data()));
    }
    const Status status = plan.execute(views);
    return status.ok() ? std::string() : plan.explain(status, views).rule();
  };
  EXPECT_EQ(rule_of(128), "call.overlap");
  EXPECT_EQ(rule_of(64), "call.overlap");  // apart, but by ranges of bytes they meet
  EXPECT_EQ(rule_of(512), "");
}

}  // namespace
