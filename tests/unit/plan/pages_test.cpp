#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "verglas/verglas.hpp"

// C++ that docs/gpu.md shows, compiled and run: on the host, where a device is only another word in a view.
namespace verglas {
namespace {

class Pages : public ::testing::Test {
 protected:
  static constexpr std::int64_t kK = 8, kN = 6;
  using Half = std::uint16_t;
  static constexpr Half kOne = 0x3F80, kTwo = 0x4000, kEight = 0x4100, kSixteen = 0x4180;  // of bf16

  static CompiledPlan planned() {
    Graph graph;
    const Tensor a = graph.tensor({.dim = {2, 4, kK}, .stride = {4 * kK, kK, 1}});
    const Tensor b = graph.tensor({.dim = {2, kK, kN}, .stride = {kK * kN, 1, kK}});
    graph.matmul(a, b).set_output(true);
    return graph.compile();
  }
};

TEST_F(Pages, ACallThatIsMadeManyTimes) {
  const CompiledPlan plan = planned();
  std::vector<Half> first(2 * 4 * kK, kOne), second(2 * 4 * kK, kTwo), weights(2 * kK * kN, kOne), out(2 * 4 * kN);
  const TensorView a = TensorView::address(first.data()), b = TensorView::address(weights.data());
  const TensorView d = TensorView::address(out.data());
  std::vector<void*> batches = {first.data()};
  const auto loop = [&] {
    BoundCall call = plan.bind({{a, b, d}});
    for (void* activations : batches) {
      call.set_address(0, activations);
      if (const Status s = call(); !s.ok()) throw call.explain(s);
    }
  };
  loop();
  EXPECT_EQ(out, std::vector<Half>(out.size(), kEight));
  batches.push_back(second.data());
  loop();
  EXPECT_EQ(out, std::vector<Half>(out.size(), kSixteen));
  batches.push_back(out.data());
  EXPECT_THROW(loop(), Error);
}

TEST_F(Pages, OtherExtentsAndStrides) {
  const CompiledPlan plan = planned();
  const Device gpu = plan.device();
  const std::int64_t batch = 3, rows = 5, n = 7, k = 8;
  std::vector<Half> activations(batch * rows * k, kOne), weights(batch * k * n, kOne), out(batch * rows * n);
  void *a = activations.data(), *b = weights.data(), *d = out.data();
  plan.run({{TensorView::dense(a, DataType::bf16, {batch, rows, k}, gpu),
             TensorView::strided(b, DataType::bf16, {batch, k, n}, {k * n, 1, k}, gpu),
             TensorView::dense(d, DataType::bf16, {batch, rows, n}, gpu)}});
  EXPECT_EQ(out, std::vector<Half>(out.size(), kEight));
}

}  // namespace
}  // namespace verglas
