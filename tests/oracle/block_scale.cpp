#include "oracle/block_scale.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "oracle/memory.hpp"

namespace oracle {

namespace {

using Dims = std::vector<std::int64_t>;

double largest_of(Format data) { return data == Format::e4m3 ? 448 : data == Format::e5m2 ? 57344 : 6; }

/// Memory of plain scales over `dims`: unit axes may be missing, or be too many.
Memory over(const Memory& memory, const Dims& dims) {
  Memory r = memory;
  r.dims = dims;
  r.strides.assign(dims.size(), 0);
  std::size_t from = 0;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    while (from < memory.dims.size() && memory.dims[from] == 1) ++from;
    if (from == memory.dims.size() || memory.dims[from] != dims[i]) throw std::invalid_argument("scales do not fit their data");
    r.strides[i] = memory.strides[from++];
  }
  return r;
}

/// The stored scale that decodes to at least `wanted` (powers of two), or is nearest to it; as a number.
double encoded(Format scale, double wanted) { return round_to(scale, wanted); }

double inverse(double held) { return held == 0 ? 0 : fl32(1 / held); }

Bound magnitude(const Bound& v) {
  Bound r = v;
  if (!v.number) return r;
  const double a = std::fabs(v.lo), b = std::fabs(v.hi);
  r.lo = v.can_be_zero() ? 0 : std::min(a, b);
  r.hi = std::max(a, b);
  return r;
}

/// x times the reciprocal of a scale between two, rounded to the type of the data.
Bound scaled(const Bound& x, const Bound& scale, Format data) {
  Bound r = Bound::nothing();
  if (x.nan || scale.nan) r.include(round_to(data, std::nan("")));
  if (!x.number || !scale.number) return r;
  // Monotone but for a scale of 0, beside which the smallest of its type counts: the ends, and zero where x passes it.
  const double least = scale.lo == 0 && scale.hi > 0 ? std::ldexp(1.0, -9) : scale.lo;
  for (const double v : {x.lo, x.hi})
    for (const double s : {scale.lo, least, scale.hi}) {
      const double product = fl32(v * inverse(s));
      r.include(round_to(data, std::isnan(product) ? std::copysign(0.0, v) : product));
    }
  if (x.can_be_zero()) {
    r.include(0.0);
    if (x.lo < 0 || std::signbit(x.lo)) r.include(-0.0);
  }
  return r;
}

}  // namespace

std::int64_t atom_byte(std::int64_t rows, std::int64_t columns, std::int64_t batch, std::int64_t row, std::int64_t column) {
  const std::int64_t down = (rows + 127) / 128, across = (columns + 3) / 4;
  const std::int64_t atom = (batch * down + row / 128) * across + column / 4;
  // Inside an atom: 32 lanes, of each its four rows, of each its four columns.
  const std::int64_t lane = row % 32, quarter = row % 128 / 32;
  return ((atom * 32 + lane) * 4 + quarter) * 4 + column % 4;
}

std::int64_t atom_bytes(std::int64_t batches, std::int64_t rows, std::int64_t columns) {
  return batches * ((rows + 127) / 128 * 128) * ((columns + 3) / 4 * 4);
}

Dims atom_extents(const Dims& dims, std::size_t axis, bool& swapped) {
  const std::size_t r = dims.size();
  swapped = axis == r - 2;
  return {r == 3 ? dims[0] : 1, dims[swapped ? r - 1 : r - 2], dims[axis]};
}

