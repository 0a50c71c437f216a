#include "engine/cpu/quantise.hpp"

#include <algorithm>
#include <cstring>

#include "numeric/convert.hpp"
#include "numeric/quantise.hpp"

namespace verglas::engine::cpu {
namespace {

/// The larger magnitude; NaN wins, and once there stays.
float larger(float most, float v) noexcept {
  const float size = __builtin_fabsf(v);
  return most >= size || most != most ? most : size;
}

}  // namespace

void Quantiser::clear() const noexcept {
  if (op_.is_interleaved && scale_.reach > 0) std::memset(scale_.data, 0, static_cast<std::size_t>(scale_.reach));
}

void Quantiser::clear_group(std::int64_t first, std::int64_t rows, std::int64_t scale_row) const noexcept {
  if (op_.along_m) {
    std::memset(scale_.data + base_of(first), 0, static_cast<std::size_t>(numeric::scale_blob_bytes(shape_of(rows))));
    return;
  }
  const numeric::ScaleShape before{.batches = 1, .rows = scale_row, .columns = scale_.extent[2]};
  const numeric::ScaleShape own{.batches = 1, .rows = rows, .columns = scale_.extent[2]};
  std::memset(scale_.data + numeric::scale_blob_bytes(before), 0, static_cast<std::size_t>(numeric::scale_blob_bytes(own)));
}

void Quantiser::put_scale(std::int64_t batch, std::int64_t row, std::int64_t block, std::uint8_t bits) const noexcept {
  const numeric::ScaleShape shape{.batches = scale_.extent[0], .rows = scale_.extent[1], .columns = scale_.extent[2]};
  const std::int64_t offset = op_.is_interleaved ? numeric::scale_offset(shape, batch, row, block)
                                                 : batch * scale_.stride[0] + row * scale_.stride[1] + block * scale_.stride[2];
  scale_.data[offset] = static_cast<char>(bits);
}

void Quantiser::store(const TileAt& at, std::int64_t m, const float* values, std::int64_t n) const noexcept {
  const std::int64_t element = at.batch * data_.stride[0] + m * data_.stride[1] + at.n0 * data_.stride[2];
  char* to = data_.data + numeric::byte_offset(element, op_.data);
  if (op_.data == DataType::fp4_e2m1)
    numeric::store_fp4(values, to, n);
  else
    numeric::store_f32(values, op_.data, to, data_.stride[2], n);
}

void Quantiser::row(const TileAt& at, std::int64_t m, const float* values, std::int64_t n, float* spare) const noexcept {
  if (op_.scale_role < 0) return store(at, m, values, n);
  for (std::int64_t first = 0; first < n; first += op_.block) {
    float most = 0.0F;
    for (std::int64_t i = 0; i < op_.block; ++i) most = larger(most, values[first + i]);
    const numeric::BlockScale s = numeric::block_scale_of(most, op_.vmax, op_.scale);
    put_scale(at.batch, op_.is_by_group ? m + at.scale_shift : m, (at.n0 + first) / op_.block, s.stored);
    for (std::int64_t i = 0; i < op_.block; ++i) spare[first + i] = values[first + i] * s.inverse;
  }
  store(at, m, spare, n);
}

void Quantiser::columns(const TileAt& at, std::int64_t m, float* values, std::int64_t width, std::int64_t n,
                        float* spare) const noexcept {
  std::fill_n(spare, n, 0.0F);
  for (std::int64_t r = 0; r < op_.block; ++r)
    for (std::int64_t i = 0; i < n; ++i) spare[i] = larger(spare[i], values[r * width + i]);
  for (std::int64_t i = 0; i < n; ++i) {
    const numeric::BlockScale s = numeric::block_scale_of(spare[i], op_.vmax, op_.scale);
    if (op_.is_by_group)
      scale_.data[base_of(at.group_first) +
                  numeric::scale_offset(shape_of(at.group_rows), 0, at.n0 + i, (m - at.group_first) / op_.block)] =
          static_cast<char>(s.stored);
    else
      put_scale(at.batch, at.n0 + i, m / op_.block, s.stored);
    spare[i] = s.inverse;
  }
  for (std::int64_t r = 0; r < op_.block; ++r) {
    float* row = values + r * width;
    for (std::int64_t i = 0; i < n; ++i) row[i] *= spare[i];
    store(at, m + r, row, n);
  }
}

}  // namespace verglas::engine::cpu
