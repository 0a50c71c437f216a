// The recording driver must say no where the real one does, or every test that stands on it proves nothing.
#include "support/recording_driver.hpp"
#include "cuda/context.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace support {
namespace {

using namespace verglas::cuda;

struct alignas(64) Parameters {
  CUtensorMap map;
  std::int64_t n = 0;
  float* x = nullptr;
};

/// A driver with a kernel ready on each device, and that device's context current on this thread.
struct Ready {
  RecordingDriver driver;
  const DriverTable& d = driver.table();
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  CUstream stream = nullptr;

  explicit Ready(int devices = 1) : driver(std::vector<FakeDevice>(static_cast<std::size_t>(devices))) {
    CUcontext context = nullptr;
    EXPECT_EQ(d.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(d.cuCtxSetCurrent(context), CUDA_SUCCESS);
    const std::string image = fake_cubin("vg_1", sizeof(Parameters));
    EXPECT_EQ(d.cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
    EXPECT_EQ(d.cuLibraryGetKernel(&kernel, library, "vg_1"), CUDA_SUCCESS);
    EXPECT_EQ(d.cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
    EXPECT_EQ(d.cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
  }
  CUlaunchConfig config(unsigned grid = 4, unsigned block = 128) const {
    CUlaunchConfig c{};
    c.gridDimX = grid;
    c.blockDimX = block;
    c.gridDimY = c.gridDimZ = c.blockDimY = c.blockDimZ = 1;
    c.hStream = stream;
    return c;
  }
  CUresult launch(const CUlaunchConfig& c, Parameters p = {}) {
    void* parameters[] = {&p};
    return d.cuLaunchKernelEx(&c, function, parameters, nullptr);
  }
};

TEST(RecordingDriver, RecordsALaunchWithItsParameterBytes) {
  Ready r;
  CUlaunchAttribute attributes[2]{};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim = {2, 1, 1};
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig c = r.config();
  c.attrs = attributes;
  c.numAttrs = 2;
  c.sharedMemBytes = 1024;
  Parameters p{};
  p.n = 77;
  ASSERT_EQ(r.launch(c, p), CUDA_SUCCESS);
  ASSERT_EQ(r.driver.launches().size(), 1U);
  const Launch launch = r.driver.launches()[0];
  EXPECT_EQ(launch.kernel, "vg_1");
  EXPECT_EQ(launch.parameters.size(), sizeof(Parameters));
  EXPECT_EQ(launch.as<Parameters>().n, 77);
  EXPECT_EQ(launch.grid, (Dim3{4, 1, 1}));
  EXPECT_EQ(launch.block, (Dim3{128, 1, 1}));
  EXPECT_EQ(launch.cluster, (Dim3{2, 1, 1}));
  EXPECT_EQ(launch.smem_bytes, 1024U);
  EXPECT_TRUE(launch.programmatic);
  EXPECT_EQ(launch.stream, r.stream);
  EXPECT_FALSE(launch.captured);
}

TEST(RecordingDriver, TakesParametersAsOneBufferToo) {
  Ready r;
  Parameters p{};
  p.n = 5;
  std::size_t bytes = sizeof p;
  void* extra[] = {reinterpret_cast<void*>(1), &p, reinterpret_cast<void*>(2), &bytes, nullptr};
  CUlaunchConfig c = r.config();
  ASSERT_EQ(r.d.cuLaunchKernelEx(&c, r.function, nullptr, extra), CUDA_SUCCESS);
  EXPECT_EQ(r.driver.launches()[0].as<Parameters>().n, 5);
}

TEST(RecordingDriver, RefusesLaunchesThatTheDriverRefuses) {
  Ready r(2);
  const auto with = [&](auto change) {
    CUlaunchConfig c = r.config();
    change(c);
    return r.launch(c);
  };
  EXPECT_EQ(with([](auto& c) { c.gridDimX = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(with([](auto& c) { c.gridDimY = 65536; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(with([](auto& c) { c.blockDimX = 1025; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(with([](auto& c) { c.sharedMemBytes = 49153; }), CUDA_ERROR_INVALID_VALUE);
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  const auto with_cluster = [&](unsigned size, unsigned grid) {
    return with([&](auto& c) {
      cluster.value.clusterDim = {size, 1, 1};
      c.attrs = &cluster;
      c.numAttrs = 1;
      c.gridDimX = grid;
    });
  };
  EXPECT_EQ(with_cluster(2, 5), CUDA_ERROR_INVALID_CLUSTER_SIZE);
  EXPECT_EQ(with_cluster(16, 16), CUDA_ERROR_INVALID_CLUSTER_SIZE);
  EXPECT_TRUE(r.driver.untouched());
  EXPECT_EQ(r.d.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, r.kernel, 0), CUDA_SUCCESS);
  EXPECT_EQ(with_cluster(16, 16), CUDA_SUCCESS);
  EXPECT_EQ(r.d.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448, r.kernel, 0), CUDA_SUCCESS);
  EXPECT_EQ(with([](auto& c) { c.sharedMemBytes = 232448; }), CUDA_SUCCESS);
}

TEST(RecordingDriver, RefusesWithoutAContextAndInAnothersContext) {
  Ready r(2);
  std::jthread([&] { EXPECT_EQ(r.launch(r.config()), CUDA_ERROR_INVALID_CONTEXT); }).join();
  CUcontext other = nullptr;
  ASSERT_EQ(r.d.cuCtxPushCurrent(r.driver.primary_context(1)), CUDA_ERROR_INVALID_CONTEXT);  // nobody retained it
  ASSERT_EQ(r.d.cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(r.d.cuCtxPushCurrent(other), CUDA_SUCCESS);
  EXPECT_EQ(r.launch(r.config()), CUDA_ERROR_INVALID_HANDLE);  // function and stream are of device 0
  CUfunction there = nullptr;
  ASSERT_EQ(r.d.cuKernelGetFunction(&there, r.kernel), CUDA_SUCCESS);
  EXPECT_NE(there, r.function);
  CUcontext context = nullptr;
  EXPECT_EQ(r.d.cuStreamGetCtx(r.stream, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, r.driver.primary_context(0));
  EXPECT_TRUE(r.driver.untouched());
}

struct MapArguments {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  std::uint32_t rank = 3;
  std::uintptr_t address = 0x10000;
  std::uint64_t extents[5] = {4096, 128, 2, 1, 1};
  std::uint64_t strides[4] = {8192, 1048576, 0, 0};
  std::uint32_t box[5] = {64, 128, 1, 1, 1};
  std::uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;

  CUresult encode(const DriverTable& d, CUtensorMap& map) const {
    return d.cuTensorMapEncodeTiled(&map, type, rank, reinterpret_cast<void*>(address), extents, strides, box, element_strides,
                                    interleave, swizzle, promotion, fill);
  }
};

/// The primary context of device 0, current while it lives.
struct InContext {
  explicit InContext(const RecordingDriver& driver) : primary(driver.table(), 0), current(driver.table(), primary.handle()) {}
  verglas::cuda::PrimaryContext primary;
  verglas::cuda::CurrentContext current;
};

TEST(RecordingDriver, WantsAContextForTensorMaps) {
  const RecordingDriver driver;
  CUtensorMap map{};
  EXPECT_EQ(MapArguments{}.encode(driver.table(), map), CUDA_ERROR_INVALID_CONTEXT);
  {
    const InContext here(driver);
    EXPECT_EQ(MapArguments{}.encode(driver.table(), map), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver.table().cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(0x20010)), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(record_of(map).address, 0x10000U);
}

TEST(RecordingDriver, EncodesTensorMapsReadably) {
  const RecordingDriver driver;
  const InContext here(driver);
  CUtensorMap map{};
  ASSERT_EQ(MapArguments{}.encode(driver.table(), map), CUDA_SUCCESS);
  TensorMapRecord record = record_of(map);
  EXPECT_EQ(record.magic, TensorMapRecord::kMagic);
  EXPECT_EQ(record.type, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  EXPECT_EQ(record.rank, 3);
  EXPECT_EQ(record.address, 0x10000U);
  EXPECT_EQ(record.extent(0), 4096);
  EXPECT_EQ(record.extent(1), 128);
  EXPECT_EQ(record.strides[1], 1048576U);
  EXPECT_EQ(record.box[0], 64);
  EXPECT_EQ(record.swizzle, CU_TENSOR_MAP_SWIZZLE_128B);
  EXPECT_EQ(record.promotion, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  ASSERT_EQ(driver.table().cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(0x20010)), CUDA_SUCCESS);
  record = record_of(map);
  EXPECT_EQ(record.address, 0x20010U);
  EXPECT_EQ(record.extent(0), 4096);
  EXPECT_EQ(driver.table().cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(0x20008)), CUDA_ERROR_INVALID_VALUE);
  CUtensorMap never{};
  EXPECT_EQ(driver.table().cuTensorMapReplaceAddress(&never, reinterpret_cast<void*>(0x20000)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.map_encodes(), 1);
}

// Each limit from both sides: the last legal value, and the first that is not.
TEST(RecordingDriver, KeepsTheLimitsOfTensorMaps) {
  const RecordingDriver driver;
  const InContext here(driver);
  const auto encode = [&](const std::function<void(MapArguments&)>& change) {
    MapArguments a;
    change(a);
    CUtensorMap map{};
    const CUresult answer = a.encode(driver.table(), map);
    EXPECT_TRUE(answer == CUDA_SUCCESS || answer == CUDA_ERROR_INVALID_VALUE);
    return answer == CUDA_SUCCESS;
  };
  EXPECT_TRUE(encode([](auto& a) { a.address = 0x10010; }));
  EXPECT_FALSE(encode([](auto& a) { a.address = 0x10008; }));
  EXPECT_FALSE(encode([](auto& a) { a.address = 0; }));
  EXPECT_TRUE(encode([](auto& a) { a.strides[0] = 8208; }));
  EXPECT_FALSE(encode([](auto& a) { a.strides[0] = 8200; }));
  EXPECT_TRUE(encode([](auto& a) { a.strides[1] = (std::uint64_t{1} << 40) - 16; }));
  EXPECT_FALSE(encode([](auto& a) { a.strides[1] = std::uint64_t{1} << 40; }));
  EXPECT_TRUE(encode([](auto& a) { a.extents[1] = std::uint64_t{1} << 32; }));
  EXPECT_FALSE(encode([](auto& a) { a.extents[1] = (std::uint64_t{1} << 32) + 1; }));
  EXPECT_FALSE(encode([](auto& a) { a.extents[0] = 0; }));
  EXPECT_TRUE(encode([](auto& a) { a.box[1] = 256; }));
  EXPECT_FALSE(encode([](auto& a) { a.box[1] = 257; }));
  EXPECT_FALSE(encode([](auto& a) { a.box[1] = 0; }));
  EXPECT_FALSE(encode([](auto& a) { a.box[0] = 72; }));  // 144 bytes beyond the swizzle's 128
  EXPECT_FALSE(encode([](auto& a) { a.box[0] = 4; }));   // 8 bytes, no multiple of 16
  EXPECT_TRUE(encode([](auto& a) {
    a.box[0] = 256;
    a.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  }));
  EXPECT_TRUE(encode([](auto& a) {
    a.box[0] = 16;
    a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
  }));
  EXPECT_FALSE(encode([](auto& a) {
    a.box[0] = 32;
    a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
  }));
  EXPECT_TRUE(encode([](auto& a) { a.element_strides[1] = 8; }));
  EXPECT_FALSE(encode([](auto& a) { a.element_strides[1] = 9; }));
  EXPECT_FALSE(encode([](auto& a) { a.rank = 0; }));
  EXPECT_TRUE(encode([](auto& a) { a.rank = 5; }));
  EXPECT_FALSE(encode([](auto& a) { a.rank = 6; }));
  EXPECT_TRUE(encode([](auto& a) { a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA; }));
  EXPECT_FALSE(encode([](auto& a) {
    a.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
    a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  }));
}

TEST(RecordingDriver, KeepsDeviceMemoryWithItsBounds) {
  Ready r;
  CUdeviceptr at = 0;
  ASSERT_EQ(r.d.cuMemAlloc(&at, 100), CUDA_SUCCESS);
  EXPECT_EQ(at % 256, 0U);
  char text[] = "hello", back[6] = {};
  EXPECT_EQ(r.d.cuMemcpyHtoD(at, text, 6), CUDA_SUCCESS);
  EXPECT_EQ(r.d.cuMemcpyDtoH(back, at, 6), CUDA_SUCCESS);
  EXPECT_STREQ(back, "hello");
  EXPECT_EQ(r.d.cuMemcpyHtoD(at + 95, text, 6), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(r.d.cuMemsetD32Async(at, 0x01020304, 25, r.stream), CUDA_SUCCESS);
  EXPECT_EQ(r.d.cuMemsetD32Async(at, 0, 26, r.stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(*reinterpret_cast<unsigned*>(at + 96), 0x01020304U);
  EXPECT_EQ(r.driver.memsets().size(), 1U);
  EXPECT_EQ(r.driver.copies().size(), 2U);
  int ordinal = -1;
  EXPECT_EQ(r.d.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at + 50), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(r.d.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(text)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(r.driver.live().allocations, 1);
  EXPECT_EQ(r.d.cuMemFree(at), CUDA_SUCCESS);
  EXPECT_EQ(r.d.cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr huge = 0;
  EXPECT_EQ(r.d.cuMemAlloc(&huge, std::size_t{2} << 30), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(RecordingDriver, CapturesIntoAGraphAndReplaysIt) {
  Ready r;
  ASSERT_EQ(r.d.cuFuncLoad(r.function), CUDA_SUCCESS);
  ASSERT_EQ(r.d.cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  Parameters p{};
  p.n = 3;
  EXPECT_EQ(r.launch(r.config(), p), CUDA_SUCCESS);
  EXPECT_TRUE(r.driver.untouched());
  CUgraph graph = nullptr;
  ASSERT_EQ(r.d.cuStreamEndCapture(r.stream, &graph), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(r.d.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(r.d.cuGraphLaunch(executable, r.stream), CUDA_SUCCESS);
  ASSERT_EQ(r.driver.launches().size(), 2U);
  EXPECT_EQ(r.driver.launches()[1].as<Parameters>().n, 3);
  r.d.cuGraphExecDestroy(executable);
  r.d.cuGraphDestroy(graph);
  EXPECT_EQ(r.driver.live().graphs + r.driver.live().graph_executables, 0);
}

TEST(RecordingDriver, ForbidsDuringCaptureWhatTheDriverForbids) {
  Ready r;
  CUgraph graph = nullptr;
  const std::string image = fake_cubin("vg_2", 8);
  CUlibrary library = nullptr;
  CUdeviceptr at = 0;
  const std::function<CUresult()> forbidden[] = {
      [&] { return r.d.cuMemAlloc(&at, 16); },
      [&] { return r.d.cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0); },
      [&] { return r.d.cuLibraryUnload(r.library); },
      [&] { return r.d.cuCtxSynchronize(); },
      [&] { return r.d.cuStreamSynchronize(r.stream); },
      [&] { return r.launch(r.config()); },  // a function that was never loaded
  };
  for (const auto& call : forbidden) {
    ASSERT_EQ(r.d.cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(r.d.cuStreamEndCapture(r.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  EXPECT_EQ(r.driver.live().graphs, 0);
  EXPECT_TRUE(r.driver.untouched());
}

TEST(RecordingDriver, FailsTheCallsThatATestChose) {
  Ready r;
  r.driver.fail_next("cuLaunchKernelEx", CUDA_ERROR_LAUNCH_FAILED, 1);
  EXPECT_EQ(r.launch(r.config()), CUDA_SUCCESS);
  EXPECT_TRUE(r.driver.failure_pending());
  EXPECT_EQ(r.launch(r.config()), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(r.driver.failure_pending());
  EXPECT_EQ(r.launch(r.config()), CUDA_SUCCESS);
  EXPECT_EQ(r.driver.launches().size(), 2U);
  r.driver.fail_call(0, CUDA_ERROR_UNKNOWN);
  int count = 0;
  EXPECT_EQ(r.d.cuDeviceGetCount(&count), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(r.d.cuDeviceGetCount(&count), CUDA_SUCCESS);
}

TEST(RecordingDriver, LetsATestDoAKernelsWork) {
  Ready r;
  std::int64_t seen = 0;
  r.driver.on_launch([&](const Launch& launch) { seen = launch.as<Parameters>().n; });
  Parameters p{};
  p.n = 9;
  r.launch(r.config(), p);
  EXPECT_EQ(seen, 9);
}

}  // namespace
}  // namespace support
