// The recording driver's calls for device memory, which is host memory of 256-byte alignment.
#include <cstring>
#include <new>

#include "support/recording_state.hpp"

namespace support {

namespace {

constexpr std::size_t kAlignment = 256;

CUresult allocate(State& s, CUdeviceptr* address, std::size_t bytes) {
  const int device = s.current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  State::Device& d = s.devices[static_cast<std::size_t>(device)];
  if (bytes > d.facts.memory_bytes - d.used_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = std::make_unique<std::byte[]>(bytes + kAlignment);
  const auto at = (reinterpret_cast<std::uintptr_t>(memory.get()) + kAlignment - 1) / kAlignment * kAlignment;
  s.allocations[at] = {bytes, device, std::move(memory)};
  d.used_bytes += bytes;
  *address = at;
  return CUDA_SUCCESS;
}

CUresult release(State& s, CUdeviceptr address) {
  if (address == 0) return CUDA_SUCCESS;
  const auto it = s.allocations.find(address);
  if (it == s.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  s.devices[static_cast<std::size_t>(it->second.device)].used_bytes -= it->second.bytes;
  s.allocations.erase(it);
  return CUDA_SUCCESS;
}

CUresult copy(State& s, Copy c, bool on_stream) {
  if (s.current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (on_stream)
    if (const CUresult r = s.check_stream(c.stream); r != CUDA_SUCCESS) return r;
  const bool to_device = c.kind != CopyKind::device_to_host, from_device = c.kind != CopyKind::host_to_device;
  if (to_device && !s.holding(c.to, c.bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (from_device && !s.holding(c.from, c.bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (on_stream)
    if (auto* capture = s.capture_of(c.stream)) {
      if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      c.captured = true;
      s.graphs[capture->graph].copies.push_back(c);
      return CUDA_SUCCESS;
    }
  if (!on_stream)
    if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  std::memmove(reinterpret_cast<void*>(c.to), reinterpret_cast<const void*>(c.from), c.bytes);
  s.copies.push_back(c);
  return CUDA_SUCCESS;
}

CUresult fill(State& s, Memset m) {
  if (const CUresult r = s.check_stream(m.stream); r != CUDA_SUCCESS) return r;
  if (m.to % static_cast<unsigned>(m.unit_bytes) != 0 || !s.holding(m.to, m.bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (auto* capture = s.capture_of(m.stream)) {
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    m.captured = true;
    s.graphs[capture->graph].memsets.push_back(m);
    return CUDA_SUCCESS;
  }
  auto* at = reinterpret_cast<unsigned char*>(m.to);
  for (std::size_t i = 0; i < m.bytes; ++i)
    at[i] = static_cast<unsigned char>(m.value >> 8 * (i % static_cast<unsigned>(m.unit_bytes)));
  s.memsets.push_back(m);
  return CUDA_SUCCESS;
}

/// One pointer attribute; INVALID_VALUE for memory that the driver never saw, as for a plain host pointer.
CUresult attribute_of(State& s, void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto* a = s.holding(address, 0);
  if (!a || address - (reinterpret_cast<std::uintptr_t>(a->memory.get()) + kAlignment - 1) / kAlignment * kAlignment >= a->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  const std::uintptr_t start = (reinterpret_cast<std::uintptr_t>(a->memory.get()) + kAlignment - 1) / kAlignment * kAlignment;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(value) = s.primary(a->device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(value) = address; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<int*>(value) = 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(value) = a->device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(value) = start; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t*>(value) = a->bytes; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Calls::cuMemGetInfo(std::size_t* free, std::size_t* total) {
  ENTER(cuMemGetInfo);
  REQUIRE(s.current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT);
  const State::Device& d = s.devices[static_cast<std::size_t>(s.current_device())];
  *free = d.facts.memory_bytes - d.used_bytes;
  *total = d.facts.memory_bytes;
  return CUDA_SUCCESS;
}
CUresult Calls::cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  ENTER(cuMemAlloc);
  if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  return allocate(s, address, bytes);
}
CUresult Calls::cuMemFree(CUdeviceptr address) {
  ENTER(cuMemFree);
  if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  return release(s, address);
}
CUresult Calls::cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  ENTER(cuMemHostAlloc);
  REQUIRE(flags <= 7, CUDA_ERROR_INVALID_VALUE);
  if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  CUdeviceptr device = 0;
  const CUresult r = allocate(s, &device, bytes);
  *address = reinterpret_cast<void*>(device);
  return r;
}
CUresult Calls::cuMemFreeHost(void* address) {
  ENTER(cuMemFreeHost);
  if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  return release(s, reinterpret_cast<CUdeviceptr>(address));
}
CUresult Calls::cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  ENTER(cuMemAllocAsync);
  REQUIRE(s.check_stream(stream) == CUDA_SUCCESS, s.check_stream(stream));
  return allocate(s, address, bytes);
}
CUresult Calls::cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  ENTER(cuMemFreeAsync);
  REQUIRE(s.check_stream(stream) == CUDA_SUCCESS, s.check_stream(stream));
  return release(s, address);
}
CUresult Calls::cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  ENTER(cuMemcpyHtoD);
  return copy(s, {CopyKind::host_to_device, to, reinterpret_cast<std::uintptr_t>(from), bytes, nullptr, false}, false);
}
CUresult Calls::cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  ENTER(cuMemcpyDtoH);
  return copy(s, {CopyKind::device_to_host, reinterpret_cast<std::uintptr_t>(to), from, bytes, nullptr, false}, false);
}
CUresult Calls::cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  ENTER(cuMemcpyHtoDAsync);
  return copy(s, {CopyKind::host_to_device, to, reinterpret_cast<std::uintptr_t>(from), bytes, stream, false}, true);
}
CUresult Calls::cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoHAsync);
  return copy(s, {CopyKind::device_to_host, reinterpret_cast<std::uintptr_t>(to), from, bytes, stream, false}, true);
}
CUresult Calls::cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoDAsync);
  return copy(s, {CopyKind::device_to_device, to, from, bytes, stream, false}, true);
}
CUresult Calls::cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  ENTER(cuMemsetD8Async);
  return fill(s, {to, value, 1, count, stream, false});
}
CUresult Calls::cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  ENTER(cuMemsetD32Async);
  return fill(s, {to, value, 4, 4 * count, stream, false});
}
CUresult Calls::cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  ENTER(cuPointerGetAttribute);
  return attribute_of(s, value, attribute, address);
}
CUresult Calls::cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr address) {
  ENTER(cuPointerGetAttributes);
  for (unsigned i = 0; i < count; ++i)
    if (attribute_of(s, values[i], attributes[i], address) != CUDA_SUCCESS) {
      // The driver answers zeros for memory it does not know, and success.
      const bool wide = attributes[i] != CU_POINTER_ATTRIBUTE_MEMORY_TYPE && attributes[i] != CU_POINTER_ATTRIBUTE_IS_MANAGED &&
                        attributes[i] != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
      std::memset(values[i], 0, wide ? 8 : 4);
      if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int*>(values[i]) = -2;
    }
  return CUDA_SUCCESS;
}

}  // namespace support
