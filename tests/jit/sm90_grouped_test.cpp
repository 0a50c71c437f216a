#include <gtest/gtest.h>

#include <functional>

#include "chain/analyse.hpp"
#include "clean.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/engine.hpp"
#include "support/required.hpp"
#include "verglas/verglas.hpp"

// Epilogues of grouped products compile without a spill, a stack frame or a remark of ptxas, on every tile that is offered.
namespace verglas {
namespace {

constexpr std::int64_t kN = 1408, kGroups = 64;

/// Operands of a grouped graph.
struct Moe {
  std::int64_t rows, depth;
  Graph g;
  Tensor x = input("x", {1, rows, depth}), offsets = input("offsets", {kGroups}, DataType::int32);

  Tensor input(const char* name, std::vector<std::int64_t> dim, DataType t = DataType::bf16) {
    std::vector<std::int64_t> stride(dim.size(), 1);
    for (std::size_t i = dim.size() - 1; i-- > 0;) stride[i] = stride[i + 1] * dim[i + 1];
    return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
  }
  static constexpr std::int64_t kTopK = 8;
  Tensor index, slot, scores;
  bool is_gradient = false, by_address = false, scales_by_address = false, zero_fill = false;
  Tensor product(const char* name, MoeMode mode = MoeMode::none) {
    Tensor w = g.tensor({.name = name, .dim = {kGroups, depth, kN}, .stride = {depth * kN, 1, depth}});
    w.set_by_pointers(by_address);
    if (mode != MoeMode::none && !index.valid()) index = input("index", {1, rows, 1}, DataType::int32);
    if (mode >= MoeMode::scatter && !slot.valid()) slot = input("slot", {1, rows, 1}, DataType::int32);
    if (mode == MoeMode::combine && !scores.valid()) scores = input("scores", {rows / kTopK, kTopK}, DataType::fp32);
    const MoeAttributes attributes{.mode = mode, .top_k = mode >= MoeMode::scatter ? kTopK : 1, .zero_fill = zero_fill};
    return g.moe_grouped_matmul(x, w, offsets, attributes, index, slot, scores);
  }
  /// A value as MXFP8.
  void quantised(Tensor value, bool in_atoms = false, bool along_m = false) {
    const auto both = g.block_scale_quantize(value, 32, along_m ? std::optional<int>(1) : std::nullopt);
    Tensor(both[0]).set_output(true).set_data_type(DataType::fp8_e4m3);
    Tensor scales = Tensor(both[1]).set_output(true).set_data_type(DataType::fp8_e8m0);
    if (in_atoms) scales.set_reordering_type(TensorReordering::f8_128x4);
  }
  /// Runs of 32 columns by turns, with a probability of each row. `keeps`: what they are taken of is stored too.
  Tensor swiglu(Tensor both, bool keeps = false) {
    if (keeps) both.set_output(true).set_data_type(DataType::bf16);
    const Tensor gate = g.take_runs(both, 32, false), up = g.take_runs(both, 32, true);
    return g.mul(g.mul(g.swish(gate), up), input("prob", {1, rows, 1}, DataType::fp32));
  }
  /// With scales of blocks on both sides.
  Tensor scaled(DataType type, std::int64_t block, MoeMode mode, bool in_atoms = false) {
    const DataType scale = block == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0;
    const std::int64_t blocks = depth / block;
    Tensor narrow = g.tensor({.name = "w", .dim = {kGroups, depth, kN}, .stride = {depth * kN, 1, depth}, .data_type = type});
    narrow.set_by_pointers(by_address);
    Tensor of_w = g.tensor({.name = "sw", .dim = {kGroups, blocks, kN}, .stride = {blocks * kN, 1, blocks}, .data_type = scale});
    const Tensor of_t = input("st", {1, rows, blocks}, scale);
    of_w.set_by_pointers(scales_by_address);
    for (Tensor s : {of_t, of_w})
      if (in_atoms) s.set_reordering_type(TensorReordering::f8_128x4);
    const Tensor tokens = g.block_scale_dequantize(input("t", {1, rows, depth}, type), of_t, {1, block});
    const Tensor weights = g.block_scale_dequantize(narrow, of_w, {block, 1});
    const Tensor list = mode == MoeMode::none ? Tensor() : input("index", {1, rows, 1}, DataType::int32);
    if (mode != MoeMode::combine) return g.moe_grouped_matmul(tokens, weights, offsets, {.mode = mode}, list);
    return g.moe_grouped_matmul(tokens, weights, offsets, {.mode = mode, .top_k = kTopK}, list,
                                input("slot", {1, rows, 1}, DataType::int32), input("scores", {rows / kTopK, kTopK}));
  }
  /// Short: few rows of little depth, whose tiles are found ahead.
  explicit Moe(bool is_short) : rows(is_short ? 2048 : 8192), depth(is_short ? 64 : 2048) {}
  void reduce(const Tensor& y, ReductionMode mode, std::vector<std::int64_t> dim) {
    const bool of_groups = dim[0] > 1 && !is_gradient;
    g.reduction(y, mode, {}, of_groups ? offsets : Tensor())
        .set_dim(std::move(dim))
        .set_output(true)
        .set_data_type(DataType::fp32);
  }
};

struct Named {
  std::string name;
  std::function<void(Moe&)> describe;
  bool by_address = false, is_short = false;
};
std::vector<Named> graphs() {
  return {
      {"bias_of_groups",
       [](Moe& m) {
         const Tensor scaled = m.g.mul(m.product("w"), m.input("prob", {1, m.rows, 1}, DataType::fp32));
         m.g.add(scaled, m.input("bias", {kGroups, 1, kN})).set_output(true);
       }},
      {"swiglu_of_groups",
       [](Moe& m) {
         const Tensor gate = m.g.add(m.product("gate"), m.input("gate_bias", {kGroups, 1, kN}));
         const Tensor up = m.g.add(m.product("up"), m.input("up_bias", {kGroups, 1, kN}));
         m.g.mul(m.g.swish(gate), up).set_output(true);
       }},
      {"gathered",
       [](Moe& m) {
         const Tensor y = m.g.mul(m.product("w", MoeMode::gather), m.input("prob", {1, m.rows, 1}, DataType::fp32));
         m.g.add(y, m.input("bias", {kGroups, 1, kN})).set_output(true);
       }},
      {"scattered",
       [](Moe& m) {
         const Tensor y = m.g.mul(m.product("w", MoeMode::scatter), m.input("prob", {1, m.rows, 1}, DataType::fp32));
         m.g.add(y, m.input("residual", {1, m.rows, kN})).set_output(true);
         m.reduce(y, ReductionMode::amax, {1, m.rows, 1});
       }},
      {"two_outputs",
       [](Moe& m) {
         const Tensor y = m.product("w").set_output(true).set_data_type(DataType::bf16);
         m.g.relu(y).set_output(true);
       }},
      {"reductions_of_groups",
       [](Moe& m) {
         const Tensor y = m.product("w").set_output(true);
         m.reduce(y, ReductionMode::amax, {kGroups, 1, 1});
         m.reduce(y, ReductionMode::add, {kGroups, 1, kN});
       }},
      {"reductions_of_all",
       [](Moe& m) {
         const Tensor y = m.product("w").set_output(true);
         m.reduce(y, ReductionMode::avg, {1, 1, kN});
         m.reduce(y, ReductionMode::norm2, {1, m.rows, 1});
       }},
      {"weights_by_address", [](Moe& m) { m.product("w").set_output(true); }, true},
      {"gathered_by_address", [](Moe& m) { m.product("w", MoeMode::gather).set_output(true); }, true},
      {"swiglu_half_by_address",
       [](Moe& m) {
         const Tensor gate = m.product("gate");
         m.by_address = false;
         m.g.mul(m.g.swish(gate), m.product("up")).set_output(true);
       },
       true},
      {"swiglu_by_address", [](Moe& m) { m.g.mul(m.g.swish(m.product("gate")), m.product("up")).set_output(true); }, true},
      {"quantised", [](Moe& m) { m.quantised(m.product("w", MoeMode::scatter)); }},
      {"mxfp8", [](Moe& m) { m.scaled(DataType::fp8_e4m3, 32, MoeMode::none).set_output(true); }},
      {"mxfp8_gathered", [](Moe& m) { m.scaled(DataType::fp8_e4m3, 32, MoeMode::gather).set_output(true); }},
      {"nvfp4", [](Moe& m) { m.scaled(DataType::fp4_e2m1, 16, MoeMode::none).set_output(true); }},
      {"mxfp8_atoms", [](Moe& m) { m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true).set_output(true); }},
      {"mxfp8_by_address",
       [](Moe& m) {
         m.scales_by_address = true;
         m.scaled(DataType::fp8_e4m3, 32, MoeMode::none).set_output(true);
       },
       true},
      {"mxfp8_by_address_atoms_to_mxfp8",
       [](Moe& m) {
         m.scales_by_address = true;
         m.quantised(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true), true);
       },
       true},
      {"mxfp8_by_address_scales_in_tensor", [](Moe& m) { m.scaled(DataType::fp8_e4m3, 32, MoeMode::gather).set_output(true); },
       true},
      {"nvfp4_by_address",
       [](Moe& m) {
         m.scales_by_address = true;
         m.scaled(DataType::fp4_e2m1, 16, MoeMode::none).set_output(true);
       },
       true},
      {"nvfp4_by_address_atoms",
       [](Moe& m) {
         m.scales_by_address = true;
         m.scaled(DataType::fp4_e2m1, 16, MoeMode::none, true).set_output(true);
       },
       true},
      {"nvfp4_by_address_scales_in_tensor", [](Moe& m) { m.scaled(DataType::fp4_e2m1, 16, MoeMode::none).set_output(true); },
       true},
      {"nvfp4_atoms", [](Moe& m) { m.scaled(DataType::fp4_e2m1, 16, MoeMode::none, true).set_output(true); }},
      {"quantised_atoms", [](Moe& m) { m.quantised(m.product("w"), true); }},
      {"mxfp8_to_mxfp8", [](Moe& m) { m.quantised(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none)); }},
      {"mxfp8_to_mxfp8_atoms", [](Moe& m) { m.quantised(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true), true); }},
      {"runs",
       [](Moe& m) {
         const Tensor y = m.swiglu(m.product("w"), true).set_output(true);
         m.reduce(y, ReductionMode::amax, {kGroups, 1, 1});
       }},
      {"runs_alone", [](Moe& m) { m.swiglu(m.product("w")).set_output(true); }},
      {"runs_with_bias",
       [](Moe& m) { m.swiglu(m.g.add(m.product("w"), m.input("bias", {kGroups, 1, kN})), true).set_output(true); }},
      {"runs_of_mxfp8_with_bias_to_mxfp8",
       [](Moe& m) {
         const Tensor both = m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true);
         m.quantised(m.swiglu(m.g.add(both, m.input("bias", {kGroups, 1, kN})), true), true);
       }},
      {"runs_of_mxfp8_to_mxfp8_alone",
       [](Moe& m) { m.quantised(m.swiglu(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true)), true); }},
      {"runs_gathered", [](Moe& m) { m.swiglu(m.product("w", MoeMode::gather), true).set_output(true); }},
      {"runs_scattered", [](Moe& m) { m.swiglu(m.product("w", MoeMode::scatter)).set_output(true); }},
      {"runs_by_address", [](Moe& m) { m.swiglu(m.product("w"), true).set_output(true); }, true},
      {"runs_of_mxfp8_in_atoms",
       [](Moe& m) { m.quantised(m.swiglu(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true), true), true); }},
      {"runs_of_nvfp4_to_mxfp8", [](Moe& m) { m.quantised(m.swiglu(m.scaled(DataType::fp4_e2m1, 16, MoeMode::none), true)); }},
      {"gathered_to_mxfp8_atoms", [](Moe& m) { m.quantised(m.product("w", MoeMode::gather), true); }},
      {"columns_to_mxfp8", [](Moe& m) { m.quantised(m.product("w"), false, true); }},
      {"both_ways_to_mxfp8_atoms",
       [](Moe& m) {
         const Tensor y = m.product("w");
         for (const bool along_m : {false, true}) m.quantised(y, true, along_m);
       }},
      {"mxfp8_both_ways_to_mxfp8_atoms",
       [](Moe& m) {
         const Tensor y =
             m.g.mul(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true), m.input("prob", {1, m.rows, 1}, DataType::fp32));
         for (const bool along_m : {false, true}) m.quantised(y, true, along_m);
         m.reduce(y, ReductionMode::amax, {kGroups, 1, 1});
       }},
      {"mxfp8_columns_beside_dense",
       [](Moe& m) {
         const Tensor y = m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true);
         m.g.relu(y).set_output(true);
         m.quantised(y, true, true);
       }},
      {"nvfp4_columns_to_mxfp8_atoms",
       [](Moe& m) { m.quantised(m.scaled(DataType::fp4_e2m1, 16, MoeMode::none, true), true, true); }},
      {"nvfp4_to_mxfp8_atoms", [](Moe& m) { m.quantised(m.scaled(DataType::fp4_e2m1, 16, MoeMode::none, true), true); }},
      {"gradient_of_squared_relu_of_mxfp8",
       [](Moe& m) {
         const Tensor r = m.g.relu(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true)), dy = m.input("dy", {1, m.rows, kN});
         m.g.mul(m.g.mul(m.g.scalar(2.0), r), m.g.mul(dy, m.input("prob", {1, m.rows, 1}, DataType::fp32))).set_output(true);
         m.reduce(m.g.mul(m.g.mul(r, r), dy), ReductionMode::add, {1, m.rows, 1});
       }},
      {"bias_gradient_of_mxfp8",
       [](Moe& m) {
         const Tensor y = m.scaled(DataType::fp8_e4m3, 32, MoeMode::none).set_output(true);
         m.reduce(y, ReductionMode::add, {kGroups, 1, kN});
         m.reduce(y, ReductionMode::amax, {kGroups, 1, 1});
       }},
      {"norms_of_nvfp4",
       [](Moe& m) {
         m.reduce(m.scaled(DataType::fp4_e2m1, 16, MoeMode::none).set_output(true), ReductionMode::norm2, {1, m.rows, 1});
       }},
      {"runs_of_mxfp8_with_amax",
       [](Moe& m) {
         const Tensor y = m.swiglu(m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true), true).set_output(true);
         m.reduce(y, ReductionMode::amax, {kGroups, 1, 1});
       }},
      {"mxfp8_in_fp32",
       [](Moe& m) { m.scaled(DataType::fp8_e4m3, 32, MoeMode::none, true).set_output(true).set_data_type(DataType::fp32); }},
      {"scattered_into_zeros",
       [](Moe& m) {
         m.zero_fill = true;
         const Tensor y = m.product("w", MoeMode::scatter).set_output(true);
         m.reduce(y, ReductionMode::amax, {1, m.rows, 1});
       }},
      {"gathered_mean",
       [](Moe& m) { m.reduce(m.product("w", MoeMode::gather).set_output(true), ReductionMode::avg, {1, 1, kN}); }},
      {"combined", [](Moe& m) { m.product("w", MoeMode::combine).set_output(true); }},
      {"combined_by_address", [](Moe& m) { m.product("w", MoeMode::combine).set_output(true); }, true},
      {"combined_pairs",
       [](Moe& m) {
         m.g.mul(m.g.swish(m.product("gate", MoeMode::combine)), m.product("up", MoeMode::combine)).set_output(true);
       }},
      {"combined_with_residual",
       [](Moe& m) {
         const Tensor y = m.product("w", MoeMode::combine);
         m.g.add(m.g.add(y, m.input("residual", {1, m.rows / m.kTopK, kN})), m.input("bias", {1, 1, kN})).set_output(true);
       }},
      {"combined_with_reductions",
       [](Moe& m) {
         const Tensor y = m.product("w", MoeMode::combine).set_output(true);
         m.reduce(y, ReductionMode::amax, {1, 1, 1});
         m.reduce(y, ReductionMode::add, {1, 1, kN});
         m.reduce(y, ReductionMode::norm2, {1, m.rows / m.kTopK, 1});
       }},
      {"combined_mxfp8", [](Moe& m) { m.scaled(DataType::fp8_e4m3, 32, MoeMode::combine).set_output(true); }},
      {"combined_nvfp4", [](Moe& m) { m.scaled(DataType::fp4_e2m1, 16, MoeMode::combine).set_output(true); }},
      {"combined_to_mxfp8", [](Moe& m) { m.quantised(m.product("w", MoeMode::combine), true); }},
      {"converted",
       [](Moe& m) {
         const Tensor scale = m.input("scale", {1, 1, 1}, DataType::fp32);
         const Tensor x =
             m.g.mul(m.input("narrow", {1, m.rows, m.depth}, DataType::fp8_e4m3), scale).set_data_type(DataType::bf16);
         const Tensor w = m.g.tensor({.name = "w", .dim = {kGroups, m.depth, kN}, .stride = {m.depth * kN, 1, m.depth}});
         m.g.moe_grouped_matmul(x, w, m.offsets).set_output(true);
       }},
      {"accumulated",
       [](Moe& m) {
         m.g.moe_grouped_matmul_bwd(m.x, m.input("dy", {1, m.rows, kN}), m.offsets, {.accumulate = true})
             .set_output(true)
             .set_data_type(DataType::fp32);
       }},
      {"gradient_with_norms",
       [](Moe& m) {
         m.is_gradient = true;
         const Tensor dw = m.g.moe_grouped_matmul_bwd(m.x, m.input("dy", {1, m.rows, kN}), m.offsets).set_output(true);
         m.reduce(dw, ReductionMode::norm2, {kGroups, 1, 1});
       }},
  };
}

