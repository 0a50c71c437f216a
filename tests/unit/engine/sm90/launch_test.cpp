#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/context.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "support/allocations.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// Everything about a call of the Hopper engine but the arithmetic of its kernel, on a driver in memory.

namespace verglas {
namespace {

using sm90::ParameterBlock;
using support::record_of;

constexpr std::int64_t kM = 300, kN = 520, kK = 136;
constexpr Device kGpu{DeviceType::cuda, 0};

/// Addresses that nobody dereferences: kernels do not run here.
void* at(std::uintptr_t megabyte) { return reinterpret_cast<void*>(megabyte << 20); }

class Sm90Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("VERGLAS_CACHE", "off", 1);
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  }

  CompiledPlan plan(std::int64_t l = 1, Device device = kGpu) {
    Graph g({.name = "plain"});
    const Tensor a = g.tensor({.name = "a", .dim = {l, kM, kK}, .stride = {kM * kK, kK, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {l, kK, kN}, .stride = {kK * kN, 1, kK}});
    g.matmul(a, b).set_output(true).set_name("d");
    PlanList plans = g.plans({.device = device, .deselect_engines = {"cpu"}});
    EXPECT_GE(plans.size(), 1U) << plans.unsupported_text();
    return plans.compile();
  }

  static std::vector<TensorView> buffers(std::int64_t l, std::int64_t m, std::uintptr_t base) {
    return {TensorView::dense(at(base), DataType::bf16, {l, m, kK}, kGpu),
            TensorView::strided(at(base + 64), DataType::bf16, {l, kK, kN}, {kK * kN, 1, kK}, kGpu),
            TensorView::dense(at(base + 128), DataType::bf16, {l, m, kN}, kGpu)};
  }

  support::RecordingDriver driver{{support::FakeDevice{}, support::FakeDevice{}}};
  support::FakeNvrtc nvrtc;
};

TEST_F(Sm90Launch, IsOneKernelAndNothingElse) {
  const CompiledPlan p = plan();
  EXPECT_EQ(p.engine(), "sm90");
  driver.clear();
  const Status s = p.execute(buffers(1, kM, 1));
  ASSERT_TRUE(s.ok()) << p.explain(s, buffers(1, kM, 1)).what();
  ASSERT_EQ(driver.launches().size(), 1U);
  EXPECT_TRUE(driver.memsets().empty());
  EXPECT_TRUE(driver.copies().empty());
  const auto block = driver.launches()[0].as<ParameterBlock>();
  EXPECT_EQ(block.m, kM);
  EXPECT_EQ(block.n, kN);
  EXPECT_EQ(block.k, kK);
  EXPECT_EQ(record_of(block.a[0]).address, reinterpret_cast<std::uint64_t>(at(1)));
  EXPECT_EQ(record_of(block.b[0]).address, reinterpret_cast<std::uint64_t>(at(65)));
  EXPECT_EQ(record_of(block.d).address, reinterpret_cast<std::uint64_t>(at(129)));
  EXPECT_EQ(record_of(block.a[0]).extent(0), kK);
  EXPECT_EQ(record_of(block.a[0]).extent(1), kM);
  EXPECT_EQ(record_of(block.b[0]).extent(1), kN);
}

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

TEST_F(Sm90Launch, LaunchesOnTheStreamOfTheCall) {
  const CompiledPlan p = plan();
  cuda::CUstream stream = nullptr;
  {
    const cuda::CurrentContext here(driver.table(), driver.primary_context(0));
    ASSERT_EQ(driver.table().cuStreamCreate(&stream, 1), cuda::CUDA_SUCCESS);
  }
  driver.clear();
  ASSERT_TRUE(p.execute(buffers(1, kM, 1), {stream}).ok());
  ASSERT_TRUE(p.execute(buffers(1, kM, 1)).ok());
  EXPECT_EQ(driver.launches()[0].stream, stream);
  EXPECT_EQ(driver.launches()[1].stream, nullptr);
  driver.table().cuStreamDestroy(stream);
}

TEST_F(Sm90Launch, EnqueuesNothingForARefusedCall) {
  const CompiledPlan p = plan();
  driver.clear();
  const auto refuses = [&](auto change, const char* text) {
    auto call = buffers(1, kM, 1);
    change(call);
    const Status s = p.execute(call);
    EXPECT_EQ(s.code, ErrorCode::invalid_call) << text;
    EXPECT_EQ(std::string(p.explain(s, call).what()), text);
    EXPECT_TRUE(driver.untouched()) << text;
  };
  refuses([](auto& c) { c[0].data = static_cast<char*>(c[0].data) + 8; },
          "invalid_call [call.alignment] a 'a': got address 0x100008, wanted a multiple of 16 bytes");
  refuses([](auto& c) { c[0].stride[1] = kK + 4; },
          "invalid_call [call.outer_stride] a 'a': got a stride of 140 elements of 2 bytes along M, wanted a multiple of 16 "
          "bytes below 2^40");
  refuses([](auto& c) { c[1].stride = {kK * kN, kN, 1}; },
          "invalid_call [call.major] b 'b': got stride 520 along K from shape (1, 136, 520) with strides (70720, 520, 1), wanted "
          "stride 1 along it, as declared");
  refuses([](auto& c) { c[2].device = {DeviceType::cpu, 0}; },
          "invalid_call [call.operand_device] output 'd': got memory on the host, wanted memory on cuda:0");
  refuses([](auto& c) { c[2].device = {DeviceType::cuda, 1}; },
          "invalid_call [call.operand_device] output 'd': got memory on cuda:1, wanted memory on cuda:0");
  refuses([](auto& c) { c[2].data = c[0].data; },
          "invalid_call [call.overlap] output 'd' and a 'a': got bytes 0x100000 to 0x14c2c0, which meet 0x100000 to 0x113ec0 of "
          "the other operand, wanted memory of its own");
}

TEST_F(Sm90Launch, RefusesWhenAnotherDeviceIsCurrent) {
  const CompiledPlan p = plan();
  const CompiledPlan q = plan(1, {DeviceType::cuda, 1});
  driver.clear();
  const cuda::CurrentContext here(driver.table(), driver.primary_context(1));
  const auto call = buffers(1, kM, 1);
  const Status s = p.execute(call);
  EXPECT_STREQ(p.explain(s, call).what(), "invalid_call [call.device] call: got current device cuda:1, wanted cuda:0");
  EXPECT_TRUE(driver.untouched());
  const std::vector<void*> addresses = {at(1), at(65), at(129)};
  EXPECT_TRUE(q.execute(addresses).ok());
  EXPECT_EQ(driver.launches().back().device, 1);
}

TEST_F(Sm90Launch, BorrowsTheContextOnAThreadThatHasNone) {
  const CompiledPlan p = plan();
  driver.clear();
  std::jthread([&] {
    for (const std::int64_t m : {kM, kM - 1}) {  // addresses replaced; maps encoded
      EXPECT_EQ(driver.context_depth(), 0);
      const Status s = p.execute(buffers(1, m, 1));
      EXPECT_TRUE(s.ok()) << p.explain(s, buffers(1, m, 1)).what();
      EXPECT_EQ(driver.context_depth(), 0);
    }
  }).join();
  EXPECT_EQ(driver.launches().size(), 2U);
  EXPECT_GT(driver.count("cuTensorMapReplaceAddress"), 0);
  EXPECT_GT(driver.map_encodes(), 0);
}

TEST_F(Sm90Launch, AllocatesNothingOnTheCallPath) {
  // The recorder itself allocates when it is called: once the plan stands, a driver that does nothing takes its place.
  cuda::DriverTable table = driver.table();
  const cuda::DriverOverride use(&table);
  const CompiledPlan p = plan();
  table.cuCtxGetCurrent = [](cuda::CUcontext* c) { return *c = nullptr, cuda::CUDA_SUCCESS; };
  table.cuCtxPushCurrent = [](cuda::CUcontext) { return cuda::CUDA_SUCCESS; };
  table.cuCtxPopCurrent = [](cuda::CUcontext*) { return cuda::CUDA_SUCCESS; };
  table.cuLaunchKernelEx = [](const cuda::CUlaunchConfig*, cuda::CUfunction, void**, void**) { return cuda::CUDA_SUCCESS; };
  table.cuTensorMapReplaceAddress = [](cuda::CUtensorMap*, void*) { return cuda::CUDA_SUCCESS; };
  const auto same = buffers(1, kM, 1);
  const long before = support::allocations_of_this_thread();
  const Status served = p.execute(same);
  const Status refused = p.execute(std::span<const TensorView>(same.data(), 2));
  const long after = support::allocations_of_this_thread();
  EXPECT_TRUE(served.ok());
  EXPECT_EQ(refused.code, ErrorCode::invalid_call);
  EXPECT_EQ(after, before);
  table = driver.table();  // the plan gives its objects back through it
}

/// gemm_srelu's class: a product, squared where it is positive; it writes both.
struct Sm90Operation : Sm90Launch {
  static TensorView matrix(std::uintptr_t megabyte, std::int64_t rows, std::int64_t columns) {
    return TensorView::strided(at(megabyte), DataType::bf16, {rows, columns, 1}, {columns, 1, rows * columns}, kGpu);
  }
  static std::vector<TensorView> tensors(std::uintptr_t base) {
    return {matrix(base, kM, kK),
            matrix(base + 64, kN, kK),
            matrix(base + 128, kM, kN),
            matrix(base + 192, kM, kN),
            {},
            {},
            {},
            {},
            {},
            {}};
  }
};

TEST_F(Sm90Operation, ACallLikeTheLastAllocatesNothing) {
  cuda::DriverTable table = driver.table();
  const cuda::DriverOverride use(&table);
  ops::Prepared op(ops::Operation::named("gemm_srelu"), tensors(1), {});
  op.compile();
  op.execute(tensors(1));
  table.cuCtxGetCurrent = [](cuda::CUcontext* c) { return *c = nullptr, cuda::CUDA_SUCCESS; };
  table.cuCtxPushCurrent = [](cuda::CUcontext) { return cuda::CUDA_SUCCESS; };
  table.cuCtxPopCurrent = [](cuda::CUcontext*) { return cuda::CUDA_SUCCESS; };
  table.cuLaunchKernelEx = [](const cuda::CUlaunchConfig*, cuda::CUfunction, void**, void**) { return cuda::CUDA_SUCCESS; };
  table.cuTensorMapReplaceAddress = [](cuda::CUtensorMap*, void*) { return cuda::CUDA_SUCCESS; };
  const auto elsewhere = tensors(300);
  const long before = support::allocations_of_this_thread();
  op.execute(elsewhere, 2.0F);
  const long after = support::allocations_of_this_thread();
  EXPECT_EQ(after, before);
  table = driver.table();
  ops::clear_plan_cache();
}

TEST_F(Sm90Operation, IsOneLaunchEachAndOneErrorForAFailure) {
  ops::Prepared op(ops::Operation::named("gemm_srelu"), tensors(1), {});
  op.compile();
  for (const std::uintptr_t base : {1U, 300U, 300U}) {
    driver.clear();
    op.execute(tensors(base));
    ASSERT_EQ(driver.launches().size(), 1U);
    EXPECT_EQ(record_of(driver.launches()[0].as<ParameterBlock>().a[0]).address, reinterpret_cast<std::uint64_t>(at(base)));
  }
  driver.clear();
  driver.fail_next("cuLaunchKernelEx", static_cast<cuda::CUresult>(719));
  try {
    op.execute(tensors(1));
    ADD_FAILURE() << "a launch that failed";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::driver_failed);
  }
  EXPECT_TRUE(driver.launches().empty());
  op.execute(tensors(1));
  EXPECT_EQ(driver.launches().size(), 1U);
  ops::clear_plan_cache();
}

