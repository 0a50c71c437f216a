#include <cmath>
#include <functional>
#include <vector>

#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Rules chain.*: descriptions that are right and are no one fused kernel.
namespace {

using namespace verglas;

/// a (4, 8) · b (8, 6), fp32, and what each test adds to it.
struct Small {
  Graph g{{.io_data_type = DataType::fp32}};
  Tensor a = g.tensor({.name = "a", .dim = {4, 8}, .stride = {8, 1}});
  Tensor b = g.tensor({.name = "b", .dim = {8, 6}, .stride = {6, 1}});
  Tensor product(const char* name = "mm") { return g.matmul(a, b, {.name = name}); }
};

/// Why the graph is no chain: "rule text"; "" when it is served.
std::string declined(const std::function<void(Small&)>& build) {
  Small s;
  build(s);
  const PlanList plans = s.g.plans();
  if (plans.size() > 0) return {};
  const DeclineRecord& d = plans.declines().front();
  return d.rule + " " + d.text;
}

REFUSES(chain_no_matmul) {
  EXPECT_EQ(declined([](Small& s) { s.g.relu(s.a).set_output(true); }), "chain.no_matmul the graph has no matmul");
  EXPECT_EQ(declined([](Small& s) { s.g.relu(s.product()).set_output(true); }), "");
}

REFUSES(chain_gemm_of_gemm) {
  const auto build = [](bool nested) {
    return [nested](Small& s) {
      const Tensor c = s.product();
      const Tensor d = s.g.tensor({.name = "d", .dim = {6, 6}, .stride = {6, 1}});
      if (nested) s.g.matmul(c, d, {.name = "second"}).set_output(true);
      Tensor(c).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(true)), "chain.gemm_of_gemm matmul 'second' reads what another matmul computes");
  EXPECT_EQ(declined(build(false)), "");
}

REFUSES(chain_gemm_shapes) {
  const auto build = [](std::int64_t n) {
    return [n](Small& s) {
      const Tensor b = s.g.tensor({.name = "b1", .dim = {8, n}, .stride = {n, 1}});
      s.product().set_output(true);
      s.g.matmul(s.a, b, {.name = "other"}).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(5)), "chain.gemm_shapes matmul 'other' is (1, 4, 5, 8) (L, M, N, K), 'mm' is (1, 4, 6, 8)");
  EXPECT_EQ(declined(build(6)), "");
}

REFUSES(chain_padding) {
  const auto build = [](double padding) {
    return [padding](Small& s) { s.g.matmul(s.a, s.b, {.name = "mm"}, padding).set_output(true); };
  };
  EXPECT_EQ(declined(build(1.5)), "chain.padding matmul 'mm' has padding 1.500000");
  EXPECT_EQ(declined(build(std::nan(""))), "chain.padding matmul 'mm' has padding nan");
  EXPECT_EQ(declined(build(-0.0)), "");
}

REFUSES(chain_matmul_types) {
  const auto build = [](DataType b) {
    return [b](Small& s) {
      s.a.set_data_type(DataType::bf16);
      s.b.set_data_type(b);
      s.product().set_output(true);
    };
  };
  EXPECT_EQ(declined(build(DataType::fp16)), "chain.matmul_types matmul 'mm' has a bf16, b fp16 and computes in fp32");
  EXPECT_EQ(declined(build(DataType::bf16)), "");
  const auto fp8 = [](DataType b, DataType compute) {
    return [=](Small& s) {
      s.a.set_data_type(DataType::fp8_e4m3);
      s.b.set_data_type(b);
      s.g.matmul(s.a, s.b, {.name = "mm", .compute_data_type = compute}).set_output(true);
    };
  };
  EXPECT_EQ(declined(fp8(DataType::fp8_e8m0, DataType::fp32)),
            "chain.matmul_types matmul 'mm' has a fp8_e4m3, b fp8_e8m0 and computes in fp32");
  EXPECT_EQ(declined(fp8(DataType::fp8_e5m2, DataType::tf32)),
            "chain.matmul_types matmul 'mm' has a fp8_e4m3, b fp8_e5m2 and computes in tf32");
  EXPECT_EQ(declined(fp8(DataType::fp8_e5m2, DataType::fp32)), "");
}

REFUSES(chain_compute_type) {
  const auto build = [](DataType compute) {
    return [compute](Small& s) {
      s.g.pointwise(PointwiseMode::relu, {s.product()}, {}, {.name = "act", .compute_data_type = compute}).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(DataType::fp16)), "chain.compute_type node 'act' computes in fp16");
  EXPECT_EQ(declined(build(DataType::fp32)), "");
}

REFUSES(chain_int_mode) {
  const auto build = [](PointwiseMode mode) {
    return [mode](Small& s) {
      s.g.pointwise(mode, {s.product()}, {}, {.name = "act", .compute_data_type = DataType::int32}).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(PointwiseMode::gelu)), "chain.int_mode node 'act' computes gelu in int32");
  EXPECT_EQ(declined(build(PointwiseMode::relu)), "");
}

REFUSES(chain_dtype_not_yet) {
  const auto build = [](DataType t) { return [t](Small& s) { s.product().set_name("c").set_data_type(t).set_output(true); }; };
  EXPECT_EQ(declined(build(DataType::fp4_e2m1)), "");
  EXPECT_EQ(declined([](Small& s) {
              const Tensor c = s.product().set_name("c").set_data_type(DataType::fp4_e2m1).set_output(true);
              s.g.relu(c).set_output(true);
            }),
            "chain.dtype_not_yet tensor 'c' is fp4_e2m1");
  EXPECT_EQ(declined(build(DataType::int64)), "chain.dtype_not_yet tensor 'c' is int64");
  EXPECT_EQ(declined(build(DataType::fp8_e4m3)), "");
}

REFUSES(chain_prologue) {
  const auto build = [](std::int64_t n) {
    return [n](Small& s) {
      const Tensor row = s.g.tensor({.name = "row", .dim = {1, n}, .stride = {n, 1}});
      const Tensor scaled = s.g.pointwise(PointwiseMode::mul, {s.a, row}, {}, {.name = "scale"});
      s.g.matmul(scaled, s.b).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(8)), "chain.prologue node 'scale' before a matmul has two operands, neither of them one scalar");
  EXPECT_EQ(declined(build(1)), "");
}

REFUSES(chain_input_output) {
  const auto build = [](bool stored) {
    return [stored](Small& s) {
      Tensor x = s.g.relu(s.a);
      x.set_name("x").set_output(stored);
      s.g.matmul(x, s.b).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(true)), "chain.input_output tensor 'x' is computed before a matmul and marked as an output");
  EXPECT_EQ(declined(build(false)), "");
}

REFUSES(chain_no_output) {
  EXPECT_EQ(declined([](Small& s) { s.g.relu(s.product()); }), "chain.no_output no tensor is marked as an output");
  EXPECT_EQ(declined([](Small& s) { s.product(); }), "");
}

REFUSES(chain_aux_shape) {
  const auto build = [](std::int64_t l) {
    return [l](Small& s) {
      const Tensor x = s.g.tensor({.name = "mask", .dim = {l, 4, 6}, .stride = {24, 6, 1}});
      s.g.mul(s.product(), x).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(2)), "chain.aux_shape tensor 'mask' has extents (2, 4, 6) beside (L, M, N) = (1, 4, 6)");
  EXPECT_EQ(declined(build(1)), "");
}

REFUSES(chain_output_layout) {
  const auto build = [](std::int64_t row) {
    return [row](Small& s) { s.product().set_name("c").set_output(true).set_stride({row, 1}); };
  };
  EXPECT_EQ(declined(build(5)), "chain.output_layout output 'c' has extents (4, 6) and strides (5, 1)");
  EXPECT_EQ(declined(build(6)), "");
}

REFUSES(chain_reduction_types) {
  const auto build = [](ReductionMode mode, DataType type) {
    return [=](Small& s) {
      Tensor r = s.g.reduction(s.product(), mode, {.name = "r", .compute_data_type = type});
      r.set_dim({4, 1}).set_data_type(type).set_output(true);
    };
  };
  EXPECT_EQ(declined(build(ReductionMode::avg, DataType::int32)),
            "chain.reduction_types reduction 'r' (avg) computes in int32 and stores int32");
  EXPECT_EQ(declined(build(ReductionMode::add, DataType::bf16)),
            "chain.reduction_types reduction 'r' (add) computes in bf16 and stores bf16");
  EXPECT_EQ(declined(build(ReductionMode::add, DataType::int32)), "");
}

REFUSES(chain_reduction_output) {
  const auto build = [](bool stored) {
    return [stored](Small& s) {
      const Tensor c = s.product().set_output(true);
      s.g.reduction(c, ReductionMode::add, {.name = "r"}).set_dim({4, 1}).set_output(stored);
    };
  };
  EXPECT_EQ(declined(build(false)), "chain.reduction_output reduction 'r' is not marked as an output");
  EXPECT_EQ(declined(build(true)), "");
}

REFUSES(chain_too_large) {
  const auto build = [](int roles) {
    return [roles](Small& s) {
      Tensor x = s.product();
      for (int i = 3; i < roles; ++i) x = s.g.add(x, s.g.tensor({.dim = {1}, .stride = {1}}));
      x.set_output(true);
    };
  };
  EXPECT_EQ(declined(build(65)), "chain.too_large the chain has more than 64 roles");
  EXPECT_EQ(declined(build(64)), "");
}

}  // namespace
