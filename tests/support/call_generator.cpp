#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "oracle/memory.hpp"
#include "support/graph_generator.hpp"

namespace support {
namespace {

using oracle::Format;
using Dims = std::vector<std::int64_t>;

Extents draw_live(const Case& c, Random& r) {
  if (r.chance(50)) return c.declared;
  Extents live = c.declared;
  const auto extent = [&] { return r.chance(5) ? 0 : r.chance(15) ? 1 : r.between(1, 40); };
  for (const int i : {2, 3, 4})
    if (c.is_tied || r.chance(70)) live[static_cast<std::size_t>(i)] = extent();
  if (c.is_tied) {
    if (c.declared[2] == 1) live[2] = 1;  // declared as one element, an aux tensor is a scalar for good
    live[3] = live[4] = live[2];
  }
  if (live[1] != 1 && r.chance(50)) live[1] = r.between(0, 3);
  return live;
}

double draw_number(Format format, Data data, Random& r) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const bool whole = data != Data::small_integers;
  switch (format) {
    case Format::boolean: return static_cast<double>(r.between(0, 1));
    case Format::uint8: return static_cast<double>(r.between(0, whole ? 255 : 6));
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

/// Strides of an input: gaps, repeated axes, windows that overlap.
Dims draw_input_layout(const Dims& dims, Random& r) {
  Dims s = draw_layout(dims, r);
  for (std::int64_t& stride : s)
    if (r.chance(4)) stride = r.between(0, 3);
  return s;
}

struct Description {
  Dims dims, strides;
  bool kernel_order = false;
};

/// The same elements in other words: units dropped or added, B with its axes the other way round.
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

}  // namespace

Dims draw_layout(const Dims& dims, Random& r) {
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
    reach += std::max<std::int64_t>(dims[i] - 1, 0) * strides[i];
  }
  return strides;
}

Call draw_call(const Case& c, Random& r) {
  Call call;
  call.live = draw_live(c, r);
  call.is_bare = call.live == c.declared && r.chance(30);
  for (const CaseOperand& o : c.operands) {
    const oracle::Tensor& t = c.reference.tensors[static_cast<std::size_t>(o.tensor)];
    Dims dims;
    for (const Axis a : o.axes) dims.push_back(call.live[static_cast<std::size_t>(a)]);
    const bool as_declared = dims == t.dims && (call.is_bare || r.chance(50));
    const bool bare = as_declared && (call.is_bare || r.chance(15));
    const bool is_aux = t.name[0] != 'a' && t.name[0] != 'b' && !o.is_output;
    Dims strides = as_declared ? t.strides : o.is_output ? draw_layout(dims, r) : draw_input_layout(dims, r);
    call.buffers.emplace_back(t.format, dims, std::move(strides), r.between(0, 3));
    PoisonedBuffer& buffer = call.buffers.back();
    if (!o.is_output) buffer.fill([&] { return draw_number(t.format, c.data, r); });
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
