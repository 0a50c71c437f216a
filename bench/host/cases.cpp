#include "cases.hpp"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/rules.hpp"
#include "plan/plan_state.hpp"
#include "recipe/recipe.hpp"
#include "verglas/graph.hpp"

namespace verglas::bench {
namespace {

constexpr std::int64_t kM = 256, kN = 256, kK = 128;
constexpr Device kGpu{DeviceType::cuda, 0};

enum class Change { nothing, pointers, shapes };
constexpr std::pair<Change, const char*> kChanges[] = {
    {Change::nothing, "nothing"}, {Change::pointers, "pointers"}, {Change::shapes, "shapes"}};

/// Launches nothing: what a call costs then is its checks.
class NullLauncher final : public recipe::Launcher {
 public:
  Status launch(const recipe::Binding&, const recipe::Call&) const noexcept override { return {}; }
  Error failure(Status) const override { return broken(Rule::internal, "nothing is launched here"); }
};

/// bf16 in, fp32 between. 3 operands: a, b, d. 5: bias and residual as well. 9: row and column scales, a second output and its
/// absolute maximum too.
Graph describe(int operands) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  Tensor x = g.matmul(a, b);
  if (operands >= 5) {
    x = g.add(x, g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}}));
    x = g.add(x, g.tensor({.name = "residual", .dim = {1, kM, kN}, .stride = {kM * kN, kN, 1}}));
  }
  if (operands >= 9) {
    x = g.mul(x, g.tensor({.name = "row_scale", .dim = {1, kM, 1}, .stride = {kM, 1, 1}, .data_type = DataType::fp32}));
    x = g.mul(x, g.tensor({.name = "column_scale", .dim = {1, 1, kN}, .stride = {kN, kN, 1}, .data_type = DataType::fp32}));
    g.relu(x).set_output(true).set_data_type(DataType::bf16).set_name("activation");
    g.reduction(x, ReductionMode::amax).set_dim({1, 1, 1}).set_output(true).set_data_type(DataType::fp32).set_name("amax");
    x = g.swish(x);
  }
  x.set_output(true).set_data_type(DataType::bf16).set_name("d");
  return g;
}

/// MXFP8: both operands with their scales, one scale of the tensor, a bias, d.
Graph describe_scaled() {
  constexpr std::int64_t kBlocks = kK / 32;
  Graph g;
  const auto scaled = [&](const char* name, bool is_a) {
    const std::int64_t rows = is_a ? kM : kN;
    const auto stride = [&](std::int64_t k) {
      return is_a ? std::vector{rows * k, k, std::int64_t{1}} : std::vector{rows * k, std::int64_t{1}, k};
    };
    const auto dim = [&](std::int64_t k) {
      return is_a ? std::vector{std::int64_t{1}, rows, k} : std::vector{std::int64_t{1}, k, rows};
    };
    const Tensor x = g.tensor({.name = name, .dim = dim(kK), .stride = stride(kK), .data_type = DataType::fp8_e4m3});
    const Tensor s = g.tensor({.name = std::string("scales of ") + name,
                               .dim = dim(kBlocks),
                               .stride = stride(kBlocks),
                               .data_type = DataType::fp8_e8m0,
                               .reordering = TensorReordering::f8_128x4});
    return g.block_scale_dequantize(x, s, is_a ? std::vector<std::int64_t>{1, 1, 32} : std::vector<std::int64_t>{1, 32, 1});
  };
  const Tensor scale = g.tensor({.name = "scale", .dim = {1, 1, 1}, .stride = {1, 1, 1}, .data_type = DataType::fp32});
  const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}});
  const Tensor product = g.matmul(scaled("a", true), scaled("b", false));
  g.add(g.mul(product, scale), bias).set_output(true).set_data_type(DataType::bf16).set_name("d");
  return g;
}

/// The recipe of the chain with the rules of the copy engine for A, B and matrix outputs, and a launcher that launches nothing.
CompiledPlan checks_only(int operands) {
  auto state = std::make_shared<plan::CompiledState>();
  state->chain = std::make_shared<const chain::FusionChain>(*describe(operands).plans().chain());
  recipe::Requirements q;
  q.device = kGpu;
  for (std::size_t i = 0; i < state->chain->roles.size(); ++i) {
    const chain::RoleKind kind = state->chain->roles[i].kind;
    if (kind == chain::RoleKind::a || kind == chain::RoleKind::b || kind == chain::RoleKind::output)
      q.matrix.push_back({static_cast<int>(i), {.k_major = true, .modulus = 1, .stride_multiple = 16, .alignment = 16}});
  }
  state->compiled = {recipe::build(*state->chain, q), std::make_unique<NullLauncher>()};
  for (const chain::Operand& o : state->chain->operands)
    state->operands.push_back({.name = o.name,
                               .uid = o.uid,
                               .roles = {},
                               .dtype = o.dtype,
                               .dim = o.dim,
                               .stride = o.stride,
                               .is_output = o.is_output,
                               .is_host_scalar = o.is_host_scalar});
  return CompiledPlan(std::move(state));
}

