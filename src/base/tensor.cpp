#include "verglas/tensor.hpp"

namespace verglas {

TensorView TensorView::dense(void* data, DataType dtype, std::initializer_list<std::int64_t> extents, Device device) {
  TensorView v;
  v.data = data;
  v.dtype = dtype;
  v.device = device;
  for (const std::int64_t e : extents) v.extent[static_cast<std::size_t>(v.rank++)] = e;
  std::int64_t run = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    v.stride[static_cast<std::size_t>(i)] = run;
    run *= v.extent[static_cast<std::size_t>(i)] > 0 ? v.extent[static_cast<std::size_t>(i)] : 1;
  }
  return v;
}

TensorView TensorView::strided(void* data, DataType dtype, std::initializer_list<std::int64_t> extents,
                               std::initializer_list<std::int64_t> strides, Device device) {
  TensorView v = dense(data, dtype, extents, device);
  std::size_t i = 0;
  for (const std::int64_t s : strides) v.stride[i++] = s;
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
