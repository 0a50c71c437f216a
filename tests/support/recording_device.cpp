// The recording driver's calls for devices, contexts, memory, streams, events and graphs.
#include <algorithm>
#include <cstring>
#include <new>

#include "support/recording_state.hpp"

namespace support {

namespace {
std::uintptr_t id(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
bool default_stream(CUstream stream) { return id(stream) <= 2; }
}  // namespace

State::Capture* State::capture_of(CUstream stream) {
  const auto it = streams.find(id(stream));
  return it == streams.end() || !it->second.capture ? nullptr : &*it->second.capture;
}

CUresult State::check_stream(CUstream stream) {
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (default_stream(stream)) return CUDA_SUCCESS;
  const auto it = streams.find(id(stream));
  return it == streams.end() || it->second.device != device ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult State::unsafe_in_capture() {
  if (capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool forbidden = false;
  for (auto& [handle, stream] : streams) {
    if (!stream.capture || stream.capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool ours = stream.capture->by == std::this_thread::get_id();
    const bool forbids =
        ours || (stream.capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!forbids) continue;
    stream.capture->invalid = true;
    forbidden = true;
  }
  return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// Start and errors.
CUresult Calls::cuInit(unsigned flags) {
  ENTER(cuInit);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
  s.initialised = true;
  return s.devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult Calls::cuDriverGetVersion(int* version) {
  ENTER(cuDriverGetVersion);
  *version = s.version;
  return CUDA_SUCCESS;
}
CUresult Calls::cuGetErrorName(CUresult error, const char** text) {
  switch (error) {
    case CUDA_SUCCESS: *text = "CUDA_SUCCESS"; return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_HANDLE: *text = "CUDA_ERROR_INVALID_HANDLE"; return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_IMAGE: *text = "CUDA_ERROR_INVALID_IMAGE"; return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_FOUND: *text = "CUDA_ERROR_NOT_FOUND"; return CUDA_SUCCESS;
    case CUDA_ERROR_LAUNCH_FAILED: *text = "CUDA_ERROR_LAUNCH_FAILED"; return CUDA_SUCCESS;
    case CUDA_ERROR_UNKNOWN: *text = "CUDA_ERROR_UNKNOWN"; return CUDA_SUCCESS;
    default: *text = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult Calls::cuGetErrorString(CUresult error, const char** text) {
  const char* name = nullptr;
  if (const CUresult r = cuGetErrorName(error, &name); r != CUDA_SUCCESS) return r;
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "described by the recording driver";
  return CUDA_SUCCESS;
}

// Devices.
CUresult Calls::cuDeviceGet(CUdevice* device, int ordinal) {
  ENTER(cuDeviceGet);
  REQUIRE(s.known(ordinal), CUDA_ERROR_INVALID_DEVICE);
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult Calls::cuDeviceGetCount(int* count) {
  ENTER(cuDeviceGetCount);
  *count = static_cast<int>(s.devices.size());
  return CUDA_SUCCESS;
}
CUresult Calls::cuDeviceGetName(char* name, int bytes, CUdevice device) {
  ENTER(cuDeviceGetName);
  REQUIRE(s.known(device), CUDA_ERROR_INVALID_DEVICE);
  REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE);
  const std::string& text = s.devices[static_cast<std::size_t>(device)].facts.name;
  const std::size_t n = std::min(text.size(), static_cast<std::size_t>(bytes) - 1);
  std::memcpy(name, text.data(), n);
  name[n] = '\0';
  return CUDA_SUCCESS;
}
CUresult Calls::cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  ENTER(cuDeviceGetAttribute);
  REQUIRE(s.known(device), CUDA_ERROR_INVALID_DEVICE);
  const FakeDevice& facts = s.devices[static_cast<std::size_t>(device)].facts;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = facts.multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 6144; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = facts.l2_bytes; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = facts.major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = facts.minor; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = facts.smem_optin_bytes + 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = facts.smem_optin_bytes; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: *value = facts.major >= 9; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult Calls::cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  ENTER(cuDeviceTotalMem);
  REQUIRE(s.known(device), CUDA_ERROR_INVALID_DEVICE);
  *bytes = s.devices[static_cast<std::size_t>(device)].facts.memory_bytes;
  return CUDA_SUCCESS;
}

// Contexts.
CUresult Calls::cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER(cuDevicePrimaryCtxRetain);
  REQUIRE(s.known(device), CUDA_ERROR_INVALID_DEVICE);
  ++s.devices[static_cast<std::size_t>(device)].retained;
  *context = s.primary(device);
  return CUDA_SUCCESS;
}
CUresult Calls::cuDevicePrimaryCtxRelease(CUdevice device) {
  ENTER(cuDevicePrimaryCtxRelease);
  REQUIRE(s.known(device), CUDA_ERROR_INVALID_DEVICE);
  int& retained = s.devices[static_cast<std::size_t>(device)].retained;
  REQUIRE(retained > 0, CUDA_ERROR_INVALID_CONTEXT);
  --retained;
  return CUDA_SUCCESS;
}
CUresult Calls::cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  ENTER(cuDevicePrimaryCtxGetState);
  REQUIRE(s.known(device), CUDA_ERROR_INVALID_DEVICE);
  *flags = 0;
  *active = s.devices[static_cast<std::size_t>(device)].retained > 0;
  return CUDA_SUCCESS;
}
CUresult Calls::cuCtxGetCurrent(CUcontext* context) {
  ENTER(cuCtxGetCurrent);
  *context = s.contexts().empty() ? nullptr : s.contexts().back();
  return CUDA_SUCCESS;
}
CUresult Calls::cuCtxSetCurrent(CUcontext context) {
  ENTER(cuCtxSetCurrent);
  REQUIRE(!context || s.device_of(context) >= 0, CUDA_ERROR_INVALID_CONTEXT);
  auto& stack = s.contexts();
  if (!stack.empty()) stack.pop_back();
  if (context) stack.push_back(context);
  return CUDA_SUCCESS;
}
CUresult Calls::cuCtxPushCurrent(CUcontext context) {
  ENTER(cuCtxPushCurrent);
  REQUIRE(s.device_of(context) >= 0, CUDA_ERROR_INVALID_CONTEXT);
  s.contexts().push_back(context);
  return CUDA_SUCCESS;
}
CUresult Calls::cuCtxPopCurrent(CUcontext* context) {
  ENTER(cuCtxPopCurrent);
  auto& stack = s.contexts();
  REQUIRE(!stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
  if (context) *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult Calls::cuCtxGetDevice(CUdevice* device) {
  ENTER(cuCtxGetDevice);
  REQUIRE(s.current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT);
  *device = s.current_device();
  return CUDA_SUCCESS;
}
CUresult Calls::cuCtxSynchronize() {
  ENTER(cuCtxSynchronize);
  REQUIRE(s.current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT);
  return s.unsafe_in_capture();
}

// Streams and capture.
CUresult Calls::cuStreamCreate(CUstream* stream, unsigned) {
  ENTER(cuStreamCreate);
  const int device = s.current_device();
  REQUIRE(device >= 0, CUDA_ERROR_INVALID_CONTEXT);
  const std::uintptr_t handle = s.new_handle();
  s.streams[handle] = {device, std::nullopt};
  *stream = reinterpret_cast<CUstream>(handle);
  return CUDA_SUCCESS;
}
CUresult Calls::cuStreamDestroy(CUstream stream) {
  ENTER(cuStreamDestroy);
  return s.streams.erase(id(stream)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult Calls::cuStreamSynchronize(CUstream stream) {
  ENTER(cuStreamSynchronize);
  REQUIRE(s.check_stream(stream) == CUDA_SUCCESS, s.check_stream(stream));
  if (auto* capture = s.capture_of(stream)) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return s.unsafe_in_capture();
}
CUresult Calls::cuStreamQuery(CUstream stream) {
  ENTER(cuStreamQuery);
  return s.check_stream(stream);
}
CUresult Calls::cuStreamGetCtx(CUstream stream, CUcontext* context) {
  ENTER(cuStreamGetCtx);
  if (default_stream(stream)) {
    REQUIRE(s.current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT);
    *context = s.contexts().back();
    return CUDA_SUCCESS;
  }
  const auto it = s.streams.find(id(stream));
  REQUIRE(it != s.streams.end(), CUDA_ERROR_INVALID_HANDLE);
  *context = s.primary(it->second.device);
  return CUDA_SUCCESS;
}
CUresult Calls::cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  ENTER(cuStreamWaitEvent);
  REQUIRE(s.events.count(id(event)), CUDA_ERROR_INVALID_HANDLE);
  return s.check_stream(stream);
}
CUresult Calls::cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  ENTER(cuStreamIsCapturing);
  REQUIRE(default_stream(stream) || s.streams.count(id(stream)), CUDA_ERROR_INVALID_HANDLE);
  const auto* capture = s.capture_of(stream);
  *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}
CUresult Calls::cuStreamGetId(CUstream stream, unsigned long long* number) {
  ENTER(cuStreamGetId);
  REQUIRE(s.check_stream(stream) == CUDA_SUCCESS, s.check_stream(stream));
  if (auto* capture = s.capture_of(stream)) {  // as seen on a device
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  *number = id(stream) + 1;
  return CUDA_SUCCESS;
}
CUresult Calls::cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* number, CUgraph*,
                                       const CUgraphNode**, const CUgraphEdgeData**, std::size_t*) {
  ENTER(cuStreamGetCaptureInfo);
  REQUIRE(default_stream(stream) || s.streams.count(id(stream)), CUDA_ERROR_INVALID_HANDLE);
  const auto* capture = s.capture_of(stream);
  *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  *number = capture ? capture->graph : 0;
  return CUDA_SUCCESS;
}
CUresult Calls::cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  ENTER(cuStreamBeginCapture);
  const auto it = s.streams.find(id(stream));
  REQUIRE(it != s.streams.end(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);  // default streams cannot capture
  REQUIRE(!it->second.capture, CUDA_ERROR_INVALID_VALUE);
  const std::uintptr_t graph = s.new_handle();
  s.graphs[graph] = {};
  it->second.capture = State::Capture{mode, std::this_thread::get_id(), false, graph};
  return CUDA_SUCCESS;
}
CUresult Calls::cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  ENTER(cuStreamEndCapture);
  auto* capture = s.capture_of(stream);
  REQUIRE(capture, CUDA_ERROR_INVALID_VALUE);
  const State::Capture ended = *capture;
  s.streams[id(stream)].capture.reset();
  if (ended.invalid) {
    s.graphs.erase(ended.graph);
    *graph = nullptr;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *graph = reinterpret_cast<CUgraph>(ended.graph);
  return CUDA_SUCCESS;
}
CUresult Calls::cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, s.capture_mode());
  return CUDA_SUCCESS;
}
CUresult Calls::cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  ENTER(cuGraphGetNodes);
  const auto it = s.graphs.find(id(graph));
  REQUIRE(it != s.graphs.end(), CUDA_ERROR_INVALID_HANDLE);
  const std::size_t have = it->second.nodes();
  if (nodes)
    for (std::size_t i = 0; i < *count; ++i) nodes[i] = i < have ? reinterpret_cast<CUgraphNode>(i + 1) : nullptr;
  *count = nodes ? std::min(*count, have) : have;
  return CUDA_SUCCESS;
}
CUresult Calls::cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  ENTER(cuGraphInstantiateWithFlags);
  const auto it = s.graphs.find(id(graph));
  REQUIRE(it != s.graphs.end(), CUDA_ERROR_INVALID_HANDLE);
  const std::uintptr_t handle = s.new_handle();
  s.executables[handle] = it->second;
  *executable = reinterpret_cast<CUgraphExec>(handle);
  return CUDA_SUCCESS;
}
CUresult Calls::cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  std::vector<Launch> replay;
  std::function<void(const Launch&)> run;
  {
    ENTER(cuGraphLaunch);
    const auto it = s.executables.find(id(executable));
    REQUIRE(it != s.executables.end(), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(s.check_stream(stream) == CUDA_SUCCESS, s.check_stream(stream));
    for (Launch launch : it->second.launches) {
      launch.captured = false;
      launch.stream = stream;
      s.launches.push_back(launch);
      replay.push_back(std::move(launch));
    }
    for (Memset m : it->second.memsets) {
      m.captured = false;
      m.stream = stream;
      s.memsets.push_back(m);
    }
    for (Copy c : it->second.copies) {
      c.captured = false;
      c.stream = stream;
      s.copies.push_back(c);
    }
    run = s.run;
  }
  if (run)
    for (const Launch& launch : replay) run(launch);
  return CUDA_SUCCESS;
}
CUresult Calls::cuGraphExecDestroy(CUgraphExec executable) {
  ENTER(cuGraphExecDestroy);
  return s.executables.erase(id(executable)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult Calls::cuGraphDestroy(CUgraph graph) {
  ENTER(cuGraphDestroy);
  return s.graphs.erase(id(graph)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Events.
CUresult Calls::cuEventCreate(CUevent* event, unsigned) {
  ENTER(cuEventCreate);
  REQUIRE(s.current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT);
  const std::uintptr_t handle = s.new_handle();
  s.events[handle] = s.current_device();
  *event = reinterpret_cast<CUevent>(handle);
  return CUDA_SUCCESS;
}
CUresult Calls::cuEventRecord(CUevent event, CUstream stream) {
  ENTER(cuEventRecord);
  REQUIRE(s.events.count(id(event)), CUDA_ERROR_INVALID_HANDLE);
  return s.check_stream(stream);
}
CUresult Calls::cuEventSynchronize(CUevent event) {
  ENTER(cuEventSynchronize);
  return s.events.count(id(event)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult Calls::cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  ENTER(cuEventElapsedTime);
  REQUIRE(s.events.count(id(start)) && s.events.count(id(end)), CUDA_ERROR_INVALID_HANDLE);
  *milliseconds = 1;
  return CUDA_SUCCESS;
}
CUresult Calls::cuEventDestroy(CUevent event) {
  ENTER(cuEventDestroy);
  return s.events.erase(id(event)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace support
