#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/parallel_for.hpp"
#include "support/cliff.hpp"
#include "support/grouped_atoms.hpp"

// Generated groupings with scales in atoms of each group against plain loops, byte by byte: groups of none to 300 rows, unowned
// rows, poisoned padding, and memory that ends where each operand does.
namespace {

using namespace support;
using verglas::MoeMode;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCalls = 8;
#else
constexpr int kCalls = 25;
#endif

class GroupedAtoms : public testing::TestWithParam<AtomsKind> {};

std::string run(const verglas::CompiledPlan& plan, const std::vector<AtomsOperand>& all) {
  std::vector<std::unique_ptr<Cliff>> memory;
  std::vector<verglas::TensorView> views;
  for (const verglas::OperandInfo& info : plan.operands()) {
    const auto o = std::find_if(all.begin(), all.end(), [&](const AtomsOperand& x) { return x.name == info.name; });
    if (o == all.end()) return "no operand " + info.name;
    memory.push_back(std::make_unique<Cliff>(o->bytes.size()));
    if (!o->bytes.empty()) std::memcpy(memory.back()->data(), o->bytes.data(), o->bytes.size());
    views.push_back(view_of(*o, memory.back()->data()));
  }
  const verglas::Status status = plan.execute(views);
  if (!status.ok()) return std::string("refused: ") + plan.explain(status, views).what();
  plan.check();
  std::size_t i = 0;
  for (const verglas::OperandInfo& info : plan.operands()) {
    const auto o = std::find_if(all.begin(), all.end(), [&](const AtomsOperand& x) { return x.name == info.name; });
    const auto* from = reinterpret_cast<const std::uint8_t*>(memory[i++]->data());
    const std::string wrong = o->want.empty() ? "" : atoms_fault(*o, {from, from + o->bytes.size()});
    if (!wrong.empty()) return wrong;
  }
  return {};
}

TEST_P(GroupedAtoms, AgreeWithPlainLoops) {
  verglas::Graph graph = atoms_graph(GetParam());
  const verglas::PlanList plans = graph.plans();
  ASSERT_GT(plans.size(), 0U) << plans.unsupported_text();
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const verglas::CompiledPlan plan = plans.compile(p);
    Random random(7);
    for (int i = 0; i < kCalls; ++i) {
      verglas::set_thread_count(i % 3 + 1);
      ASSERT_EQ(run(plan, draw_atoms_call(GetParam(), random)), "") << plan.name() << ", call " << i;
    }
  }
}

TEST(GroupsOfBlocksAlongM, BeginBetweenBlocks) {
  using namespace verglas;
  for (const bool in_atoms : {false, true}) {
    constexpr std::int64_t kRows = kRowsOfBlocks, kColumns = 32;
    Graph g = blocks_graph(DataType::fp32, kColumns, 1, in_atoms);
    const CompiledPlan plan = g.compile();
    const std::vector<float> vx(kRows, 1.0F);
    std::vector<float> vw(2 * kColumns, 1.0F);
    std::fill(vw.begin() + kColumns, vw.end(), 448.0F);
    expect_held_bounds(plan, in_atoms, [&](std::int32_t second) {
      const std::vector<std::int32_t> offsets = {0, second};
      std::vector<std::uint8_t> all(kRows * kColumns + 1024, 0xEE);
      EXPECT_TRUE(
          plan.execute(std::vector<void*>{const_cast<float*>(vx.data()), vw.data(), const_cast<std::int32_t*>(offsets.data()),
                                          all.data(), all.data() + kRows * kColumns})
              .ok());
      return all;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Property, GroupedAtoms, testing::ValuesIn(atoms_kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
