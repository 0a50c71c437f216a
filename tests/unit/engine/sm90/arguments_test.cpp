#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "unit/engine/sm90/launch.hpp"

// What a kernel of the Hopper engine gets: maps, addresses and the arguments of its epilogue. A driver in memory.

namespace verglas {
namespace {

TEST_F(Sm90Launch, WritesOfTheBlockOnlyWhatIsNew) {
  const CompiledPlan p = plan();
  driver.clear();
  ASSERT_TRUE(p.execute(buffers(1, kM, 1)).ok());
  EXPECT_EQ(driver.count("cuTensorMapReplaceAddress"), 3);
  ASSERT_TRUE(p.execute(buffers(1, kM, 1)).ok());
  EXPECT_EQ(driver.count("cuTensorMapReplaceAddress"), 3);
  auto one_new = buffers(1, kM, 1);
  one_new[1].data = at(200);
  ASSERT_TRUE(p.execute(one_new).ok());
  EXPECT_EQ(driver.count("cuTensorMapReplaceAddress"), 4);
  EXPECT_EQ(record_of(driver.launches().back().as<ParameterBlock>().b[0]).address, reinterpret_cast<std::uint64_t>(at(200)));
  for (std::uintptr_t base = 2; base < 5; ++base) ASSERT_TRUE(p.execute(buffers(1, kM, base)).ok());
  EXPECT_EQ(driver.count("cuTensorMapReplaceAddress"), 13);
  EXPECT_EQ(driver.map_encodes(), 0);
  EXPECT_EQ(driver.launches().size(), 6U);
}

/// Drivers whose maps are an address and 120 bytes of other things; the second has the address among those too.
int replaced = 0;
template <bool TWICE>
cuda::DriverTable with_address_first(cuda::DriverTable table) {
  using namespace cuda;
  static constexpr auto kPut = [](CUtensorMap* map, void* address) {
    std::memcpy(map, &address, sizeof address);
    if (TWICE) std::memcpy(reinterpret_cast<std::byte*>(map) + 64, &address, 4);
  };
  table.cuTensorMapEncodeTiled = [](CUtensorMap* map, CUtensorMapDataType, std::uint32_t, void* address,
                                    const std::uint64_t* extents, auto...) {
    std::memset(static_cast<void*>(map), static_cast<int>(extents[0] % 251), sizeof *map);
    return kPut(map, address), CUDA_SUCCESS;
  };
  table.cuTensorMapReplaceAddress = [](CUtensorMap* map, void* address) {
    ++replaced;
    return kPut(map, address), CUDA_SUCCESS;
  };
  return table;
}

TEST_F(Sm90Launch, PutsAnAddressIntoAMapWhereThatIsAllThatTheDriverDoes) {
  for (const bool is_twice : {false, true}) {
    const cuda::DriverTable table =
        is_twice ? with_address_first<true>(driver.table()) : with_address_first<false>(driver.table());
    const cuda::DriverOverride use(&table);
    const CompiledPlan p = plan();
    for (const std::uintptr_t base : {1U, 300U, 600U}) {
      driver.clear();
      replaced = 0;
      ASSERT_TRUE(p.execute(buffers(1, kM, base)).ok());
      EXPECT_EQ(replaced, is_twice ? 3 : 0);
      const auto block = driver.launches().at(0).as<ParameterBlock>();
      const std::pair<const cuda::CUtensorMap*, std::uintptr_t> maps[] = {
          {&block.a[0], base}, {&block.b[0], base + 64}, {&block.d, base + 128}};
      for (const auto& [map, megabyte] : maps) {
        void* address = nullptr;
        std::memcpy(&address, map, sizeof address);
        EXPECT_EQ(address, at(megabyte));
      }
    }
  }
}

TEST_F(Sm90Launch, KeepsTheBlocksOfSomeLayouts) {
  const CompiledPlan p = plan();
  const auto rounds = [&] {
    for (const std::int64_t m : {kM, kM - 1}) {
      const auto call = buffers(1, m, 1);
      ASSERT_TRUE(p.execute(call).ok());
      const auto block = driver.launches().back().as<ParameterBlock>();
      EXPECT_EQ(block.m, m);
      EXPECT_EQ(record_of(block.a[0]).extent(1), m);
      auto wide = call;  // the extents of the call before and another pitch: never the maps of the wrong one
      wide[0].stride[1] += 8;
      ASSERT_TRUE(p.execute(wide).ok());
      EXPECT_EQ(record_of(driver.launches().back().as<ParameterBlock>().a[0]).strides[0],
                static_cast<std::uint64_t>(2 * wide[0].stride[1]));
    }
  };
  rounds();
  rounds();
}

TEST_F(Sm90Launch, RebuildsTheBlockForOtherExtentsBatchIncluded) {
  const CompiledPlan p = plan(2);
  driver.clear();
  for (const std::int64_t l : {1, 2, 5})
    for (const std::int64_t m : {1, 64, 301}) {
      const auto call = buffers(l, m, 1);
      const Status s = p.execute(call);
      ASSERT_TRUE(s.ok()) << p.explain(s, call).what();
      const auto block = driver.launches().back().as<ParameterBlock>();
      EXPECT_EQ(block.m, m);
      EXPECT_EQ(block.batches, l);
      EXPECT_EQ(record_of(block.a[0]).extent(1), m);
      EXPECT_EQ(record_of(block.d).extent(2), l);
    }
  EXPECT_GT(driver.map_encodes(), 0);
}

// What the copy engine moves beside D is held to what D is held to.
TEST_F(Sm90Launch, MovesAnOperandAndASecondOutputByMaps) {
  constexpr std::size_t kArguments = sm90::kEpilogueOffset + 2 * 3 * 128;
  nvrtc.set_parameter_bytes(static_cast<int>(kArguments + 2 * 32));
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}});
  const Tensor residual = g.tensor({.name = "residual", .dim = {kM, kN}, .stride = {kN, 1}});
  Tensor h = g.add(g.matmul(a, b), residual).set_output(true);
  g.relu(h).set_output(true);
  const CompiledPlan p = g.compile({.device = kGpu, .deselect_engines = {"cpu"}});
  const auto call = [&](std::uintptr_t base, std::int64_t pitch) {
    return std::vector<TensorView>{TensorView::dense(at(base), DataType::bf16, {kM, kK}, kGpu),
                                   TensorView::strided(at(base + 64), DataType::bf16, {kK, kN}, {1, kK}, kGpu),
                                   TensorView::strided(at(base + 128), DataType::bf16, {kM, kN}, {pitch, 1}, kGpu),
                                   TensorView::dense(at(base + 192), DataType::bf16, {kM, kN}, kGpu),
                                   TensorView::dense(at(base + 256), DataType::bf16, {kM, kN}, kGpu)};
  };
  const auto maps_of_launch = [&] {
    std::array<cuda::CUtensorMap, 6> maps;
    std::memcpy(&maps, driver.launches().back().parameters.data() + sm90::kEpilogueOffset, sizeof maps);
    return maps;
  };
  for (const std::uintptr_t base : {1, 2, 300})
    for (const std::int64_t pitch : {kN, kN + 8}) {
      const Status s = p.execute(call(base, pitch));
      ASSERT_TRUE(s.ok()) << p.explain(s, call(base, pitch)).what();
      const auto maps = maps_of_launch();
      EXPECT_EQ(record_of(maps[0]).address, reinterpret_cast<std::uint64_t>(at(base + 128)));
      EXPECT_EQ(record_of(maps[0]).strides[0], static_cast<std::uint64_t>(2 * pitch));
      EXPECT_EQ(record_of(maps[3]).address, reinterpret_cast<std::uint64_t>(at(base + 256)));
    }
  auto transposed = call(1, kN);
  transposed[2].stride = {1, kM};
  EXPECT_EQ(p.explain(p.execute(transposed), transposed).rule(), "call.major");
  const auto odd = call(1, kN + 1);
  EXPECT_EQ(p.explain(p.execute(odd), odd).rule(), "call.outer_stride");
  auto shifted = call(1, kN);
  shifted[2].data = static_cast<char*>(shifted[2].data) + 8;
  EXPECT_EQ(p.explain(p.execute(shifted), shifted).rule(), "call.alignment");
}