Result dequantised(const Result& data, const Tensor& scale, int block, std::size_t axis) {
  if (!scale.memory) throw std::invalid_argument("scales " + scale.name + " have no memory");
  const std::size_t n = data.dims.size();
  if (data.kernel_order) axis = axis == n - 2 ? n - 1 : n - 2;
  Dims dims = data.dims;
  dims.at(axis) = (dims[axis] + block - 1) / block;
  Memory memory = *scale.memory;
  if (memory.bare) {
    memory.dims = scale.dims;
    memory.strides = scale.strides;
  }
  // Plain scales lie as the graph declares their data, whatever the order of the buffer of the data.
  Dims as_declared = dims;
  if (data.kernel_order) std::swap(as_declared[n - 2], as_declared[n - 1]);
  if (!scale.is_interleaved) memory = over(memory, as_declared);
  Result r = data;
  std::size_t at = 0;
  for (Walk w(data.dims); w.more(); w.next(), ++at) {
    Dims place = w.at();
    place[axis] /= block;
    std::int64_t offset = 0;
    if (scale.is_interleaved) {
      bool swapped = false;
      const Dims e = atom_extents(dims, axis, swapped);
      offset = atom_byte(e[1], e[2], n == 3 ? place[0] : 0, place[swapped ? n - 1 : n - 2], place[axis]);
    } else {
      if (data.kernel_order) std::swap(place[n - 2], place[n - 1]);
      for (std::size_t i = 0; i < place.size(); ++i) offset += place[i] * memory.strides[i];
    }
    const double s = std::fabs(value_at(scale.format, memory.base, offset));
    const Bound& x = r.elements[at];
    r.elements[at] = x.number && x.is_exact() ? Bound::exact(fl32(x.lo * s)) : Bound::only_nan();
  }
  return r;
}

Quantised quantised(const Result& source, int block, std::size_t axis, Format data, Format scale, double vmax) {
  if (vmax == 0) vmax = largest_of(data);
  Quantised q;
  q.data.dims = q.scale.dims = source.dims;
  q.scale.dims.at(axis) = source.dims[axis] / block;
  std::vector<Bound> most(static_cast<std::size_t>(count_of(q.scale.dims)), Bound::exact(0));
  const Dims strides = packed_strides(q.scale.dims);
  const auto block_of = [&](const Walk& w) {
    Dims place = w.at();
    place[axis] /= block;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < place.size(); ++i) at += place[i] * strides[i];
    return static_cast<std::size_t>(at);
  };
  std::size_t at = 0;
  for (Walk w(source.dims); w.more(); w.next(), ++at) {
    Bound& m = most[block_of(w)];
    const Bound x = magnitude(converted(Format::fp32, source.elements[at]));
    m.nan = m.nan || x.nan;
    if (!x.number) m.number = false;
    if (!m.number || !x.number) continue;
    m.lo = std::max(m.lo, x.lo);
    m.hi = std::max(m.hi, x.hi);
  }
  for (const Bound& m : most) {
    Bound s = Bound::nothing();
    if (m.nan) s.include(std::nan(""));
    if (m.number)
      for (const double v : {m.lo, m.hi}) s.include(encoded(scale, fl32(v / vmax)));
    q.scale.elements.push_back(s);
  }
  at = 0;
  for (Walk w(source.dims); w.more(); w.next(), ++at)
    q.data.elements.push_back(scaled(converted(Format::fp32, source.elements[at]), q.scale.elements[block_of(w)], data));
  return q;
}

std::string blob_fault(const Tensor& tensor, const Result& want, std::size_t axis) {
  bool swapped = false;
  const Dims e = atom_extents(want.dims, axis, swapped);
  const std::int64_t bytes = atom_bytes(e[0], e[1], e[2]);
  const auto* memory = static_cast<const unsigned char*>(tensor.memory->base);
  std::vector<bool> is_scale(static_cast<std::size_t>(bytes), false);
  const std::size_t n = want.dims.size();
  std::size_t at = 0;
  for (Walk w(want.dims); w.more(); w.next(), ++at) {
    const std::int64_t byte = atom_byte(e[1], e[2], n == 3 ? w.at()[0] : 0, w.at()[swapped ? n - 1 : n - 2], w.at()[axis]);
    is_scale[static_cast<std::size_t>(byte)] = true;
    const double got = value_at(tensor.format, memory, byte);
    if (!want.elements[at].contains(got))
      return tensor.name + ": scale at byte " + std::to_string(byte) + " is " + std::to_string(got) + ", wanted " +
             std::to_string(want.elements[at].lo) + " to " + std::to_string(want.elements[at].hi);
  }
  for (std::int64_t i = 0; i < bytes; ++i)
    if (!is_scale[static_cast<std::size_t>(i)] && memory[i] != 0)
      return tensor.name + ": padding at byte " + std::to_string(i) + " is " + std::to_string(memory[i]);
  for (std::int64_t i = bytes; !tensor.memory->bare && i < count_of(tensor.memory->dims); ++i)
    if (memory[i] != 0xFF) return tensor.name + ": byte " + std::to_string(i) + " behind the atoms was written";
  return {};
}

}  // namespace oracle
