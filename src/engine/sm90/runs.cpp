#include "engine/sm90/runs.hpp"

#include <algorithm>

namespace verglas::sm90 {
namespace {

using chain::FusionChain;
using chain::kRun;
using chain::Step;
using chain::Value;

const Value& value_at(const FusionChain& c, int value) { return c.values[static_cast<std::size_t>(value)]; }
DataType type_of(const FusionChain& c, int role) {
  return c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(role)].operand)].dtype;
}

}  // namespace

bool has_runs(const FusionChain& c) noexcept {
  return std::ranges::any_of(c.steps, [](const Step& s) { return s.run >= 0; });
}

std::optional<Decline> fault_of_runs(const FusionChain& c) {
  if (!has_runs(c)) return std::nullopt;
  const auto no = [](std::string text) { return Decline{Rule::sm90_runs, std::move(text)}; };
  if (c.gemms.size() != 1) return no(std::to_string(c.gemms.size()) + " products");
  if (c.stores.size() > 1 + StagedRoles::kMaxFurther) return no(std::to_string(c.stores.size()) + " dense outputs");
  for (const chain::Store& s : c.stores)
    if (value_at(c, s.value).dtype == DataType::int32 || type_of(c, s.role) == DataType::int32)
      return no(label_of(c, c.roles[static_cast<std::size_t>(s.role)]) + " is int32");
  for (const Value& v : c.values)
    if (v.kind == chain::ValueKind::aux && v.varies[1] && v.varies[2]) return no("operand '" + v.name + "' varies along M and N");
  for (const Step& s : c.steps)
    if (s.mode == PointwiseMode::gen_index && s.parameters.axis == 2) return no("node '" + s.name + "' counts along N");
  for (const chain::Reduction& r : c.reductions)
    if (!value_at(c, r.value).is_half) return no(label_of(c, c.roles[static_cast<std::size_t>(r.role)]) + " is of all columns");
  for (const chain::Quantise& q : c.quantised)
    if (!value_at(c, q.value).is_half) return no(label_of(c, c.roles[static_cast<std::size_t>(q.role)]) + " is of all columns");
  return std::nullopt;
}

RunChain in_runs(const FusionChain& c) {
  RunChain out{c, {}, {}};
  FusionChain& x = out.chain;
  x.stores.clear();
  x.steps.clear();
  // By value of the chain: the value of the second run; of what does not vary along N it is the same one.
  std::vector<int> second(c.values.size());
  for (std::size_t v = 0; v < second.size(); ++v) second[v] = static_cast<int>(v);
  const auto twin = [&](int value) {
    x.values.push_back(value_at(c, value));
    return second[static_cast<std::size_t>(value)] = static_cast<int>(x.values.size()) - 1;
  };
  const auto add = [&](const Step& s) {
    x.values[static_cast<std::size_t>(s.value)].source = static_cast<int>(x.steps.size());
    x.steps.push_back(s);
  };
  for (std::size_t v = 0; v < second.size(); ++v)
    if (c.values[v].kind == chain::ValueKind::aux && c.values[v].varies[2]) out.second.push_back(twin(static_cast<int>(v)));
  chain::Gemm gate = x.gemms[0];
  gate.value = twin(gate.value);
  x.gemms.push_back(gate);
  for (Step s : c.steps) {
    if (s.run >= 0) {  // what is left of it is a rounding
      if (s.run == 1) s.input[0] = second[static_cast<std::size_t>(s.input[0])];
      s.run = -1;
      add(s);
      continue;
    }
    add(s);
    if (value_at(c, s.value).is_half) continue;
    Step other = s;
    bool differs = false;
    for (int& input : other.input)
      if (input >= 0) {
        const int twin_of = second[static_cast<std::size_t>(input)];
        differs |= twin_of != input;
        input = twin_of;
      }
    if (!differs) continue;
    other.value = twin(s.value);
    add(other);
  }
  for (const chain::Store& s : c.stores) {
    if (value_at(c, s.value).is_half) {
      out.stores.push_back({s.value, s.role, -1});
      continue;
    }
    out.stores.push_back({s.value, s.role, 0});
    out.stores.push_back({second[static_cast<std::size_t>(s.value)], s.role, 1});
  }
  return out;
}

int run_bytes_of(const FusionChain& c) noexcept {
  int bytes = 0;
  for (const chain::Store& s : c.stores)
    bytes += 64 * kRun * bytes_of(type_of(c, s.role)) * (value_at(c, s.value).is_half ? 1 : 2);
  return std::max(bytes, 1024);  // a slot is never nothing
}

StagedRole staged_run(const FusionChain& c, int role) {
  const DataType type = type_of(c, role);
  const recipe::RoleView v = declared_views(c)[static_cast<std::size_t>(role)];
  const OutputFit fit = fit_output(matrix_of(v, bytes_of(type)), v.extent[1], v.extent[2], v.extent[0], bytes_of(type));
  const bool is_split = c.grouping.has_group_rows() && fit.along_m;  // between groups, where no 16 bytes end
  return fit.path == Path::tma && !is_split ? StagedRole{role, type, fit.along_m, true} : StagedRole{};
}

}  // namespace verglas::sm90
