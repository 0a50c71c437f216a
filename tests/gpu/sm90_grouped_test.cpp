#include <gtest/gtest.h>

#include "support/grouped_calls.hpp"

// Products of groups that are known to the device alone: exact for a thousand drawn groupings, and nothing else is written. One
// kernel serves many groupings by live extents.
namespace verglas {
namespace {

class Sm90Grouped : public support::GpuTest, public ::testing::WithParamInterface<GroupedKind> {};

TEST_P(Sm90Grouped, IsExactForGeneratedGroupings) {
  GroupedCalls calls(*driver_, GetParam());
  const PlanList all = calls.plans();
  ASSERT_GT(all.size(), 0U) << all.unsupported_text();
  const std::vector<CompiledPlan> compiled = support::compile_each_tile_once(all, GetParam().is_short ? 8 : 5);
  support::Random random(17);
  for (const CompiledPlan& plan : compiled) {
    SCOPED_TRACE(plan.name());
    ASSERT_EQ(plan.engine(), "sm90");
    for (int i = 0; i < 20; ++i) {
      calls.check(plan, draw_grouping(random, GetParam()));
      if (HasFatalFailure()) return;
    }
    calls.check(plan, no_rows(random, GetParam()));
    EXPECT_EQ(calls.touched_guard_bytes(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpu, Sm90Grouped,
    ::testing::Values(
        GroupedKind{.name = "plain"},
        GroupedKind{.name = "wide_ends", .out = DataType::fp32, .offset = DataType::int64, .ends = true, .b_k_major = false},
        GroupedKind{.name = "zero_fill", .ends = true, .zero_fill = true},
        GroupedKind{.name = "odd_pitch", .pitch = 323, .pitch_d = 203, .zero_fill = true},
        GroupedKind{.name = "zero_fill_outputs", .ends = true, .zero_fill = true, .is_fused = true},
        GroupedKind{.name = "zero_fill_reductions", .out = DataType::fp32, .ends = true, .zero_fill = true, .reduces = true},
        GroupedKind{.name = "gather_zero_fill", .zero_fill = true, .is_fused = true, .mode = MoeMode::gather},
        GroupedKind{.name = "gather_zero_fill_odd_pitch",
                    .out = DataType::fp32,
                    .ends = true,
                    .pitch = 323,
                    .pitch_d = 203,
                    .zero_fill = true,
                    .reduces = true,
                    .mode = MoeMode::gather},
        GroupedKind{.name = "tokens_along_rows", .a_k_major = false}, GroupedKind{.name = "fused", .is_fused = true},
        GroupedKind{.name = "reductions", .out = DataType::fp32, .reduces = true},
        GroupedKind{.name = "reductions_ends", .out = DataType::fp32, .ends = true, .reduces = true},
        GroupedKind{.name = "gather", .mode = MoeMode::gather},
        GroupedKind{.name = "gather_fused", .ends = true, .is_fused = true, .mode = MoeMode::gather},
        GroupedKind{.name = "gather_reduces", .out = DataType::fp32, .pitch = 323, .reduces = true, .mode = MoeMode::gather},
        GroupedKind{.name = "scatter", .mode = MoeMode::scatter, .top_k = 2},
        GroupedKind{.name = "scatter_fused", .offset = DataType::int64, .is_fused = true, .mode = MoeMode::scatter, .top_k = 3},
        GroupedKind{.name = "scatter_reduces", .out = DataType::fp32, .reduces = true, .mode = MoeMode::scatter},
        GroupedKind{.name = "scatter_zero_fill", .ends = true, .zero_fill = true, .mode = MoeMode::scatter, .top_k = 2},
        GroupedKind{.name = "scatter_zero_fill_fused", .zero_fill = true, .is_fused = true, .mode = MoeMode::scatter, .top_k = 3},
        GroupedKind{.name = "scatter_zero_fill_reduces",
                    .out = DataType::fp32,
                    .pitch_d = 203,
                    .zero_fill = true,
                    .reduces = true,
                    .mode = MoeMode::scatter,
                    .top_k = 2},
        GroupedKind{.name = "combine", .mode = MoeMode::combine, .top_k = 2},
        GroupedKind{.name = "combine_fused", .offset = DataType::int64, .is_fused = true, .mode = MoeMode::combine, .top_k = 8},
        GroupedKind{.name = "combine_reduces", .out = DataType::fp32, .reduces = true, .mode = MoeMode::combine, .top_k = 3},
        GroupedKind{.name = "combine_odd_pitch",
                    .out = DataType::fp32,
                    .ends = true,
                    .pitch = 323,
                    .pitch_d = 203,
                    .mode = MoeMode::combine},
        GroupedKind{.name = "combine_columns", .a_k_major = false, .b_k_major = false, .mode = MoeMode::combine, .top_k = 2},
        GroupedKind{.name = "combine_by_address", .mode = MoeMode::combine, .top_k = 2, .by_address = true},
        GroupedKind{.name = "combine_pairs", .out = DataType::fp32, .mode = MoeMode::combine, .top_k = 2, .pairs = true},
        GroupedKind{.name = "combine_fp8",
                    .in = DataType::fp8_e4m3,
                    .out = DataType::fp32,
                    .pitch = 336,
                    .mode = MoeMode::combine,
                    .top_k = 2},
        GroupedKind{.name = "by_address", .by_address = true},
        GroupedKind{.name = "by_address_columns",
                    .offset = DataType::int64,
                    .ends = true,
                    .b_k_major = false,
                    .is_fused = true,
                    .by_address = true},
        GroupedKind{.name = "by_address_odd_pitch", .pitch = 323, .pitch_d = 203, .zero_fill = true, .by_address = true},
        GroupedKind{.name = "by_address_gather", .mode = MoeMode::gather, .by_address = true},
        GroupedKind{
            .name = "by_address_reduces", .out = DataType::fp32, .reduces = true, .mode = MoeMode::scatter, .by_address = true},
        GroupedKind{.name = "by_address_pairs", .out = DataType::fp32, .by_address = true, .pairs = true},
        GroupedKind{.name = "first_by_address", .out = DataType::fp32, .by_address = true, .pairs = true, .in_tensor = 1},
        GroupedKind{.name = "second_by_address_columns",
                    .out = DataType::fp32,
                    .a_k_major = false,
                    .b_k_major = false,
                    .by_address = true,
                    .pairs = true,
                    .in_tensor = 0},
        GroupedKind{.name = "first_by_address_odd_pitch",
                    .out = DataType::fp32,
                    .pitch = 323,
                    .pitch_d = 203,
                    .mode = MoeMode::gather,
                    .by_address = true,
                    .pairs = true,
                    .in_tensor = 1},
        GroupedKind{.name = "pairs", .out = DataType::fp32, .pairs = true}, GroupedKind{.name = "short", .is_short = true},
        GroupedKind{.name = "short_wide", .out = DataType::fp32, .ends = true, .b_k_major = false, .is_short = true},
        GroupedKind{.name = "short_fused", .is_fused = true, .is_short = true},
        GroupedKind{.name = "short_scatter", .mode = MoeMode::scatter, .top_k = 2, .is_short = true},
        GroupedKind{.name = "short_gather", .mode = MoeMode::gather, .is_short = true},
        GroupedKind{.name = "fp8", .in = DataType::fp8_e4m3, .out = DataType::fp32, .pitch = 336}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace verglas
