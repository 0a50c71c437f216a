#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "cuda/context.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// A call of a grouped product but for the arithmetic, on a driver in memory: one kernel, and no look at the offsets.
namespace verglas {
namespace {

using sm90::ParameterBlock;
using support::record_of;

constexpr std::int64_t kRows = 640, kN = 520, kK = 328, kExperts = 3, kGroups = 7;
constexpr Device kGpu{DeviceType::cuda, 0};

/// Addresses that nobody dereferences: kernels do not run here.
void* at(std::uintptr_t megabyte) { return reinterpret_cast<void*>(megabyte << 20); }

class Sm90GroupedLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("VERGLAS_CACHE", "off", 1);
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  }

  static CompiledPlan plan(bool by_address = false) {
    Graph g;
    const Tensor x = g.tensor({.name = "x", .dim = {1, kRows, kK}, .stride = {kRows * kK, kK, 1}});
    Tensor w = g.tensor({.name = "w", .dim = {kExperts, kK, kN}, .stride = {kK * kN, 1, kK}});
    w.set_by_pointers(by_address);
    const Tensor o = g.tensor({.name = "o", .dim = {kGroups}, .stride = {1}, .data_type = DataType::int64});
    g.moe_grouped_matmul(x, w, o).set_output(true);
    const PlanList plans = g.plans({.device = kGpu, .deselect_engines = {"cpu"}});
    EXPECT_GE(plans.size(), 1U) << plans.unsupported_text();
    return plans.compile();
  }
  /// A product whose rows have token indices, `listed` of them; of COMBINE `tokens` come out.
  static Tensor routed(Graph& g, const MoeAttributes& attributes, std::int64_t listed, std::int64_t tokens) {
    const auto input = [&](const char* name, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride, DataType t) {
      return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
    };
    const bool combines = attributes.mode == MoeMode::combine;
    const Tensor x = input("x", {1, kRows, kK}, {kRows * kK, kK, 1}, DataType::bf16);
    const Tensor w = input("w", {kExperts, kK, kN}, {kK * kN, 1, kK}, DataType::bf16);
    const Tensor o = input("o", {kGroups}, {1}, DataType::int64);
    const Tensor i = input("i", {1, listed, 1}, {listed, 1, 1}, DataType::int32);
    const bool has_slots = combines || attributes.mode == MoeMode::scatter;
    const Tensor t = has_slots ? input("t", {1, listed, 1}, {listed, 1, 1}, DataType::int32) : Tensor();
    const Tensor s = combines ? input("s", {tokens, attributes.top_k}, {attributes.top_k, 1}, DataType::fp32) : Tensor();
    return g.moe_grouped_matmul(x, w, o, attributes, i, t, s);
  }

  static std::vector<TensorView> buffers(std::int64_t groups = kGroups, std::int64_t experts = kExperts) {
    return {TensorView::dense(at(1), DataType::bf16, {1, kRows, kK}, kGpu),
            TensorView::strided(at(64), DataType::bf16, {experts, kK, kN}, {kK * kN, 1, kK}, kGpu),
            TensorView::strided(at(128), DataType::int64, {groups}, {2}, kGpu),
            TensorView::dense(at(192), DataType::bf16, {1, kRows, kN}, kGpu)};
  }

  support::RecordingDriver driver{};
  support::FakeNvrtc nvrtc;
};

