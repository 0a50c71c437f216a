#include "plan/operand_sets.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include "numeric/block_scale.hpp"
#include "numeric/convert.hpp"

namespace verglas::plan {
namespace {

bool is_scale(const chain::FusionChain& c, std::size_t operand) {
  return std::any_of(c.roles.begin(), c.roles.end(),
                     [&](const chain::Role& r) { return static_cast<std::size_t>(r.operand) == operand && r.block > 0; });
}

/// Of interleaved scales: whole atoms of (batch, rows, blocks), at the declared extents.
std::size_t blob_bytes(const chain::FusionChain& c, const chain::Role& r) {
  const auto extent = [&](chain::Symbol s) { return declared_extent(c, s); };
  const std::int64_t rows = extent(r.symbol[1]);
  return static_cast<std::size_t>(
      numeric::scale_blob_bytes({.batches = extent(r.symbol[0]),
                                 .rows = r.is_by_group ? numeric::grouped_scale_rows(rows, c.grouping.groups) : rows,
                                 .columns = numeric::scale_columns(extent(r.symbol[2]), r.block)}));
}

}  // namespace

std::vector<std::size_t> operand_bytes(const chain::FusionChain& c) {
  std::vector<std::size_t> bytes;
  for (const chain::Operand& o : c.operands) {
    std::int64_t elements = 1;
    for (std::size_t i = 0; i < o.dim.size(); ++i) elements = o.dim[i] == 0 ? 0 : elements;
    for (std::size_t i = 0; elements > 0 && i < o.dim.size(); ++i) elements += (o.dim[i] - 1) * o.stride[i];
    bytes.push_back(static_cast<std::size_t>((elements * bits_of(o.dtype) + 7) / 8));
  }
  for (const chain::Role& r : c.roles)
    if (r.is_interleaved) bytes[static_cast<std::size_t>(r.operand)] = blob_bytes(c, r);
  return bytes;
}

std::optional<std::int64_t> routing_element(const chain::FusionChain& c, std::size_t operand, std::int64_t i) {
  using enum chain::RoleKind;
  const chain::Grouping& g = c.grouping;
  const std::int64_t rows = g.combines() ? g.tokens : c.declared[g.axis == chain::GroupedAxis::k ? 3 : 1];
  const std::int64_t top_k = std::max<std::int64_t>(g.top_k, 1);
  const std::int64_t tokens = std::max<std::int64_t>(g.combines() ? c.declared[1] : g.has_tokens() ? g.tokens : rows / top_k, 1);
  for (const chain::Role& r : c.roles) {
    if (static_cast<std::size_t>(r.operand) != operand) continue;
    if (r.kind == group_offset) {
      const std::int64_t groups = std::max<std::int64_t>(g.groups, 1);
      return std::min(i + (g.offsets == MoeOffsets::end ? 1 : 0), groups) * rows / groups;
    }
    if (r.kind == token_index) return i % tokens;
    if (r.kind == token_slot) return i / tokens % top_k;
  }
  return std::nullopt;
}

std::vector<std::byte> random_elements(const chain::FusionChain& c, std::size_t operand, std::size_t bytes) {
  const DataType t = c.operands[operand].dtype;
  std::mt19937 random(static_cast<unsigned>(operand) + 1);
  std::vector<std::byte> out(bytes);
  if (t == DataType::fp4_e2m1) {
    for (std::byte& b : out) b = static_cast<std::byte>(random());
    return out;
  }
  if (routing_element(c, operand, 0)) {
    const auto size = static_cast<std::size_t>(bytes_of(t));
    for (std::size_t at = 0; at + size <= bytes; at += size) {
      const std::int64_t row = *routing_element(c, operand, static_cast<std::int64_t>(at / size));
      std::memcpy(out.data() + at, &row, size);  // little-endian: the low bytes are the narrower integer
    }
    return out;
  }
  std::normal_distribution<float> normal(0.0F, is_integer(t) ? 20.0F : 1.0F);
  const auto size = static_cast<std::size_t>(bytes_of(t));
  const bool scales = is_scale(c, operand);
  for (std::size_t at = 0; at + size <= bytes; at += size)
    numeric::from_float(scales ? 1.0F : normal(random), out.data() + at, t);
  return out;
}

}  // namespace verglas::plan
