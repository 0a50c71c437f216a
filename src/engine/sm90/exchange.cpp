#include "engine/sm90/exchange.hpp"

#include <algorithm>
#include <utility>

namespace verglas::sm90 {
namespace {

using chain::RoleKind;
using chain::Symbol;

Symbol exchanged(Symbol s) noexcept { return s == Symbol::m ? Symbol::n : s == Symbol::n ? Symbol::m : s; }

RoleKind exchanged(RoleKind k) noexcept {
  switch (k) {
    case RoleKind::a: return RoleKind::b;
    case RoleKind::b: return RoleKind::a;
    case RoleKind::scale_a: return RoleKind::scale_b;
    case RoleKind::scale_b: return RoleKind::scale_a;
    default: return k;
  }
}

/// Matrices and their scales have rows of their own, and K; the others have M and N.
bool has_m_and_n(RoleKind k) noexcept { return exchanged(k) == k; }

}  // namespace

chain::FusionChain exchanged(const chain::FusionChain& c) {
  chain::FusionChain x = c;
  std::swap(x.declared[1], x.declared[2]);
  for (chain::Role& r : x.roles) {
    for (Symbol& s : r.symbol) s = exchanged(s);
    if (has_m_and_n(r.kind)) std::swap(r.symbol[1], r.symbol[2]), std::swap(r.axis[1], r.axis[2]);
    r.kind = exchanged(r.kind);
  }
  // All a come before all b.
  const auto is_a = [&](const chain::MatrixInput& in) { return x.roles[static_cast<std::size_t>(in.role)].kind == RoleKind::a; };
  const auto first_a = std::find_if(x.inputs.begin(), x.inputs.end(), is_a);
  const int rows = static_cast<int>(x.inputs.end() - first_a), columns = static_cast<int>(first_a - x.inputs.begin());
  std::rotate(x.inputs.begin(), first_a, x.inputs.end());
  for (chain::Gemm& g : x.gemms) {
    std::swap(g.a, g.b);
    g.a -= columns;
    g.b += rows;
  }
  for (chain::Value& v : x.values) std::swap(v.varies[1], v.varies[2]);
  for (chain::Step& s : x.steps)
    if (s.mode == PointwiseMode::gen_index && s.parameters.axis > 0) s.parameters.axis = 3 - s.parameters.axis;
  for (chain::Reduction& r : x.reductions) std::swap(r.reduces[1], r.reduces[2]);
  for (chain::Quantise& q : x.quantised) q.along_m = !q.along_m;
  return x;
}

void exchange(const chain::FusionChain& c, const recipe::Binding& from, recipe::Binding& to) noexcept {
  std::copy(std::begin(from.live), std::end(from.live), std::begin(to.live));
  to.is_declared = from.is_declared;
  std::swap(to.live[static_cast<std::size_t>(Symbol::m)], to.live[static_cast<std::size_t>(Symbol::n)]);
  for (std::size_t i = 0; i < c.roles.size(); ++i) {
    recipe::RoleView& v = to.role[i] = from.role[i];
    if (has_m_and_n(c.roles[i].kind)) std::swap(v.extent[1], v.extent[2]), std::swap(v.stride[1], v.stride[2]);
  }
}

}  // namespace verglas::sm90
