#include "cuda/cublaslt_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace verglas::cuda {
namespace {

std::string accept(CublasLtTable& table, void* handle, std::string& version) {
  table = CublasLtTable{};
  table.cublasLtGetVersion = reinterpret_cast<std::size_t (*)()>(dlsym(handle, "cublasLtGetVersion"));
  if (!table.cublasLtGetVersion) return "has no symbol cublasLtGetVersion";
  const int v = static_cast<int>(table.cublasLtGetVersion());
  version = fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  if (v < kOldestCublasLt) return fmt::format("is version {}, older than 12.4", version);
#define VERGLAS_CUBLASLT_CALL(name, parameters)                                      \
  table.name = reinterpret_cast<cublasStatus_t(*) parameters>(dlsym(handle, #name)); \
  if (!table.name) return "has no symbol " #name;
#include "cuda/cublaslt_calls.def"
#undef VERGLAS_CUBLASLT_CALL
  table.cublasLtGetStatusName = reinterpret_cast<const char* (*)(cublasStatus_t)>(dlsym(handle, "cublasLtGetStatusName"));
  if (!table.cublasLtGetStatusName) return "has no symbol cublasLtGetStatusName";
  table.version = v;
  return {};
}

}  // namespace

LibraryReport open_cublaslt(CublasLtTable& table, const SearchPlaces& places) {
  LibraryRequest request;
  request.what = "cuBLASLt";
  request.variable = "VERGLAS_CUBLASLT";
  request.names = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  request.wheels = {"nvidia/cu13/lib", "nvidia/cublas/lib"};
  request.install = "install NVIDIA's CUDA toolkit 12.4 or newer, or the wheel nvidia-cublas (CUDA 13) or nvidia-cublas-cu12";
  return open_library(request, places, [&](void* handle, std::string& version) { return accept(table, handle, version); }).report;
}

LazyTable<CublasLtTable>& lazy_cublaslt() {
  static LazyTable<CublasLtTable>& lazy =
      *new LazyTable<CublasLtTable>(Rule::cublaslt_missing, open_cublaslt);  // never destroyed: plans may be dropped at exit
  return lazy;
}
Result<const CublasLtTable*> cublaslt() { return lazy_cublaslt().get(); }
LibraryReport cublaslt_report() { return lazy_cublaslt().report(); }

}  // namespace verglas::cuda
