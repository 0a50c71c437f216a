#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>

/// Where the scale of a block lies in a blob of layout F8_128x4: 128 rows by 4 columns of scales are one atom of 512 bytes.
/// A row is a row of A (or of B: its N), a column is a block of K elements. Padding up to whole atoms belongs to the blob.
///
///     atom     byte = (r % 32) · 16 + (r % 128) / 32 · 4 + c % 4
///     atoms    columns first, then rows, then batches
namespace verglas::numeric {

inline constexpr std::int64_t kScaleAtomRows = 128;
inline constexpr std::int64_t kScaleAtomColumns = 4;
inline constexpr std::int64_t kScaleAtomBytes = kScaleAtomRows * kScaleAtomColumns;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return a / b + (a % b != 0); }

struct ScaleShape {
  std::int64_t batches = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< blocks along K: scale_columns(K, block)
};

/// Blocks of `block` elements along an axis of extent k; the last one may be short.
constexpr std::int64_t scale_columns(std::int64_t k, std::int64_t block) noexcept { return ceil_div(k, block); }

/// Rows of a blob where the rows of each group begin an atom of their own: as many as any partition of `rows` into `groups`
/// needs.
constexpr std::int64_t grouped_scale_rows(std::int64_t rows, std::int64_t groups) noexcept {
  const std::int64_t some = std::min(rows, groups);  // groups of one row each; from there on 128 more rows are one atom more
  return some == 0 ? 0 : kScaleAtomRows * (some + (rows - some) / kScaleAtomRows);
}

/// Bytes of the whole blob, padding included; the largest number of 63 bits where they do not fit.
constexpr std::int64_t scale_blob_bytes(const ScaleShape& s) noexcept {
  std::int64_t bytes = kScaleAtomBytes;
  bool over = false;
  for (const std::int64_t factor : {s.batches, ceil_div(s.rows, kScaleAtomRows), ceil_div(s.columns, kScaleAtomColumns)})
    over |= __builtin_mul_overflow(bytes, factor, &bytes);
  const bool none = s.batches == 0 || s.rows == 0 || s.columns == 0;
  return none ? 0 : over ? std::numeric_limits<std::int64_t>::max() : bytes;
}

/// Byte of the scale of (batch, row, column); padding rows and columns have one too.
constexpr std::int64_t scale_offset(const ScaleShape& s, std::int64_t batch, std::int64_t row, std::int64_t column) noexcept {
  const std::int64_t row_atoms = ceil_div(s.rows, kScaleAtomRows);
  const std::int64_t column_atoms = ceil_div(s.columns, kScaleAtomColumns);
  const std::int64_t atom = (batch * row_atoms + row / kScaleAtomRows) * column_atoms + column / kScaleAtomColumns;
  return atom * kScaleAtomBytes + row % 32 * 16 + row % kScaleAtomRows / 32 * 4 + column % kScaleAtomColumns;
}

}  // namespace verglas::numeric