TEST_F(Sm90Launch, SaysWhatTheDriverSaidAndServesTheNextCall) {
  const CompiledPlan p = plan();
  std::uintptr_t base = 0;
  for (const char* name : {"cuLaunchKernelEx", "cuTensorMapReplaceAddress"}) {
    const auto call = buffers(1, kM, ++base);  // new addresses each time
    driver.clear();
    driver.fail_next(name, static_cast<cuda::CUresult>(719));
    const Status s = p.execute(call);
    EXPECT_EQ(s.code, ErrorCode::driver_failed) << name;
    EXPECT_EQ(s.driver, 719);
    EXPECT_NE(std::string(p.explain(s, call).what()).find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos)
        << p.explain(s, call).what();
    EXPECT_TRUE(p.execute(call).ok());
    EXPECT_EQ(driver.launches().size(), 1U);
  }
}

TEST_F(Sm90Launch, LeavesNothingBehindWhenCompilingFailsAnywhere) {
  driver.clear();
  int calls = 0;
  {
    const CompiledPlan p = plan();
    calls = static_cast<int>(driver.calls().size());
  }
  ASSERT_GT(calls, 5);
  const int live = driver.live().total();
  for (int i = 0; i < calls; ++i) {
    driver.fail_call(i, static_cast<cuda::CUresult>(2));
    try {
      const CompiledPlan p = plan();
      driver.clear_failures();
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::internal) << e.what();
    }
    driver.clear_failures();
    EXPECT_EQ(driver.live().total(), live) << "after failing call " << i;
  }
}

