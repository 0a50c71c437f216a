#pragma once
#include <vector>

#include "oracle/evaluate.hpp"

// Blocks of elements that share a scale, as the reference reads and makes them.

namespace oracle {

/// Byte of a scale in a blob of atoms of 128 rows by 4 columns, and the bytes of all atoms.
std::int64_t atom_byte(std::int64_t rows, std::int64_t columns, std::int64_t batch, std::int64_t row, std::int64_t column);
std::int64_t atom_bytes(std::int64_t batches, std::int64_t rows, std::int64_t columns);

/// Data times the scales of their blocks along `axis`, in fp32.
Result dequantised(const Result& data, const Tensor& scale, int block, std::size_t axis);

struct Quantised {
  Result data, scale;  ///< scale: extents of the data, but as many along the axis as there are blocks
};
Quantised quantised(const Result& source, int block, std::size_t axis, Format data, Format scale, double vmax);

/// What is wrong with a blob: its scales against those wanted, 0 in its padding, and whatever lies behind it untouched (0xFF).
std::string blob_fault(const Tensor& tensor, const Result& want, std::size_t axis);

/// (batch, rows, columns) of the scales with these extents, blocks along `axis`; true where the last two change places.
std::vector<std::int64_t> atom_extents(const std::vector<std::int64_t>& dims, std::size_t axis, bool& swapped);

}  // namespace oracle
