#include <algorithm>

#include "numeric/block_scale.hpp"
#include "ops/definition.hpp"

// Operands with a scale for each block of K, and quantised outputs.
namespace verglas::ops {
namespace {

using enum DataType;
using Six = std::array<std::int64_t, 6>;

/// What blocks of e5m2 are brought to, in all operations: cuDNN's kernels have it, where the type would end at 57344.
constexpr double kLargestE5m2 = 128;

std::string text_of(const Six& values) { return ops::text_of(values.data(), 6); }
std::string strides_of(const TensorView& v) { return "strides " + ops::text_of(v.stride.data(), v.rank); }

/// Atoms of 128 rows by 4 scales, as cuDNN's torch tensors list their axes: (32, 4, R', 4, K', L).
struct AtomView {
  Six extent, stride;
  AtomView(std::int64_t rows, std::int64_t columns, std::int64_t batches) {
    const std::int64_t r = numeric::ceil_div(rows, numeric::kScaleAtomRows);
    const std::int64_t c = numeric::ceil_div(columns, numeric::kScaleAtomColumns);
    extent = {32, 4, r, 4, c, batches};
    stride = {16, 4, 512 * c, 1, 512, 512 * c * r};
  }
  std::int64_t bytes() const { return 512 * extent[2] * extent[4] * extent[5]; }
};

/// The same memory with its axes in order, (L, R', K', 32, 4, 4): what JAX can say.
Six in_order(const Six& v) { return {v[5], v[2], v[4], v[0], v[1], v[3]}; }

bool has_form(const TensorView& v, const Six& extent, const Six& stride) {
  for (std::size_t i = 0; i < 6; ++i)
    if (extent[i] > 1 && v.stride[i] != stride[i]) return false;
  return true;
}

/// Checks the tensor and makes it a run of bytes.
void read_scales(const Problem& p, int place, std::int64_t rows, TensorView& v) {
  const AtomView atoms(rows, numeric::scale_columns(p.k, p.block), p.l);
  const Six ordered = in_order(atoms.extent);
  const bool is_atoms = v.rank == 6 && std::equal(atoms.extent.begin(), atoms.extent.end(), v.extent.begin());
  const bool is_ordered = v.rank == 6 && std::equal(ordered.begin(), ordered.end(), v.extent.begin());
  if (!is_atoms && !is_ordered)
    throw broken(Rule::op_extent, p.who(place), "shape " + shape_of(v), text_of(atoms.extent) + " or " + text_of(ordered));
  const bool fits = is_atoms ? has_form(v, atoms.extent, atoms.stride) : has_form(v, ordered, in_order(atoms.stride));
  if (!fits && atoms.bytes() > 0)
    throw broken(Rule::op_layout, p.who(place), strides_of(v),
                 text_of(is_atoms ? atoms.stride : in_order(atoms.stride)) + ": atoms one after another");
  v.rank = 1;
  v.extent[0] = atoms.bytes();
  v.stride[0] = 1;
}

/// Bytes of two fp4 along K: elements from here on.
void count_elements(TensorView& v) {
  v.dtype = fp4_e2m1;
  if (v.rank != 3) return;
  if (v.extent[1] == 1) v.stride[1] = 1;  // of one byte strides say nothing; of its two elements they do
  v.extent[1] *= 2;
  v.stride[0] *= 2;
  v.stride[2] *= 2;
}

}  // namespace

bool Problem::read_scaled_product(int a, int b, int sfa, int sfb) {
  block = options.sf_vec_size == 0 ? 32 : options.sf_vec_size;
  for (const int place : {a, b})
    if (TensorView& v = given[static_cast<std::size_t>(place)]; v.dtype == uint8) count_elements(v);
  for (const int place : {sfa, sfb})
    if (TensorView& v = given[static_cast<std::size_t>(place)]; v.dtype == uint8 || v.dtype == int8) v.dtype = fp8_e8m0;
  require_type(a, {fp4_e2m1, fp8_e4m3, fp8_e5m2});
  require_same_type(b, a);
  require_type(sfa, {fp8_e8m0, fp8_e4m3});
  require_same_type(sfb, sfa);
  const bool fp4 = at(a).dtype == fp4_e2m1;
  const bool fits = fp4 ? at(sfa).dtype == fp8_e8m0 || block == 16 : at(sfa).dtype == fp8_e8m0 && block == 32;
  if (!fits)
    throw broken(Rule::op_option, std::string(definition.name()) + ", sf_vec_size",
                 std::to_string(block) + " with " + std::string(name_of(at(a).dtype)) + " and scales of " +
                     std::string(name_of(at(sfa).dtype)),
                 fp4 ? "16 with fp8_e4m3" : "32 with fp8_e8m0");
  read_product(a, b);
  for (const int place : {a, b})
    if (fp4 && major[static_cast<std::size_t>(place)] != 1 && k > 0)
      throw broken(Rule::op_layout, who(place), "fp4 in pairs along rows", "pairs along K, which is contiguous");
  read_scales(*this, sfa, m, given[static_cast<std::size_t>(sfa)]);
  read_scales(*this, sfb, n, given[static_cast<std::size_t>(sfb)]);
  return fp4;
}

bool Problem::make_fp4(int place, std::int64_t columns, DataType wanted) {
  TensorView& own = given[static_cast<std::size_t>(place)];
  const DataType type = has(place) ? own.dtype : wanted;
  if (type != fp4_e2m1 && type != uint8) return false;
  if (columns % 2 != 0) throw broken(Rule::op_extent, who(place), std::to_string(columns) + " columns of fp4", "an even number");
  if (has(place) && type == uint8) count_elements(own);
  make_matrix(place, columns, fp4_e2m1, fp4_e2m1, {fp4_e2m1});
  if (major[static_cast<std::size_t>(place)] != 1)
    throw broken(Rule::op_layout, who(place), "fp4 in pairs along columns", "pairs along rows, which are contiguous");
  return true;
}

void Problem::make_scales(int place, std::int64_t columns, DataType type) {
  const AtomView atoms(m, numeric::scale_columns(columns, block), l);
  TensorView& v = layout[static_cast<std::size_t>(place)];
  v.dtype = type;
  v.rank = 6;
  std::copy(atoms.extent.begin(), atoms.extent.end(), v.extent.begin());
  std::copy(atoms.stride.begin(), atoms.stride.end(), v.stride.begin());
  if (!has(place)) return;
  TensorView& own = given[static_cast<std::size_t>(place)];
  if (own.dtype == uint8 || own.dtype == int8) own.dtype = fp8_e8m0;
  require_type(place, {type});
  if (own.rank != 6 || !std::equal(atoms.extent.begin(), atoms.extent.end(), own.extent.begin()) ||
      (atoms.bytes() > 0 && !has_form(own, atoms.extent, atoms.stride)))
    throw broken(Rule::op_layout, who(place),
                 own.is_bare() ? "an address" : "shape " + shape_of(own) + " with " + strides_of(own),
                 text_of(atoms.extent) + " with strides " + text_of(atoms.stride));
}

Tensor Description::atoms(int place, const Feed& feed, std::array<std::int64_t, 3> dim) {
  Tensor t = graph.tensor({.name = std::string(p_.definition.tensors()[static_cast<std::size_t>(place)].name),
                           .dim = {dim[0], dim[1], dim[2]},
                           .stride = {dim[1] * dim[2], dim[2], 1},
                           .data_type = p_.at(place).dtype,
                           .reordering = TensorReordering::f8_128x4});
  note(t, feed);
  return t;
}

Tensor Description::scales(int place, bool of_b) {
  const std::int64_t rows = std::max<std::int64_t>(of_b ? p_.n : p_.m, of_b ? p_.least[1] : 2);
  const std::int64_t columns = numeric::scale_columns(std::max<std::int64_t>(p_.k, 2), p_.block);
  const std::int64_t batch = p_.l == 1 ? 1 : std::max<std::int64_t>(p_.l, 2);
  return atoms(place, {static_cast<std::int8_t>(place), Cut::bytes}, {batch, of_b ? columns : rows, of_b ? rows : columns});
}

void Description::store_quantised(const Tensor& x, int place, int scale) {
  const auto name = [&](int i) { return std::string(p_.definition.tensors()[static_cast<std::size_t>(i)].name); };
  const auto i = static_cast<std::size_t>(place);
  const double vmax = p_.layout[i].dtype == DataType::fp8_e5m2 ? kLargestE5m2 : 0.0;
  auto [data, scales] = graph.block_scale_quantize(x, p_.block, {}, {}, false, vmax);
  const std::int64_t m = std::max<std::int64_t>(p_.m, 2), n = std::max(p_.layout[i].extent[1], p_.least[i]);
  const bool is_n_major = p_.major[static_cast<std::size_t>(place)] == 1;
  data.set_name(name(place)).set_data_type(p_.layout[static_cast<std::size_t>(place)].dtype).set_output(true);
  data.set_stride({m * n, is_n_major ? n : 1, is_n_major ? 1 : m});
  scales.set_name(name(scale)).set_data_type(p_.layout[static_cast<std::size_t>(scale)].dtype).set_output(true);
  scales.set_reordering_type(TensorReordering::f8_128x4);
  note(data, {static_cast<std::int8_t>(place), Cut::full});
  note(scales, {static_cast<std::int8_t>(scale), Cut::bytes});
}

Tensor Description::matrix_a(int place, int scale) {
  const Tensor x = input(place, Cut::a);
  return p_.block == 0 ? x : graph.block_scale_dequantize(x, scales(scale, false), {1, p_.block});
}

Tensor Description::matrix_b(int place, int scale) {
  const Tensor x = input(place, Cut::b);
  return p_.block == 0 ? x : graph.block_scale_dequantize(x, scales(scale, true), {p_.block, 1});
}

}  // namespace verglas::ops
