#include <algorithm>

#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

constexpr std::int64_t kRun = 32;  ///< columns of up, then columns of gate

TensorView with_axes(const TensorView& v, std::array<std::int64_t, 3> extent, std::array<std::int64_t, 3> stride,
                     std::int64_t first) noexcept {
  TensorView out = v;
  const std::int64_t bytes = first * bits_of(v.dtype) / 8;
  out.rank = 3;
  if (out.data != nullptr) out.data = static_cast<char*>(out.data) + bytes;
  if (out.observed_bytes >= 0) out.observed_bytes = std::max<std::int64_t>(out.observed_bytes - bytes, 0);
  std::copy(extent.begin(), extent.end(), out.extent.begin());
  std::copy(stride.begin(), stride.end(), out.stride.begin());
  return out;
}

/// As many times `of` runs, the last maybe in part, as have run number `part`.
std::int64_t blocks_of(std::int64_t extent, std::int64_t of, int part) noexcept { return (extent / kRun + of - 1 - part) / of; }

/// Rows 32 apart have their scales 4 bytes apart in an atom.
constexpr std::int64_t kQuarterBytes = 4;
/// As many bytes of atoms from there on. Of the last atom nobody reads as many as were left out in front, but they count.
TensorView scales_from(const TensorView& v, std::int64_t first, std::int64_t bytes) noexcept {
  TensorView out = v;
  out.rank = 1;
  out.extent[0] = bytes;
  out.stride[0] = 1;
  if (out.data != nullptr) out.data = static_cast<char*>(out.data) + first;
  if (out.observed_bytes >= 0) out.observed_bytes = std::max(out.observed_bytes - first + 3 * kQuarterBytes, std::int64_t{0});
  return out;
}

/// The tensor with no extent of 0 or 1 but a batch of 1: in a graph those would be broadcast axes, or no axes.
TensorView grown(TensorView v, Cut cut, std::uint8_t major) noexcept {
  const auto raise = [&](std::size_t axis, std::int64_t least) { v.extent[axis] = std::max(v.extent[axis], least); };
  raise(0, cut == Cut::b_runs ? 4 * kRun : cut == Cut::b_quarters ? 8 * kRun : 2);
  const bool whole_pairs = cut == Cut::pair_runs || cut == Cut::halves;
  if (cut != Cut::column) raise(1, cut == Cut::quarters ? 8 * kRun : whole_pairs ? 4 * kRun : cut == Cut::runs ? 2 * kRun : 2);
  if (v.extent[2] != 1) raise(2, 2);
  const bool second = major == 1 || cut == Cut::column;
  v.stride[0] = second ? v.extent[1] : 1;
  v.stride[1] = second ? 1 : v.extent[0];
  v.stride[2] = v.extent[0] * v.extent[1];
  return v;
}

}  // namespace

