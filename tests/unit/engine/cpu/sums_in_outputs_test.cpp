#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "verglas/verglas.hpp"

// A product may be summed in the output behind it. Small integers, so every order of a sum is exact; outputs start as −7.
namespace verglas {
namespace {

constexpr std::int64_t kM = 70, kN = 150, kK = 9;

/// What stands at row m, column n of an output, from the product p and the residual r.
using Want = std::function<float(float p, float r)>;

struct Chain {
  std::string name;
  std::function<std::vector<Tensor>(Graph&, const Tensor& p, const Tensor& r)> outputs;
  std::vector<Want> wants;
};

float at(const std::vector<float>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }

std::vector<float> counted(std::int64_t n, std::int64_t modulus) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = static_cast<float>(i % modulus - modulus / 2);
  return v;
}

Tensor op(Graph& g, PointwiseMode mode, const Tensor& x) { return g.pointwise(mode, {x}); }

const std::vector<Chain>& chains() {
  static const std::vector<Chain> all = {
      {"read once", [](Graph& g, const Tensor& p, const Tensor& r) { return std::vector{g.add(p, r)}; }, {[](float p, float r) {
         return p + r;
       }}},
      {"read again at the end",
       [](Graph& g, const Tensor& p, const Tensor& r) {
         return std::vector{g.mul(op(g, PointwiseMode::abs, op(g, PointwiseMode::neg, g.add(p, r))), p)};
       },
       {[](float p, float r) { return std::abs(p + r) * p; }}},
      {"read by a later store",
       [](Graph& g, const Tensor& p, const Tensor& r) {
         Tensor first = g.add(p, r);
         return std::vector{first, g.pointwise(PointwiseMode::sub, {op(g, PointwiseMode::neg, first), p})};
       },
       {[](float p, float r) { return p + r; }, [](float p, float r) { return -(p + r) - p; }}},
      {"stored itself",
       [](Graph& g, const Tensor& p, const Tensor& r) { return std::vector{p, g.add(p, r)}; },
       {[](float p, float) { return p; }, [](float p, float r) { return p + r; }}},
  };
  return all;
}

/// Rows of outputs `ld` apart, columns `step` apart: only (kN or more, 1) can hold sums.
void check(const Chain& chain, std::int64_t ld, std::int64_t step) {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {kM, kK}, .stride = {kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {kK, kN}, .stride = {1, kK}});
  const Tensor r = g.tensor({.name = "r", .dim = {kM, kN}, .stride = {kN, 1}});
  std::vector<Tensor> outputs = chain.outputs(g, g.matmul(a, b), r);
  std::vector<float> va = counted(kM * kK, 5), vb = counted(kN * kK, 7), vr = counted(kM * kN, 11);
  const std::vector<float> r_before = vr;
  std::vector<std::vector<float>> got(outputs.size(), std::vector<float>(static_cast<std::size_t>(kM * ld), -7.0F));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    outputs[i].set_name("y" + std::to_string(i)).set_stride({ld, step}).set_output(true);
  const CompiledPlan plan = g.compile();
  std::vector<void*> addresses;
  for (const auto& operand : plan.operands()) {
    if (operand.name == "a") addresses.push_back(va.data());
    if (operand.name == "b") addresses.push_back(vb.data());
    if (operand.name == "r") addresses.push_back(vr.data());
    if (operand.name[0] == 'y') addresses.push_back(got[static_cast<std::size_t>(operand.name[1] - '0')].data());
  }
  ASSERT_TRUE(plan.execute(addresses).ok());
  EXPECT_EQ(vr, r_before);
  for (std::int64_t m = 0; m < kM; ++m)
    for (std::int64_t n = 0; n < kN; ++n) {
      float p = 0;
      for (std::int64_t k = 0; k < kK; ++k) p += at(va, m * kK + k) * at(vb, n * kK + k);
      for (std::size_t i = 0; i < outputs.size(); ++i)
        ASSERT_EQ(at(got[i], m * ld + n * step), chain.wants[i](p, at(vr, m * kN + n))) << m << ' ' << n << " of output " << i;
    }
  if (ld <= kN || step != 1) return;
  for (std::int64_t m = 0; m < kM; ++m) ASSERT_EQ(at(got[0], m * ld + kN), -7.0F) << "a gap is written";
}

TEST(CpuSumsInOutputs, ChangeNothing) {
  for (const Chain& chain : chains()) {
    SCOPED_TRACE(chain.name);
    check(chain, kN, 1);
    check(chain, kN + 3, 1);
    check(chain, 2 * kN, 2);
  }
}

}  // namespace
}  // namespace verglas