TEST_F(Sm90Launch, PassesTheOperandsOfTheEpilogueBehindTheBlock) {
  nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)) + 128);
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}});
  const Tensor residual = g.tensor({.name = "residual", .dim = {1, kM, kN}, .stride = {kM * kN, 1, kM}});
  const Tensor scale = g.tensor({.name = "scale", .dim = {1}, .stride = {1}, .data_type = DataType::fp32, .pass_by_value = true});
  g.mul(g.add(g.add(g.matmul(a, b), bias), residual), scale).set_output(true).set_data_type(DataType::bf16);
  const CompiledPlan p = g.compile({.device = kGpu, .deselect_engines = {"cpu"}});
  ASSERT_EQ(p.engine(), "sm90");
  float factor = 2.5F;
  const std::vector<TensorView> call = {TensorView::dense(at(1), DataType::bf16, {1, kM, kK}, kGpu),
                                        TensorView::strided(at(2), DataType::bf16, {1, kK, kN}, {kK * kN, 1, kK}, kGpu),
                                        TensorView::dense(at(3), DataType::bf16, {kN}, kGpu),
                                        TensorView::strided(at(4), DataType::bf16, {1, kM, kN}, {kM * kN, 1, kM}, kGpu),
                                        TensorView::dense(&factor, DataType::fp32, {1}),
                                        TensorView::dense(at(5), DataType::bf16, {1, kM, kN}, kGpu)};
  driver.clear();
  const Status s = p.execute(call);
  ASSERT_TRUE(s.ok()) << p.explain(s, call).what();
  const auto launches = driver.launches();
  ASSERT_EQ(launches.size(), 1U);
  struct Arguments {
    std::uint64_t bias, bias_strides[3], residual, residual_strides[3];
    float scale;
  } got{};
  const auto& bytes = launches[0].parameters;
  ASSERT_GE(bytes.size(), sizeof(ParameterBlock) + 68);
  std::memcpy(&got, bytes.data() + sm90::kEpilogueOffset, 68);
  EXPECT_EQ(got.bias, reinterpret_cast<std::uint64_t>(at(3)));
  EXPECT_EQ(got.bias_strides[1], 0U);
  EXPECT_EQ(got.bias_strides[2], 1U);
  EXPECT_EQ(got.residual, reinterpret_cast<std::uint64_t>(at(4)));
  EXPECT_EQ(got.residual_strides[1], 1U);
  EXPECT_EQ(got.residual_strides[2], static_cast<std::uint64_t>(kM));
  EXPECT_EQ(got.scale, 2.5F);
}

