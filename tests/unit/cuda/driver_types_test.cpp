// Our declarations of the driver's interface against NVIDIA's own header, where it is installed. NVIDIA's header maps names by
// macros (cuMemAlloc to cuMemAlloc_v2), so this file includes it first and reads our list of calls, not our table.
#if __has_include("/usr/local/cuda/include/cuda.h")
#define VERGLAS_HAS_CUDA_H 1
#include "/usr/local/cuda/include/cuda.h"
#endif

#include <gtest/gtest.h>

#include "cuda/driver_types.hpp"

namespace verglas::cuda {
namespace {

#ifdef VERGLAS_HAS_CUDA_H

#define SAME(name) EXPECT_EQ(static_cast<int>(verglas::cuda::name), static_cast<int>(::name)) << #name

TEST(DriverTypes, ConstantsAreThoseOfTheHeader) {
  SAME(CUDA_SUCCESS);
  SAME(CUDA_ERROR_INVALID_VALUE);
  SAME(CUDA_ERROR_OUT_OF_MEMORY);
  SAME(CUDA_ERROR_NOT_INITIALIZED);
  SAME(CUDA_ERROR_DEINITIALIZED);
  SAME(CUDA_ERROR_STUB_LIBRARY);
  SAME(CUDA_ERROR_NO_DEVICE);
  SAME(CUDA_ERROR_INVALID_DEVICE);
  SAME(CUDA_ERROR_INVALID_IMAGE);
  SAME(CUDA_ERROR_INVALID_CONTEXT);
  SAME(CUDA_ERROR_NO_BINARY_FOR_GPU);
  SAME(CUDA_ERROR_INVALID_SOURCE);
  SAME(CUDA_ERROR_INVALID_HANDLE);
  SAME(CUDA_ERROR_NOT_FOUND);
  SAME(CUDA_ERROR_NOT_READY);
  SAME(CUDA_ERROR_ILLEGAL_ADDRESS);
  SAME(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  SAME(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  SAME(CUDA_ERROR_LAUNCH_FAILED);
  SAME(CUDA_ERROR_NOT_SUPPORTED);
  SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  SAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  SAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  SAME(CUDA_ERROR_INVALID_CLUSTER_SIZE);
  SAME(CUDA_ERROR_UNKNOWN);
  SAME(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  SAME(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  SAME(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  SAME(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  SAME(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  SAME(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  SAME(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  SAME(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  SAME(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
  SAME(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED);
  SAME(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  SAME(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  SAME(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  SAME(CU_FUNC_ATTRIBUTE_NUM_REGS);
  SAME(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  SAME(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  SAME(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  SAME(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  SAME(CU_POINTER_ATTRIBUTE_CONTEXT);
  SAME(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  SAME(CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
  SAME(CU_POINTER_ATTRIBUTE_IS_MANAGED);
  SAME(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  SAME(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
  SAME(CU_POINTER_ATTRIBUTE_RANGE_SIZE);
  SAME(CU_MEMORYTYPE_HOST);
  SAME(CU_MEMORYTYPE_DEVICE);
  SAME(CU_MEMORYTYPE_ARRAY);
  SAME(CU_MEMORYTYPE_UNIFIED);
  SAME(CU_STREAM_CAPTURE_STATUS_NONE);
  SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE);
  SAME(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  SAME(CU_STREAM_CAPTURE_MODE_GLOBAL);
  SAME(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  SAME(CU_STREAM_CAPTURE_MODE_RELAXED);
  SAME(CU_TENSOR_MAP_DATA_TYPE_UINT8);
  SAME(CU_TENSOR_MAP_DATA_TYPE_UINT16);
  SAME(CU_TENSOR_MAP_DATA_TYPE_UINT32);
  SAME(CU_TENSOR_MAP_DATA_TYPE_INT32);
  SAME(CU_TENSOR_MAP_DATA_TYPE_UINT64);
  SAME(CU_TENSOR_MAP_DATA_TYPE_INT64);
  SAME(CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  SAME(CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
  SAME(CU_TENSOR_MAP_DATA_TYPE_FLOAT64);
  SAME(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  SAME(CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ);
  SAME(CU_TENSOR_MAP_DATA_TYPE_TFLOAT32);
  SAME(CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ);
  SAME(CU_TENSOR_MAP_INTERLEAVE_NONE);
  SAME(CU_TENSOR_MAP_INTERLEAVE_16B);
  SAME(CU_TENSOR_MAP_INTERLEAVE_32B);
  SAME(CU_TENSOR_MAP_SWIZZLE_NONE);
  SAME(CU_TENSOR_MAP_SWIZZLE_32B);
  SAME(CU_TENSOR_MAP_SWIZZLE_64B);
  SAME(CU_TENSOR_MAP_SWIZZLE_128B);
  SAME(CU_TENSOR_MAP_L2_PROMOTION_NONE);
  SAME(CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
  SAME(CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  SAME(CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  SAME(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  SAME(CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
  SAME(CU_LAUNCH_ATTRIBUTE_IGNORE);
  SAME(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  SAME(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  SAME(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  SAME(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  SAME(CU_LAUNCH_ATTRIBUTE_PRIORITY);
  EXPECT_EQ(kStreamNonBlocking, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(kEventDisableTiming, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(stream_legacy()), reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(stream_per_thread()), reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD));
}

#define SAME_OFFSET(type, member)                                                        \
  EXPECT_EQ(offsetof(verglas::cuda::type, member), offsetof(::type, member)) << #member; \
  EXPECT_EQ(sizeof(verglas::cuda::type::member), sizeof(::type::member)) << #member

TEST(DriverTypes, StructsAreLaidOutAsInTheHeader) {
  EXPECT_EQ(sizeof(verglas::cuda::CUtensorMap), sizeof(::CUtensorMap));
  EXPECT_EQ(sizeof(verglas::cuda::CUlaunchConfig), sizeof(::CUlaunchConfig));
  SAME_OFFSET(CUlaunchConfig, gridDimX);
  SAME_OFFSET(CUlaunchConfig, gridDimY);
  SAME_OFFSET(CUlaunchConfig, gridDimZ);
  SAME_OFFSET(CUlaunchConfig, blockDimX);
  SAME_OFFSET(CUlaunchConfig, blockDimY);
  SAME_OFFSET(CUlaunchConfig, blockDimZ);
  SAME_OFFSET(CUlaunchConfig, sharedMemBytes);
  SAME_OFFSET(CUlaunchConfig, hStream);
  SAME_OFFSET(CUlaunchConfig, attrs);
  SAME_OFFSET(CUlaunchConfig, numAttrs);
  EXPECT_EQ(sizeof(verglas::cuda::CUlaunchAttribute), sizeof(::CUlaunchAttribute));
  SAME_OFFSET(CUlaunchAttribute, id);
  SAME_OFFSET(CUlaunchAttribute, value);
  SAME_OFFSET(CUlaunchAttributeValue, clusterDim);
  SAME_OFFSET(CUlaunchAttributeValue, clusterDim.y);
  SAME_OFFSET(CUlaunchAttributeValue, clusterDim.z);
  SAME_OFFSET(CUlaunchAttributeValue, cooperative);
  SAME_OFFSET(CUlaunchAttributeValue, programmaticStreamSerializationAllowed);
  SAME_OFFSET(CUlaunchAttributeValue, priority);
  EXPECT_EQ(sizeof(verglas::cuda::CUdeviceptr), sizeof(::CUdeviceptr));
  EXPECT_EQ(sizeof(verglas::cuda::CUdevice), sizeof(::CUdevice));
}

/// Two parameters are passed alike when both are pointers, or both are integers or enumerations of one size.
template <class Ours, class Theirs>
constexpr bool passed_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>)
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  else
    return sizeof(Ours) == sizeof(Theirs) && std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
}
template <class... Ours, class... Theirs>
constexpr bool called_alike(verglas::cuda::CUresult (*)(Ours...), ::CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs))
    return false;
  else
    return (passed_alike<Ours, Theirs>() && ...);
}

TEST(DriverTypes, EveryCallHasTheHeadersParameters) {
  int calls = 0;
#define VERGLAS_DRIVER_CALL(name, symbol, parameters)                                                                       \
  EXPECT_TRUE(called_alike(static_cast<verglas::cuda::CUresult(*) parameters>(nullptr), decltype(&::symbol){})) << #symbol; \
  ++calls;
#include "cuda/driver_calls.def"
#undef VERGLAS_DRIVER_CALL
  EXPECT_GT(calls, 60);
}

#else

TEST(DriverTypes, ConstantsAreThoseOfTheHeader) { GTEST_SKIP() << "no cuda.h in /usr/local/cuda/include"; }

#endif

}  // namespace
}  // namespace verglas::cuda
