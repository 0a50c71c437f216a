#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "oracle/block_scale.hpp"
#include "oracle/memory.hpp"
#include "support/graph_generator.hpp"

namespace support {
namespace {

using oracle::Format;
using Dims = std::vector<std::int64_t>;

Extents draw_live(const Case& c, Random& r) {
  if (r.chance(c.is_for_device ? 15 : 50)) return c.declared;
  Extents live = c.declared;
  const auto extent = [&](std::int64_t unit) {
    const std::int64_t drawn = r.chance(5) ? 0 : r.chance(15) ? 1 : r.between(1, c.most_live);
    return unit == 1 ? drawn : (drawn + unit - 1) / unit * unit;
  };
  for (const int i : {2, 3, 4})
    if (c.is_tied || r.chance(70)) live[static_cast<std::size_t>(i)] = extent(c.unit[static_cast<std::size_t>(i)]);
  if (c.is_tied) {
    if (c.declared[2] == 1) live[2] = 1;  // declared as one element, an aux tensor is a scalar for good
    live[3] = live[4] = live[2];
  }
  if (live[1] != 1 && r.chance(50)) live[1] = r.between(0, 3);
  return live;
}

}  // namespace

double draw_number(Format format, Data data, Random& r) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const bool whole = data != Data::small_integers;
  switch (format) {
    case Format::boolean: return static_cast<double>(r.between(0, 1));
    case Format::uint8: return static_cast<double>(r.between(0, whole ? 255 : 6));
    case Format::e2m1:
      if (!whole) return static_cast<double>(r.between(-3, 3));
      return oracle::decode(Format::e2m1, static_cast<std::uint64_t>(r.between(0, 15)));
    case Format::e8m0:
      if (data == Data::wild && r.chance(4)) return r.pick({std::numeric_limits<double>::quiet_NaN(), 0x1p-127, 0x1p127});
      return std::ldexp(1.0, static_cast<int>(r.between(-3, 3)));
    case Format::int8: return static_cast<double>(whole ? r.between(-128, 127) : r.between(-3, 3));
    case Format::int32:
      if (data == Data::wild && r.chance(4)) return r.pick({-2147483648.0, 2147483647.0, 16777217.0});
      return static_cast<double>(whole ? r.between(-1000, 1000) : r.between(-3, 3));
    default: break;
  }
  if (data == Data::small_integers) return static_cast<double>(r.between(-3, 3));
  if (data == Data::wild && r.chance(4))
    return r.pick({std::numeric_limits<double>::quiet_NaN(), kInf, -kInf, -0.0, 1e-40, 3e38, 65504.0, -1e-7});
  return r.normal();
}

namespace {

Dims declared_strides(const oracle::Tensor& t) { return t.strides.empty() ? oracle::packed_strides(t.dims) : t.strides; }

/// What all declared strides but that of the contiguous axis are multiples of: 1, 2, 4 or 8.
std::int64_t unit_of(const oracle::Tensor& t) {
  const Dims declared = declared_strides(t);
  std::int64_t unit = 8;
  for (std::size_t i = 0; i < t.dims.size(); ++i)
    if (t.dims[i] > 1 && declared[i] != 1) unit = std::gcd(unit, declared[i]);
  return unit;
}

/// Strides for other extents: axes in the declared order, the declared steps of 0 and 1, alignments as declared, other gaps.
Dims draw_layout_like(const Dims& dims, const oracle::Tensor& t, Random& r) {
  const Dims declared = declared_strides(t);
  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto step = [&](std::size_t i) { return t.dims[i] > 1 ? declared[i] : std::numeric_limits<std::int64_t>::max(); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return step(x) < step(y); });
  const std::int64_t unit = unit_of(t);
  Dims strides(dims.size(), 1);
  std::int64_t reach = 0;
  for (const std::size_t i : order) {
    const bool repeats = t.dims[i] > 1 && declared[i] == 0;
    const bool is_dense = t.dims[i] > 1 && declared[i] == 1 && reach == 0;
    const std::int64_t least = reach + 1 + (r.chance(40) ? r.between(0, 9) : 0);
    strides[i] = repeats ? 0 : is_dense ? 1 : (least + unit - 1) / unit * unit;
    reach += std::max<std::int64_t>(dims[i] - 1, 0) * strides[i];
  }
  return strides;
}

}  // namespace

Dims draw_input_layout(const Dims& dims, Random& r) {
  Dims s = draw_layout(dims, r);
  for (std::int64_t& stride : s)
    if (r.chance(4)) stride = r.between(0, 3);
  return s;
}

