#include "engine/cpu/reduce.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

namespace verglas::engine::cpu {
namespace {

template <class T>
T identity_of(ReductionMode mode) noexcept {
  using L = std::numeric_limits<T>;
  switch (mode) {
    case ReductionMode::max: return L::has_infinity ? -L::infinity() : L::lowest();
    case ReductionMode::min: return L::has_infinity ? L::infinity() : L::max();
    case ReductionMode::mul:
    case ReductionMode::mul_no_zeros: return T(1);
    default: return T(0);
  }
}

float add(float a, float b) noexcept { return a + b; }
std::int32_t add(std::int32_t a, std::int32_t b) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
float magnitude(float a) noexcept { return std::fabs(a); }
std::int32_t magnitude(std::int32_t a) noexcept {
  return a < 0 ? static_cast<std::int32_t>(0U - static_cast<std::uint32_t>(a)) : a;
}
template <class T>
T larger(T a, T b) noexcept {
  return a > b ? a : (b >= a ? b : add(a, b));  // NaN: the sum carries it
}
template <class T>
T smaller(T a, T b) noexcept {
  return a < b ? a : (b <= a ? b : add(a, b));
}

template <class T>
T element(ReductionMode mode, T x) noexcept {
  switch (mode) {
    case ReductionMode::amax:
    case ReductionMode::norm1: return magnitude(x);
    case ReductionMode::norm2: return x * x;
    case ReductionMode::mul_no_zeros: return x == T(0) ? T(1) : x;
    default: return x;
  }
}
template <class T>
T join(ReductionMode mode, T a, T b) noexcept {
  switch (mode) {
    case ReductionMode::max:
    case ReductionMode::amax: return larger(a, b);
    case ReductionMode::min: return smaller(a, b);
    case ReductionMode::mul:
    case ReductionMode::mul_no_zeros: return a * b;
    default: return add(a, b);
  }
}

/// f with the mode as a constant, so that its loops choose nothing and vectorise.
template <class F>
void with_mode(ReductionMode mode, F&& f) noexcept {
  using enum ReductionMode;
  using M = ReductionMode;
  switch (mode) {
    case M::add: return f(std::integral_constant<M, M::add>{});
    case mul: return f(std::integral_constant<M, mul>{});
    case min: return f(std::integral_constant<M, min>{});
    case max: return f(std::integral_constant<M, max>{});
    case amax: return f(std::integral_constant<M, amax>{});
    case avg: return f(std::integral_constant<M, avg>{});
    case norm1: return f(std::integral_constant<M, norm1>{});
    case norm2: return f(std::integral_constant<M, norm2>{});
    case mul_no_zeros: return f(std::integral_constant<M, mul_no_zeros>{});
  }
}

/// All of a row into one lane: sixteen running results, so that it vectorises; their order is fixed.
template <class T>
T fold(ReductionMode mode, const T* x, std::int64_t n) noexcept {
  constexpr std::int64_t kWays = 16;
  T part[kWays];
  for (T& p : part) p = identity_of<T>(mode);
  with_mode(mode, [&](auto constant) {
    constexpr ReductionMode kMode = decltype(constant)::value;
    std::int64_t i = 0;
    for (; i + kWays <= n; i += kWays)
      for (std::int64_t w = 0; w < kWays; ++w) part[w] = join(kMode, part[w], element(kMode, x[i + w]));
    for (std::int64_t w = 0; i < n; ++i, ++w) part[w] = join(kMode, part[w], element(kMode, x[i]));
  });
  T all = part[0];
  for (std::int64_t w = 1; w < kWays; ++w) all = join(mode, all, part[w]);
  return all;
}

template <class T>
T* lanes_of(const Partial& p) noexcept {
  return reinterpret_cast<T*>(p.lanes);
}

template <class T>
void absorb_as(const ReduceOp& op, const Partial& p, std::int64_t row, const T* x, std::int64_t n) noexcept {
  T* into = lanes_of<T>(p) + (p.rows == 1 && op.reduces[1] ? 0 : row) * p.columns;
  if (op.reduces[2]) {
    *into = join(op.mode, *into, fold(op.mode, x, n));
    return;
  }
  with_mode(op.mode, [&](auto constant) {
    constexpr ReductionMode kMode = decltype(constant)::value;
    for (std::int64_t i = 0; i < n; ++i) into[i] = join(kMode, into[i], element(kMode, x[i]));
  });
}

template <class T>
T* at(const recipe::RoleView& v, std::int64_t l, std::int64_t m, std::int64_t n) noexcept {
  return reinterpret_cast<T*>(v.data) + l * v.stride[0] + m * v.stride[1] + n * v.stride[2];
}

template <class F>
void each_element(const recipe::RoleView& v, F&& f) noexcept {
  for (std::int64_t l = 0; l < v.extent[0]; ++l)
    for (std::int64_t m = 0; m < v.extent[1]; ++m)
      for (std::int64_t n = 0; n < v.extent[2]; ++n) f(l, m, n);
}

template <class T>
void combine_as(const ReduceOp& op, const Partial& p, const recipe::RoleView& out, std::int64_t l, std::int64_t m, std::int64_t n,
                const std::int64_t* rows) noexcept {
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t c = 0; c < p.columns; ++c) {
      T* to = at<T>(out, op.reduces[0] ? 0 : l, op.reduces[1] ? 0 : rows ? rows[r] : m + r, op.reduces[2] ? 0 : n + c);
      *to = join(op.mode, *to, lanes_of<T>(p)[r * p.columns + c]);
    }
}

}  // namespace

void reset(const ReduceOp& op, const Partial& p) noexcept {
  for (std::int64_t i = 0; i < p.rows * p.columns; ++i) {
    if (op.compute == Lane::i32)
      lanes_of<std::int32_t>(p)[i] = identity_of<std::int32_t>(op.mode);
    else
      p.lanes[i] = identity_of<float>(op.mode);
  }
}

void absorb(const ReduceOp& op, const Partial& p, std::int64_t row, const float* lanes, std::int64_t n) noexcept {
  if (op.compute == Lane::i32)
    absorb_as(op, p, row, reinterpret_cast<const std::int32_t*>(lanes), n);
  else
    absorb_as(op, p, row, lanes, n);
}

void combine(const ReduceOp& op, const Partial& p, const recipe::RoleView& out, std::int64_t l, std::int64_t m, std::int64_t n,
             const std::int64_t* rows) noexcept {
  if (op.compute == Lane::i32)
    combine_as<std::int32_t>(op, p, out, l, m, n, rows);
  else
    combine_as<float>(op, p, out, l, m, n, rows);
}

void seed(const ReduceOp& op, const recipe::RoleView& out) noexcept {
  each_element(out, [&](std::int64_t l, std::int64_t m, std::int64_t n) {
    if (op.compute == Lane::i32)
      *at<std::int32_t>(out, l, m, n) = identity_of<std::int32_t>(op.mode);
    else
      *at<float>(out, l, m, n) = identity_of<float>(op.mode);
  });
}

void finish(const ReduceOp& op, const recipe::RoleView& out, double count) noexcept {
  if (op.mode != ReductionMode::avg && op.mode != ReductionMode::norm2) return;
  each_element(out, [&](std::int64_t l, std::int64_t m, std::int64_t n) {
    float& v = *at<float>(out, l, m, n);
    if (op.mode == ReductionMode::norm2)
      v = std::sqrt(v);
    else if (count > 0)
      v = static_cast<float>(static_cast<double>(v) / count);
  });
}

}  // namespace verglas::engine::cpu
