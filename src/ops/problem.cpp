#include <algorithm>
#include <limits>
#include <optional>

#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

using Extents = std::array<std::int64_t, 3>;

std::string type_list(std::initializer_list<DataType> types) {
  std::string s;
  for (const DataType t : types) s += (s.empty() ? "" : ", ") + std::string(name_of(t));
  return s;
}
bool is_one_of(DataType t, std::initializer_list<DataType> types) {
  return std::find(types.begin(), types.end(), t) != types.end();
}

/// Strides of a packed matrix whose axis `major` is contiguous. One with more elements than there can be is refused later.
Extents packed(const Extents& e, int major) {
  std::int64_t all = 0;
  if (__builtin_mul_overflow(e[0], e[1], &all)) all = std::numeric_limits<std::int64_t>::max();
  return major == 1 ? Extents{e[1], 1, all} : Extents{1, e[0], all};
}

/// The contiguous axis of a packed matrix, `first` where both would do. Strides of axes of extent 1 do not count.
std::optional<std::uint8_t> major_of(const TensorView& v, std::uint8_t first) {
  const Extents e{v.extent[0], v.extent[1], v.extent[2]};
  const bool is_empty = e[0] == 0 || e[1] == 0 || e[2] == 0;
  for (const std::uint8_t major : {first, static_cast<std::uint8_t>(1 - first)}) {
    const Extents want = packed(e, major);
    bool fits = true;
    for (std::size_t i = 0; i < 3; ++i) fits &= e[i] == 1 || v.stride[i] == want[i];
    if (fits || is_empty) return major;
  }
  return std::nullopt;
}

void require_rank(const Problem& p, int place, int rank) {
  const TensorView& v = p.at(place);
  if (v.rank != rank)
    throw broken(Rule::op_rank, p.who(place), v.is_bare() ? "an address" : "shape " + shape_of(v),
                 std::to_string(rank) + " axes");
}

void require_extent(const Problem& p, int place, const Extents& want) {
  const TensorView& v = p.at(place);
  if (!std::equal(want.begin(), want.end(), v.extent.begin()))
    throw broken(Rule::op_extent, p.who(place), "shape " + shape_of(v), text_of(want.data(), 3));
}

std::uint8_t require_packed(const Problem& p, int place) {
  const TensorView& v = p.at(place);
  const std::uint8_t first = p.like == nullptr ? std::uint8_t{1} : p.like->major[static_cast<std::size_t>(place)];
  if (const auto major = major_of(v, first)) return *major;
  throw broken(Rule::op_layout, p.who(place), "strides " + text_of(v.stride.data(), 3) + " for shape " + shape_of(v),
               "a packed matrix");
}

/// An output of another type than fp32 would be written as what it is not.
void require_fp32(const Problem& p, int place) {
  if (p.has(place)) p.require_type(place, {DataType::fp32});
}

void check_options(const Problem& p) {
  const auto refuse = [&](std::string_view what, std::string got, std::string want) {
    throw broken(Rule::op_option, std::string(p.definition.name()) + ", " + std::string(what), std::move(got), std::move(want));
  };
  const Options& o = p.options;
  if (o.sf_vec_size != 0 && o.sf_vec_size != 16 && o.sf_vec_size != 32)
    refuse("sf_vec_size", std::to_string(o.sf_vec_size), "16 or 32");
  const auto pair = [](const std::array<int, 2>& v) { return "(" + std::to_string(v[0]) + ", " + std::to_string(v[1]) + ")"; };
  const TileRules rules = p.definition.tile_rules(p);
  const auto [tile_m, tile_n] = o.mma_tiler_mn;
  const bool has_tile = o.mma_tiler_mn != std::array{0, 0};
  if (has_tile && ((tile_m != 128 && tile_m != 256) || tile_n < rules.step_n || tile_n > 256 || tile_n % rules.step_n != 0))
    refuse("mma_tiler_mn", pair(o.mma_tiler_mn), "128 or 256, and a multiple of " + std::to_string(rules.step_n) + " up to 256");
  const auto is_power = [&](int v) { return v > 0 && v <= rules.longest_cluster && (v & (v - 1)) == 0; };
  const auto [cluster_m, cluster_n] = o.cluster_shape_mn;
  if (o.cluster_shape_mn == std::array{0, 0}) return;
  if (!is_power(cluster_m) || !is_power(cluster_n) || cluster_m * cluster_n > 16)
    refuse("cluster_shape_mn", pair(o.cluster_shape_mn),
           (rules.longest_cluster < 16 ? "1, 2 or " + std::to_string(rules.longest_cluster) + " along each axis, "
                                       : std::string("powers of two, ")) +
               "16 blocks at most");
  if (rules.pairs && tile_m == 256 && cluster_m % 2 != 0)
    refuse("cluster_shape_mn", pair(o.cluster_shape_mn), "an even number of tiles of 256 rows");
  if (rules.one_block_at_128 && tile_m == 128 && cluster_m * cluster_n != 1)
    refuse("cluster_shape_mn", pair(o.cluster_shape_mn), "(1, 1) with tiles of 128 rows");
}

