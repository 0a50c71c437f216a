#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "numeric/convert.hpp"
#include "verglas/verglas.hpp"

// Calls of COMBINE, and what they give by loops over rows: small integers, so that every sum is exact.
namespace support::combine {

using namespace verglas;
using Dims = std::vector<std::int64_t>;
using Ints = std::vector<std::int32_t>;
using Bytes = std::vector<std::byte>;

constexpr float kPoison = -12345.0F;

inline Dims packed(const Dims& dim) {
  Dims s(dim.size(), 1);
  for (std::size_t i = dim.size(); i-- > 1;) s[i - 1] = s[i] * dim[i];
  return s;
}
inline Tensor declare(Graph& g, const Dims& dim, DataType t) {
  return g.tensor({.dim = dim, .stride = packed(dim), .data_type = t});
}

/// Numbers of a type, and what they are.
struct Numbers {
  std::vector<float> value;
  Bytes stored;
  Numbers(std::int64_t count, DataType t, std::int64_t seed)
      : value(static_cast<std::size_t>(count)), stored(static_cast<std::size_t>(count * bytes_of(t))) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = i + seed * 1000003;
      value[static_cast<std::size_t>(i)] = static_cast<float>((at * 5 + at / 7 * 3) % 7 - 3);
      numeric::from_float(value[static_cast<std::size_t>(i)], stored.data() + i * bytes_of(t), t);
    }
  }
};

/// What a call has beside its numbers.
struct Problem {
  std::int64_t tokens = 11, rows = 40, experts = 3, k = 20, n = 37, top_k = 2;
  DataType type = DataType::fp32, score = DataType::fp32, offset = DataType::int32, out = DataType::fp32;
  MoeOffsets offsets = MoeOffsets::first_token;
  std::vector<std::int64_t> bounds = {0, 13, 13, 31};
  Ints index = {}, slot = {};

  /// Every row a token and a slot, some rows none.
  void route() {
    for (std::int64_t r = 0; r < rows; ++r) {
      index.push_back(r % 9 == 4 || tokens == 0 ? -1 : static_cast<std::int32_t>(r * 7 % tokens));
      slot.push_back(static_cast<std::int32_t>(r * 5 / 3 % top_k));
    }
  }
  std::int64_t groups() const { return std::ssize(bounds); }
  std::int64_t group_of(std::int64_t row) const {
    std::int64_t g = -1;
    for (std::int64_t i = 0; i < groups(); ++i) {
      const bool ends = offsets == MoeOffsets::end;
      const std::int64_t first =
          ends ? (i == 0 ? 0 : bounds[static_cast<std::size_t>(i - 1)]) : bounds[static_cast<std::size_t>(i)];
      const std::int64_t end =
          ends ? bounds[static_cast<std::size_t>(i)] : (i + 1 < groups() ? bounds[static_cast<std::size_t>(i + 1)] : rows);
      if (row >= first && row < end) g = i;
    }
    return g;
  }
  bool is_routed(std::int64_t r) const {
    const auto at = static_cast<std::size_t>(r);
    return group_of(r) >= 0 && index[at] >= 0 && index[at] < tokens && slot[at] >= 0 && slot[at] < top_k;
  }
};

struct Data {
  Numbers token, weight, score;
  explicit Data(const Problem& p)
      : token(p.rows * p.k, p.type, 1), weight(p.experts * p.k * p.n, p.type, 2), score(p.tokens * p.top_k, p.score, 3) {}

  std::vector<float> want(const Problem& p) const {
    std::vector<double> sums(static_cast<std::size_t>(p.tokens * p.n), 0);
    for (std::int64_t r = 0; r < p.rows; ++r) {
      if (!p.is_routed(r)) continue;
      const std::int64_t t = p.index[static_cast<std::size_t>(r)], s = p.slot[static_cast<std::size_t>(r)];
      for (std::int64_t n = 0; n < p.n; ++n) {
        double dot = 0;
        for (std::int64_t k = 0; k < p.k; ++k)
          dot += double{token.value[static_cast<std::size_t>(r * p.k + k)]} *
                 weight.value[static_cast<std::size_t>((p.group_of(r) % p.experts * p.k + k) * p.n + n)];
        sums[static_cast<std::size_t>(t * p.n + n)] += dot * score.value[static_cast<std::size_t>(t * p.top_k + s)];
      }
    }
    return {sums.begin(), sums.end()};
  }
};

struct Built {
  Graph g{{.io_data_type = DataType::fp32}};
  Tensor x, o, i, s, c;
  MoeAttributes attributes;
  explicit Built(const Problem& p) {
    x = declare(g, {1, p.rows, p.k}, p.type);
    o = declare(g, {p.groups()}, p.offset);
    i = declare(g, {1, p.rows, 1}, DataType::int32);
    s = declare(g, {1, p.rows, 1}, DataType::int32);
    c = declare(g, {p.tokens, p.top_k}, p.score);
    attributes = {.mode = MoeMode::combine, .top_k = p.top_k, .offsets = p.offsets};
    if (p.type == DataType::int8) attributes.compute_data_type = DataType::int32;
  }
  Tensor product(const Tensor& w) { return g.moe_grouped_matmul(x, w, o, attributes, i, s, c).set_data_type(DataType::fp32); }
};

/// The offsets of a call in their type.
inline Bytes stored(const std::vector<std::int64_t>& numbers, DataType t) {
  Bytes b(numbers.size() * static_cast<std::size_t>(bytes_of(t)));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    std::memcpy(b.data() + i * static_cast<std::size_t>(bytes_of(t)), &numbers[i], static_cast<std::size_t>(bytes_of(t)));
  return b;
}

}  // namespace support::combine
