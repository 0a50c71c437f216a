#include "plan/summary.hpp"

#include <fmt/format.h>

namespace verglas::plan {
namespace {

using chain::FusionChain;
using chain::ValueKind;

/// A sum with a row of N is a bias, with a whole matrix a residual; a product with a row or a column a scale.
std::string word_of(const FusionChain& c, const chain::Step& s) {
  const chain::Value* aux = nullptr;
  for (const int i : s.input)
    if (i >= 0 && c.values[static_cast<std::size_t>(i)].kind == ValueKind::aux) aux = &c.values[static_cast<std::size_t>(i)];
  if (aux && s.mode == PointwiseMode::add) {
    if (!aux->varies[1] && aux->varies[2]) return "bias";
    if (aux->varies[1] && aux->varies[2]) return "residual";
  }
  if (aux && s.mode == PointwiseMode::mul && aux->varies[1] != aux->varies[2]) return "scale";
  if (s.mode == PointwiseMode::identity) return "cast_" + std::string(name_of(c.values[static_cast<std::size_t>(s.value)].dtype));
  return std::string(name_of(s.mode));
}

std::string word_of(const FusionChain& c, const chain::Reduction& r) {
  const std::string over = r.reduces[1] && r.reduces[2] ? "all" : r.reduces[2] ? "row" : r.reduces[1] ? "column" : "batch";
  const std::string each = c.grouping.axis == chain::GroupedAxis::m && !r.reduces[0] ? "group_" : "";
  return each + over + "_" + (r.mode == ReductionMode::add ? "sum" : std::string(name_of(r.mode)));
}

std::string prologue_of(const FusionChain& c) {
  std::string s;
  for (const chain::MatrixInput& in : c.inputs) {
    if (in.prologue.empty() && in.scale_role < 0) continue;
    const chain::Role& role = c.roles[static_cast<std::size_t>(in.role)];
    s += s.empty() ? "[" : ", ";
    if (in.scale_role >= 0) s += "dequantize ";
    for (const chain::PrologueStep& p : in.prologue)
      s += p.mode == PointwiseMode::identity ? "cast " : std::string(name_of(p.mode)) + " ";
    s += chain::name_of(role.kind);
  }
  return s.empty() ? s : s + "] ";
}

}  // namespace

std::string summary_of(const FusionChain& c) {
  std::string s = prologue_of(c);
  const std::string product = c.grouping.axis == chain::GroupedAxis::none ? "matmul"
                              : c.grouping.axis == chain::GroupedAxis::m  ? "grouped_matmul"
                                                                          : "grouped_gradient";
  s += c.gemms.size() == 1 ? product : fmt::format("{}×{}", c.gemms.size(), product);
  for (const chain::Step& step : c.steps) s += "+" + word_of(c, step);
  for (const chain::Reduction& r : c.reductions) s += "+" + word_of(c, r);
  for (const chain::Quantise& q : c.quantised) s += q.along_m ? "+column_quantize" : "+row_quantize";
  return s;
}

}  // namespace verglas::plan
