#include "support/edge_memory.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace support {
namespace {

using verglas::cuda::check;
using verglas::cuda::CUdeviceptr;
using verglas::cuda::CUresult;

struct Location {
  int type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int id = 0;
};
struct AllocationProperties {  // CUmemAllocationProp
  int type = 1;                // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 0;
  Location location{};
  void* win32 = nullptr;
  unsigned char flags[8] = {};
};
struct Access {  // CUmemAccessDesc
  Location location{};
  int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

/// The driver that the library has opened, by the name of one of its functions.
template <class Function>
Function* symbol(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const found = dlsym(library ? library : RTLD_DEFAULT, name);
  if (library) dlclose(library);
  if (!found) throw std::runtime_error(std::string("the driver has no ") + name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

EdgeMemory::EdgeMemory(const verglas::cuda::DriverTable& driver, std::size_t bytes) : driver_(driver) {
  const AllocationProperties properties;
  const Access access;
  std::size_t unit = 0;
  const auto ok = [&](CUresult code, const char* call) { check(driver_, code, call, "memory between unmapped pages"); };
  ok(symbol<CUresult(std::size_t*, const AllocationProperties*, int)>("cuMemGetAllocationGranularity")(&unit, &properties, 0),
     "cuMemGetAllocationGranularity");
  bytes_ = (bytes + unit - 1) / unit * unit;
  ok(symbol<CUresult(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long)>("cuMemAddressReserve")(
         &base_, 3 * bytes_, 0, 0, 0),
     "cuMemAddressReserve");
  ok(symbol<CUresult(unsigned long long*, std::size_t, const AllocationProperties*, unsigned long long)>("cuMemCreate")(
         &handle_, bytes_, &properties, 0),
     "cuMemCreate");
  ok(symbol<CUresult(CUdeviceptr, std::size_t, std::size_t, unsigned long long, unsigned long long)>("cuMemMap")(begin(), bytes_,
                                                                                                                 0, handle_, 0),
     "cuMemMap");
  ok(symbol<CUresult(CUdeviceptr, std::size_t, const Access*, std::size_t)>("cuMemSetAccess")(begin(), bytes_, &access, 1),
     "cuMemSetAccess");
}

EdgeMemory::~EdgeMemory() {
  driver_.cuCtxSynchronize();  // what was filled last may still be on its way, where no kernel followed
  symbol<CUresult(CUdeviceptr, std::size_t)>("cuMemUnmap")(begin(), bytes_);
  symbol<CUresult(unsigned long long)>("cuMemRelease")(handle_);
  symbol<CUresult(CUdeviceptr, std::size_t)>("cuMemAddressFree")(base_, 3 * bytes_);
}

bool EdgeMemory::is_mapped(CUdeviceptr address) const {
  unsigned mapped = 0;
  const auto attribute = static_cast<verglas::cuda::CUpointer_attribute>(13);  // CU_POINTER_ATTRIBUTE_MAPPED
  return driver_.cuPointerGetAttribute(&mapped, attribute, address) == verglas::cuda::CUDA_SUCCESS && mapped != 0;
}

void EdgeMemory::fill(int byte) const {
  check(driver_, driver_.cuMemsetD8Async(begin(), static_cast<unsigned char>(byte), bytes_, nullptr), "cuMemsetD8Async",
        "poison");
}

}  // namespace support
