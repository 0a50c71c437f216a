#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "numeric/convert.hpp"
#include "support/beside_cpu.hpp"

// Grouped products of operands that are converted or have scales of blocks, and with quantised outputs; all of it again with
// every operand at the end of mapped memory, and from a graph whose offsets and addresses change between replays. The CPU
// engine's bits.
namespace verglas {
namespace {

constexpr std::int64_t kRows = 304, kK = 160, kN = 192, kGroups = 9, kExperts = 3, kTokens = 176, kTopK = 2;

struct Case {
  std::string name;
  MoeMode mode = MoeMode::none;
  DataType type = DataType::bf16, weights = DataType::bf16, out = DataType::fp32;
  std::int64_t block = 0;               ///< of scales, of what is fp8 or fp4
  bool converts = false;                ///< tokens and weights are multiplied by a number each and rounded to bf16
  bool alpha = false;                   ///< of each group
  std::int64_t quantises = 0, gap = 0;  ///< elements behind each quantised row
  bool by_address = false, scales_by_address = false, in_atoms = false, is_gradient = false;
  bool zero_fill = false;
};
std::ostream& operator<<(std::ostream& o, const Case& c) { return o << c.name; }

std::int64_t results_of(const Case& c) { return c.mode == MoeMode::combine ? kRows / kTopK : kRows; }
std::int64_t tokens_of(const Case& c) { return c.mode == MoeMode::gather ? kTokens : kRows; }

void describe(Graph& g, const Case& c) {
  const auto tensor = [&](const char* name, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride, DataType t) {
    return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
  };
  const std::int64_t tokens = tokens_of(c), blocks = c.block == 0 ? 0 : kK / c.block;
  const DataType scale = c.block == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0;
  Tensor x = tensor("x", {1, tokens, kK}, {tokens * kK, kK, 1}, c.type);
  Tensor w = c.is_gradient ? tensor("w", {1, kRows, kN}, {kRows * kN, kN, 1}, c.weights)
                           : tensor("w", {kExperts, kK, kN}, {kN * kK, 1, kK}, c.weights);
  w.set_by_pointers(c.by_address);
  if (c.block != 0 && bits_of(c.type) <= 8)
    x = g.block_scale_dequantize(x, tensor("sx", {1, tokens, blocks}, {tokens * blocks, blocks, 1}, scale), {1, c.block});
  if (c.block != 0) {
    const std::int64_t rows = c.in_atoms ? (kN + 127) / 128 * 128 : kN, of_row = c.in_atoms ? (blocks + 3) / 4 * 4 : blocks;
    Tensor sw = tensor("sw", {kExperts, of_row, rows}, {rows * of_row, 1, of_row}, scale);
    sw.set_by_pointers(c.scales_by_address);
    if (c.in_atoms) sw.set_reordering_type(TensorReordering::f8_128x4);
    w = g.block_scale_dequantize(w, sw, {c.block, 1});
  }
  if (c.converts) {
    x = g.mul(x, tensor("factor_x", {1, 1, 1}, {1, 1, 1}, DataType::fp32)).set_data_type(DataType::bf16);
    w = g.mul(w, tensor("factor_w", {1, 1, 1}, {1, 1, 1}, DataType::fp32)).set_data_type(DataType::bf16);
  }
  const Tensor o = tensor("o", {kGroups}, {1}, DataType::int32);
  const auto list = [&](const char* name) { return tensor(name, {1, kRows, 1}, {kRows, 1, 1}, DataType::int32); };
  const Tensor index = c.mode == MoeMode::none ? Tensor() : list("index");
  const Tensor slot = c.mode >= MoeMode::scatter ? list("slot") : Tensor();
  const Tensor score =
      c.mode == MoeMode::combine ? tensor("routing", {results_of(c), kTopK}, {kTopK, 1}, DataType::fp32) : Tensor();
  const MoeAttributes attributes{.compute_data_type = c.type == DataType::int8 ? DataType::int32 : DataType::not_set,
                                 .mode = c.mode,
                                 .top_k = c.mode >= MoeMode::scatter ? kTopK : 1,
                                 .zero_fill = c.zero_fill};
  Tensor y = c.is_gradient ? g.moe_grouped_matmul_bwd(x, w, o) : g.moe_grouped_matmul(x, w, o, attributes, index, slot, score);
  if (c.alpha) y = g.mul(y, tensor("alpha", {kGroups, 1, 1}, {1, 1, 1}, DataType::fp32));
  if (c.quantises != 0) {
    auto [data, made] = g.block_scale_quantize(y, c.quantises, std::optional<int>(2));
    data.set_name("q").set_data_type(c.quantises == 16 ? DataType::fp4_e2m1 : DataType::fp8_e4m3).set_output(true);
    data.set_stride({results_of(c) * (kN + c.gap), kN + c.gap, 1});
    made.set_name("s").set_data_type(c.quantises == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0).set_output(true);
    if (c.mode == MoeMode::gather) return;  // the quantised output alone
  }
  y.set_output(true).set_name("y").set_data_type(c.out);
}

std::vector<std::uint8_t> bytes_of_list(const std::vector<std::int32_t>& list) {
  std::vector<std::uint8_t> bytes(4 * list.size());
  std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

/// First rows of groups that rise from 5 or so; some are empty.
std::vector<std::uint8_t> offsets(std::mt19937& random) {
  std::vector<std::int32_t> first(kGroups);
  for (std::int32_t& f : first) f = static_cast<std::int32_t>(random() % (kRows + 1));
  std::sort(first.begin(), first.end());
  first[3] = first[4];
  return bytes_of_list(first);
}

void fill(std::mt19937& random, const Case& c, const OperandInfo& info, std::vector<std::uint8_t>& bytes) {
  if (info.name == "o") {
    bytes = offsets(random);
  } else if (info.name == "index" || info.name == "slot") {
    std::vector<std::int32_t> places(kRows);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
    std::mt19937 same(3);
    std::shuffle(places.begin(), places.end(), same);
    for (std::int32_t& p : places)
      p = c.mode == MoeMode::gather ? (p % 29 == 0 ? -1 : p % static_cast<std::int32_t>(kTokens))
                                    : static_cast<std::int32_t>(info.name == "index" ? p / kTopK : p % kTopK);
    bytes = bytes_of_list(places);
  } else if (info.dtype == DataType::fp4_e2m1) {
    for (std::uint8_t& pair : bytes) pair = static_cast<std::uint8_t>(random() % 5 | random() % 5 << 4);
  } else if (info.dtype == DataType::fp8_e8m0) {
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(125 + random() % 4);
  } else {
    const bool is_scale = info.name[0] == 's';
    const auto size = static_cast<std::size_t>(bytes_of(info.dtype));
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      const float integer = static_cast<float>(static_cast<int>(random() % 5) - 2);
      numeric::from_float(is_scale                  ? 0.5F * static_cast<float>(1 + random() % 4)
                          : info.name == "factor_x" ? 0.5F
                                                    : integer,
                          bytes.data() + at, info.dtype);
    }
  }
}

class Sm90GroupedOperands : public support::GpuTest, public ::testing::WithParamInterface<Case> {
 protected:
  support::BesideCpu beside(bool at_edge) {
    const Case& c = GetParam();
    return {*driver_,
            [&](Graph& g) { describe(g, c); },
            [&](const OperandInfo& info, std::vector<std::uint8_t>& bytes) { fill(random_, c, info, bytes); },
            {.at_edge = at_edge,
             .matrix_bytes = c.by_address ? static_cast<std::size_t>(kK * kN * bits_of(c.weights) / 8) : 0,
             .matrix = c.weights,
             .scales_bytes = c.scales_by_address ? bytes_of_scales(c) : 0,
             .scales = c.block == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0}};
  }
  static std::size_t bytes_of_scales(const Case& c) {
    const std::int64_t blocks = kK / c.block;
    return static_cast<std::size_t>(c.in_atoms ? (kN + 127) / 128 * 128 * ((blocks + 3) / 4 * 4) : kN * blocks);
  }
  void run_all(support::BesideCpu& both) {
    const PlanList& plans = both.plans();
    ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
    for (const std::size_t i : support::each_tile_once(plans)) {
      both.set("o", offsets(random_));
      both.prepare();
      const CompiledPlan plan = plans.compile(i);
      ASSERT_TRUE(plan.execute(both.call()).ok()) << plan.name();
      both.compare(plan.name());
    }
  }
  std::mt19937 random_{11};
};

TEST_P(Sm90GroupedOperands, GiveTheBitsOfTheCpuEngine) {
  support::BesideCpu both = beside(false);
  run_all(both);
}

TEST_P(Sm90GroupedOperands, AreNotReadOrWrittenBehindTheirLastByte) {
  support::BesideCpu both = beside(true);
  run_all(both);
}

TEST_P(Sm90GroupedOperands, HaveNoRowsWhereScalesHaveNoAddress) {
  if (!GetParam().scales_by_address) return;
  support::BesideCpu both = beside(false);
  both.drop_scales(1);
  for (const std::size_t i : support::each_tile_once(both.plans())) {
    both.prepare();
    const CompiledPlan plan = both.plans().compile(i);
    ASSERT_TRUE(plan.execute(both.call()).ok()) << plan.name();
    both.compare(plan.name());
    EXPECT_THROW(plan.check(), Error) << plan.name();
  }
}

TEST_P(Sm90GroupedOperands, MayChangeOffsetsAndAddressesBetweenReplays) {
  support::BesideCpu both = beside(false);
  const CompiledPlan plan = both.plans().compile();
  cuda::CUstream stream = nullptr;
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec executable = nullptr;
  const auto ok = [&](cuda::CUresult code) { cuda::check(*driver_, code, "a driver call", "a test"); };
  ok(driver_->cuStreamCreate(&stream, cuda::kStreamNonBlocking));
  ok(driver_->cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_TRUE(plan.execute(both.call(), {stream}).ok());
  ok(driver_->cuStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  ok(driver_->cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 1U);
  ok(driver_->cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int replay = 0; replay < 6; ++replay) {
    both.set("o", offsets(random_));
    both.turn_table();
    both.prepare();
    ok(driver_->cuCtxSynchronize());
    ok(driver_->cuGraphLaunch(executable, stream));
    both.compare("replay " + std::to_string(replay));
  }
  ok(driver_->cuGraphExecDestroy(executable));
  ok(driver_->cuGraphDestroy(graph));
  ok(driver_->cuStreamDestroy(stream));
}

constexpr DataType kE4m3 = DataType::fp8_e4m3, kE5m2 = DataType::fp8_e5m2, kFp4 = DataType::fp4_e2m1;
INSTANTIATE_TEST_SUITE_P(
    Gpu, Sm90GroupedOperands,
    ::testing::Values(
        Case{.name = "combine", .mode = MoeMode::combine},
        Case{.name = "scatter_zeros", .mode = MoeMode::scatter, .zero_fill = true},
        Case{.name = "combine_converted", .mode = MoeMode::combine, .type = kE4m3, .weights = DataType::fp32, .converts = true},
        Case{.name = "combine_by_address", .mode = MoeMode::combine, .out = DataType::bf16, .by_address = true},
        Case{.name = "combine_mxfp8", .mode = MoeMode::combine, .type = kE4m3, .weights = kE4m3, .block = 32},
        Case{.name = "combine_nvfp4", .mode = MoeMode::combine, .type = kFp4, .weights = kFp4, .block = 16},
        Case{.name = "combine_int8", .mode = MoeMode::combine, .type = DataType::int8, .weights = DataType::int8},
        Case{.name = "combine_quantised", .mode = MoeMode::combine, .quantises = 32},
        Case{.name = "scatter_zeros_quantised", .mode = MoeMode::scatter, .quantises = 32, .zero_fill = true},
        Case{.name = "plain"}, Case{.name = "gather", .mode = MoeMode::gather, .out = DataType::bf16},
        Case{.name = "scatter", .mode = MoeMode::scatter}, Case{.name = "gradient", .is_gradient = true},
        Case{.name = "by_address", .by_address = true},
        Case{.name = "by_address_gather", .mode = MoeMode::gather, .out = DataType::bf16, .by_address = true},
        Case{.name = "fp8_alpha", .type = kE4m3, .weights = kE4m3, .alpha = true},
        Case{.name = "fp8_by_address", .type = kE4m3, .weights = kE5m2, .alpha = true, .by_address = true},
        Case{.name = "int8_by_address_converted", .weights = DataType::int8, .converts = true, .by_address = true},
        Case{.name = "mxfp8_by_address",
             .type = kE4m3,
             .weights = kE4m3,
             .block = 32,
             .by_address = true,
             .scales_by_address = true},
        Case{.name = "mxfp8_by_address_atoms",
             .mode = MoeMode::gather,
             .type = kE4m3,
             .weights = kE5m2,
             .block = 32,
             .alpha = true,
             .by_address = true,
             .scales_by_address = true,
             .in_atoms = true},
        Case{.name = "mxfp8_by_address_scales_in_tensor",
             .mode = MoeMode::scatter,
             .type = kE4m3,
             .weights = kE4m3,
             .block = 32,
             .by_address = true},
        Case{.name = "nvfp4_by_address",
             .type = kFp4,
             .weights = kFp4,
             .block = 16,
             .quantises = 16,
             .by_address = true,
             .scales_by_address = true},
        Case{.name = "nvfp4_weights_by_address_atoms",
             .mode = MoeMode::combine,
             .weights = kFp4,
             .block = 16,
             .by_address = true,
             .scales_by_address = true,
             .in_atoms = true},
        Case{.name = "nvfp4_weights_by_address_scales_in_tensor",
             .mode = MoeMode::gather,
             .weights = kFp4,
             .block = 16,
             .by_address = true},
        Case{.name = "fp8_converted", .type = kE4m3, .weights = kE4m3, .converts = true},
        Case{.name = "converted_gather", .mode = MoeMode::gather, .type = kE4m3, .weights = DataType::fp32, .converts = true},
        Case{.name = "converted_gradient", .type = kE5m2, .weights = DataType::fp32, .converts = true, .is_gradient = true},
        Case{.name = "mxfp8", .type = kE4m3, .weights = kE4m3, .block = 32},
        Case{.name = "mxfp8_gather", .mode = MoeMode::gather, .type = kE4m3, .weights = kE5m2, .block = 32, .alpha = true},
        Case{.name = "mxfp8_scatter", .mode = MoeMode::scatter, .type = kE4m3, .weights = kE4m3, .block = 32},
        Case{.name = "nvfp4", .type = kFp4, .weights = kFp4, .block = 16, .alpha = true},
        Case{.name = "nvfp4_weights_gather", .mode = MoeMode::gather, .weights = kFp4, .block = 16},
        Case{.name = "quantised", .quantises = 32}, Case{.name = "quantised_gather", .mode = MoeMode::gather, .quantises = 16},
        Case{
            .name = "quantised_scatter", .mode = MoeMode::scatter, .type = kE4m3, .weights = kE4m3, .block = 32, .quantises = 32},
        // Rows of a thread are aligned each in its own way.
        Case{.name = "quantised_gather_uneven", .mode = MoeMode::gather, .quantises = 16, .gap = 2},
        Case{.name = "quantised_scatter_uneven", .mode = MoeMode::scatter, .quantises = 32, .gap = 4}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace verglas