// A call writes of its arguments what the call before it may have left otherwise: whatever came before, they are those of a plan
// that was never called.
TEST_F(Sm90Launch, ArgumentsDoNotDependOnTheCallsBefore) {
  nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)) + 128);
  const auto make = [] {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
    const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}});
    const Tensor rows = g.tensor({.name = "rows", .dim = {1, kM, 1}, .stride = {kM, 1, 1}, .data_type = DataType::fp32});
    const Tensor scale =
        g.tensor({.name = "scale", .dim = {1}, .stride = {1}, .data_type = DataType::fp32, .pass_by_value = true});
    g.mul(g.mul(g.add(g.matmul(a, b), bias), rows), scale).set_output(true).set_data_type(DataType::bf16);
    return g.compile({.device = kGpu, .deselect_engines = {"cpu"}});
  };
  float factors[] = {2.5F, -1.0F};
  const auto call = [&](std::int64_t m, std::uintptr_t base, int factor, std::int64_t row_step = 1) -> std::vector<TensorView> {
    return {TensorView::dense(at(base), DataType::bf16, {1, m, kK}, kGpu),
            TensorView::strided(at(base + 64), DataType::bf16, {1, kK, kN}, {kK * kN, 1, kK}, kGpu),
            TensorView::strided(at(base + 128), DataType::bf16, {1, 1, kN}, {kN, kN, row_step}, kGpu),
            TensorView::strided(at(base + 192), DataType::fp32, {1, m, 1}, {m * row_step, row_step, 1}, kGpu),
            TensorView::dense(&factors[factor], DataType::fp32, {1}),
            TensorView::dense(at(base + 256), DataType::bf16, {1, m, kN}, kGpu)};
  };
  const CompiledPlan used = make();
  ASSERT_EQ(used.engine(), "sm90");
  const std::vector<std::vector<TensorView>> calls = {
      call(kM, 1, 0),     call(kM, 1, 0),     call(kM, 400, 1),  call(kM, 400, 0, 2),  call(kM, 1, 1),
      call(kM - 4, 1, 0), call(kM - 4, 1, 1), call(kM, 1, 1, 3), call(kM, 1, 0),       call(kM, 800, 1),
      call(kM, 800, 1),   call(0, 1, 0),      call(kM, 1200, 0), call(kM, 1200, 1, 2), call(kM - 8, 1, 0, 2)};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const CompiledPlan fresh = make();
    std::vector<std::vector<std::byte>> maps(2), arguments(2);
    for (std::size_t j = 0; j < 2; ++j) {
      const CompiledPlan& p = j == 0 ? used : fresh;
      driver.clear();
      const Status s = p.execute(calls[i]);
      ASSERT_TRUE(s.ok()) << i << p.explain(s, calls[i]).what();
      if (driver.launches().empty()) continue;
      const auto bytes = driver.launches()[0].parameters;
      maps[j].assign(bytes.begin(), bytes.begin() + offsetof(ParameterBlock, a_view));
      arguments[j].assign(bytes.begin() + sm90::kEpilogueOffset, bytes.begin() + sm90::kEpilogueOffset + 68);
    }
    EXPECT_EQ(maps[0], maps[1]) << "call " << i;
    EXPECT_EQ(arguments[0], arguments[1]) << "call " << i;
  }
}