TEST_F(Sm90GroupedLaunch, IsOneKernelAndNothingElse) {
  const CompiledPlan p = plan();
  EXPECT_EQ(p.engine(), "sm90");
  std::uint64_t counter = 0;
  for (const auto& [groups, experts] :
       {std::pair{kGroups, kExperts}, {std::int64_t{1024}, std::int64_t{5}}, {std::int64_t{1}, std::int64_t{1}}}) {
    driver.clear();
    const Status s = p.execute(buffers(groups, experts));
    ASSERT_TRUE(s.ok()) << p.explain(s, buffers(groups, experts)).what();
    ASSERT_EQ(driver.launches().size(), 1U);
    EXPECT_TRUE(driver.copies().empty());
    for (const char* call : {"cuMemAllocAsync", "cuMemHostAlloc", "cuCtxSynchronize"}) EXPECT_EQ(driver.count(call), 0) << call;
    // The counter of tiles that are taken: made for a stream's first call, and left at zero by every launch.
    for (const char* call : {"cuMemAlloc", "cuStreamSynchronize"}) EXPECT_EQ(driver.count(call), counter == 0 ? 1 : 0) << call;
    EXPECT_EQ(driver.memsets().size(), counter == 0 ? 1U : 0U);
    const auto block = driver.launches()[0].as<ParameterBlock>();
    EXPECT_TRUE(block.claimed != 0 && (counter == 0 || counter == block.claimed));
    counter = block.claimed;
    EXPECT_EQ(block.groups, groups);
    EXPECT_EQ(block.experts, experts);
    EXPECT_EQ(block.offsets, reinterpret_cast<std::uint64_t>(at(128)));
    EXPECT_EQ(block.offset_stride, groups > 1 ? 2 : 0);
    EXPECT_NE(block.faults, 0U);
    EXPECT_EQ(block.m, kRows);
    EXPECT_EQ(record_of(block.a[0]).extent(1), kRows);
    EXPECT_EQ(record_of(block.a[0]).box[1], 64);
    EXPECT_EQ(block.row_block_bytes, 64 * 128);
    EXPECT_EQ(record_of(block.a[1]).address, record_of(block.a[0]).address);
    EXPECT_EQ(record_of(block.a[1]).box[1], 16) << "rows that nobody has are not asked for";
    EXPECT_EQ(block.tail_bytes, 16 * 128);
    EXPECT_EQ(block.stage_bytes, p.knobs().at("TILE_N") * 128) << "of B alone";
    EXPECT_EQ(record_of(block.b[0]).extent(2), experts);
    EXPECT_EQ(record_of(block.d).extent(2), 1);
  }
}

TEST_F(Sm90GroupedLaunch, WithWeightsByAddressIsOneKernelWithMemoryForMaps) {
  const CompiledPlan p = plan(true);
  EXPECT_EQ(p.engine(), "sm90");
  std::uint64_t maps = 0;
  for (const std::uintptr_t table : {64, 65, 65}) {
    std::vector<TensorView> views = buffers();
    views[1] = TensorView::strided(at(table), DataType::int64, {5}, {3}, kGpu);
    driver.clear();
    const Status s = p.execute(views);
    ASSERT_TRUE(s.ok()) << p.explain(s, views).what();
    ASSERT_EQ(driver.launches().size(), 1U);
    EXPECT_TRUE(driver.memsets().empty());
    EXPECT_TRUE(driver.copies().empty());
    for (const char* call : {"cuStreamSynchronize", "cuCtxSynchronize", "cuMemsetD8Async"})
      EXPECT_EQ(driver.count(call), 0) << call;
    EXPECT_EQ(driver.count("cuMemAlloc"), maps == 0 ? 1 : 0);
    const auto block = driver.launches()[0].as<ParameterBlock>();
    EXPECT_EQ(block.b_view[0].address, reinterpret_cast<std::uint64_t>(at(table)));
    EXPECT_EQ(block.b_view[0].batch_stride, 3);
    EXPECT_EQ(block.experts, 5);
    EXPECT_EQ(block.n, kN);
    EXPECT_NE(block.maps, 0U);
    EXPECT_TRUE(maps == 0 || maps == block.maps);
    maps = block.maps;
    EXPECT_EQ(record_of(block.b[0]).extent(1), kN);
    EXPECT_EQ(record_of(block.b[0]).extent(2), 1);
  }
}