TEST_F(Sm90Launch, ServesManyThreadsWithOnePlan) {
  const CompiledPlan p = plan();
  driver.clear();
  {
    std::vector<std::jthread> threads;
    for (std::uintptr_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) EXPECT_TRUE(p.execute(buffers(1, i % 2 ? kM : kM - 1, 1000 * (t + 1))).ok());
      });
  }
  const auto launches = driver.launches();
  ASSERT_EQ(launches.size(), 400U);
  for (const auto& l : launches) {  // no launch mixes the buffers of two threads
    const auto block = l.as<ParameterBlock>();
    EXPECT_EQ(record_of(block.b[0]).address - record_of(block.a[0]).address, 64U << 20);
    EXPECT_EQ(record_of(block.d).address - record_of(block.a[0]).address, 128U << 20);
  }
}

TEST_F(Sm90Launch, LaunchesNothingForAnEmptyOutputAndReadsNothingForEmptyK) {
  const CompiledPlan p = plan();
  driver.clear();
  auto none = buffers(1, 0, 1);
  none[0].data = none[2].data = nullptr;
  EXPECT_TRUE(p.execute(none).ok());
  EXPECT_TRUE(driver.untouched());
  std::vector<TensorView> shallow = {TensorView::dense(nullptr, DataType::bf16, {1, kM, 0}, kGpu),
                                     TensorView::strided(nullptr, DataType::bf16, {1, 0, kN}, {0, 1, 0}, kGpu),
                                     TensorView::dense(at(1), DataType::bf16, {1, kM, kN}, kGpu)};
  const Status s = p.execute(shallow);
  EXPECT_TRUE(s.ok()) << p.explain(s, shallow).what();
  ASSERT_EQ(driver.launches().size(), 1U);
  EXPECT_GT(driver.launches()[0].as<ParameterBlock>().k_first,
            record_of(driver.launches()[0].as<ParameterBlock>().a[0]).extent(0));
}