CompiledPlan sm90_plan(Graph graph) { return graph.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}).compile(); }

/// As declared but for M; nobody dereferences the addresses.
std::vector<TensorView> pack(const CompiledPlan& plan, std::int64_t m, std::uintptr_t base) {
  std::vector<TensorView> views;
  for (const OperandInfo& o : plan.operands()) {
    TensorView v;
    v.data = reinterpret_cast<void*>((base + 16 * views.size()) << 20);
    v.dtype = o.dtype;
    v.rank = static_cast<std::int8_t>(o.dim.size());
    v.device = kGpu;
    v.observed_bytes = 16 << 20;
    for (std::size_t i = 0; i < o.dim.size(); ++i) {
      // Only a and what has rows of M follow it: b's axis 1 is K, and atoms of scales stay whole.
      v.extent[i] = i == 1 && o.dim[i] == kM && o.dtype != DataType::fp8_e8m0 ? m : o.dim[i];
      v.stride[i] = o.stride[i];
    }
    views.push_back(v);
  }
  return views;
}

/// gemm_srelu with prob: the operation with most tensors that is one launch without scratch memory.
std::vector<TensorView> operation_tensors(std::int64_t m, std::uintptr_t base) {
  const auto matrix = [&](std::uintptr_t i, DataType type, std::int64_t rows, std::int64_t columns) {
    return TensorView::strided(reinterpret_cast<void*>((base + 16 * i) << 20), type, {rows, columns, 1},
                               {columns, 1, rows * columns}, kGpu);
  };
  using enum DataType;
  return {matrix(0, bf16, m, kK),
          matrix(1, bf16, kN, kK),
          matrix(2, bf16, m, kN),
          matrix(3, bf16, m, kN),
          {},
          {},
          matrix(4, fp32, m, 1),
          {},
          {},
          {}};
}

Case operation_case(Change change, const char* text, int budget) {
  std::vector<std::vector<TensorView>> all = {operation_tensors(kM, 1)};
  for (std::uintptr_t i = 1; i < 4 && change != Change::nothing; ++i)
    all.push_back(change == Change::pointers ? operation_tensors(kM, 1 + i)
                                             : operation_tensors(kM - 8 * static_cast<std::int64_t>(i), 1));
  auto op = std::make_shared<ops::Prepared>(ops::Operation::named("gemm_srelu"), all[0]);
  op->compile();
  return {fmt::format("class of 5 tensors, {} new", text), budget, {}, std::move(all), {}, std::move(op)};
}

std::vector<std::vector<TensorView>> packs(const CompiledPlan& plan, Change change) {
  std::vector<std::vector<TensorView>> all = {pack(plan, kM, 1)};
  for (std::uintptr_t i = 1; i < 4 && change != Change::nothing; ++i)
    all.push_back(change == Change::pointers ? pack(plan, kM, 1 + i) : pack(plan, kM - 8 * static_cast<std::int64_t>(i), 1));
  return all;
}

}  // namespace

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const CompiledPlan& plan, std::initializer_list<int> budgets) {
    for (const auto& [change, text] : kChanges)
      cases.push_back({fmt::format("{} {} operands, {} new", name, plan.operands().size(), text),
                       budgets.begin()[static_cast<int>(change)], plan, packs(plan, change)});
  };
  const CompiledPlan sm90 = sm90_plan(describe(3));
  add("sm90", sm90, {1050, 1100, 2800});
  add("sm90", sm90_plan(describe(5)), {1400, 1400, 3550});
  add("sm90 mxfp8", sm90_plan(describe_scaled()), {1600, 1620, 3850});
  add("sm90", sm90_plan(describe(9)), {2400, 2400, 5100});
  std::vector<void*> bare;
  for (const TensorView& v : pack(sm90, kM, 1)) bare.push_back(v.data);
  cases.push_back({"sm90 3 addresses", 1150, sm90, {}, {bare}});
  for (const auto& [change, text] : kChanges)
    cases.push_back(operation_case(change, text, change == Change::shapes ? 4900 : 2500));
  add("checks", checks_only(3), {680, 680, 1080});
  add("checks", checks_only(5), {950, 950, 1500});
  add("checks", checks_only(9), {1850, 1850, 2700});
  return cases;
}

}  // namespace verglas::bench
