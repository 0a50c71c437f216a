#include "base/parallel_for.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/environment.hpp"
#include "base/subnormals.hpp"

namespace verglas {
namespace {

/// Looks at the job counter before a worker sleeps: bridges the gap between two calls of a chain of small graphs.
constexpr int kSpins = 2000;

using Body = FunctionRef<void(std::int64_t, int)>;
thread_local bool inside = false;

int default_thread_count() {
  if (const auto n = environment::integer("VERGLAS_NUM_THREADS", 1, kMaxThreads)) return static_cast<int>(*n);
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::clamp(CPU_COUNT(&set), 1, kMaxThreads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

class Pool {
 public:
  ~Pool() { stop_workers(); }

  int size() const noexcept { return size_.load(std::memory_order_relaxed); }

  void resize(int n) {
    const std::lock_guard owner(owner_);
    stop_workers();
    size_.store(std::clamp(n, 1, kMaxThreads), std::memory_order_relaxed);
  }

  /// False when another thread's call is running.
  bool run(std::int64_t items, const Body& body) noexcept {
    const std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner) return false;
    if (workers_.empty() && !start_workers()) return false;
    body_ = &body;
    items_ = items;
    next_.store(0, std::memory_order_relaxed);
    gate_.fetch_or(kOpen, std::memory_order_release);
    {
      const std::lock_guard lock(mutex_);
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    work(body, 0);
    // Whoever came through the gate is waited for, and nobody else: a worker that slept may take milliseconds to wake.
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    while (gate_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
    return true;
  }

 private:
  void work(const Body& body, int worker) noexcept {
    const WithSubnormals subnormals;
    inside = true;
    for (std::int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < items_;
         i = next_.fetch_add(1, std::memory_order_relaxed))
      body(i, worker);
    inside = false;
  }

  bool start_workers() noexcept {
    try {
      workers_.reserve(static_cast<std::size_t>(size()) - 1);
      for (int w = 1; w < size(); ++w)
        workers_.emplace_back([this, w, seen = job_.load()](const std::stop_token& stop) { loop(stop, w, seen); });
    } catch (...) {  // no more threads to be had: the caller works alone
      stop_workers();
      return false;
    }
    return true;
  }

  void stop_workers() noexcept {
    for (std::jthread& t : workers_) t.request_stop();
    {
      const std::lock_guard lock(mutex_);
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    workers_.clear();
  }

  void loop(const std::stop_token& stop, int worker, std::uint64_t seen) noexcept {
    for (;;) {
      for (int spin = 0; spin < kSpins && job_.load(std::memory_order_acquire) == seen; ++spin) std::this_thread::yield();
      if (job_.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return job_.load(std::memory_order_acquire) != seen; });
      }
      seen = job_.load(std::memory_order_acquire);
      if (stop.stop_requested()) return;  // asked after: a number read later could be that of the stop, slept upon for ever
      if ((gate_.fetch_add(1, std::memory_order_acquire) & kOpen) != 0) work(*body_, worker);
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::atomic<int> size_{default_thread_count()};
  std::mutex owner_;  // held by the call that uses the workers
  std::mutex mutex_;  // for wake_
  std::condition_variable wake_;
  std::atomic<std::uint64_t> job_{0};
  const Body* body_ = nullptr;
  std::int64_t items_ = 0;
  std::atomic<std::int64_t> next_{0};
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> gate_{0};  // kOpen while a job takes workers, and how many are inside or look whether they may be
  std::vector<std::jthread> workers_;
};

/// After fork the child has none of the workers and perhaps a locked mutex: it starts over, and leaves the old pool alone.
struct Pools {
  std::atomic<Pool*> now{new Pool};
  Pools() {
    pthread_atfork(nullptr, nullptr, [] {
      inside = false;
      pools().now.store(new Pool);
    });
  }
  ~Pools() { delete now.load(); }
  static Pools& pools() {
    static Pools p;
    return p;
  }
};

Pool& pool() noexcept { return *Pools::pools().now.load(std::memory_order_acquire); }

}  // namespace

void parallel_for(std::int64_t items, Body body) noexcept {
  if (!inside && items > 1) {
    Pool& p = pool();
    if (p.size() > 1 && p.run(items, body)) return;
  }
  const WithSubnormals subnormals;
  for (std::int64_t i = 0; i < items; ++i) body(i, 0);
}

int thread_count() noexcept { return pool().size(); }
void set_thread_count(int n) { pool().resize(n); }

}  // namespace verglas
