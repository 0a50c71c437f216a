#include <array>
#include <cstring>
#include <iostream>
#include <vector>

#include "verglas/verglas.hpp"

namespace {

int wrong(const char* what) {
  std::cerr << what << '\n';
  return 1;
}

/// relu(A · B) of small integers, worked by hand.
int product() {
  using verglas::DataType;
  verglas::Graph g({.name = "consumer", .io_data_type = DataType::fp32});
  const auto a = g.tensor({.name = "a", .dim = {1, 2, 3}, .stride = {6, 3, 1}});
  const auto b = g.tensor({.name = "b", .dim = {1, 3, 2}, .stride = {6, 2, 1}});
  g.relu(g.matmul(a, b)).set_output(true).set_name("d");
  const verglas::CompiledPlan plan = g.compile();

  std::array<float, 6> a_data{1, 2, 3, -1, 0, 1};
  std::array<float, 6> b_data{1, 0, 0, 1, 2, -2};
  std::array<float, 4> d_data{7, 7, 7, 7};
  std::vector<verglas::TensorView> buffers(plan.operands().size());
  const auto bind = [&](const char* name, verglas::TensorView view) {
    buffers.at(static_cast<std::size_t>(plan.operand_index(name))) = view;
  };
  bind("a", verglas::TensorView::dense(a_data.data(), DataType::fp32, {1, 2, 3}));
  bind("b", verglas::TensorView::dense(b_data.data(), DataType::fp32, {1, 3, 2}));
  bind("d", verglas::TensorView::dense(d_data.data(), DataType::fp32, {1, 2, 2}));
  plan.run(buffers);
  if (d_data != std::array<float, 4>{7, 0, 1, 0}) return wrong("relu(A · B) is not 7 0 1 0");

  // A refusal made inside the library is caught by type outside it, also across a shared object.
  bind("a", verglas::TensorView::dense(a_data.data(), DataType::fp16, {1, 2, 3}));
  try {
    plan.run(buffers);
  } catch (const verglas::Error& e) {
    return e.code() == verglas::ErrorCode::invalid_call ? 0 : wrong(e.what());
  }
  return wrong("a buffer of another type was not refused");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::strcmp(argv[1], VERGLAS_VERSION) != 0)
    return wrong("built against " VERGLAS_VERSION ", which is another version");
  return product();
}