TEST_F(Sm90GroupedLaunch, WeightsByAddressBesideThoseOfATensor) {
  Graph g;
  const auto input = [&](const char* name, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride, DataType t) {
    return g.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = t});
  };
  const Tensor x = input("x", {1, kRows, kK}, {kRows * kK, kK, 1}, DataType::bf16);
  const Tensor o = input("o", {kGroups}, {1}, DataType::int64);
  Tensor gate = input("gate", {kExperts, kK, kN}, {kK * kN, 1, kK}, DataType::bf16);
  const Tensor up = input("up", {kExperts, kK, kN}, {kK * kN, 1, kK}, DataType::bf16);
  gate.set_by_pointers(true);
  const Tensor first = g.moe_grouped_matmul(x, gate, o), second = g.moe_grouped_matmul(x, up, o);
  g.mul(g.swish(first), second).set_output(true);
  const PlanList plans = g.plans({.device = kGpu, .deselect_engines = {"cpu"}});
  ASSERT_GE(plans.size(), 1U) << plans.unsupported_text();
  const CompiledPlan p = plans.compile();
  EXPECT_EQ(p.engine(), "sm90");
  constexpr std::int64_t kWide = kK * kN + 64;  // between experts
  const auto views = [&](std::uintptr_t weights, std::int64_t stride, std::int64_t n = kN, std::int64_t experts = 5) {
    const std::map<std::string, TensorView> all = {
        {"x", TensorView::dense(at(1), DataType::bf16, {1, kRows, kK}, kGpu)},
        {"o", TensorView::strided(at(128), DataType::int64, {kGroups}, {1}, kGpu)},
        {"gate", TensorView::strided(at(64), DataType::int64, {5}, {3}, kGpu)},
        {"up", TensorView::strided(at(weights), DataType::bf16, {experts, kK, n}, {stride, 1, kK}, kGpu)}};
    std::vector<TensorView> call;
    for (const OperandInfo& info : p.operands())
      call.push_back(all.contains(info.name) ? all.at(info.name)
                                             : TensorView::dense(at(192), DataType::bf16, {1, kRows, n}, kGpu));
    return call;
  };
  for (const auto& [weights, stride] : {std::pair{70, kK * kN}, {71, kK * kN}, {71, kWide}}) {
    driver.clear();
    const auto call = views(static_cast<std::uintptr_t>(weights), stride);
    const Status s = p.execute(call);
    ASSERT_TRUE(s.ok()) << p.explain(s, call).what();
    ASSERT_EQ(driver.launches().size(), 1U);
    const auto block = driver.launches()[0].as<ParameterBlock>();
    EXPECT_EQ(block.b_view[0].address, reinterpret_cast<std::uint64_t>(at(64)));
    EXPECT_EQ(block.b_view[0].batch_stride, 3);
    EXPECT_EQ(block.b_view[1].address, reinterpret_cast<std::uint64_t>(at(static_cast<std::uintptr_t>(weights))));
    EXPECT_EQ(block.b_view[1].batch_stride, 2 * stride) << "in bytes";
    EXPECT_EQ(block.b_batch_step[0] + block.b_batch_step[1], 0);
    EXPECT_EQ(block.experts, 5);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(record_of(block.b[i]).extent(2), 1) << "blocks put the expert's address in";
  }
  // What the tensor's own plans ask of it holds here too, and both have as many experts, of the same size.
  driver.clear();
  for (const auto& [call, rule] : {std::pair{views(70, kK * kN + 1), "call.outer_stride"},
                                   {views(70, kK * kN, kN - 8), "call.extent"},
                                   {views(70, kK * kN, kN, 4), "call.aux_extent"}}) {
    const Status s = p.execute(call);
    EXPECT_EQ(p.explain(s, call).rule(), rule) << p.explain(s, call).what();
  }
  EXPECT_TRUE(driver.launches().empty());
}

TEST_F(Sm90GroupedLaunch, WithoutExpertsIsLaunchedAllTheSame) {
  const CompiledPlan p = plan();
  std::vector<TensorView> views = buffers();
  views[1] = TensorView::strided(nullptr, DataType::bf16, {0, kK, kN}, {kK * kN, 1, kK}, kGpu);
  driver.clear();
  const Status s = p.execute(views);
  ASSERT_TRUE(s.ok()) << p.explain(s, views).what();
  ASSERT_EQ(driver.launches().size(), 1U);
  EXPECT_EQ(driver.launches()[0].as<ParameterBlock>().experts, 0);
}

