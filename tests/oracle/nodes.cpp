#include "oracle/nodes.hpp"

#include <algorithm>
#include <stdexcept>

#include "oracle/memory.hpp"
#include "oracle/sum.hpp"

namespace oracle {

namespace {

double wrap32(std::uint64_t sum) { return static_cast<double>(static_cast<std::int32_t>(static_cast<std::uint32_t>(sum))); }

/// A sum in int32: exact modulo 2^32 for exact terms, else the hull of the ends, or everything when that leaves the range.
class IntegerSum {
 public:
  void add(const Bound& term) {
    if (term.is_exact()) {
      exact_ += static_cast<std::uint64_t>(static_cast<std::int64_t>(term.lo));
    } else {
      vague_ = true;
    }
    lo_ += term.lo;
    hi_ += term.hi;
  }
  void add_product(const Bound& a, const Bound& b) {
    if (a.is_exact() && b.is_exact()) {
      const auto x = static_cast<std::uint64_t>(static_cast<std::int64_t>(a.lo));
      exact_ += x * static_cast<std::uint64_t>(static_cast<std::int64_t>(b.lo));
    } else {
      vague_ = true;
    }
    const double corners[] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
    lo_ += *std::min_element(corners, corners + 4);
    hi_ += *std::max_element(corners, corners + 4);
  }
  Bound finish() const {
    if (!vague_) return Bound::exact(wrap32(exact_));
    if (lo_ < -2147483648.0 || hi_ > 2147483647.0) return Bound::range(-2147483648.0, 2147483647.0);
    return Bound::range(lo_, hi_);
  }

