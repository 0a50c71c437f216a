#include <algorithm>

#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

TensorView with_axes(const TensorView& v, std::array<std::int64_t, 3> extent, std::array<std::int64_t, 3> stride) noexcept {
  TensorView out = v;
  out.rank = 3;
  std::copy(extent.begin(), extent.end(), out.extent.begin());
  std::copy(stride.begin(), stride.end(), out.stride.begin());
  return out;
}

/// The tensor with no extent of 0 or 1 but a batch of 1: in a graph those would be broadcast axes, or no axes.
TensorView grown(TensorView v, Cut cut, std::uint8_t major, std::int64_t least) noexcept {
  const auto raise = [&](std::size_t axis, std::int64_t to) { v.extent[axis] = std::max(v.extent[axis], to); };
  raise(0, cut == Cut::b ? least : 2);
  if (cut != Cut::column) raise(1, cut == Cut::full ? least : 2);
  if (v.extent[2] != 1) raise(2, 2);
  const bool second = major == 1 || cut == Cut::column;
  v.stride[0] = second ? v.extent[1] : 1;
  v.stride[1] = second ? 1 : v.extent[0];
  v.stride[2] = v.extent[0] * v.extent[1];
  return v;
}

}  // namespace

TensorView cut_out(const TensorView& v, const Feed& feed) noexcept {
  const auto& e = v.extent;
  const auto& s = v.stride;
  TensorView out;
  switch (feed.cut) {
    case Cut::a:
    case Cut::full: return with_axes(v, {e[2], e[0], e[1]}, {s[2], s[0], s[1]});
    case Cut::b:
      out = with_axes(v, {e[2], e[0], e[1]}, {s[2], s[0], s[1]});
      out.order = AxisOrder::kernel;
      return out;
    case Cut::column: return with_axes(v, {e[2], e[0], 1}, {s[2], s[0], 1});
    case Cut::bytes: return v;
    case Cut::scalar: return with_axes(v, {1, 1, 1}, {1, 1, 1});
    case Cut::own: return feed.view(v);
    case Cut::alpha: break;
  }
  return out;
}

Tensor Description::declare(const TensorView& like, const Feed& feed, const std::string& name) {
  const auto i = static_cast<std::size_t>(feed.place);
  return input(grown(like, feed.cut, p_.major[i], p_.least[i]), feed, name);
}

Tensor Description::input(const TensorView& whole, const Feed& feed, const std::string& name) {
  const TensorView v = cut_out(whole, feed);
  std::vector<std::int64_t> dim(v.extent.begin(), v.extent.begin() + 3);
  std::vector<std::int64_t> stride(v.stride.begin(), v.stride.begin() + 3);
  if (v.order == AxisOrder::kernel) {  // a graph declares B as (L, K, N)
    std::swap(dim[1], dim[2]);
    std::swap(stride[1], stride[2]);
  }
  Tensor t = graph.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = v.dtype});
  note(t, feed);
  return t;
}

Tensor Description::input(int place, Cut cut) {
  return declare(p_.at(place), {static_cast<std::int8_t>(place), cut},
                 std::string(p_.definition.tensors()[static_cast<std::size_t>(place)].name));
}

Tensor Description::alpha() {
  Tensor t = graph.tensor({.name = "alpha",
                           .dim = {1, 1, 1},
                           .stride = {1, 1, 1},
                           .data_type = DataType::fp32,
                           .pass_by_value = !p_.alpha_in_memory});
  note(t, {});
  return t;
}

Tensor Description::scalar(int place) {
  Tensor t = graph.tensor({.name = std::string(p_.definition.tensors()[static_cast<std::size_t>(place)].name),
                           .dim = {1, 1, 1},
                           .stride = {1, 1, 1},
                           .data_type = DataType::fp32});
  note(t, {static_cast<std::int8_t>(place), Cut::scalar});
  return t;
}

void Description::store(const Tensor& x, int place, Cut cut) {
  const auto i = static_cast<std::size_t>(place);
  const Feed feed{static_cast<std::int8_t>(place), cut};
  const TensorView v = cut_out(grown(p_.layout[i], cut, p_.major[i], p_.least[i]), feed);
  std::string name(p_.definition.tensors()[i].name);
  Tensor out = graph.pointwise(PointwiseMode::identity, {x});
  out.set_name(name).set_data_type(v.dtype).set_output(true);
  out.set_stride({v.stride[0], v.stride[1], v.stride[2]});
  note(out, feed);
}

void Description::store_blocks(const std::array<Tensor, 2>& both, const std::array<TensorView, 2>& whole,
                               const std::array<Feed, 2>& where) {
  for (std::size_t i = 0; i < 2; ++i) {
    const TensorView v = cut_out(whole[i], where[i]);
    Tensor t = both[i];
    t.set_name(std::string(p_.definition.tensors()[static_cast<std::size_t>(where[i].place)].name));
    t.set_data_type(v.dtype).set_output(true).set_stride({v.stride[0], v.stride[1], v.stride[2]});
    note(t, where[i]);
  }
}

void Description::store_amax(const Tensor& x, int place) {
  Tensor out = graph.reduction(graph.pointwise(PointwiseMode::abs, {x}), ReductionMode::max);
  out.set_name(std::string(p_.definition.tensors()[static_cast<std::size_t>(place)].name)).set_dim({1, 1, 1}).set_output(true);
  out.set_data_type(DataType::fp32);
  note(out, {static_cast<std::int8_t>(place), Cut::scalar});
}

void Description::store_row_sum(const Tensor& x, int place) {
  const std::int64_t l = p_.l == 1 ? 1 : std::max<std::int64_t>(p_.l, 2);
  Tensor out = graph.reduction(x, ReductionMode::add);
  out.set_name(std::string(p_.definition.tensors()[static_cast<std::size_t>(place)].name));
  out.set_dim({l, std::max<std::int64_t>(p_.m, 2), 1}).set_data_type(DataType::fp32).set_output(true);
  note(out, {static_cast<std::int8_t>(place), Cut::column});
}

}  // namespace verglas::ops
