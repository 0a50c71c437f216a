#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "verglas/dtype.hpp"

namespace verglas {

/// An array as a .npy file holds it. The bits of bf16 travel as V2, which is what NumPy writes for ml_dtypes.bfloat16, or as u2.
struct NpyArray {
  DataType dtype = DataType::not_set;
  std::vector<std::int64_t> dim;  ///< empty for a scalar
  bool fortran_order = false;
  std::vector<std::byte> data;

  /// In elements.
  std::vector<std::int64_t> strides() const;
};

/// What the beginning of a file says, checked but for the length of what follows.
struct NpyHeader {
  DataType dtype = DataType::not_set;
  std::vector<std::int64_t> dim;
  bool fortran_order = false;
  std::size_t data_offset = 0;
  std::int64_t data_bytes = 0;
};

inline constexpr std::size_t kMaxNpyHeader = 65536;

/// Reads a header from the first bytes of a file, `kMaxNpyHeader` of them or all there are. `name` is for messages.
NpyHeader parse_npy_header(std::string_view first, const std::string& name);
/// Compares the header with the length of the file before any memory is taken. Throws file.open, file.npy_*.
NpyArray read_npy(const std::string& path);
/// Version 1.0, C order. `data` is dense.
void write_npy(const std::string& path, DataType dtype, const std::vector<std::int64_t>& dim, const void* data);

}  // namespace verglas
