#include "engine/sm90/runs.hpp"

#include <algorithm>
#include <utility>

#include "engine/sm90/problem.hpp"

namespace verglas::sm90 {
namespace {

using chain::FusionChain;
using chain::RoleKind;
using chain::Symbol;
using recipe::RoleView;

constexpr auto kL = static_cast<std::size_t>(Symbol::l), kN = static_cast<std::size_t>(Symbol::n);

const chain::MatrixInput& matrix(const FusionChain& c, int input) { return c.inputs[static_cast<std::size_t>(input)]; }
const chain::Role& role_at(const FusionChain& c, int role) { return c.roles[static_cast<std::size_t>(role)]; }
DataType type_of(const FusionChain& c, int role) { return c.operands[static_cast<std::size_t>(role_at(c, role).operand)].dtype; }

/// Every batch of both is 32 of 64 rows.
bool alternate(const RoleView& first, const RoleView& second) noexcept {
  const auto steps = [](const RoleView& v) {
    return v.extent[1] == kRun && v.stride[1] > 0 && (v.extent[0] <= 1 || v.stride[0] == 2 * kRun * v.stride[1]);
  };
  return steps(first) && steps(second) && first.stride[1] == second.stride[1] && first.stride[2] == second.stride[2];
}

OutputFit fit_run(const RoleView& v, int bytes) noexcept {
  return fit_output(matrix_of(v, bytes), v.extent[1], v.extent[2], v.extent[0], bytes);
}

class RunLauncher final : public recipe::Launcher {
 public:
  RunLauncher(FusionChain chain, std::vector<StagedRole> staged, std::unique_ptr<recipe::Launcher> joined,
              std::unique_ptr<recipe::Launcher> general)
      : chain_(std::move(chain)), staged_(std::move(staged)), joined_(std::move(joined)), general_(std::move(general)) {}

  Status launch(const recipe::Binding& b, const recipe::Call& call) const noexcept override {
    recipe::Binding seen;
    return join_runs(chain_, staged_, b, seen) ? joined_->launch(seen, call) : general_->launch(b, call);
  }
  Device current_device(Device plan, bool& is_ready) const noexcept override { return general_->current_device(plan, is_ready); }
  Error failure(Status status) const override { return joined_->failure(status); }

 private:
  FusionChain chain_;
  std::vector<StagedRole> staged_;
  std::unique_ptr<recipe::Launcher> joined_, general_;
};

}  // namespace

bool has_runs(const FusionChain& c) {
  if (c.gemms.size() != 2 || c.inputs.size() != 3 || c.gemms[0].a != c.gemms[1].a || c.gemms[0].b == c.gemms[1].b) return false;
  if (c.declared[2] != kRun || c.declared[0] < 2 || c.stores.empty() || c.stores.size() > 1 + StagedRoles::kMaxFurther)
    return false;
  const chain::MatrixInput &a = matrix(c, c.gemms[0].a), &b = matrix(c, c.gemms[0].b), &other = matrix(c, c.gemms[1].b);
  if (role_at(c, a.role).symbol[0] != Symbol::one || a.scale_role >= 0 || !c.quantised.empty()) return false;
  for (const chain::MatrixInput* in : {&b, &other}) {
    const chain::Role& role = role_at(c, in->role);
    const auto is_same = [&](const chain::Role& r) { return r.operand == role.operand; };
    if (role.symbol[0] != Symbol::l || in->table >= 0 || in->scale_role >= 0 ||
        std::count_if(c.roles.begin(), c.roles.end(), is_same) != 1)
      return false;
  }
  const std::vector<RoleView> views = declared_views(c);
  const auto view = [&](int role) -> const RoleView& { return views[static_cast<std::size_t>(role)]; };
  if (!alternate(view(b.role), view(other.role)) || type_of(c, b.role) != type_of(c, other.role)) return false;
  // What the drain rounds and stages is fp32 in registers.
  const auto is_staged = [&](const chain::Store& s) {
    return !s.accumulate && role_at(c, s.role).symbol == std::array{Symbol::l, Symbol::m, Symbol::n} &&
           c.values[static_cast<std::size_t>(s.value)].dtype != DataType::int32 && type_of(c, s.role) != DataType::int32;
  };
  const auto is_over_columns = [](const chain::Reduction& r) { return r.reduces[0] && r.reduces[2]; };
  return std::ranges::all_of(c.stores, is_staged) && std::ranges::all_of(c.reductions, is_over_columns);
}

FusionChain in_runs(const FusionChain& c) {
  FusionChain x = c;
  const int first = x.gemms[0].b, second = x.gemms[1].b;
  x.inputs.erase(x.inputs.begin() + second);
  x.gemms[0].b = x.gemms[1].b = second < first ? first - 1 : first;
  chain::Role& role = x.roles[static_cast<std::size_t>(matrix(x, x.gemms[0].b).role)];
  role.symbol[0] = Symbol::one;
  chain::Operand& operand = x.operands[static_cast<std::size_t>(role.operand)];
  const std::int64_t rows = 2 * kRun * x.declared[0];
  operand.dim[static_cast<std::size_t>(role.axis[0])] = 1;
  operand.dim[static_cast<std::size_t>(role.axis[1])] = rows;
  x.declared[0] = 1;
  x.declared[2] = rows;
  x.stores.clear();
  return x;
}

int run_bytes_of(const FusionChain& c) noexcept {
  int bytes = 0;
  for (const chain::Store& s : c.stores) bytes += 64 * kRun * bytes_of(type_of(c, s.role));
  return bytes;
}

StagedRole staged_run(const FusionChain& c, int role) {
  const DataType type = type_of(c, role);
  const OutputFit fit = fit_run(declared_views(c)[static_cast<std::size_t>(role)], bytes_of(type));
  return fit.path == Path::tma ? StagedRole{role, type, fit.along_m, true} : StagedRole{};
}

bool join_runs(const FusionChain& c, std::span<const StagedRole> staged, const recipe::Binding& from,
               recipe::Binding& to) noexcept {
  const int first = matrix(c, c.gemms[0].b).role, second = matrix(c, c.gemms[1].b).role;
  const RoleView &b = from.role[first], &other = from.role[second];
  const std::int64_t apart = kRun * b.stride[1] * bytes_of(type_of(c, first));
  if (from.live[kN] != kRun || !alternate(b, other) || other.data - b.data != apart) return false;
  for (const StagedRole& s : staged) {
    const OutputFit fit = fit_run(from.role[s.role], bytes_of(s.type));
    if (fit.path != Path::tma || fit.along_m != s.along_m) return false;
  }
  std::copy(std::begin(from.live), std::end(from.live), std::begin(to.live));
  std::copy_n(std::begin(from.role), c.roles.size(), std::begin(to.role));
  to.is_ready = from.is_ready;
  to.live[kN] *= 2 * from.live[kL];
  to.live[kL] = 1;
  RoleView& whole = to.role[first];
  whole.extent[1] = to.live[kN];
  whole.extent[0] = 1;
  whole.stride[0] = 0;
  return true;
}

std::unique_ptr<recipe::Launcher> make_run_launcher(FusionChain chain, std::vector<StagedRole> staged,
                                                    std::unique_ptr<recipe::Launcher> joined,
                                                    std::unique_ptr<recipe::Launcher> general) {
  return std::make_unique<RunLauncher>(std::move(chain), std::move(staged), std::move(joined), std::move(general));
}

}  // namespace verglas::sm90
