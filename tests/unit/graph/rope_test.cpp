#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "verglas/verglas.hpp"

// Rotated columns of heads: inferred, kept in files, and computed on the host.
namespace verglas {
namespace {

struct Shape {
  std::int64_t l, m, heads, head, rotated;
  bool is_per_row = true, is_per_batch = false;  ///< of the tables
};

/// z = rope of x = a (l, m, 1) · b (1, 1, N).
Graph graph(const Shape& s) {
  Graph g({.io_data_type = DataType::fp32});
  const std::int64_t n = s.heads * s.head, rows = s.is_per_row ? s.m : 1, batches = s.is_per_batch ? s.l : 1;
  const Tensor a = g.tensor({.name = "a", .dim = {s.l, s.m, 1}, .stride = {s.m, 1, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, 1, n}, .stride = {n, n, 1}});
  const auto table = [&](const char* name) {
    return g.tensor({.name = name, .dim = {batches, rows, s.rotated}, .stride = {rows * s.rotated, s.rotated, 1}});
  };
  g.rope(g.matmul(a, b), table("cos"), table("sin"), s.head, {.name = "turn"}).set_name("z").set_output(true);
  return g;
}

TEST(GraphRope, KeepsExtents) {
  Graph g = graph({2, 4, 3, 24, 8});
  g.validate();
  for (std::size_t i = 0; i < g.tensor_count(); ++i) {
    if (g.tensor_at(i).name() != "z") continue;
    EXPECT_EQ(g.tensor_at(i).dim(), (std::vector<std::int64_t>{2, 4, 72}));
  }
}

TEST(GraphRope, IsKeptInFiles) {
  const std::string text = graph({2, 4, 3, 24, 8}).to_json();
  EXPECT_NE(text.find(R"("op": "rope")"), std::string::npos);
  EXPECT_NE(text.find(R"("head": 24)"), std::string::npos);
  EXPECT_EQ(Graph::from_json(text).to_json(), text);
}

TEST(GraphRope, IsThatOfTheCpuEngine) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> draw(-4, 4);
  for (const Shape& s : {Shape{1, 5, 2, 192, 64}, Shape{2, 3, 7, 24, 8, true, true}, Shape{3, 4, 5, 6, 6, false, true},
                         Shape{2, 40, 9, 96, 2, false, false}, Shape{1, 2, 1, 128, 128}}) {
    const CompiledPlan plan = graph(s).compile();
    const std::int64_t n = s.heads * s.head, rows = s.is_per_row ? s.m : 1, batches = s.is_per_batch ? s.l : 1;
    const auto filled = [&](std::int64_t count) {
      std::vector<float> v(static_cast<std::size_t>(count));
      for (float& x : v) x = static_cast<float>(draw(random));
      return v;
    };
    std::vector<float> a = filled(s.l * s.m), b = filled(n), cos = filled(batches * rows * s.rotated),
                       sin = filled(batches * rows * s.rotated), z(static_cast<std::size_t>(s.l * s.m * n), NAN);
    plan.run({{TensorView::dense(a.data(), DataType::fp32, {s.l, s.m, 1}), TensorView::dense(b.data(), DataType::fp32, {1, 1, n}),
               TensorView::dense(cos.data(), DataType::fp32, {batches, rows, s.rotated}),
               TensorView::dense(sin.data(), DataType::fp32, {batches, rows, s.rotated}),
               TensorView::dense(z.data(), DataType::fp32, {s.l, s.m, n})}});
    for (std::int64_t i = 0; i < s.l * s.m * n; ++i) {
      const std::int64_t row = i / n, d = i % n % s.head, j = d - (s.head - s.rotated), half = s.rotated / 2;
      const auto x = [&](std::int64_t column) {
        return double{a[static_cast<std::size_t>(row)]} * double{b[static_cast<std::size_t>(i % n - d + column)]};
      };
      const std::int64_t line = (s.is_per_batch ? row / s.m : 0) * rows + (s.is_per_row ? row % s.m : 0);
      const auto at = [&](const std::vector<float>& t) { return double{t[static_cast<std::size_t>(line * s.rotated + j)]}; };
      double want = x(d);
      if (j >= 0) {
        const std::int64_t pair = s.head - s.rotated + 2 * (j % half);
        want = j < half ? x(pair) * at(cos) - x(pair + 1) * at(sin) : x(pair + 1) * at(cos) + x(pair) * at(sin);
      }
      ASSERT_EQ(double{z[static_cast<std::size_t>(i)]}, want) << s.head << ": " << i;
    }
  }
}

}  // namespace
}  // namespace verglas
