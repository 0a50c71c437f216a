#include "engine/sm90/problem.hpp"

#include <algorithm>

namespace verglas::sm90 {
namespace {

/// Any multiple of every alignment that a path asks for; never read through.
constexpr std::uintptr_t kAnyAddress = 4096;

/// The smallest stride of whole 16-byte pieces that clears a run of n elements.
std::int64_t clear_stride(std::int64_t n, int bytes) noexcept {
  const std::int64_t piece = 16 / bytes;
  return (std::max<std::int64_t>(n, 1) + piece - 1) / piece * piece;
}

/// rows × cols of a batch; the stride of an axis of extent 1 is replaced.
Matrix matrix_of(const recipe::RoleView& v, int bytes) noexcept {
  Matrix m;
  m.address = reinterpret_cast<std::uint64_t>(v.data);
  m.row_stride = v.stride[1];
  m.col_stride = v.stride[2];
  m.batch_stride = v.extent[0] > 1 ? v.stride[0] : 0;
  if (v.extent[2] <= 1) m.col_stride = v.extent[1] > 1 && m.row_stride == 1 ? clear_stride(v.extent[1], bytes) : 1;
  if (v.extent[1] <= 1) m.row_stride = m.col_stride == 1 ? clear_stride(v.extent[2], bytes) : 1;
  return m;
}

}  // namespace

ProductRoles product_roles(const chain::FusionChain& c) noexcept {
  ProductRoles r;
  r.d = c.stores[0].role;
  for (const chain::MatrixInput& in : c.inputs) {
    const bool is_a = c.roles[static_cast<std::size_t>(in.role)].kind == chain::RoleKind::a;
    (is_a ? r.a : r.b)[static_cast<std::size_t>(is_a ? r.a_count++ : r.b_count++)] = in.role;
  }
  return r;
}

Problem problem_of(const ProductRoles& r, const recipe::RoleView* views, int input_bytes, int output_bytes) noexcept {
  Problem p;
  const recipe::RoleView& d = views[r.d];
  p.batches = d.extent[0];
  p.m = d.extent[1];
  p.n = d.extent[2];
  p.k = views[r.a[0]].extent[2];
  for (std::size_t i = 0; i < static_cast<std::size_t>(r.a_count); ++i) p.a[i] = matrix_of(views[r.a[i]], input_bytes);
  for (std::size_t i = 0; i < static_cast<std::size_t>(r.b_count); ++i) p.b[i] = matrix_of(views[r.b[i]], input_bytes);
  p.d = matrix_of(d, output_bytes);
  return p;
}

std::vector<recipe::RoleView> declared_views(const chain::FusionChain& c) {
  std::vector<recipe::RoleView> views = recipe::declared_views(c);
  for (recipe::RoleView& v : views) v.data = reinterpret_cast<char*>(kAnyAddress);
  return views;
}

}  // namespace verglas::sm90
