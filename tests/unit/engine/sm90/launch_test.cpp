#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/context.hpp"
#include "support/allocations.hpp"
#include "unit/engine/sm90/launch.hpp"

// Launches of a call of the Hopper engine: streams, contexts, threads, failures, and what is declined. A driver in memory.

namespace verglas {
namespace {

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
