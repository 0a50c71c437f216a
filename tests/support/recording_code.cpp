// The recording driver's calls for libraries, kernels, launches and tensor maps.
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "jit/cubin.hpp"
#include "support/recording_state.hpp"

namespace support {
namespace {

std::uintptr_t id(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

/// Length of an ELF image, which the driver is not told: the end of whatever lies last in it.
std::size_t elf_bytes(const char* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  std::size_t end = std::max<std::size_t>(header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize,
                                          header.e_phoff + std::size_t{header.e_phnum} * header.e_phentsize);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + std::size_t{i} * sizeof section, sizeof section);
    if (section.sh_type != SHT_NOBITS) end = std::max<std::size_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

/// Name and parameter size in an image of fake_cubin().
bool parse_fake(const std::string& image, std::string& kernel, int& bytes) {
  constexpr std::string_view kMagic = "VGFAKE\n";
  if (!image.starts_with(kMagic)) return false;
  const std::size_t end = image.find('\n', kMagic.size());
  if (end == std::string::npos) return false;
  kernel = image.substr(kMagic.size(), end - kMagic.size());
  bytes = std::atoi(image.c_str() + end + 1);
  return true;
}

constexpr int kDefaultDynamicSmem = 49152;

int limit_of(const std::map<int, int>& by_device, int device, int otherwise) {
  const auto it = by_device.find(device);
  return it == by_device.end() ? otherwise : it->second;
}

/// Checks a configuration as the driver does and fills in what the record says of it.
CUresult read_config(State& s, const State::Function& f, const CUlaunchConfig& config, Launch& out) {
  const State::Kernel& kernel = s.kernels.at(f.kernel);
  out.kernel = kernel.name;
  out.device = f.device;
  out.grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
  out.block = {config.blockDimX, config.blockDimY, config.blockDimZ};
  out.smem_bytes = config.sharedMemBytes;
  out.stream = config.hStream;
  out.attributes.assign(config.attrs, config.attrs + config.numAttrs);
  for (const CUlaunchAttribute& a : out.attributes) {
    if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      out.cluster = {a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z};
    if (a.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      out.programmatic = a.value.programmaticStreamSerializationAllowed != 0;
  }
  const auto product = [](const Dim3& d) { return std::uint64_t{d[0]} * d[1] * d[2]; };
  REQUIRE(product(out.grid) > 0 && product(out.block) > 0 && product(out.block) <= 1024, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(out.grid[0] <= 0x7fffffff && out.grid[1] <= 65535 && out.grid[2] <= 65535, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(out.smem_bytes <= static_cast<unsigned>(limit_of(kernel.max_dynamic_smem, f.device, kDefaultDynamicSmem)),
          CUDA_ERROR_INVALID_VALUE);
  const unsigned most = limit_of(kernel.non_portable_cluster, f.device, 0) ? 16 : 8;
  REQUIRE(product(out.cluster) > 0 && product(out.cluster) <= most, CUDA_ERROR_INVALID_CLUSTER_SIZE);
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(out.grid[i] % out.cluster[i] == 0, CUDA_ERROR_INVALID_CLUSTER_SIZE);
  return CUDA_SUCCESS;
}

/// Bytes of the parameters, from either way of passing them.
CUresult read_parameters(const State::Kernel& kernel, void** parameters, void** extra, std::vector<std::byte>& out) {
  if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
  if (extra) {
    const std::byte* at = nullptr;
    std::size_t bytes = 0;
    for (; id(*extra) != 0; extra += 2) {                                         // CU_LAUNCH_PARAM_END
      if (id(extra[0]) == 1) at = static_cast<const std::byte*>(extra[1]);        // …_BUFFER_POINTER
      if (id(extra[0]) == 2) bytes = *static_cast<const std::size_t*>(extra[1]);  // …_BUFFER_SIZE
    }
    REQUIRE(at, CUDA_ERROR_INVALID_VALUE);
    out.assign(at, at + bytes);
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < kernel.parameter_bytes.size(); ++i) {
    REQUIRE(parameters && parameters[i], CUDA_ERROR_INVALID_VALUE);
    const auto* at = static_cast<const std::byte*>(parameters[i]);
    out.insert(out.end(), at, at + kernel.parameter_bytes[i]);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Calls::cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                                  unsigned) {
  ENTER(cuLibraryLoadData);
  REQUIRE(code, CUDA_ERROR_INVALID_VALUE);
  if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  const char* text = static_cast<const char*>(code);
  State::Library loaded;
  if (std::memcmp(text, "VGFAKE\n", 7) == 0)
    loaded.image = text;
  else if (std::memcmp(text, ELFMAG, SELFMAG) == 0)
    loaded.image.assign(text, elf_bytes(text));
  else
    return CUDA_ERROR_INVALID_IMAGE;
  const std::uintptr_t handle = s.new_handle();
  s.libraries[handle] = std::move(loaded);
  *library = reinterpret_cast<CUlibrary>(handle);
  return CUDA_SUCCESS;
}

CUresult Calls::cuLibraryUnload(CUlibrary library) {
  ENTER(cuLibraryUnload);
  if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  const auto it = s.libraries.find(id(library));
  REQUIRE(it != s.libraries.end(), CUDA_ERROR_INVALID_HANDLE);
  for (const auto& [name, kernel] : it->second.kernels) {
    std::erase_if(s.functions, [&](const auto& f) { return f.second.kernel == kernel; });
    s.kernels.erase(kernel);
  }
  s.libraries.erase(it);
  return CUDA_SUCCESS;
}

CUresult Calls::cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  ENTER(cuLibraryGetKernel);
  const auto it = s.libraries.find(id(library));
  REQUIRE(it != s.libraries.end(), CUDA_ERROR_INVALID_HANDLE);
  if (const auto known = it->second.kernels.find(name); known != it->second.kernels.end()) {
    *kernel = reinterpret_cast<CUkernel>(known->second);
    return CUDA_SUCCESS;
  }
  State::Kernel made;
  made.name = name;
  std::string fake_name;
  int fake_bytes = 0;
  if (parse_fake(it->second.image, fake_name, fake_bytes)) {
    REQUIRE(fake_name == name, CUDA_ERROR_NOT_FOUND);
    made.parameter_bytes = {fake_bytes};
  } else {
    const auto info = verglas::jit::read_cubin(it->second.image, name);
    REQUIRE(info, CUDA_ERROR_NOT_FOUND);
    made.parameter_bytes = info->parameter_bytes;
  }
  if (const auto declared = s.declared.find(name); declared != s.declared.end()) made.parameter_bytes = declared->second;
  const std::uintptr_t handle = s.new_handle();
  it->second.kernels[name] = handle;
  s.kernels[handle] = std::move(made);
  *kernel = reinterpret_cast<CUkernel>(handle);
  return CUDA_SUCCESS;
}

CUresult Calls::cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  ENTER(cuKernelGetFunction);
  const int device = s.current_device();
  REQUIRE(device >= 0, CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(s.kernels.count(id(kernel)), CUDA_ERROR_INVALID_HANDLE);
  for (const auto& [handle, f] : s.functions)
    if (f.kernel == id(kernel) && f.device == device) {
      *function = reinterpret_cast<CUfunction>(handle);
      return CUDA_SUCCESS;
    }
  const std::uintptr_t handle = s.new_handle();
  s.functions[handle] = {id(kernel), device, false};
  *function = reinterpret_cast<CUfunction>(handle);
  return CUDA_SUCCESS;
}

CUresult Calls::cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  ENTER(cuKernelSetAttribute);
  const auto it = s.kernels.find(id(kernel));
  REQUIRE(it != s.kernels.end(), CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(s.known(device), CUDA_ERROR_INVALID_DEVICE);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      REQUIRE(value >= 0 && value <= s.devices[static_cast<std::size_t>(device)].facts.smem_optin_bytes,
              CUDA_ERROR_INVALID_VALUE);
      it->second.max_dynamic_smem[device] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      it->second.non_portable_cluster[device] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Calls::cuFuncLoad(CUfunction function) {
  ENTER(cuFuncLoad);
  const auto it = s.functions.find(id(function));
  REQUIRE(it != s.functions.end(), CUDA_ERROR_INVALID_HANDLE);
  if (const CUresult r = s.unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  it->second.loaded = true;
  return CUDA_SUCCESS;
}

CUresult Calls::cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  ENTER(cuFuncGetAttribute);
  const auto it = s.functions.find(id(function));
  REQUIRE(it != s.functions.end(), CUDA_ERROR_INVALID_HANDLE);
  const State::Kernel& kernel = s.kernels.at(it->second.kernel);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = limit_of(kernel.max_dynamic_smem, it->second.device, kDefaultDynamicSmem);
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult Calls::cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  ENTER(cuOccupancyMaxActiveClusters);
  const auto it = s.functions.find(id(function));
  REQUIRE(it != s.functions.end(), CUDA_ERROR_INVALID_HANDLE);
  Launch out;
  if (const CUresult r = read_config(s, it->second, *config, out); r != CUDA_SUCCESS) return r;
  // One block of ours fills a multiprocessor; a cluster stays inside a group of 16.
  const int size = static_cast<int>(out.cluster[0] * out.cluster[1] * out.cluster[2]);
  *clusters = s.devices[static_cast<std::size_t>(it->second.device)].facts.multiprocessors / 16 * (16 / size) +
              s.devices[static_cast<std::size_t>(it->second.device)].facts.multiprocessors % 16 / size;
  return CUDA_SUCCESS;
}

CUresult Calls::cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  Launch launch;
  std::function<void(const Launch&)> run;
  {
    ENTER(cuLaunchKernelEx);
    REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
    const int device = s.current_device();
    REQUIRE(device >= 0, CUDA_ERROR_INVALID_CONTEXT);
    const auto it = s.functions.find(id(function));
    REQUIRE(it != s.functions.end() && it->second.device == device, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(s.check_stream(config->hStream) == CUDA_SUCCESS, s.check_stream(config->hStream));
    if (const CUresult r = read_config(s, it->second, *config, launch); r != CUDA_SUCCESS) return r;
    if (const CUresult r = read_parameters(s.kernels.at(it->second.kernel), parameters, extra, launch.parameters);
        r != CUDA_SUCCESS)
      return r;
    if (auto* capture = s.capture_of(config->hStream)) {
      if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      if (!it->second.loaded) {  // lazy loading inside a capture
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      }
      launch.captured = true;
      s.graphs[capture->graph].launches.push_back(launch);
      return CUDA_SUCCESS;
    }
    it->second.loaded = true;
    s.launches.push_back(launch);
    run = s.run;
  }
  if (run) run(launch);
  return CUDA_SUCCESS;
}

namespace {
int element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ: return 4;
  }
  return 0;
}
bool is_float(CUtensorMapDataType type) { return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16; }
}  // namespace

// Limits as documented at cuTensorMapEncodeTiled in cuda.h of CUDA 13.0.
CUresult Calls::cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, std::uint32_t rank, void* address,
                                       const std::uint64_t* extents, const std::uint64_t* strides, const std::uint32_t* box,
                                       const std::uint32_t* element_strides, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill) {
  ENTER(cuTensorMapEncodeTiled);
  REQUIRE(s.current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT);  // seen on an H200 with CUDA 13.0, though nothing is enqueued
  const CUresult no = CUDA_ERROR_INVALID_VALUE;
  REQUIRE(map && id(map) % 64 == 0, no);
  const int bytes = element_bytes(type);
  REQUIRE(bytes > 0 && rank >= 1 && rank <= 5, no);
  REQUIRE(interleave >= CU_TENSOR_MAP_INTERLEAVE_NONE && interleave <= CU_TENSOR_MAP_INTERLEAVE_32B, no);
  REQUIRE(interleave == CU_TENSOR_MAP_INTERLEAVE_NONE || rank >= 3, no);
  REQUIRE(swizzle >= CU_TENSOR_MAP_SWIZZLE_NONE && swizzle <= CU_TENSOR_MAP_SWIZZLE_128B, no);
  REQUIRE(promotion >= CU_TENSOR_MAP_L2_PROMOTION_NONE && promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B, no);
  REQUIRE(fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || is_float(type), no);
  const unsigned unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  REQUIRE(address && id(address) % unit == 0, no);
  REQUIRE(interleave != CU_TENSOR_MAP_INTERLEAVE_32B || swizzle == CU_TENSOR_MAP_SWIZZLE_32B, no);
  REQUIRE(extents && box && element_strides && (rank == 1 || strides), no);
  TensorMapRecord r{};
  for (std::uint32_t i = 0; i < rank; ++i) {
    REQUIRE(extents[i] > 0 && extents[i] <= std::uint64_t{1} << 32, no);
    REQUIRE(box[i] > 0 && box[i] <= 256, no);
    REQUIRE(element_strides[i] > 0 && element_strides[i] <= 8, no);
    r.extents_less_one[i] = static_cast<std::uint32_t>(extents[i] - 1);
    r.box[i] = static_cast<std::uint16_t>(box[i]);
    r.element_strides[i] = static_cast<std::uint8_t>(element_strides[i]);
  }
  for (std::uint32_t i = 0; i + 1 < rank; ++i) {
    REQUIRE(strides[i] % unit == 0 && strides[i] < std::uint64_t{1} << 40, no);
    r.strides[i] = strides[i];
  }
  const unsigned inner = box[0] * static_cast<unsigned>(bytes);
  if (interleave == CU_TENSOR_MAP_INTERLEAVE_NONE) {
    REQUIRE(inner % 16 == 0, no);
    REQUIRE(swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || inner <= 16U << swizzle, no);  // 32, 64, 128 bytes
  }
  r.magic = TensorMapRecord::kMagic;
  r.type = static_cast<std::uint8_t>(type);
  r.rank = static_cast<std::uint8_t>(rank);
  r.interleave = static_cast<std::uint8_t>(interleave);
  r.swizzle = static_cast<std::uint8_t>(swizzle);
  r.address = id(address);
  r.promotion = static_cast<std::uint8_t>(promotion);
  r.fill = static_cast<std::uint8_t>(fill);
  std::memcpy(map, &r, sizeof r);
  return CUDA_SUCCESS;
}

CUresult Calls::cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  ENTER(cuTensorMapReplaceAddress);
  REQUIRE(s.current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(map && id(map) % 64 == 0, CUDA_ERROR_INVALID_VALUE);
  TensorMapRecord r = record_of(*map);
  REQUIRE(r.magic == TensorMapRecord::kMagic, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(address && id(address) % (r.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16) == 0, CUDA_ERROR_INVALID_VALUE);
  r.address = id(address);
  std::memcpy(map, &r, sizeof r);
  return CUDA_SUCCESS;
}

}  // namespace support