Description describe(const CaseOperand& o, bool is_aux, const PoisonedBuffer& buffer, Random& r) {
  Description d{buffer.dims(), buffer.strides()};
  if (is_aux && r.chance(30)) {
    Description bare;
    for (std::size_t i = 0; i < d.dims.size(); ++i)
      if (d.dims[i] != 1 || r.chance(50)) {
        bare.dims.push_back(d.dims[i]);
        bare.strides.push_back(d.strides[i]);
      }
    while (bare.dims.size() < 5 && r.chance(25)) {
      const auto at = r.between(0, static_cast<std::int64_t>(bare.dims.size()));
      bare.dims.insert(bare.dims.begin() + at, 1);
      bare.strides.insert(bare.strides.begin() + at, 1);
    }
    d = std::move(bare);
  }
  if (!is_aux && d.dims.size() == 3 && d.dims[0] == 1 && r.chance(20)) {
    d.dims.erase(d.dims.begin());
    d.strides.erase(d.strides.begin());
  } else if (!is_aux && d.dims.size() == 2 && r.chance(15)) {
    d.dims.insert(d.dims.begin(), 1);
    d.strides.insert(d.strides.begin(), 1);
  }
  if (o.is_only_b && r.chance(30)) {
    d.kernel_order = true;
    const std::size_t n = d.dims.size();
    std::swap(d.dims[n - 1], d.dims[n - 2]);
    std::swap(d.strides[n - 1], d.strides[n - 2]);
  }
  for (std::size_t i = 0; i < d.dims.size(); ++i)
    if (d.dims[i] == 1 && r.chance(40)) d.strides[i] = r.between(-9, 1000);
  return d;
}

verglas::TensorView view_of(const Description& d, Format format, void* data) {
  verglas::TensorView v;
  v.data = data;
  v.dtype = static_cast<verglas::DataType>(format);
  v.rank = static_cast<std::int8_t>(d.dims.size());
  v.order = d.kernel_order ? verglas::AxisOrder::kernel : verglas::AxisOrder::declared;
  std::copy(d.dims.begin(), d.dims.end(), v.extent.begin());
  std::copy(d.strides.begin(), d.strides.end(), v.stride.begin());
  return v;
}

Dims draw_layout(const Dims& dims, Random& r, std::int64_t unit) {
  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (r.chance(50))
    std::reverse(order.begin(), order.end());  // row-major
  else
    r.shuffle(order);
  const bool padded = r.chance(40);
  Dims strides(dims.size(), 1);
  std::int64_t reach = 0;
  for (const std::size_t i : order) {
    strides[i] = reach + 1 + (padded && r.chance(60) ? r.between(0, 5) : 0);
    if (unit > 1 && i != order.front()) strides[i] = (strides[i] + unit - 1) / unit * unit;
    if (unit > 1 && i == order.front()) strides[i] = 1;
    reach += std::max<std::int64_t>(dims[i] - 1, 0) * strides[i];
  }
  return strides;
}

Dims draw_packed_layout(const Dims& dims, int axis, Random& r) {
  Dims strides(dims.size(), 1);
  std::int64_t reach = std::max<std::int64_t>(dims[static_cast<std::size_t>(axis)], 2);
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (static_cast<int>(i) == axis) continue;
    strides[i] = reach + reach % 2 + (r.chance(40) ? 2 * r.between(0, 3) : 0);
    reach = strides[i] * std::max<std::int64_t>(dims[i], 1);
  }
  return strides;
}

namespace {

/// The scales of a call: their extents, and where each of them lies.
struct ScaleMemory {
  Dims dims, strides;
  Dims places;  ///< bytes of the scales, those of blobs among padding
};

ScaleMemory draw_scale_memory(const CaseOperand& o, const oracle::Tensor& t, const Extents& live, bool as_declared, Random& r) {
  Dims plain;
  for (const Axis a : o.axes) plain.push_back(live[static_cast<std::size_t>(a)]);
  plain[o.block_axis] = (plain[o.block_axis] + o.block - 1) / o.block;
  ScaleMemory m{plain, {}, {}};
  if (!t.is_interleaved) {
    m.strides = as_declared ? t.strides : o.is_output ? draw_layout(plain, r) : draw_input_layout(plain, r);
    return m;
  }
  bool swapped = false;
  const Dims e = oracle::atom_extents(plain, o.block_axis, swapped);
  const std::int64_t bytes = oracle::atom_bytes(e[0], e[1], e[2]);
  for (std::int64_t l = 0; l < e[0]; ++l)
    for (std::int64_t row = 0; row < e[1]; ++row)
      for (std::int64_t column = 0; column < e[2]; ++column) m.places.push_back(oracle::atom_byte(e[1], e[2], l, row, column));
  m.dims = {as_declared || r.chance(70) ? bytes : bytes + r.between(1, 600)};
  if (r.chance(50) && m.dims[0] % 4 == 0) m.dims = {m.dims[0] / 4, 4};
  if (r.chance(30)) m.dims.insert(m.dims.begin(), 1);
  m.strides = oracle::packed_strides(m.dims);
  return m;
}

/// Scales between which sums of small integers stay exact, and now and then one at the edge of its type.
unsigned char draw_scale(Format format, Data data, Random& r) {
  if (data == Data::wild && r.chance(3)) return static_cast<unsigned char>(r.pick({0x00, 0x7F, 0xFE, 0xFF, 0x80, 0x01}));
  if (format == Format::e8m0) return static_cast<unsigned char>(r.between(125, 129));
  const auto code = static_cast<unsigned char>(oracle::encode(format, r.pick({0.5, 1.0, 1.5, 2.0, 3.0})));
  return r.chance(10) ? code | 0x80U : code;  // a sign, which means nothing
}

void fill_scales(PoisonedBuffer& buffer, const ScaleMemory& m, Data data, Random& r) {
  const Format format = buffer.format();
  if (m.places.empty()) {
    buffer.fill([&] { return oracle::decode(format, draw_scale(format, data, r)); });
    return;
  }
  const std::int64_t all = oracle::count_of(buffer.dims());
  const int poison = r.pick({0x00, 0x7F, 0xFF, 0xFE});
  buffer.paint([&](unsigned char* bytes) {
    std::fill_n(bytes, all, static_cast<unsigned char>(poison));
    for (const std::int64_t at : m.places) bytes[at] = draw_scale(format, data, r);
  });
}

}  // namespace

