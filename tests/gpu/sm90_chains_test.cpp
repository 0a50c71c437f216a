#include <gtest/gtest.h>

#include <cstdlib>

#include "beside_cpu.hpp"
#include "generated_chain.hpp"
#include "support/edge_memory.hpp"
#include "support/gpu.hpp"

// Generated chains on a real device. A chain is compiled once, on one of its plans, and called with extents (0 to 300), strides,
// alignments, descriptions and data of its own. Every element is judged by the reference; where that leaves one bit pattern only,
// the CPU engine's bytes are asked for too. Inputs, gaps between elements and guards stay as they were.
//   VERGLAS_CASE=n   draws that chain alone      VERGLAS_CHAINS=n   chains of a shard (10, of those with scales of blocks 60)
//   VERGLAS_CALLS=n  calls of each (25, 3)
namespace {

using namespace gpu_test;

constexpr int kShards = 8;

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

class Sm90Chains : public ::testing::TestWithParam<int> {
 protected:
  /// Compiles and calls them, each by one thread; `places` answers the placement of a chain.
  void check(std::vector<GeneratedChain>& chains, int calls, const std::function<Placement()>& places) {
    const verglas::cuda::DriverTable& driver = **verglas::cuda::driver();
    each_on_device(chains.size(), [&](std::size_t i) {
      GeneratedChain& chain = chains[i];
      try {
        chain.compile();
        check_calls(chain, calls, driver, places());
      } catch (const std::exception& e) {
        chain.wrong = chain.c.line() + " threw: " + e.what();
      }
    });
    for (const GeneratedChain& chain : chains) {
      tally_.add(chain.tally);
      if (!chain.wrong.empty()) ADD_FAILURE() << chain.wrong;
    }
    std::printf("%d calls of %zu chains on the device, %d of them with the CPU engine's bits; declined: %s; refused: %s\n",
                tally_.calls, chains.size(), tally_.exact_calls, text_of(tally_.declined).c_str(),
                text_of(tally_.refused).c_str());
    RecordProperty("generated_calls", std::to_string(tally_.calls));
    if (HasFailure()) return;
    EXPECT_EQ(tally_.calls, static_cast<int>(chains.size()) * calls);
  }
  /// Every second shard draws from all that there is to describe, the others what a kernel can serve.
  Kind kind() const { return GetParam() % 2 == 1 ? Kind::kernel_types : Kind::any; }

  Tally tally_{};
};

TEST_P(Sm90Chains, AgreeWithTheReferenceAndTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  const int calls = number_of("VERGLAS_CALLS", 25);
  std::vector<GeneratedChain> chains;
  if (const char* only = std::getenv("VERGLAS_CASE")) {
    const std::uint64_t seed = std::strtoull(only, nullptr, 10);
    if (seed % kShards != static_cast<std::uint64_t>(GetParam())) return;
    chains = draw_chains(1, seed, 1, kind(), tally_);
  } else {
    chains = draw_chains(static_cast<std::size_t>(number_of("VERGLAS_CHAINS", 10)), static_cast<std::uint64_t>(GetParam()),
                         kShards, kind(), tally_);
  }
  const verglas::cuda::DriverTable& driver = **verglas::cuda::driver();
  check(chains, calls, [&] { return between_guards(driver); });
}

// Operands with scales of blocks, beside each other or beside wide ones, and outputs that are quantised.
TEST_P(Sm90Chains, WithScalesOfBlocksAgreeWithTheReferenceAndTheCpuEngine) {
  VERGLAS_NEEDS_GPU();
  std::vector<GeneratedChain> chains;
  const char* only = std::getenv("VERGLAS_CASE");
  const std::uint64_t first = only ? std::strtoull(only, nullptr, 10) : static_cast<std::uint64_t>(GetParam());
  if (first % kShards != static_cast<std::uint64_t>(GetParam())) return;
  const int count = only ? 1 : number_of("VERGLAS_CHAINS", 60);
  chains = draw_chains(static_cast<std::size_t>(count), first, only ? 1 : kShards, Kind::block_scaled, tally_);
  const verglas::cuda::DriverTable& driver = **verglas::cuda::driver();
  check(chains, number_of("VERGLAS_CALLS", 3), [&] { return between_guards(driver); });
}

// Each operand begins at the first byte of its memory or ends at the last, or as close as its alignment lets it.
TEST_P(Sm90Chains, TouchNothingBeforeOrBehindTheirOperands) {
  VERGLAS_NEEDS_GPU();
  if (std::getenv("VERGLAS_CASE")) return;
  auto chains = draw_chains(static_cast<std::size_t>(number_of("VERGLAS_CHAINS", 10)) / 3 + 1,
                            static_cast<std::uint64_t>(GetParam()), kShards, kind(), tally_);
  const verglas::cuda::DriverTable& driver = **verglas::cuda::driver();
  const verglas::cuda::PrimaryContext primary(driver, 0);
  const verglas::cuda::CurrentContext current(driver, primary.handle());
  const support::EdgeMemory sample(driver, 1);
  ASSERT_TRUE(sample.is_mapped(sample.begin()) && sample.is_mapped(sample.end() - 1));
  ASSERT_FALSE(sample.is_mapped(sample.begin() - 1) || sample.is_mapped(sample.end()));
  check(chains, 12, [&driver]() -> Placement {
    const auto pool = std::make_shared<std::map<std::size_t, std::shared_ptr<support::EdgeMemory>>>();
    const auto count = std::make_shared<unsigned>(0);
    return [&driver, pool, count](std::size_t operand, std::size_t bytes, std::size_t residue) {
      auto& memory = (*pool)[operand];
      if (!memory || memory->size() < bytes + 16) memory = std::make_shared<support::EdgeMemory>(driver, bytes + 16);
      memory->fill(0xFF);
      const bool at_end = ++*count % 4 != 0;
      const auto last = memory->end() - bytes;  // down to the address of the same residue
      const auto at = at_end ? last - (last - residue) % 16 : memory->begin() + residue;
      return Place{reinterpret_cast<void*>(at), [] { return 0; }, memory};
    };
  });
}

INSTANTIATE_TEST_SUITE_P(Gpu, Sm90Chains, ::testing::Range(0, kShards));

}  // namespace
