#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

#include "support/gpu.hpp"
#include "support/grouped_atoms.hpp"

// Generated groupings with scales in atoms of each group, on a device, byte by byte as tests/property/grouped_atoms_test.cpp has
// them on the CPU: every byte that a call may write is known, and guards lie around each operand.
namespace verglas {
namespace {

using namespace support;
constexpr Device kGpu{DeviceType::cuda, 0};
constexpr int kCalls = 12;

class Sm90GroupedAtoms : public GpuTest, public testing::WithParamInterface<AtomsKind> {
 protected:
  std::string run(const CompiledPlan& plan, const std::vector<AtomsOperand>& all) const {
    std::vector<std::unique_ptr<DeviceBuffer>> memory;
    std::vector<const AtomsOperand*> order;
    std::vector<TensorView> views;
    for (const OperandInfo& info : plan.operands()) {
      const auto o = std::find_if(all.begin(), all.end(), [&](const AtomsOperand& x) { return x.name == info.name; });
      if (o == all.end()) return "no operand " + info.name;
      order.push_back(&*o);
      memory.push_back(std::make_unique<DeviceBuffer>(*driver_, std::max<std::size_t>(o->bytes.size(), 1), 0));
      if (!o->bytes.empty()) memory.back()->upload(o->bytes.data());
      views.push_back(view_of(*o, memory.back()->data(), kGpu));
    }
    const Status status = plan.execute(views);
    if (!status.ok()) return std::string("refused: ") + plan.explain(status, views).what();
    if (driver_->cuCtxSynchronize() != cuda::CUDA_SUCCESS) return "the launch failed";
    plan.check();
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (memory[i]->touched_guard_bytes() != 0) return order[i]->name + ": bytes beside it were written";
      if (order[i]->want.empty()) continue;
      const std::vector<std::uint8_t> got = memory[i]->download();
      const std::string wrong = atoms_fault(*order[i], got);
      if (!wrong.empty()) return wrong;
    }
    return {};
  }
};

TEST_P(Sm90GroupedAtoms, AgreeWithPlainLoops) {
  Graph graph = atoms_graph(GetParam());
  const PlanList plans = graph.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
  Random random(7);
  std::vector<std::vector<AtomsOperand>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(draw_atoms_call(GetParam(), random));
  for (const CompiledPlan& plan : compile_each_tile_once(plans, 4))
    for (const auto& call : calls) ASSERT_EQ(run(plan, call), "") << plan.name() << ", call " << &call - calls.data();
}

class Sm90GroupsOfBlocksAlongM : public GpuTest {};
TEST_F(Sm90GroupsOfBlocksAlongM, BeginBetweenBlocks) {
  for (const bool in_atoms : {false, true}) {
    constexpr std::int64_t kColumns = 64, kDepth = 64;
    Graph g = blocks_graph(DataType::bf16, kColumns, kDepth, in_atoms);
    const CompiledPlan plan = g.compile({.device = kGpu, .deselect_engines = {"cpu"}});
    const std::vector<std::uint16_t> vx(kRowsOfBlocks * kDepth, 0x3F80);  // 1
    std::vector<std::uint16_t> vw(2 * kDepth * kColumns, 0x3F80);
    std::fill(vw.begin() + kDepth * kColumns, vw.end(), std::uint16_t{0x43E0});  // 448
    DeviceBuffer dx(*driver_, vx.size() * 2, 0), dw(*driver_, vw.size() * 2, 0), offsets(*driver_, 8, 0),
        data(*driver_, kRowsOfBlocks * kColumns, 0), scales(*driver_, 2048, 0);
    dx.upload(vx.data());
    dw.upload(vw.data());
    expect_held_bounds(plan, in_atoms, [&](std::int32_t second) {
      const std::array<std::int32_t, 2> bounds = {0, second};
      offsets.upload(bounds.data());
      data.fill(0xEE);
      scales.fill(0xEE);
      EXPECT_TRUE(plan.execute(std::vector<void*>{dx.data(), dw.data(), offsets.data(), data.data(), scales.data()}).ok());
      std::vector<std::uint8_t> all = data.download();
      const std::vector<std::uint8_t> more = scales.download();
      all.insert(all.end(), more.begin(), more.end());
      return all;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, Sm90GroupedAtoms, testing::ValuesIn(atoms_kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace verglas
