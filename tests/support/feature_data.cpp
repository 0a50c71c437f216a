#include <algorithm>
#include <charconv>

#include "numeric/block_scale.hpp"
#include "numeric/convert.hpp"
#include "support/feature_graph.hpp"
#include "support/random.hpp"

namespace support {
namespace {

using namespace verglas;
using enum DataType;

/// Those behind an operand's name.
std::vector<std::int64_t> numbers_of(const std::string& name) {
  std::vector<std::int64_t> all;
  for (std::size_t at = name.find('.'); at != std::string::npos; at = name.find('.', at + 1)) {
    std::int64_t n = 0;
    std::from_chars(name.data() + at + 1, name.data() + name.size(), n);
    all.push_back(n);
  }
  return all;
}

std::vector<std::uint8_t> bytes_of(const std::vector<std::int64_t>& list, DataType type) {
  std::vector<std::uint8_t> bytes;
  for (const std::int64_t v : list)
    for (int i = 0; i < (type == int64 ? 8 : 4); ++i)
      bytes.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(v) >> 8 * i));
  return bytes;
}

std::uint8_t drawn_scale(DataType type, Random& r) {
  if (type == fp8_e8m0) return static_cast<std::uint8_t>(r.between(125, 129));
  std::uint8_t bits = 0;
  numeric::from_float(static_cast<float>(r.pick({0.5, 1.0, 1.5, 2.0, -1.0})), &bits, type);
  return bits;
}

}  // namespace

void FeatureGraph::fill(const OperandInfo& info, std::vector<std::uint8_t>& bytes) const {
  Random r(seed_ * 31 + std::hash<std::string>{}(info.name));
  const auto count = static_cast<std::size_t>(info.dim.empty() ? 0 : info.dim.size() == 1 ? info.dim[0] : info.dim[1]);
  const std::vector<std::int64_t> numbers = numbers_of(info.name);
  const auto is = [&](const char* stem) { return info.name.starts_with(stem); };
  if (is("offsets")) {
    std::vector<std::int64_t> rows(count);
    for (std::int64_t& x : rows) x = r.between(0, numbers[0]);
    std::sort(rows.begin(), rows.end());
    if (rows.size() > 2 && r.chance(50)) rows[1] = rows[2];
    bytes = bytes_of(rows, info.dtype);
    return;
  }
  if (is("gathered") || is("scattered") || is("slots")) {
    // Row i of two for each token, in an order that both lists share.
    Random same(seed_ + 5);
    std::vector<std::int64_t> places(count);
    for (std::size_t i = 0; i < count; ++i) places[i] = static_cast<std::int64_t>(i);
    same.shuffle(places);
    for (std::int64_t& p : places) p = is("gathered") ? (p % 29 == 3 ? -1 : p % numbers[0]) : is("slots") ? p % 2 : p / 2;
    bytes = bytes_of(places, int32);
    return;
  }
  if (is("atoms")) {
    const numeric::ScaleShape shape{.batches = numbers[0], .rows = numbers[1], .columns = numbers[2]};
    for (std::int64_t l = 0; l < numbers[0]; ++l)
      for (std::int64_t i = 0; i < numbers[1]; ++i)
        for (std::int64_t j = 0; j < numbers[2]; ++j)
          bytes[static_cast<std::size_t>(numeric::scale_offset(shape, l, i, j))] = drawn_scale(info.dtype, r);
    return;
  }
  if (is("scales")) {
    for (std::uint8_t& b : bytes) b = drawn_scale(info.dtype, r);
    return;
  }
  if (info.dtype == fp4_e2m1) {
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(r.pick({0, 1, 2, 4, 9, 10}) | r.pick({0, 1, 2, 5, 9, 12}) << 4);
    return;
  }
  const auto size = static_cast<std::size_t>(verglas::bytes_of(info.dtype));
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) {
    const std::int64_t most = is("cos") || is("sin") ? 5 : 1;
    const double v = is("factor") || is("host") ? r.pick({0.5, -1.0, 2.0})
                                                : static_cast<double>(r.between(info.dtype == uint8 ? 0 : -most, most));
    numeric::from_float(static_cast<float>(v), &bytes[at], info.dtype);
  }
}

}  // namespace support
