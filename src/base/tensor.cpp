#include "verglas/tensor.hpp"

#include <algorithm>
#include <string>

#include "base/rules.hpp"
#include "base/strides.hpp"

namespace verglas {

TensorView TensorView::dense(void* data, DataType dtype, std::initializer_list<std::int64_t> extents, Device device) {
  if (extents.size() > std::size_t{kMaxRank})
    throw broken(Rule::call_rank, "view", std::to_string(extents.size()) + " extents", "at most " + std::to_string(kMaxRank));
  TensorView v;
  v.data = data;
  v.dtype = dtype;
  v.device = device;
  for (const std::int64_t e : extents) v.extent[static_cast<std::size_t>(v.rank++)] = e;
  set_row_major(v);
  return v;
}

TensorView TensorView::strided(void* data, DataType dtype, std::initializer_list<std::int64_t> extents,
                               std::initializer_list<std::int64_t> strides, Device device) {
  TensorView v = dense(data, dtype, extents, device);
  if (strides.size() != extents.size())
    throw broken(Rule::call_rank, "view",
                 std::to_string(strides.size()) + " strides for " + std::to_string(extents.size()) + " extents", "one for each");
  std::ranges::copy(strides, v.stride.begin());
  return v;
}

TensorView TensorView::address(void* data) noexcept {
  TensorView v;
  v.data = data;
  v.rank = kBareAddress;
  v.device = {DeviceType::unknown, -1};
  return v;
}

}  // namespace verglas