TensorView cut_out(const TensorView& v, const Feed& feed, std::int64_t batch) noexcept {
  const auto& e = v.extent;
  const auto& s = v.stride;
  TensorView out;
  switch (feed.cut) {
    case Cut::a:
    case Cut::full: return with_axes(v, {e[2], e[0], e[1]}, {s[2], s[0], s[1]}, 0);
    case Cut::b:
      out = with_axes(v, {e[2], e[0], e[1]}, {s[2], s[0], s[1]}, 0);
      out.order = AxisOrder::kernel;
      return out;
    case Cut::column: return with_axes(v, {e[2], e[0], 1}, {s[2], s[0], 1}, 0);
    case Cut::bytes: return v;
    case Cut::scalar: return with_axes(v, {1, 1, 1}, {1, 1, 1}, 0);
    case Cut::a_batch: return with_axes(v, {1, e[0], e[1]}, {0, s[0], s[1]}, batch * s[2]);
    case Cut::b_runs:
      out = with_axes(v, {e[0] / (2 * kRun), kRun, e[1]}, {2 * kRun * s[0], s[0], s[1]}, batch * s[2] + feed.part * kRun * s[0]);
      out.order = AxisOrder::kernel;
      return out;
    case Cut::pair_runs:
      return with_axes(v, {e[1] / (2 * kRun), e[0], kRun}, {2 * kRun * s[1], s[0], s[1]}, batch * s[2] + feed.part * kRun * s[1]);
    case Cut::runs: return with_axes(v, {e[1] / kRun, e[0], kRun}, {kRun * s[1], s[0], s[1]}, batch * s[2]);
    case Cut::b_quarters:
      out = with_axes(v, {blocks_of(e[0], 4, feed.part), kRun, e[1]}, {4 * kRun * s[0], s[0], s[1]},
                      batch * s[2] + feed.part * kRun * s[0]);
      out.order = AxisOrder::kernel;
      return out;
    case Cut::quarters:
      return with_axes(v, {blocks_of(e[1], 4, feed.part), e[0], kRun}, {4 * kRun * s[1], s[0], s[1]},
                       batch * s[2] + feed.part * kRun * s[1]);
    case Cut::halves:
      return with_axes(v, {blocks_of(e[1], 2, feed.part), e[0], kRun}, {2 * kRun * s[1], s[0], s[1]},
                       batch * s[2] + feed.part * kRun * s[1]);
    case Cut::batch_scales: return scales_from(v, batch * s[0], s[0]);
    case Cut::quarter_scales:
      return scales_from(v, batch * s[0] + kQuarterBytes * feed.part, blocks_of(e[1], 4, feed.part) * e[2]);
    case Cut::own: return feed.view(v, feed.part);
    case Cut::alpha: break;
  }
  return out;
}

Tensor Description::declare(const TensorView& like, const Feed& feed, const std::string& name) {
  return input(grown(like, feed.cut, p_.major[static_cast<std::size_t>(feed.place)]), feed, name);
}

Tensor Description::input(const TensorView& whole, const Feed& feed, const std::string& name) {
  const TensorView v = cut_out(whole, feed, 0);
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

Tensor Description::input(int place, Cut cut, int part) {
  const Feed feed{static_cast<std::int8_t>(place), cut, static_cast<std::int8_t>(part)};
  std::string name(p_.definition.tensors()[static_cast<std::size_t>(place)].name);
  if (cut == Cut::b_runs) name += part == 0 ? " (up)" : " (gate)";
  return declare(p_.at(place), feed, name);
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
  note(t, {static_cast<std::int8_t>(place), Cut::scalar, 0});
  return t;
}

void Description::store(const Tensor& x, int place, Cut cut, int part) {
  const auto i = static_cast<std::size_t>(place);
  const Feed feed{static_cast<std::int8_t>(place), cut, static_cast<std::int8_t>(part)};
  const TensorView v = cut_out(grown(p_.layout[i], cut, p_.major[i]), feed, 0);
  std::string name(p_.definition.tensors()[i].name);
  if (cut == Cut::pair_runs) name += part == 0 ? " (up)" : " (gate)";
  Tensor out = graph.pointwise(PointwiseMode::identity, {x});
  out.set_name(name).set_data_type(v.dtype).set_output(true);
  out.set_stride({v.stride[0], v.stride[1], v.stride[2]});
  note(out, feed);
}

void Description::store_blocks(const std::array<Tensor, 2>& both, const std::array<TensorView, 2>& whole,
                               const std::array<Feed, 2>& where) {
  for (std::size_t i = 0; i < 2; ++i) {
    const TensorView v = cut_out(whole[i], where[i], 0);
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
  note(out, {static_cast<std::int8_t>(place), Cut::scalar, 0});
}

void Description::store_row_sum(const Tensor& x, int place) {
  const std::int64_t l = p_.l == 1 ? 1 : std::max<std::int64_t>(p_.l, 2);
  Tensor out = graph.reduction(x, ReductionMode::add);
  out.set_name(std::string(p_.definition.tensors()[static_cast<std::size_t>(place)].name));
  out.set_dim({l, std::max<std::int64_t>(p_.m, 2), 1}).set_data_type(DataType::fp32).set_output(true);
  note(out, {static_cast<std::int8_t>(place), Cut::column, 0});
}

}  // namespace verglas::ops