TEST_F(Sm90Launch, QuantisesInOneKernelWithoutADenseOutput) {
  nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)) + 64);
  Graph g({.name = "quantised"});
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, 544}, .stride = {kK * 544, 1, kK}});
  auto [y, scales] = g.block_scale_quantize(g.matmul(a, b), 32);
  y.set_name("y").set_data_type(DataType::fp8_e4m3).set_output(true);
  scales.set_name("s").set_data_type(DataType::fp8_e8m0).set_output(true);
  const CompiledPlan p = g.plans({.device = kGpu, .deselect_engines = {"cpu"}}).compile();
  for (const std::int64_t k : {kK, std::int64_t{0}}) {
    driver.clear();
    std::vector<TensorView> call = {TensorView::dense(at(1), DataType::bf16, {1, kM, k}, kGpu),
                                    TensorView::strided(at(65), DataType::bf16, {1, k, 544}, {kK * 544, 1, kK}, kGpu),
                                    TensorView::dense(at(129), DataType::fp8_e4m3, {1, kM, 544}, kGpu),
                                    TensorView::dense(at(193), DataType::fp8_e8m0, {1, kM, 17}, kGpu)};
    const Status s = p.execute(call);
    ASSERT_TRUE(s.ok()) << p.explain(s, call).what();
    EXPECT_EQ(driver.launches().size(), 1U) << k;
    EXPECT_TRUE(driver.memsets().empty());
  }
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