 private:
  std::uint64_t exact_ = 0;
  double lo_ = 0, hi_ = 0;
  bool vague_ = false;
};

Bound product_of(const Bound& a, const Bound& b) {
  Bound r = Bound::nothing();
  r.nan = a.nan || b.nan;
  if (!a.number || !b.number) return r;
  for (double x : {a.lo, a.hi})
    for (double y : {b.lo, b.hi}) {
      r.include(x * y);
      // Zero times an end at infinity is zero for all that lies before that end.
      if (std::isnan(x * y) && !(a.lo == a.hi && b.lo == b.hi)) r.include(0);
    }
  const auto infinite = [](const Bound& v) { return std::isinf(v.lo) || std::isinf(v.hi); };
  if ((a.can_be_zero() && infinite(b)) || (b.can_be_zero() && infinite(a))) r.nan = true;
  return r;
}

bool all_exact(const std::vector<Bound>& elements) {
  return std::all_of(elements.begin(), elements.end(), [](const Bound& v) { return v.is_exact(); });
}

double plain(const Bound& v) { return v.number ? v.lo : std::nan(""); }

Bound absolute(const Bound& v, bool integer) {
  const Bound operand[] = {v};
  return integer ? pointwise_int32(Pointwise::abs, {}, operand) : pointwise_fp32(Pointwise::abs, {}, operand, {});
}

/// Folds max or min; the sign of a zero is open.
Bound extreme(const Bound& a, const Bound& b, bool most) {
  const Bound pair[] = {a, b};
  return pointwise_fp32(most ? Pointwise::max : Pointwise::min, {}, pair, {});
}

Bound squared(const Bound& v) {
  if (v.is_exact()) return Bound::exact(plain(v) * plain(v));
  Bound r = Bound::nothing();
  r.nan = v.nan;
  if (!v.number) return r;
  r.include(v.lo * v.lo);
  r.include(v.hi * v.hi);
  if (v.can_be_zero()) r.include(0);
  return r;
}

/// Root of a sum of squares: as exact as the sum is when the root is a number of fp32, else two units.
Bound root(const Bound& sum) {
  Bound r = Bound::nothing();
  r.nan = sum.nan;
  if (!sum.number) return r;
  for (double s : {sum.lo, sum.hi}) {
    const double v = std::sqrt(std::max(s, 0.0));
    r.include(v, v == fl32(v) ? 0 : 2 * ulp32(v));
  }
  return {std::max(fl32(r.lo), 0.0), fl32(r.hi), true, r.nan};
}

Bound average(Sum sum, std::int64_t count) {
  if (count == 0) return Bound::exact(0);
  const bool power_of_two = (count & (count - 1)) == 0;
  const bool exact = sum.is_exact() && power_of_two;
  if (!power_of_two) sum.widen(sum.magnitude() * std::ldexp(static_cast<double>(count) + 8, -24));
  Bound r = sum.finish();
  if (!r.number) return r;
  const double n = static_cast<double>(count);
  Bound w = Bound::nothing();
  w.nan = r.nan;
  w.include(fl32(r.lo / n), exact ? 0 : ulp32(r.lo / n));
  w.include(fl32(r.hi / n), exact ? 0 : ulp32(r.hi / n));
  return w;
}

Bound folded(Reduction mode, const std::vector<Bound>& values, bool integer) {
  if (integer && (mode == Reduction::add || mode == Reduction::norm1)) {
    IntegerSum sum;
    for (const Bound& v : values) sum.add(mode == Reduction::add ? v : absolute(v, true));
    return sum.finish();
  }
  constexpr double kInf = std::numeric_limits<double>::infinity();
  switch (mode) {
    case Reduction::amax: {
      Bound r = Bound::exact(0);
      for (const Bound& v : values) r = extreme(r, absolute(v, integer), true);
      if (r.number && r.lo == 0) r.lo = 0.0;  // an absolute value: +0
      if (r.number && r.hi == 0) r.hi = 0.0;
      return r;
    }
    case Reduction::max: {
      Bound r = Bound::exact(integer ? -2147483648.0 : -kInf);
      for (const Bound& v : values) r = extreme(r, v, true);
      return r;
    }
    case Reduction::min: {
      Bound r = Bound::exact(integer ? 2147483647.0 : kInf);
      for (const Bound& v : values) r = extreme(r, v, false);
      return r;
    }
    default: break;
  }
  if (integer) throw std::invalid_argument("reduction " + name_of(mode) + " is not defined in int32");
  if (mode == Reduction::mul || mode == Reduction::mul_no_zeros) {
    Product product;
    for (Bound v : values) {
      if (mode == Reduction::mul_no_zeros && v.can_be_zero()) {
        if (v.lo == 0 && v.hi == 0 && !v.nan) continue;
        v.include(1);
      }
      product.multiply(v);
    }
    return product.finish();
  }
  Sum sum;
  for (const Bound& v : values) {
    if (mode == Reduction::norm1) {
      sum.add(absolute(v, false));
    } else {
      sum.add(mode == Reduction::norm2 ? squared(v) : v);
    }
  }
  if (mode == Reduction::avg) return average(sum, static_cast<std::int64_t>(values.size()));
  return mode == Reduction::norm2 ? root(sum.finish()) : sum.finish();
}

/// What tf32 may drop of a product with a subnormal operand, whose steps are 2^-136 whatever its size.
double lost_of_subnormals(const Bound& a, const Bound& b) {
  const auto size = [](const Bound& v) { return v.number ? std::max(std::fabs(v.lo), std::fabs(v.hi)) : 0.0; };
  const auto step = [&](const Bound& v) { return size(v) > 0 && size(v) < 0x1p-126 ? 0x1p-136 : 0.0; };
  const double lost = step(a) * size(b) + step(b) * size(a);
  return std::isfinite(lost) ? lost : 0.0;
}

}  // namespace

std::vector<std::int64_t> padded(std::vector<std::int64_t> dims, std::size_t rank) {
  if (dims.size() < rank) dims.insert(dims.begin(), rank - dims.size(), 1);
  return dims;
}

Result multiplied(const Result& a, const Result& b, Format compute, bool cuts) {
  const std::vector<std::int64_t> da = padded(a.dims, 3);
  std::vector<std::int64_t> db = padded(b.dims, 3);
  if (b.kernel_order) std::swap(db[1], db[2]);
  const std::int64_t batch = da[0] == 1 ? db[0] : da[0], rows = da[1], depth = da[2], columns = db[2];
  if (da.size() != 3 || db.size() != 3 || db[1] != depth || (da[0] != batch && da[0] != 1) || (db[0] != batch && db[0] != 1))
    throw std::invalid_argument("operands of a product do not fit");
  std::vector<Bound> x(a.elements.size()), y(b.elements.size());
  std::transform(a.elements.begin(), a.elements.end(), x.begin(), [&](const Bound& v) { return converted(compute, v); });
  std::transform(b.elements.begin(), b.elements.end(), y.begin(), [&](const Bound& v) { return converted(compute, v); });
  const bool integer = compute == Format::int32;
  const bool exact = all_exact(x) && all_exact(y);
  // A tf32 unit may truncate its operands to 10 bits of mantissa.
  const auto held = [](const Bound& v) { return v.is_exact() && (!v.number || round_to(Format::tf32, v.lo) == v.lo); };
  const bool truncates =
      compute == Format::tf32 && !(std::all_of(x.begin(), x.end(), held) && std::all_of(y.begin(), y.end(), held));
  const std::int64_t step_k = b.kernel_order ? 1 : columns, step_n = b.kernel_order ? depth : 1;
  Result c;
  c.dims = {batch, rows, columns};
  c.elements.reserve(static_cast<std::size_t>(batch * rows * columns));
  for (std::int64_t l = 0; l < batch; ++l)
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t n = 0; n < columns; ++n) {
        const Bound* row = x.data() + ((da[0] == 1 ? 0 : l) * rows + m) * depth;
        const Bound* column = y.data() + (db[0] == 1 ? 0 : l) * depth * columns + n * step_n;
        if (integer) {
          IntegerSum sum;
          for (std::int64_t k = 0; k < depth; ++k) sum.add_product(row[k], column[k * step_k]);
          c.elements.push_back(sum.finish());
          continue;
        }
        Sum sum;
        if (exact) {
          for (std::int64_t k = 0; k < depth; ++k) sum.add(plain(row[k]) * plain(column[k * step_k]));
        } else {
          for (std::int64_t k = 0; k < depth; ++k) sum.add(product_of(row[k], column[k * step_k]));
        }
        if (truncates) {
          sum.widen(std::ldexp(sum.magnitude(), -8));
          for (std::int64_t k = 0; k < depth; ++k) sum.widen(lost_of_subnormals(row[k], column[k * step_k]));
        }
        // Each term, and what is summed so far at every 32 of them, loses what lies 13 bits below the largest.
        if (cuts && !sum.fits(13)) sum.widen(static_cast<double>(depth + depth / 32 + 1) * std::ldexp(sum.magnitude(), -13));
        c.elements.push_back(sum.finish());
      }
  return c;
}

Result reduced(const Result& source, Reduction mode, const std::vector<bool>& kept, Format compute) {
  Result r;
  r.dims = source.dims;
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (!kept[i]) r.dims[i] = 1;
  const std::int64_t count = count_of(r.dims);
  std::vector<std::vector<Bound>> groups(static_cast<std::size_t>(count));
  std::vector<std::int64_t> strides = packed_strides(r.dims);
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (!kept[i]) strides[i] = 0;
  std::size_t at = 0;
  for (Walk w(source.dims); w.more(); w.next(), ++at)
    groups[static_cast<std::size_t>(w.offset(strides))].push_back(converted(compute, source.elements[at]));
  for (const std::vector<Bound>& group : groups) r.elements.push_back(folded(mode, group, compute == Format::int32));
  return r;
}

}  // namespace oracle