Call draw_call(const Case& c, Random& r) {
  Call call;
  do {
    call.live = draw_live(c, r);
  } while (c.most_work > 0 && call.live[1] * call.live[2] * call.live[3] * call.live[4] > c.most_work && call.live != c.declared);
  call.is_bare = call.live == c.declared && r.chance(30);
  for (const CaseOperand& o : c.operands) {
    const oracle::Tensor& t = c.reference.tensors[static_cast<std::size_t>(o.tensor)];
    Dims dims;
    for (const Axis a : o.axes) dims.push_back(call.live[static_cast<std::size_t>(a)]);
    const bool same = o.block > 0 ? call.live == c.declared : dims == t.dims;
    const bool as_declared = same && (call.is_bare || r.chance(50));
    const bool bare = as_declared && (call.is_bare || r.chance(15));
    const bool is_aux =
        (t.name[0] != 'a' && t.name[0] != 'b' && !o.is_output) || (o.block > 0 && !t.is_interleaved && !o.is_output);
    Dims strides;
    ScaleMemory scales;
    if (o.block > 0) {
      scales = draw_scale_memory(o, t, call.live, as_declared, r);
      dims = scales.dims;
      strides = scales.strides;
    } else if (as_declared) {
      strides = t.strides;
    } else if (o.packed_axis >= 0) {
      strides = draw_packed_layout(dims, o.packed_axis, r);
    } else if (c.is_for_device) {
      strides = draw_layout_like(dims, t, r);
    } else {
      strides = o.is_output ? draw_layout(dims, r) : draw_input_layout(dims, r);
    }
    const std::int64_t shift = r.between(0, 3) * (c.is_for_device ? unit_of(t) : 1);
    call.buffers.emplace_back(t.format, dims, std::move(strides), shift);
    PoisonedBuffer& buffer = call.buffers.back();
    if (!o.is_output && o.block > 0)
      fill_scales(buffer, scales, c.data, r);
    else if (!o.is_output)
      buffer.fill([&] { return draw_number(t.format, c.data, r); });
    void* const data = buffer.span_bytes() == 0 && r.chance(50) ? nullptr : buffer.data();
    oracle::Memory memory;
    memory.base = data;
    if (bare) {
      memory.bare = true;
      call.views.push_back(verglas::TensorView::address(data));
    } else {
      const Description d = describe(o, is_aux, buffer, r);
      memory.dims = d.dims;
      memory.strides = d.strides;
      memory.kernel_order = d.kernel_order;
      call.views.push_back(view_of(d, t.format, data));
      call.views.back().read_only = !o.is_output && r.chance(30);
      if (r.chance(30)) call.views.back().observed_bytes = buffer.span_bytes() + (r.chance(50) ? 0 : r.between(0, 64));
    }
    call.memory.push_back(std::move(memory));
  }
  return call;
}

std::vector<verglas::TensorView> in_plan_order(const Case& c, const verglas::CompiledPlan& plan,
                                               const std::vector<verglas::TensorView>& views) {
  std::vector<verglas::TensorView> ordered;
  for (const verglas::OperandInfo& info : plan.operands()) {
    const auto at = std::find_if(c.operands.begin(), c.operands.end(), [&](const CaseOperand& o) {
      return c.reference.tensors[static_cast<std::size_t>(o.tensor)].uid == info.uid;
    });
    if (at == c.operands.end()) throw std::logic_error("the plan asks for " + info.name + ", which no call passes");
    ordered.push_back(views[static_cast<std::size_t>(at - c.operands.begin())]);
  }
  if (ordered.size() != views.size()) throw std::logic_error("the plan takes fewer operands than the case has");
  return ordered;
}

oracle::Graph bound(const Case& c, const Call& call) {
  oracle::Graph g = c.reference;
  for (std::size_t i = 0; i < c.operands.size(); ++i)
    g.tensors[static_cast<std::size_t>(c.operands[i].tensor)].memory = call.memory[i];
  return g;
}

}  // namespace support
