#include "base/strides.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace verglas {

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