void check_devices(const Problem& p) {
  const Device first = p.at(0).device;
  for (std::size_t i = 1; i < p.given.size(); ++i) {
    const Device d = p.given[i].device;
    if (!is_given(p.given[i]) || p.given[i].is_bare() || p.at(0).is_bare() ||
        (d.type == first.type && (d.type == DeviceType::cpu || d.id == first.id)))
      continue;
    throw broken(Rule::op_device, p.who(static_cast<int>(i)), "memory on " + text_of(d), text_of(first) + " as the first tensor");
  }
}

void check_outputs(const Problem& p) {
  const auto infos = p.definition.tensors();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const auto place = static_cast<int>(i);
    if (!infos[i].is_output || !p.has(place)) continue;
    const TensorView& want = p.layout[i];
    if (want.dtype == DataType::not_set) throw broken(Rule::op_missing, p.who(place), "an output", "none in this call");
    const TensorView& v = p.at(place);
    const bool is_scalar = want.rank != 3 || (want.extent[0] == 1 && want.extent[1] == 1 && want.extent[2] == 1);
    bool fits = v.rank == want.rank && std::equal(v.extent.begin(), v.extent.begin() + v.rank, want.extent.begin());
    if (is_scalar && !fits)
      fits = v.rank >= 0 && std::all_of(v.extent.begin(), v.extent.begin() + v.rank, [](auto e) { return e == 1; });
    if (!fits) throw broken(Rule::op_extent, p.who(place), "shape " + shape_of(v), text_of(want.extent.data(), want.rank));
  }
}

}  // namespace

std::string text_of(const std::int64_t* values, int count) {
  std::string s = "(";
  for (int i = 0; i < count; ++i) s += (i ? ", " : "") + std::to_string(values[i]);
  return s + ")";
}
std::string shape_of(const TensorView& v) { return v.is_bare() ? "an address" : text_of(v.extent.data(), v.rank); }
std::string text_of(Device d) { return d.type == DeviceType::cpu ? "the host" : "CUDA device " + std::to_string(d.id); }

std::string Problem::who(int place) const {
  return std::string(definition.name()) + ", " + std::string(definition.tensors()[static_cast<std::size_t>(place)].name);
}

void Problem::require(std::initializer_list<int> places) const {
  for (const int place : places)
    if (!has(place)) throw broken(Rule::op_missing, who(place), "no tensor", "one");
}

void Problem::require_type(int place, std::initializer_list<DataType> types) const {
  if (!is_one_of(at(place).dtype, types))
    throw broken(Rule::op_dtype, who(place), std::string(name_of(at(place).dtype)), type_list(types));
}

void Problem::require_same_type(int place, int other) const {
  if (at(place).dtype != at(other).dtype)
    throw broken(
        Rule::op_dtype, who(place), std::string(name_of(at(place).dtype)),
        std::string(name_of(at(other).dtype)) + " as " + std::string(definition.tensors()[static_cast<std::size_t>(other)].name));
}

void Problem::require_accumulator(std::initializer_list<DataType> types) const {
  if (!is_one_of(options.acc_dtype, types))
    throw broken(Rule::op_option, std::string(definition.name()) + ", acc_dtype", std::string(name_of(options.acc_dtype)),
                 type_list(types));
}

void Problem::read_product(int a, int b) {
  for (const int place : {a, b}) require_rank(*this, place, 3);
  const TensorView& va = at(a);
  const TensorView& vb = at(b);
  m = va.extent[0];
  k = va.extent[1];
  l = va.extent[2];
  n = vb.extent[0];
  for (const int place : {a, b})
    if (std::any_of(at(place).extent.begin(), at(place).extent.begin() + 3, [](std::int64_t e) { return e < 0; }))
      throw broken(Rule::op_extent, who(place), "shape " + shape_of(at(place)), "none below 0");
  require_extent(*this, b, {n, k, l});
  major[static_cast<std::size_t>(a)] = require_packed(*this, a);
  major[static_cast<std::size_t>(b)] = require_packed(*this, b);
}

void Problem::read_plain_product(int a, int b) {
  require_type(a, {DataType::fp32, DataType::fp16, DataType::bf16, DataType::fp8_e4m3, DataType::fp8_e5m2});
  require_same_type(b, a);
  read_product(a, b);
}

void Problem::read_matrix(int place, std::array<std::int64_t, 3> extent) {
  require_rank(*this, place, 3);
  require_extent(*this, place, extent);
  major[static_cast<std::size_t>(place)] = require_packed(*this, place);
}

