#include "base/strides.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace verglas {
namespace {

void fill_row_major(std::span<const std::int64_t> extent, std::int64_t* stride) noexcept {
  std::int64_t run = 1;
  for (std::size_t i = extent.size(); i-- > 0;) {
    stride[i] = run;
    if (__builtin_mul_overflow(run, std::max<std::int64_t>(extent[i], 1), &run)) run = std::numeric_limits<std::int64_t>::max();
  }
}

}  // namespace

std::vector<std::int64_t> row_major(std::span<const std::int64_t> extent) {
  std::vector<std::int64_t> stride(extent.size());
  fill_row_major(extent, stride.data());
  return stride;
}

void set_row_major(TensorView& view) noexcept {
  fill_row_major({view.extent.data(), static_cast<std::size_t>(view.rank)}, view.stride.data());
}

bool is_injective(std::span<const std::int64_t> extent, std::span<const std::int64_t> stride) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // (stride, extent)
  for (std::size_t i = 0; i < extent.size(); ++i) {
    if (extent[i] == 0) return true;
    if (extent[i] > 1) axes.emplace_back(stride[i], extent[i]);
  }
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;
  for (const auto& [s, e] : axes) {
    if (s <= reach) return false;
    reach += (e - 1) * s;
  }
  return true;
}

}  // namespace verglas
