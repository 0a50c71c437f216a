#pragma once
#include <string>

#include "base/result.hpp"
#include "cuda/cublaslt_types.hpp"
#include "cuda/lazy_table.hpp"

namespace verglas::cuda {

/// cuBLASLt as a table of functions.
struct CublasLtTable {
#define VERGLAS_CUBLASLT_CALL(name, parameters) cublasStatus_t(*name) parameters = nullptr;
#include "cuda/cublaslt_calls.def"
#undef VERGLAS_CUBLASLT_CALL
  std::size_t (*cublasLtGetVersion)() = nullptr;
  const char* (*cublasLtGetStatusName)(cublasStatus_t) = nullptr;
  int version = 0;  ///< 10000 · major + 100 · minor + patch: 130000 for 13.0.0, as the library counts
};

/// Oldest cuBLASLt that is accepted: the first for CUDA 12.4.
inline constexpr int kOldestCublasLt = 120400;

/// cuBLASLt of this machine; or a decline of rule cublaslt.missing. Opening it costs tens of megabytes: ask last.
Result<const CublasLtTable*> cublaslt();
LibraryReport cublaslt_report();
LibraryReport open_cublaslt(CublasLtTable& table, const SearchPlaces& places);

LazyTable<CublasLtTable>& lazy_cublaslt();
using CublasLtOverride = TableOverride<CublasLtTable, lazy_cublaslt>;

}  // namespace verglas::cuda
