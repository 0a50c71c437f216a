#include <array>
#include <functional>
#include <vector>

#include "graph/ir.hpp"
#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Grouped products: what descriptions, chains and calls with them are refused for.
namespace {

using namespace verglas;
using refusal::said;
using Dims = std::vector<std::int64_t>;

/// y (1, 12, 6) = grouped tokens (1, 12, 8) · weights (3, 8, 6), four groups, and what each test changes.
struct Moe {
  Graph g{{.io_data_type = DataType::fp32}};
  Dims token = {1, 12, 8}, weight = {3, 8, 6}, offsets = {4}, index = {1, 12, 1}, slot = {12}, score = {5, 3};
  DataType offset_type = DataType::int32, index_type = DataType::int32, score_type = DataType::fp32;
  MoeAttributes attributes = {.name = "moe"};
  MoeGradientAttributes gradient = {.name = "dw"};
  Tensor offset;

  Tensor input(const char* name, const Dims& dim, DataType type = DataType::fp32) {
    Dims stride(dim.size(), 1);
    for (std::size_t i = dim.size(); i-- > 1;) stride[i - 1] = stride[i] * dim[i];
    return g.tensor({.name = name, .dim = dim, .stride = stride, .data_type = type});
  }
  Tensor product() { return product(input("w", weight)); }
  Tensor product(const Tensor& w) {
    const Tensor t = input("t", token);
    if (!offset.valid()) offset = input("o", offsets, offset_type);
    Tensor i, s;
    if (attributes.mode != MoeMode::none) i = input("i", index, index_type);
    if (attributes.mode >= MoeMode::scatter) s = input("s", slot, DataType::int32);
    const Tensor c = attributes.mode == MoeMode::combine ? input("c", score, score_type) : Tensor();
    return g.moe_grouped_matmul(t, w, offset, attributes, i, s, c);
  }
  Tensor backward(const Dims& dout = {1, 12, 6}) {
    const Tensor t = input("t", token);
    const Tensor d = input("d", dout);
    offset = input("o", offsets, offset_type);
    return g.moe_grouped_matmul_bwd(t, d, offset, gradient);
  }
};

std::string validated(const std::function<void(Moe&)>& build) {
  Moe m;
  return said([&] {
    build(m);
    m.g.validate();
  });
}
/// Why the graph is no chain: "rule text"; "" when it is served.
std::string declined(const std::function<void(Moe&)>& build) {
  Moe m;
  build(m);
  const PlanList plans = m.g.plans();
  return plans.size() > 0 ? std::string() : plans.declines().front().rule + " " + plans.declines().front().text;
}
void plain(Moe& m) { m.product().set_output(true); }
void combines(Moe& m) { m.attributes.mode = MoeMode::combine, m.attributes.top_k = 3; }

/// Twelve tokens of MXFP8 in four groups.
void scaled_tokens(Moe& m, const Dims& scales, TensorReordering order, MoeMode mode) {
  const Tensor t = m.input("t", {1, 12, 32}, DataType::fp8_e4m3), s = m.input("s", scales, DataType::fp8_e8m0);
  Tensor(s).set_reordering_type(order);
  const Tensor x = m.g.block_scale_dequantize(t, s, {1, 32}, {.name = "dq"});
  const Tensor w = m.input("w", {3, 32, 6}), o = m.input("o", {4}, DataType::int32);
  const Tensor i = mode == MoeMode::none ? Tensor() : m.input("i", {1, 12, 1}, DataType::int32);
  m.g.moe_grouped_matmul(x, w, o, {.mode = mode}, i).set_output(true);
}

REFUSES(graph_moe_operand) {
  const auto with = [](const std::function<void(Moe&)>& change) {
    return validated([&](Moe& m) {
      change(m);
      m.product().set_output(true);
    });
  };
  const std::string who = "invalid_graph [graph.moe_operand] moe_grouped_matmul 'moe', tensor ";
  EXPECT_EQ(with([](Moe& m) { m.token = {2, 12, 8}; }), who + "'t': got tokens of extents (2, 12, 8), wanted (1, rows, columns)");
  EXPECT_EQ(with([](Moe& m) { m.weight = {8, 6}; }), who + "'w': got weights of extents (8, 6), wanted (experts, K, N)");
  EXPECT_EQ(with([](Moe& m) { m.weight = {0, 8, 6}; }), who + "'w': got no experts, wanted one or more");
  EXPECT_EQ(with([](Moe& m) { m.offset_type = DataType::fp32; }), who + "'o': got offsets of type fp32, wanted int32 or int64");
  EXPECT_EQ(with([](Moe& m) { m.offsets = {4, 2}; }), who + "'o': got offsets of extents (4, 2), wanted one axis of groups");
  const auto gathers = [](Moe& m) { m.attributes.mode = MoeMode::gather; };
  const auto scatters = [](Moe& m) { m.attributes.mode = MoeMode::scatter; };
  EXPECT_EQ(with([&](Moe& m) { gathers(m), m.index_type = DataType::int64; }),
            who + "'i': got token indices of type int64, wanted int32");
  EXPECT_EQ(with([&](Moe& m) { scatters(m), m.index = {1, 11, 1}; }),
            who + "'i': got token indices of extents (1, 11, 1), wanted one axis of 12");
  EXPECT_EQ(with([&](Moe& m) { scatters(m), m.slot = {13}; }), who + "'s': got slots of extents (13), wanted one axis of 12");
  EXPECT_EQ(validated([](Moe& m) { m.backward({1, 11, 6}).set_output(true); }),
            "invalid_graph [graph.moe_operand] moe_grouped_matmul_bwd 'dw', tensor 'd': got 11 rows, wanted 12 as in the tokens");
  EXPECT_EQ(with([](Moe& m) { combines(m), m.score_type = DataType::int32; }),
            who + "'c': got scores of type int32, wanted fp32, bf16 or fp16");
  for (const Dims& dim : {Dims{5, 2}, Dims{3}, Dims{5, 1, 3}, Dims{2, 5, 3}})
    EXPECT_EQ(with([&](Moe& m) { combines(m), m.score = dim; }),
              who + "'c': got scores of extents " + graph::text_of(dim) + ", wanted (tokens, 3), the second being top_k");
  EXPECT_EQ(with([](Moe& m) { combines(m), m.slot = {5}; }), who + "'s': got slots of extents (5), wanted one axis of 12");
  EXPECT_EQ(with([](Moe&) {}), "");
  EXPECT_EQ(with([](Moe& m) { m.offset_type = DataType::int64, m.offsets = {4, 1, 1}; }), "");
  EXPECT_EQ(with([&](Moe& m) { gathers(m), m.index = {1, 40, 1}; }), "");
  EXPECT_EQ(with(scatters), "");
  for (const Dims& dim : {Dims{5, 3}, Dims{1, 5, 3}, Dims{5, 3, 1}, Dims{0, 3}})
    EXPECT_EQ(with([&](Moe& m) { combines(m), m.score = dim, m.score_type = DataType::bf16; }), "");
  EXPECT_EQ(validated([](Moe& m) { m.backward().set_output(true); }), "");
}

TEST(Refuses, GroupedProductsByOlderRules) {
  EXPECT_EQ(
      validated([](Moe& m) {
        m.weight = {3, 9, 6};
        m.product();
      }),
      "invalid_graph [graph.matmul_inner] moe_grouped_matmul 'moe': got K = 9 from weights (3, 9, 6), wanted 8 as in tokens (1, "
      "12, 8)");
  EXPECT_EQ(validated([](Moe& m) {
              m.attributes.top_k = 0;
              m.product();
            }),
            "invalid_graph [graph.parameters] moe_grouped_matmul 'moe': got top_k 0, wanted 1 to 2147483647");
  EXPECT_EQ(validated([](Moe& m) {
              m.attributes.top_k = std::int64_t{1} << 32;
              m.product();
            }),
            "invalid_graph [graph.parameters] moe_grouped_matmul 'moe': got top_k 4294967296, wanted 1 to 2147483647");
  EXPECT_EQ(validated([](Moe& m) {
              const Tensor t = m.input("t", m.token), w = m.input("w", m.weight), o = m.input("o", m.offsets, DataType::int32);
              m.g.moe_grouped_matmul(t, w, o, {.name = "moe", .mode = MoeMode::gather});
            }),
            "invalid_graph [graph.arity] moe_grouped_matmul 'moe': got 3 operands, wanted 4: token, weight, "
            "first_token_offset, token_index");
  const std::string arity = "invalid_graph [graph.arity] moe_grouped_matmul 'moe': got ";
  const auto with_scores = [](MoeMode mode, bool are_given) {
    return validated([&](Moe& m) {
      const Tensor t = m.input("t", m.token), w = m.input("w", m.weight), o = m.input("o", m.offsets, DataType::int32);
      const Tensor i = m.input("i", m.index, DataType::int32), s = m.input("s", m.slot, DataType::int32);
      m.g.moe_grouped_matmul(t, w, o, {.name = "moe", .mode = mode, .top_k = 3}, i, s,
                             are_given ? m.input("c", m.score) : Tensor());
    });
  };
  EXPECT_EQ(with_scores(MoeMode::combine, false),
            arity + "5 operands, wanted 6: token, weight, first_token_offset, token_index, token_ks, top_k_scores");
  EXPECT_EQ(with_scores(MoeMode::scatter, true),
            arity + "6 operands, wanted 5: token, weight, first_token_offset, token_index, token_ks");
  EXPECT_EQ(with_scores(MoeMode::combine, true), "");
  EXPECT_EQ(with_scores(MoeMode::scatter, false), "");
}

// Rows of a sum over the rows of each token are tokens, of no group.
TEST(Refuses, WhatIsOfGroupsBehindCombine) {
  EXPECT_EQ(declined([](Moe& m) {
              combines(m);
              m.g.add(m.product(), m.input("bias", {4, 1, 6})).set_output(true);
            }),
            "chain.aux_shape tensor 'bias' has extents (4, 1, 6) beside (L, M, N) = (1, 5, 6)");
  EXPECT_EQ(declined([](Moe& m) {
              combines(m);
              m.g.add(m.product(), m.input("bias", {1, 5, 1})).set_output(true);
            }),
            "");
  EXPECT_EQ(declined([](Moe& m) {
              combines(m);
              const Tensor x = m.product();
              m.score = {5, 3, 1};  // other scores, if of the same numbers
              m.g.mul(x, m.product()).set_output(true);
            }),
            "chain.group_alike moe_grouped_matmul 'moe' is not grouped as moe_grouped_matmul 'moe'");
}

TEST(Refuses, ScoresOfOtherTokensThanTheResultHas) {
  Moe m;
  combines(m);
  plain(m);
  const CompiledPlan plan = m.g.compile();
  std::vector<float> t(96, 1.0F), w(144, 1.0F), c(20, 1.0F), y(30, -7.0F);
  const std::vector<std::int32_t> o = {0, 4, 4, 9}, list(12, 0);
  using Extents = std::initializer_list<std::int64_t>;
  const auto call = [&](Extents score, Extents result, std::int64_t rows) {
    const std::vector<TensorView> views = {TensorView::dense(t.data(), DataType::fp32, {1, 12, 8}),
                                           TensorView::dense(w.data(), DataType::fp32, {3, 8, 6}),
                                           TensorView::dense(const_cast<std::int32_t*>(o.data()), DataType::int32, {4}),
                                           TensorView::dense(const_cast<std::int32_t*>(list.data()), DataType::int32, {rows}),
                                           TensorView::dense(const_cast<std::int32_t*>(list.data()), DataType::int32, {12}),
                                           TensorView::dense(c.data(), DataType::fp32, score),
                                           TensorView::dense(y.data(), DataType::fp32, result)};
    const Status status = plan.execute(views);
    return status.ok() ? std::string() : std::string(plan.explain(status, views).what());
  };
  const std::string who = "invalid_call [call.";
  EXPECT_EQ(call({5, 2}, {1, 5, 6}, 12), who + "aux_extent] top_k_scores 'c': got shape (5, 2), wanted (tokens, 3)");
  EXPECT_EQ(call({6, 2}, {1, 4, 6}, 12), who + "aux_extent] top_k_scores 'c': got shape (6, 2), wanted (tokens, 3)");
  EXPECT_EQ(call({4, 3}, {1, 5, 6}, 12),
            who + "output_extent] output 'moe::out': got M = 5 from shape (1, 5, 6), wanted 4 as in shape (1, 4, 6)");
  EXPECT_EQ(call({5, 3}, {1, 5, 6}, 11),
            who + "aux_extent] token_index 'i': got shape (11), wanted (1, 12, 1) or the same without its unit axes");
  EXPECT_EQ(y, std::vector<float>(30, -7.0F)) << "a refused call wrote";
  EXPECT_EQ(call({5, 3}, {1, 5, 6}, 12), "");
  EXPECT_EQ(call({1, 4, 3}, {1, 4, 6}, 12), "");
  EXPECT_EQ(call({3}, {1, 1, 6}, 12), "");
}

REFUSES(graph_group_offset) {
  const auto with = [](Dims dim, bool other) {
    return validated([&](Moe& m) {
      const Tensor y = m.product();
      const Tensor o = other ? m.input("other", {4}, DataType::int32) : m.offset;
      m.g.reduction(y, ReductionMode::amax, {.name = "r"}, o).set_dim(std::move(dim)).set_output(true);
    });
  };
  EXPECT_EQ(with({4, 1, 1}, true),
            "invalid_graph [graph.group_offset] reduction 'r', tensor 'other': got offsets that do not group the rows of "
            "'moe::out', wanted those of the grouped product before it");
  EXPECT_EQ(with({3, 1, 1}, false),
            "invalid_graph [graph.group_offset] reduction 'r': got output extents (3, 1, 1), wanted (4, 1, 1) or (4, 1, 6)");
  EXPECT_EQ(with({4, 1, 1}, false), "");
  EXPECT_EQ(
      validated(
          [](Moe& m) { m.g.reduction(m.product(), ReductionMode::amax, {.name = "r"}).set_dim({4, 1, 1}).set_output(true); }),
      "invalid_graph [graph.reduction_dim] reduction 'r': got output extents (4, 1, 1) for input (1, 12, 6), wanted each 1 or "
      "the full one, and a reduced axis; with group_offset a result for each group");
  EXPECT_EQ(with({4, 1, 6}, false), "");
  EXPECT_EQ(validated([](Moe& m) {
              combines(m);
              const Tensor y = m.product();
              m.g.reduction(y, ReductionMode::amax, {.name = "r"}, m.offset).set_dim({4, 1, 1}).set_output(true);
            }),
            "invalid_graph [graph.group_offset] reduction 'r', tensor 'o': got offsets that do not group the rows of 'moe::out', "
            "wanted those of the grouped product before it");
}

REFUSES(chain_group_alike) {
  const auto with = [](const std::function<void(Moe&)>& between, bool is_matmul) {
    return declined([&](Moe& m) {
      const Tensor x = m.product();
      between(m);
      const Tensor y = is_matmul ? m.g.matmul(m.input("a", {1, 12, 8}), m.input("b", {1, 8, 6}), {.name = "mm"}) : m.product();
      m.g.mul(x, y).set_output(true);
    });
  };
  EXPECT_EQ(with([](Moe&) {}, true), "chain.group_alike matmul 'mm' is not grouped as moe_grouped_matmul 'moe'");
  EXPECT_EQ(with([](Moe& m) { m.attributes.zero_fill = true; }, false),
            "chain.group_alike moe_grouped_matmul 'moe' is not grouped as moe_grouped_matmul 'moe'");
  EXPECT_EQ(with([](Moe&) {}, false), "");
}

REFUSES(chain_group_operand) {
  EXPECT_EQ(declined([](Moe& m) {
              m.offset = m.g.pointwise(PointwiseMode::abs, {m.input("raw", {4}, DataType::int32)}, {},
                                       {.compute_data_type = DataType::int32});
              m.offset.set_name("abs").set_data_type(DataType::int32);
              plain(m);
            }),
            "chain.group_operand tensor 'abs' of 'moe' is no plain input of the graph");
  EXPECT_EQ(declined(plain), "");
}

REFUSES(chain_group_scale) {
  const auto with = [](std::optional<int> axis, TensorReordering order, MoeMode mode = MoeMode::none) {
    return declined([&](Moe& m) {
      m.attributes.mode = mode;
      m.weight = {3, 8, 32};
      m.token = {1, 32, 8};
      m.index = {1, 32, 1};
      m.slot = {32};
      const auto both = m.g.block_scale_quantize(m.product(), 32, axis, {.name = "q"});
      Tensor(both[0]).set_data_type(DataType::fp8_e4m3).set_output(true);
      Tensor(both[1]).set_data_type(DataType::fp8_e8m0).set_reordering_type(order).set_output(true);
    });
  };
  EXPECT_EQ(with(1, TensorReordering::none, MoeMode::gather),
            "chain.group_scale node 'q' quantises rows of groups that have token indices along M");
  EXPECT_EQ(with(1, TensorReordering::f8_128x4), "");
  EXPECT_EQ(with({}, TensorReordering::f8_128x4, MoeMode::scatter),
            "chain.group_scale node 'q' quantises rows of groups that are scattered, with scales reordered to f8_128x4");
  EXPECT_EQ(with({}, TensorReordering::f8_128x4, MoeMode::gather), "");
  EXPECT_EQ(with({}, TensorReordering::f8_128x4), "");
  EXPECT_EQ(with({}, TensorReordering::none), "");
  const auto scaled = [](TensorReordering order, MoeMode mode) {
    return declined([&](Moe& m) { scaled_tokens(m, {1, 12, 1}, order, mode); });
  };
  EXPECT_EQ(scaled(TensorReordering::f8_128x4, MoeMode::gather),
            "chain.group_scale node 'dq' has scales reordered to f8_128x4 where tokens are gathered or combined");
  EXPECT_EQ(scaled(TensorReordering::f8_128x4, MoeMode::none), "");
  EXPECT_EQ(scaled(TensorReordering::none, MoeMode::gather), "");
  EXPECT_EQ(declined([&](Moe& m) {
              const Tensor t = m.input("t", {1, 12, 32}, DataType::fp8_e4m3), s = m.input("s", {1, 12, 1}, DataType::fp8_e8m0);
              const Tensor x = m.g.block_scale_dequantize(t, s, {1, 32}, {.name = "dq"});
              m.g.moe_grouped_matmul_bwd(x, m.input("d", {1, 12, 6}), m.input("o", {4}, DataType::int32)).set_output(true);
            }),
            "chain.group_scale node 'dq' has scales of a product with groups along K");
}

// Twelve rows in four groups may take four atoms down.
TEST(RefusesGroupAtoms, WithoutRoomForAnyGroups) {
  const auto with = [](const Dims& dim) {
    return validated([&](Moe& m) { scaled_tokens(m, dim, TensorReordering::f8_128x4, MoeMode::none); });
  };
  EXPECT_EQ(with({1, 128, 4}),
            "invalid_graph [graph.scale_extent] block_scale_dequantize 'dq', tensor 's': got extents (1, 128, 4), wanted 2048 "
            "bytes in whole atoms of 128 by 4 for 12 rows in 4 groups, or (1, 12, 1)");
  EXPECT_EQ(with({1, 512, 4}), "");
  const auto made = [](const Dims& dim) {
    return validated([&](Moe& m) {
      m.weight = {3, 8, 32};
      const auto both = m.g.block_scale_quantize(m.product(), 32, {}, {.name = "q"});
      Tensor(both[0]).set_data_type(DataType::fp8_e4m3).set_output(true);
      Tensor(both[1]).set_name("s").set_data_type(DataType::fp8_e8m0).set_output(true);
      Tensor(both[1]).set_reordering_type(TensorReordering::f8_128x4).set_dim(dim);
    });
  };
  EXPECT_EQ(made({1, 128, 4}),
            "invalid_graph [graph.output_dim] block_scale_quantize 'q', tensor 's': got extents (1, 128, 4), wanted (1, 512, 4)");
  EXPECT_EQ(made({1, 600, 4}),
            "invalid_graph [graph.output_dim] block_scale_quantize 'q', tensor 's': got extents (1, 600, 4), wanted (1, 512, 4)");
  EXPECT_EQ(made({1, 512, 4}), "");
  EXPECT_EQ(made({1, 640, 4}), "");
}

TEST(RefusesGroupAtoms, ABlobThatIsTooSmallForACall) {
  Moe m;
  scaled_tokens(m, {1, 12, 1}, TensorReordering::f8_128x4, MoeMode::none);
  const CompiledPlan plan = m.g.compile();
  std::vector<std::uint8_t> memory(16384, 0);
  const auto said_of = [&](std::int64_t rows, std::int64_t groups, std::int64_t bytes, DataType type, std::int64_t step) {
    std::vector<TensorView> views;
    for (const OperandInfo& o : plan.operands()) {
      const auto dense = [&](std::initializer_list<std::int64_t> dim) { return TensorView::dense(memory.data(), o.dtype, dim); };
      views.push_back(o.name == "t"   ? dense({1, rows, 32})
                      : o.name == "s" ? TensorView::strided(memory.data(), type, {bytes}, {step})
                      : o.name == "w" ? dense({3, 32, 6})
                      : o.name == "o" ? dense({groups})
                                      : TensorView::dense(memory.data() + 8192, o.dtype, {1, rows, 6}));
    }
    const Status status = plan.execute(views);
    return status.ok() ? std::string() : std::string(plan.explain(status, views).what());
  };
  const std::string who = "invalid_call [call.scale_size] a_scale 's': got ";
  constexpr DataType kE8m0 = DataType::fp8_e8m0;
  EXPECT_EQ(said_of(12, 4, 2047, kE8m0, 1),
            who + "2047 bytes in shape (2047), wanted 2048 bytes: 4 atoms of 128 by 4 for 12 rows in 4 groups of 1 scales");
  EXPECT_EQ(said_of(132, 4, 2048, kE8m0, 1),
            who + "2048 bytes in shape (2048), wanted 2560 bytes: 5 atoms of 128 by 4 for 132 rows in 4 groups of 1 scales");
  EXPECT_EQ(said_of(131, 4, 2048, kE8m0, 1), "");
  EXPECT_EQ(said_of(3, 9, 1536, kE8m0, 1), "");
  EXPECT_EQ(said_of(3, 9, 1535, kE8m0, 1),
            who + "1535 bytes in shape (1535), wanted 1536 bytes: 3 atoms of 128 by 4 for 3 rows in 9 groups of 1 scales");
  EXPECT_EQ(said_of(0, 4, 0, kE8m0, 1), "");
  EXPECT_EQ(said_of(12, 0, 0, kE8m0, 1), "");
  EXPECT_EQ(said_of(12, 4, 2048, DataType::fp8_e4m3, 1),
            "invalid_call [call.dtype] a_scale 's': got fp8_e4m3, wanted fp8_e8m0 as declared");
  EXPECT_EQ(
      said_of(12, 4, 2048, kE8m0, 2),
      "invalid_call [call.scale_extent] a_scale 's': got shape (2048) with strides (2), wanted a dense run of rank 1 or more");
}

REFUSES(chain_pointer_table) {
  const auto with = [](bool on_weights) {
    return declined([&](Moe& m) {
      Tensor w = m.input("w", m.weight);
      if (on_weights) w.set_by_pointers(true);
      Tensor y = m.product(w);
      Tensor x = m.input("x", {1, 12, 6});
      if (!on_weights) x.set_by_pointers(true);
      m.g.add(y, x).set_output(true);
    });
  };
  EXPECT_EQ(with(false), "chain.pointer_table tensor 'x' is passed by pointers");
  EXPECT_EQ(with(true), "");
  const auto scaled = [](bool tokens, bool weights, bool scales) {
    return declined([&](Moe& m) {
      Tensor x = m.input("x", {1, 12, 32}), w = m.input("w", {3, 32, 6}, DataType::fp8_e4m3);
      Tensor s = m.input("s", {3, 1, 6}, DataType::fp8_e8m0);
      x.set_by_pointers(tokens), w.set_by_pointers(weights), s.set_by_pointers(scales);
      m.g.moe_grouped_matmul(x, m.g.block_scale_dequantize(w, s, {32, 1}), m.input("o", {4}, DataType::int32)).set_output(true);
    });
  };
  EXPECT_EQ(scaled(true, false, false), "chain.pointer_table tensor 'x' is passed by pointers");
  EXPECT_EQ(scaled(false, false, true), "chain.pointer_table tensor 's' is passed by pointers, and what it scales is not");
  for (const bool scales : {false, true}) EXPECT_EQ(scaled(false, true, scales), "");
}

REFUSES(chain_accumulate) {
  const auto with = [](bool is_read) {
    return declined([&](Moe& m) {
      m.gradient.accumulate = true;
      Tensor dw = m.backward();
      dw.set_output(true);
      if (is_read) m.g.pointwise(PointwiseMode::relu, {dw}, {}, {.name = "relu"}).set_output(true);
    });
  };
  EXPECT_EQ(with(true), "chain.accumulate what 'dw' adds to its output is read by 'relu'");
  EXPECT_EQ(with(false), "");
}

struct OfGroups {
  MoeMode mode = MoeMode::none;
  std::int64_t groups = 4;
  bool by_pointers = false, zero_fill = false, keeps_sum = false, reduces = false, reduces_rows = false, is_gradient = false;
  DataType out = DataType::bf16;
  bool converts = false, scales = false, quantises = false, has_other = false;
  ReductionMode reduction = ReductionMode::amax;
};
/// Of bf16, y (1, 12, 8) or the gradient (groups, 8, 8).
std::string said_by_sm90(const OfGroups& c) {
  Moe m;
  const auto input = [&](const char* name, const Dims& dim) { return m.input(name, dim, DataType::bf16); };
  const Tensor x = input("x", {1, 12, c.scales ? 32 : 8});
  Tensor w = c.is_gradient ? input("dy", {1, 12, 8}) : input("w", {3, 8, c.quantises ? 16 : 8});
  const Tensor o = m.input("o", {c.groups}, DataType::int32);
  Tensor i, s;
  if (c.mode != MoeMode::none) i = m.input("i", {1, 12, 1}, DataType::int32);
  if (c.mode >= MoeMode::scatter) s = m.input("s", {1, 12, 1}, DataType::int32);
  const Tensor score = c.mode == MoeMode::combine ? m.input("score", {12, 1}) : Tensor();
  if (c.by_pointers) w.set_by_pointers(true);
  const auto on_the_way = [&](Tensor t) {
    if (c.converts) return m.g.relu(t).set_data_type(DataType::bf16);
    if (!c.scales) return t;
    const Tensor narrow = m.input("narrow", {3, 32, 8}, DataType::fp8_e4m3);
    return m.g.block_scale_dequantize(narrow, m.input("scale", {3, 1, 8}, DataType::fp8_e8m0), {32, 1});
  };
  w = on_the_way(w);
  Tensor y = c.is_gradient ? m.g.moe_grouped_matmul_bwd(x, w, o, {.accumulate = true})
                           : m.g.moe_grouped_matmul(x, w, o, {.mode = c.mode, .zero_fill = c.zero_fill}, i, s, score);
  if (c.has_other) y = m.g.add(y, m.g.moe_grouped_matmul(x, input("other", {3, 8, 8}), o));
  y.set_output(true).set_data_type(c.out);
  if (c.quantises) {
    const auto [data, scale] = m.g.block_scale_quantize(y, 16);
    Tensor(data).set_output(true).set_data_type(DataType::fp8_e4m3);
    Tensor(scale).set_output(true).set_data_type(DataType::fp8_e8m0);
  }
  if (c.keeps_sum) m.g.relu(y).set_output(true).set_data_type(DataType::bf16);
  if (c.reduces)
    m.g.reduction(y, c.reduction).set_dim({1, c.reduces_rows ? 12 : 1, 1}).set_output(true).set_data_type(DataType::fp32);
  const PlanList plans = m.g.plans({.device = {DeviceType::cuda, 0}});
  for (const DeclineRecord& d : plans.declines())
    if (d.engine == "sm90") return d.rule == "sm90.grouped" ? d.rule + " " + d.text : "";
  return {};
}

REFUSES(sm90_grouped) {
  EXPECT_EQ(said_by_sm90({.groups = 1025}), "sm90.grouped group_offset 'o': 1025 groups of at most 1024");
  EXPECT_EQ(said_by_sm90({.is_gradient = true, .out = DataType::int8}), "sm90.grouped group_offset 'o': adds to int8");
  for (const OfGroups& served : {OfGroups{},
                                 {.mode = MoeMode::gather},
                                 {.mode = MoeMode::scatter, .reduces = true},
                                 {.mode = MoeMode::scatter, .reduces = true, .reduction = ReductionMode::avg},
                                 {.mode = MoeMode::scatter, .zero_fill = true},
                                 {.mode = MoeMode::combine},
                                 {.mode = MoeMode::gather, .keeps_sum = true},
                                 {.groups = 1024},
                                 {.zero_fill = true},
                                 {.keeps_sum = true},
                                 {.is_gradient = true},
                                 {.zero_fill = true, .reduces = true},
                                 {.zero_fill = true, .keeps_sum = true},
                                 {.zero_fill = true, .reduces = true, .reduces_rows = true},
                                 {.zero_fill = true, .quantises = true},
                                 {.mode = MoeMode::gather, .zero_fill = true, .keeps_sum = true},
                                 {.by_pointers = true},
                                 {.has_other = true},
                                 {.by_pointers = true, .has_other = true},
                                 {.converts = true},
                                 {.scales = true},
                                 {.quantises = true},
                                 {.reduces = true, .reduces_rows = true}})
    EXPECT_EQ(said_by_sm90(served), "");
}

REFUSES(call_data) {
  Moe m;
  plain(m);
  const CompiledPlan plan = m.g.compile();
  std::vector<float> t(96, 1.0F), w(144, 1.0F), y(72, -7.0F);
  std::array<std::int32_t, 4> o = {0, 5, 4, 13};
  const std::vector<TensorView> views = {
      TensorView::dense(t.data(), DataType::fp32, {1, 12, 8}), TensorView::dense(w.data(), DataType::fp32, {3, 8, 6}),
      TensorView::dense(o.data(), DataType::int32, {4}), TensorView::dense(y.data(), DataType::fp32, {1, 12, 6})};
  BoundCall bound = plan.bind(views);
  EXPECT_TRUE(plan.execute(views).ok());  // clamped: every row has a group
  EXPECT_EQ(y, std::vector<float>(72, 8.0F));
  y.assign(72, -7.0F);
  o = {0, 5, 5, 12};
  const Status status = plan.execute(views);
  EXPECT_EQ(
      plan.explain(status, views).what(),
      std::string("invalid_call [call.data] group_offset 'o': got offsets that fall or leave the rows in a call before this one, "
                  "wanted data that fit: check() reads and forgets this"));
  EXPECT_EQ(y, std::vector<float>(72, -7.0F)) << "a refused call wrote";
  EXPECT_FALSE(bound().ok());
  EXPECT_EQ(said([&] { plan.check(); }),
            "invalid_call [call.data] group_offset 'o': got offsets that fall or leave the rows, wanted data that fit");
  EXPECT_EQ(said([&] { plan.check(); }), "");
  EXPECT_TRUE(bound().ok());
  EXPECT_TRUE(plan.execute(views).ok());
  EXPECT_EQ(said([&] { plan.check(); }), "");
}

}  // namespace