TEST_F(Sm90GroupedLaunch, SaysWhereIndicesAndSlotsLie) {
  Graph g;
  routed(g, {.mode = MoeMode::scatter, .top_k = 2}, kRows, 0).set_output(true);
  const CompiledPlan p = g.plans({.device = kGpu, .deselect_engines = {"cpu"}}).compile();
  driver.clear();
  const std::vector<TensorView> views = {TensorView::dense(at(1), DataType::bf16, {1, 600, kK}, kGpu),
                                         TensorView::strided(at(64), DataType::bf16, {5, kK, kN}, {kK * kN, 1, kK}, kGpu),
                                         TensorView::strided(at(128), DataType::int64, {9}, {2}, kGpu),
                                         TensorView::strided(at(129), DataType::int32, {1, 600, 1}, {600, 1, 1}, kGpu),
                                         TensorView::strided(at(130), DataType::int32, {1, 600, 1}, {600, 1, 1}, kGpu),
                                         TensorView::dense(at(192), DataType::bf16, {1, 600, kN}, kGpu)};
  const Status s = p.execute(views);
  ASSERT_TRUE(s.ok()) << p.explain(s, views).what();
  const auto block = driver.launches()[0].as<ParameterBlock>();
  EXPECT_EQ(block.indices, reinterpret_cast<std::uint64_t>(at(129)));
  EXPECT_EQ(block.slots, reinterpret_cast<std::uint64_t>(at(130)));
  EXPECT_EQ(block.index_stride, 1);
  EXPECT_EQ(block.tokens, 300);
  EXPECT_EQ(block.top_k, 2);
  EXPECT_EQ(block.m, 600);
  EXPECT_EQ(block.groups, 9);
  EXPECT_EQ(block.d_view.address, reinterpret_cast<std::uint64_t>(at(192)));
}

