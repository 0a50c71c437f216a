#include "base/parallel_for.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__)
// By default the thread sanitizer ends a forked child that starts threads, which is what one test here is about.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace verglas {
namespace {

class Threads : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    before_ = thread_count();
    set_thread_count(GetParam());
  }
  void TearDown() override { set_thread_count(before_); }
  int before_ = 1;
};

std::vector<int> counts(std::int64_t items) {
  std::vector<std::atomic<int>> seen(static_cast<std::size_t>(items));
  parallel_for(items, [&](std::int64_t i, int worker) {
    EXPECT_GE(worker, 0);
    EXPECT_LT(worker, thread_count());
    seen[static_cast<std::size_t>(i)].fetch_add(1);
  });
  return {seen.begin(), seen.end()};
}

#if defined(__SSE__)
TEST_P(Threads, ComputeWithSubnormalsWhateverTheCallerIsSetTo) {
  set_thread_count(1);  // workers that start below inherit the setting
  set_thread_count(GetParam());
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040U);  // FTZ, DAZ
  for (const std::int64_t items : {1, 64}) {
    std::atomic<int> flushing{0};
    parallel_for(items, [&](std::int64_t, int) { flushing += (_mm_getcsr() & 0x8040U) != 0 ? 1 : 0; });
    EXPECT_EQ(flushing.load(), 0);
    EXPECT_EQ(_mm_getcsr() & 0x8040U, 0x8040U);
  }
  _mm_setcsr(before);
}
#endif

TEST_P(Threads, RunEveryItemOnce) {
  for (const std::int64_t items : {0, 1, 2, 3, 17, 1000})
    EXPECT_EQ(counts(items), std::vector<int>(static_cast<std::size_t>(items), 1)) << items;
}

TEST_P(Threads, StartItemsInOrder) {
  // Each item waits for the one before it: this ends only if smaller items have always started.
  std::atomic<std::int64_t> turn{0};
  parallel_for(500, [&](std::int64_t i, int) {
    while (turn.load() != i) std::this_thread::yield();
    turn.store(i + 1);
  });
  EXPECT_EQ(turn.load(), 500);
}

TEST_P(Threads, RunANestedCallOnTheCallingThread) {
  std::atomic<int> total{0};
  parallel_for(8, [&](std::int64_t, int) {
    const auto self = std::this_thread::get_id();
    parallel_for(8, [&](std::int64_t, int) { total += std::this_thread::get_id() == self ? 1 : 0; });
  });
  EXPECT_EQ(total.load(), 64);
}

TEST_P(Threads, ServeSeveralCallersAtOnce) {
  std::atomic<int> total{0};
  {
    std::vector<std::jthread> callers;
    for (int t = 0; t < 4; ++t)
      callers.emplace_back([&] {
        for (int k = 0; k < 50; ++k) parallel_for(20, [&](std::int64_t, int) { total.fetch_add(1); });
      });
  }
  EXPECT_EQ(total.load(), 4 * 50 * 20);
}

TEST_P(Threads, WorkInAForkedChild) {
  counts(100);  // the workers exist in the parent
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> total{0};
    parallel_for(100, [&](std::int64_t, int) { total.fetch_add(1); });
    _exit(total.load() == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace verglas
