#include <gtest/gtest.h>

#include <vector>

#include "beside_cpu.hpp"
#include "support/gpu.hpp"
#include "support/rope_graph.hpp"

// Rotated columns of heads, quantised along both axes: every plan has the bytes of the CPU engine.
namespace verglas {
namespace {

using support::RopeGraph;
using enum DataType;

/// `shift`: bytes by which tables and outputs begin later than any piece would.
void beside_cpu(const RopeGraph& r, std::size_t plan_index, std::size_t shift = 0) {
  SCOPED_TRACE(::testing::Message() << r);
  const auto fill = [&](const OperandInfo& o, gpu_test::Bytes& bytes, std::mt19937& random) {
    if (o.name == "sa" || o.name == "sb") {
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(125 + random() % 5);
      return;
    }
    gpu_test::put_integers(o, bytes, random, o.name == "cos" || o.name == "sin" ? 9 : 3);
  };
  const auto shifted = [&](const OperandInfo& o) { return o.is_output || o.name == "cos" || o.name == "sin" ? shift : 0; };
  gpu_test::expect_same_bytes(
      gpu_test::run_beside_cpu([&](Graph& g) { g = support::describe(r); }, plan_index, {.fill = fill, .shift = shifted}));
}

TEST(Sm90Rope, GivesTheBitsOfTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  std::vector<RopeGraph> cases;
  for (int plan = 0; plan < 10; ++plan) {
    cases.push_back({.rows = 32, .heads = 1, .k = 40});
    cases.push_back({.rows = 416, .heads = 5, .k = 200, .w_out_in = false});
    cases.push_back({.rows = 1056, .heads = 7, .k = 96, .head = 128, .one_line = true});
    cases.push_back({.rows = 2080, .heads = 13, .k = 64, .head = 64});
    cases.push_back({.rows = 160, .heads = 6, .k = 128, .rows_only = true});
    cases.push_back({.rows = 352, .heads = 9, .k = 160, .in = fp8_e4m3});
    cases.push_back({.rows = 224, .heads = 4, .k = 96, .in = fp8_e4m3, .w_out_in = false});
  }
  gpu_test::each_on_device(cases.size(), [&](std::size_t i) { beside_cpu(cases[i], i / 7); });
}

TEST(Sm90Rope, ReadsAndWritesAtAnyAddress) {
  VERGLAS_NEEDS_GPU();
  const RopeGraph r{.rows = 160, .heads = 3, .k = 64}, odd{.rows = 77, .heads = 3, .k = 64, .rows_only = true};
  gpu_test::each_on_device(8, [&](std::size_t i) {
    beside_cpu(r, i, 2 + 2 * (i % 4));
    beside_cpu(odd, i, i % 2 * 6);
  });
}

}  // namespace
}  // namespace verglas