/// c = a · b, stored, with its row sums, column maxima and largest magnitude; and a copy of twice c, transposed.
Graph reducing() {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  Tensor c = g.matmul(a, b).set_output(true);
  const auto reduce = [&](ReductionMode mode, std::vector<std::int64_t> dim) {
    g.reduction(c, mode).set_dim(std::move(dim)).set_output(true).set_data_type(DataType::fp32);
  };
  reduce(ReductionMode::add, {1, kM, 1});
  reduce(ReductionMode::max, {1, 1, kN});
  reduce(ReductionMode::amax, {1, 1, 1});
  return g;
}
std::vector<TensorView> reducing_call(std::int64_t m = kM, std::int64_t n = kN) {
  return {TensorView::dense(at(64), DataType::bf16, {1, m, kK}, kGpu),
          TensorView::strided(at(128), DataType::bf16, {1, kK, n}, {kK * n, 1, kK}, kGpu),
          TensorView::dense(at(192), DataType::bf16, {1, m, n}, kGpu),
          TensorView::dense(at(256), DataType::fp32, {1, m, 1}, kGpu),
          TensorView::dense(at(320), DataType::fp32, {1, 1, n}, kGpu),
          TensorView::dense(at(384), DataType::fp32, {1, 1, 1}, kGpu)};
}
/// One reduction as the kernel reads it.
struct ReductionArgument {
  std::uint64_t partials, counters, out;
  std::int64_t batch_stride, row_stride, col_stride;
  float count, unused;
};
std::array<ReductionArgument, 3> reductions_of(const support::Launch& launch) {
  std::array<ReductionArgument, 3> got{};
  std::memcpy(&got, launch.parameters.data() + sm90::kEpilogueOffset, sizeof got);
  return got;
}

class Sm90Reductions : public Sm90Launch {
 protected:
  void SetUp() override {
    Sm90Launch::SetUp();
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)) + 192);
    plan_.emplace(reducing().compile({.device = kGpu, .deselect_engines = {"cpu"}}));
    ASSERT_EQ(plan_->engine(), "sm90");
    driver.clear();
  }
  std::array<ReductionArgument, 3> run(const std::vector<TensorView>& call, Stream stream = {}) {
    driver.clear();
    const Status s = plan_->execute(call, stream);
    EXPECT_TRUE(s.ok()) << plan_->explain(s, call, stream).what();
    EXPECT_EQ(driver.launches().size(), 1U);
    return reductions_of(driver.launches().at(0));
  }
  std::optional<CompiledPlan> plan_;
};

