#include <gtest/gtest.h>

#include <vector>

#include "verglas/verglas.hpp"

// Every second run of columns: inferred, kept in files, and computed on the host.
namespace verglas {
namespace {

/// y = second runs of x, x = a (2, 4, 1) · b (2, 1, 128): row r has r + 1 times the columns of b.
Graph graph() {
  Graph g({.io_data_type = DataType::fp32});
  const Tensor a = g.tensor({.name = "a", .dim = {2, 4, 1}, .stride = {4, 1, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {2, 1, 128}, .stride = {128, 128, 1}});
  const Tensor x = g.matmul(a, b);
  g.take_runs(x, 32, false, {.name = "first"}).set_name("y").set_output(true);
  g.take_runs(x, 32, true, {.name = "second"}).set_name("z").set_output(true);
  return g;
}

TEST(GraphRuns, HaveHalfOfTheColumns) {
  Graph g = graph();
  g.validate();
  for (std::size_t i = 0; i < g.tensor_count(); ++i) {
    const Tensor t = g.tensor_at(i);
    if (t.name() != "y" && t.name() != "z") continue;
    EXPECT_EQ(t.dim(), (std::vector<std::int64_t>{2, 4, 64}));
    EXPECT_EQ(t.stride(), (std::vector<std::int64_t>{256, 64, 1}));
  }
}

TEST(GraphRuns, AreKeptInFiles) {
  const std::string text = graph().to_json();
  EXPECT_NE(text.find(R"("op": "take_runs")"), std::string::npos);
  EXPECT_NE(text.find(R"("length": 32, "second": true)"), std::string::npos);
  EXPECT_EQ(Graph::from_json(text).to_json(), text);
}

TEST(GraphRuns, AreThoseOfTheCpuEngine) {
  const CompiledPlan plan = graph().compile();
  std::vector<float> a = {1, 2, 3, 4, 1, 2, 3, 4}, b(256), y(512, -1), z(512, -1);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
  plan.run({{TensorView::dense(a.data(), DataType::fp32, {2, 4, 1}), TensorView::dense(b.data(), DataType::fp32, {2, 1, 128}),
             TensorView::dense(y.data(), DataType::fp32, {2, 4, 64}), TensorView::dense(z.data(), DataType::fp32, {2, 4, 64})}});
  for (std::size_t l = 0; l < 2; ++l)
    for (std::size_t r = 0; r < 4; ++r)
      for (std::size_t j = 0; j < 64; ++j) {
        const std::size_t at = 128 * l + j / 32 * 64 + j % 32;
        EXPECT_EQ(y[256 * l + 64 * r + j], static_cast<float>((r + 1) * at));
        EXPECT_EQ(z[256 * l + 64 * r + j], static_cast<float>((r + 1) * (at + 32)));
      }
}

}  // namespace
}  // namespace verglas