void Problem::require_dense(int place, const std::vector<std::int64_t>& extent) const {
  const auto rank = static_cast<int>(extent.size());
  require_rank(*this, place, rank);
  const TensorView& v = at(place);
  if (!std::equal(extent.begin(), extent.end(), v.extent.begin()))
    throw broken(Rule::op_extent, who(place), "shape " + shape_of(v), text_of(extent.data(), rank));
  std::int64_t run = 1;
  bool dense = true;
  for (std::size_t i = extent.size(); i-- > 0;) {
    dense &= extent[i] <= 1 || v.stride[i] == run;
    run *= extent[i];
  }
  if (!dense && run > 0)
    throw broken(Rule::op_layout, who(place), "strides " + text_of(v.stride.data(), rank) + " for shape " + shape_of(v),
                 "rows one after another");
}

void Problem::make_dense(int place, std::array<std::int64_t, 3> extent, DataType type) {
  layout[static_cast<std::size_t>(place)] = TensorView::dense(nullptr, type, {extent[0], extent[1], extent[2]});
  if (!has(place)) return;
  require_type(place, {type});
  require_dense(place, {extent.begin(), extent.end()});
}

void Problem::read_scalar(int place) const {
  require_type(place, {DataType::fp32});
  const TensorView& v = at(place);
  if (v.rank < 0 || v.rank > 3 || !std::all_of(v.extent.begin(), v.extent.begin() + v.rank, [](auto e) { return e == 1; }))
    throw broken(Rule::op_extent, who(place), "shape " + shape_of(v), "one element");
}

void Problem::read_column(int place) const {
  require_rank(*this, place, 3);
  require_type(place, {DataType::fp32});
  require_extent(*this, place, {m, 1, l});
}

void Problem::make_matrix(int place, std::int64_t columns, DataType wanted, DataType otherwise,
                          std::initializer_list<DataType> types, int as) {
  const auto i = static_cast<std::size_t>(place);
  TensorView& v = layout[i];
  v.dtype = has(place) ? at(place).dtype : wanted != DataType::not_set ? wanted : otherwise;
  if (!is_one_of(v.dtype, types)) throw broken(Rule::op_dtype, who(place), std::string(name_of(v.dtype)), type_list(types));
  const Extents extent{m, columns, l};
  const std::uint8_t first = like != nullptr ? like->major[i] : options.major == Major::n ? 1 : 0;
  major[i] = as >= 0 ? major[static_cast<std::size_t>(as)] : first;
  if (has(place)) {
    require_rank(*this, place, 3);
    require_extent(*this, place, extent);
    const std::uint8_t own = require_packed(*this, place);
    const Extents want = packed(extent, major[i]);
    bool is_wanted = true;  // of a tensor without elements, strides are no matter
    for (std::size_t axis = 0; axis < 3; ++axis) is_wanted &= extent[axis] <= 1 || at(place).stride[axis] == want[axis];
    is_wanted |= m == 0 || columns == 0 || l == 0;
    if (!is_wanted && as >= 0)
      throw broken(
          Rule::op_layout, who(place), "strides " + text_of(at(place).stride.data(), 3),
          text_of(want.data(), 3) + ", the major of " + std::string(definition.tensors()[static_cast<std::size_t>(as)].name));
    if (!is_wanted) major[i] = own;
  }
  v.rank = 3;
  const Extents stride = packed(extent, major[i]);
  std::copy(extent.begin(), extent.end(), v.extent.begin());
  std::copy(stride.begin(), stride.end(), v.stride.begin());
}

void Problem::make_column(int place) {
  require_fp32(*this, place);
  TensorView& v = layout[static_cast<std::size_t>(place)];
  v = TensorView::dense(nullptr, DataType::fp32, {m, 1, l});
}

void Problem::make_scalar(int place, std::int8_t rank) {
  require_fp32(*this, place);
  TensorView& v = layout[static_cast<std::size_t>(place)];
  v.dtype = DataType::fp32;
  v.rank = rank;
  std::fill_n(v.extent.begin(), rank, 1);
  std::fill_n(v.stride.begin(), rank, 1);
}

Problem problem_of(const Definition& definition, std::span<const TensorView> tensors, const Options& options,
                   const Problem* like) {
  if (tensors.size() != definition.tensors().size())
    throw broken(Rule::op_missing, std::string(definition.name()), std::to_string(tensors.size()) + " tensors",
                 std::to_string(definition.tensors().size()) + " places");
  Problem p{.definition = definition, .options = options, .like = like};
  std::copy(tensors.begin(), tensors.end(), p.given.begin());
  check_options(p);
  if (p.has(0)) check_devices(p);
  definition.infer(p);
  check_outputs(p);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (p.layout[i].dtype != DataType::not_set) p.layout[i].device = p.at(0).device;
  return p;
}

}  // namespace verglas::ops