TEST_F(Sm90Reductions, AreOneKernelAndNoMemsetOnceAStreamIsKnown) {
  const auto first = run(reducing_call());
  const auto again = run(reducing_call());
  EXPECT_TRUE(driver.memsets().empty());
  EXPECT_TRUE(driver.copies().empty());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again[i].partials, first[i].partials);
    EXPECT_EQ(again[i].counters, first[i].counters);
    EXPECT_EQ(again[i].out, reinterpret_cast<std::uint64_t>(at(64 * (4 + i))));
  }
  EXPECT_EQ(first[0].row_stride, 1);
  EXPECT_EQ(first[0].col_stride, 0);
  EXPECT_EQ(first[1].col_stride, 1);
  EXPECT_EQ(first[0].count, static_cast<float>(kN));
  EXPECT_EQ(first[1].count, static_cast<float>(kM));
  EXPECT_EQ(first[2].count, static_cast<float>(kM * kN));
}

TEST_F(Sm90Reductions, KeepAPieceOfMemoryForEachStreamAndEachCapture) {
  cuda::CUstream stream = nullptr;
  const cuda::CurrentContext here(driver.table(), driver.primary_context(0));
  ASSERT_EQ(driver.table().cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
  const auto on_default = run(reducing_call()), on_other = run(reducing_call(), {stream});
  EXPECT_NE(on_default[0].partials, on_other[0].partials);
  EXPECT_NE(on_default[0].counters, on_other[0].counters);
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(driver.table().cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
  const Status s = plan_->execute(reducing_call(), {stream});
  EXPECT_TRUE(s.ok()) << plan_->explain(s, reducing_call()).what();
  EXPECT_EQ(driver.table().cuStreamEndCapture(stream, &graph), cuda::CUDA_SUCCESS) << "nothing spoilt the capture";
  cuda::CUgraphExec executable = nullptr;
  ASSERT_EQ(driver.table().cuGraphInstantiateWithFlags(&executable, graph, 0), cuda::CUDA_SUCCESS);
  driver.clear();
  ASSERT_EQ(driver.table().cuGraphLaunch(executable, stream), cuda::CUDA_SUCCESS);
  ASSERT_EQ(driver.launches().size(), 1U) << "the kernel alone was recorded";
  EXPECT_TRUE(driver.memsets().empty());
  const auto captured = reductions_of(driver.launches()[0]);
  EXPECT_NE(captured[0].counters, on_other[0].counters) << "a replay may run beside the stream";
  EXPECT_EQ(run(reducing_call(), {stream})[0].counters, on_other[0].counters);
}

TEST_F(Sm90Reductions, AskNothingAboutTheLegacyStream) {
  run(reducing_call());
  EXPECT_EQ(driver.count("cuStreamGetCaptureInfo") + driver.count("cuStreamGetId"), 0);
  const auto by_null = run(reducing_call()), by_name = run(reducing_call(), {reinterpret_cast<void*>(1)});
  EXPECT_EQ(by_null[0].partials, by_name[0].partials) << "null and the driver's own name are one stream";
  EXPECT_EQ(driver.count("cuStreamGetCaptureInfo") + driver.count("cuStreamGetId"), 0);
}

TEST_F(Sm90Reductions, GrowWithTheCallAndDoNotShrink) {
  const auto small = run(reducing_call());
  const auto large = run(reducing_call(4 * kM, 4 * kN));
  EXPECT_NE(small[0].partials, large[0].partials);
  EXPECT_EQ(run(reducing_call())[0].partials, large[0].partials);
  EXPECT_TRUE(driver.memsets().empty());
}

TEST_F(Sm90Reductions, AreWrittenForAnEmptyOutputToo) {
  std::vector<TensorView> call = reducing_call(0);
  call[0].data = call[2].data = call[3].data = nullptr;
  const auto got = run(call);
  ParameterBlock block;
  std::memcpy(&block, driver.launches()[0].parameters.data(), sizeof block);
  EXPECT_EQ(block.tiles, 0U);
  EXPECT_EQ(block.n, kN);
  EXPECT_EQ(driver.launches()[0].grid, (support::Dim3{1, 1, 1}));
  EXPECT_EQ(got[1].out, reinterpret_cast<std::uint64_t>(at(320)));
}

TEST_F(Sm90Reductions, GiveTheirMemoryBackWithThePlan) {
  const std::size_t live = driver.live().total();
  {
    const CompiledPlan other = reducing().compile({.device = kGpu, .deselect_engines = {"cpu"}});
    EXPECT_TRUE(other.execute(reducing_call()).ok());
    EXPECT_GT(driver.live().total(), live);
  }
  EXPECT_EQ(driver.live().total(), live);
}

TEST_F(Sm90Reductions, FailCleanlyWhereMemoryCannotBeHad) {
  for (const char* call : {"cuMemAlloc", "cuStreamCreate", "cuMemsetD8Async", "cuStreamSynchronize"}) {
    const CompiledPlan p = reducing().compile({.device = kGpu, .deselect_engines = {"cpu"}});
    driver.clear();
    driver.fail_next(call, cuda::CUDA_ERROR_OUT_OF_MEMORY);
    const Status s = p.execute(reducing_call());
    driver.clear_failures();
    EXPECT_EQ(s.code, ErrorCode::driver_failed) << call;
    EXPECT_TRUE(driver.launches().empty());
    EXPECT_TRUE(p.execute(reducing_call()).ok()) << "the next call is as if nothing had happened";
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

TEST_F(Sm90Launch, DeclinesWhatTheKernelDoesNotServeByRule) {
  const auto decline_of = [&](auto describe, Device device = kGpu) {
    Graph g;
    describe(g);
    const PlanList plans = g.plans({.device = device});
    for (const DeclineRecord& d : plans.declines())
      if (d.engine == "sm90") return d.rule;
    return std::string("claimed");
  };
  const auto operands = [](Graph& g, DataType t = DataType::bf16) {
    return std::pair{g.tensor({.name = "a", .dim = {64, 64}, .stride = {64, 1}, .data_type = t}),
                     g.tensor({.name = "b", .dim = {64, 64}, .stride = {64, 1}, .data_type = t})};
  };
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g);
              g.matmul(a, b).set_output(true);
            }),
            "claimed");
  EXPECT_EQ(decline_of(
                [&](Graph& g) {
                  auto [a, b] = operands(g);
                  g.matmul(a, b).set_output(true);
                },
                {}),
            "engine.device");
  EXPECT_EQ(decline_of(
                [&](Graph& g) {
                  auto [a, b] = operands(g);
                  g.matmul(a, b).set_output(true);
                },
                {DeviceType::cuda, 9}),
            "engine.device");
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g);
              g.relu(g.matmul(a, b)).set_output(true);
            }),
            "claimed");
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g);
              const Tensor c = g.matmul(a, b).set_output(true);
              g.relu(c).set_output(true);
            }),
            "claimed");
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g);
              Tensor sum = g.reduction(g.matmul(a, b), ReductionMode::add);
              sum.set_output(true).set_dim({64, 1}).set_data_type(DataType::fp32);
            }),
            "claimed");
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g);
              const Tensor c = g.matmul(a, b).set_output(true);
              for (int i = 0; i < 9; ++i)
                g.reduction(c, ReductionMode::add).set_output(true).set_dim({64, 1}).set_data_type(DataType::fp32);
            }),
            "sm90.epilogue");
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g);
              g.matmul(g.relu(a).set_data_type(DataType::bf16), b).set_output(true);
            }),
            "claimed");
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g, DataType::fp32);
              g.matmul(a, b).set_output(true);
            }),
            "sm90.types");
  EXPECT_EQ(decline_of([&](Graph& g) {
              auto [a, b] = operands(g);
              for (int i = 0; i < 3; ++i) g.matmul(a, b).set_output(true);
            }),
            "sm90.products");
}

}  // namespace
}  // namespace verglas