TEST_F(Sm90Launch, LoadsTheMatricesOfTwoProducts) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor gate = g.tensor({.name = "gate", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  const Tensor up = g.tensor({.name = "up", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  g.mul(g.swish(g.matmul(a, gate)), g.matmul(a, up)).set_output(true);
  const CompiledPlan p = g.compile({.device = kGpu, .deselect_engines = {"cpu"}});
  std::vector<TensorView> call = buffers(1, kM, 1);
  call.insert(call.begin() + 2, TensorView::strided(at(90), DataType::bf16, {1, kK, kN}, {kK * kN, 1, kK}, kGpu));
  for (int i = 0; i < 2; ++i) {  // as declared, then with another address
    call[2].data = at(90 + static_cast<std::uintptr_t>(i));
    driver.clear();
    ASSERT_TRUE(p.execute(call).ok());
    ASSERT_EQ(driver.launches().size(), 1U);
    const auto block = driver.launches()[0].as<ParameterBlock>();
    EXPECT_EQ(record_of(block.b[0]).address, reinterpret_cast<std::uint64_t>(call[1].data));
    EXPECT_EQ(record_of(block.b[1]).address, reinterpret_cast<std::uint64_t>(call[2].data));
    EXPECT_EQ(record_of(block.a[1]).magic, 0U) << "one A serves both";
  }
}

}  // namespace
}  // namespace verglas