/// Some of them of little depth.
std::vector<Named> short_graphs() {
  std::vector<Named> all = graphs();
  std::erase_if(all, [](const Named& n) {
    return n.name != "bias_of_groups" && n.name != "gathered" && n.name != "scattered" && n.name != "two_outputs" &&
           n.name != "weights_by_address" && n.name != "quantised" && n.name != "accumulated";
  });
  for (Named& n : all) n.is_short = true;
  return all;
}

class GroupedKernels : public ::testing::TestWithParam<Named> {};

TEST_P(GroupedKernels, CompileWithoutSpillStackOrRemark) {
  if (const auto nvrtc = cuda::nvrtc(); !nvrtc) VERGLAS_SKIP_FOR_WANT_OF("nvrtc", nvrtc.error().text);
  Moe m(GetParam().is_short);
  m.by_address = GetParam().by_address;
  GetParam().describe(m);
  m.g.validate();
  const auto chain = chain::analyse(m.g.data());
  ASSERT_TRUE(chain.has_value()) << chain.error().text;
  const auto claim = sm90::claim_chain(*chain);
  ASSERT_TRUE(claim.has_value()) << claim.error().text;
  const auto all = [](const Knobs&) { return true; };
  // What finds tiles of groups is not counted; as many instructions take about a second to compile.
  EXPECT_GE(jit_test::compile_clean(*chain, all, 5100), 2);
}

INSTANTIATE_TEST_SUITE_P(Jit, GroupedKernels, ::testing::ValuesIn(graphs()), [](const auto& i) { return i.param.name; });
INSTANTIATE_TEST_SUITE_P(Short, GroupedKernels, ::testing::ValuesIn(short_graphs()), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace verglas