// Blocks that wait for each other are launched all at once; memory for what they bring is made for a stream's first call.
TEST_F(Sm90GroupedLaunch, CombinesInOneCooperativeKernel) {
  constexpr std::int64_t kTokens = 150, kTopK = 3;
  for (const MoeMode mode : {MoeMode::combine, MoeMode::scatter}) {
    Graph g;
    const bool combines = mode == MoeMode::combine;
    routed(g, {.mode = mode, .top_k = kTopK, .zero_fill = !combines}, kRows, kTokens).set_output(true);
    const CompiledPlan p = g.plans({.device = kGpu, .deselect_engines = {"cpu"}}).compile();
    std::vector<void*> call = {at(1), at(64), at(128), at(129), at(130)};
    if (combines) call.push_back(at(131));
    call.push_back(at(192));
    for (int turn = 0; turn < 3; ++turn) {
      driver.clear();
      ASSERT_TRUE(p.execute(call).ok());
      ASSERT_EQ(driver.launches().size(), 1U);
      const support::Launch launch = driver.launches()[0];
      ASSERT_EQ(launch.attributes.size(), 1U);
      EXPECT_EQ(launch.attributes[0].id, cuda::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
      EXPECT_EQ(launch.attributes[0].value.cooperative, 1);
      EXPECT_FALSE(launch.programmatic);
      EXPECT_LE(launch.grid[0], 132U);
      EXPECT_TRUE(driver.copies().empty());
      EXPECT_EQ(driver.memsets().size(), turn == 0 ? 1U : 0U);
      EXPECT_EQ(driver.count("cuMemAlloc"), turn == 0 ? 1 : 0);
      EXPECT_EQ(driver.count("cuStreamSynchronize"), turn == 0 ? 1 : 0);
      const auto block = launch.as<ParameterBlock>();
      EXPECT_EQ(block.m, combines ? kTokens : kRows);
      EXPECT_EQ(block.tokens, combines ? kRows : kRows / kTopK) << "rows of A, or tokens of D";
      EXPECT_EQ(block.top_k, kTopK);
      EXPECT_EQ(record_of(block.a[0]).extent(1), kRows);
      EXPECT_NE(block.claimed, 0U);
      EXPECT_EQ(block.products != 0, combines);
    }
  }
}

// Where D is not stored only lists say how many rows there are: a call with fewer, of the same tokens, is prepared anew.
TEST_F(Sm90GroupedLaunch, RowsFollowTheListsWhereNothingElseSaysHowMany) {
  constexpr std::int64_t kTokens = 150;
  for (const MoeMode mode : {MoeMode::gather, MoeMode::combine}) {
    Graph g;
    const bool combines = mode == MoeMode::combine;
    g.reduction(routed(g, {.mode = mode}, combines ? kRows : kTokens, kTokens), ReductionMode::amax)
        .set_dim({1, 1, 1})
        .set_output(true)
        .set_data_type(DataType::fp32);
    const CompiledPlan p = g.plans({.device = kGpu, .deselect_engines = {"cpu"}}).compile();
    for (std::int64_t rows = kTokens; rows > kTokens - 12; --rows) {
      std::vector<TensorView> views = {TensorView::dense(at(1), DataType::bf16, {1, kRows, kK}, kGpu),
                                       TensorView::strided(at(64), DataType::bf16, {kExperts, kK, kN}, {kK * kN, 1, kK}, kGpu),
                                       TensorView::dense(at(128), DataType::int64, {kGroups}, kGpu)};
      const std::int64_t in_list = combines ? kRows : rows;
      for (int list = 0; list < (combines ? 2 : 1); ++list)
        views.push_back(TensorView::dense(at(129 + static_cast<std::uintptr_t>(list)), DataType::int32, {1, in_list, 1}, kGpu));
      if (combines) views.push_back(TensorView::dense(at(131), DataType::fp32, {rows, 1}, kGpu));
      views.push_back(TensorView::dense(at(192), DataType::fp32, {1, 1, 1}, kGpu));
      driver.clear();
      const Status status = p.execute(views);
      ASSERT_TRUE(status.ok()) << p.explain(status, views).what();
      EXPECT_EQ(driver.launches()[0].as<ParameterBlock>().m, rows) << (combines ? "combine" : "gather");
    }
  }
}

TEST_F(Sm90GroupedLaunch, IsCaptured) {
  const CompiledPlan p = plan();
  const cuda::PrimaryContext primary(driver.table(), 0);
  const cuda::CurrentContext current(driver.table(), primary.handle());
  cuda::CUstream stream = nullptr;
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(driver.table().cuStreamCreate(&stream, 0), cuda::CUDA_SUCCESS);
  ASSERT_EQ(driver.table().cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
  EXPECT_TRUE(p.execute(buffers(), {stream}).ok());
  ASSERT_EQ(driver.table().cuStreamEndCapture(stream, &graph), cuda::CUDA_SUCCESS);
  std::size_t nodes = 0;
  ASSERT_EQ(driver.table().cuGraphGetNodes(graph, nullptr, &nodes), cuda::CUDA_SUCCESS);
  EXPECT_EQ(nodes, 1U);
  EXPECT_EQ(driver.table().cuGraphDestroy(graph), cuda::CUDA_SUCCESS);
  EXPECT_EQ(driver.table().cuStreamDestroy(stream), cuda::CUDA_SUCCESS);
}

TEST_F(Sm90GroupedLaunch, WhatAKernelReportsIsMetByTheNextCall) {
  const CompiledPlan p = plan(), other = plan();
  driver.on_launch(
      [](const support::Launch& launch) { *reinterpret_cast<std::uint32_t*>(launch.as<ParameterBlock>().faults) = 1; });
  EXPECT_TRUE(p.execute(buffers()).ok());
  driver.clear();
  const Status refused = p.execute(buffers());
  EXPECT_EQ(p.explain(refused, buffers()).rule(), "call.data");
  EXPECT_TRUE(driver.untouched());
  driver.on_launch({});
  EXPECT_TRUE(other.execute(buffers()).ok());
  EXPECT_THROW(p.check(), Error);
  p.check();
  EXPECT_TRUE(p.execute(buffers()).ok());
}

TEST_F(Sm90GroupedLaunch, MoreGroupsThanTheKernelHasRoomForAreRefused) {
  const CompiledPlan p = plan();
  driver.clear();
  const Status refused = p.execute(buffers(1025));
  EXPECT_EQ(p.explain(refused, buffers(1025)).rule(), "call.extent_limit");
  EXPECT_TRUE(driver.untouched());
}

TEST_F(Sm90GroupedLaunch, LeavesNoObject) {
  {
    const CompiledPlan p = plan();
  }
  EXPECT_EQ(driver.live().allocations, 0);
}

}  // namespace
}  // namespace verglas
