#pragma once
#include <Python.h>
#include <unistd.h>

#include <atomic>

namespace verglas::python {

/// Calls that run without the interpreter's lock.
inline std::atomic<int> calls_at_work{0};

/// At the interpreter's end, when nobody can begin another call: lets those that run be over, for ten seconds at most. What comes
/// next destroys what libraries have made, as oneDNN its code, which daemon threads would still be running.
inline void wait_for_calls() {
  for (int ms = 0; ms < 10'000 && calls_at_work.load(std::memory_order_acquire) > 0; ++ms) usleep(1000);
}

/// In a child process: the threads of those calls are not there.
inline void forget_calls() { calls_at_work.store(0, std::memory_order_relaxed); }

/// The interpreter's lock is let go as long as this lives. A thread that comes back when the interpreter is shutting down stays
/// here for good, as in Python 3.14: older ones end the thread by unwinding its stack, which nanobind's functions do not allow,
/// so that the process would be aborted at its end.
class Unlocked {
 public:
  Unlocked() noexcept {
    calls_at_work.fetch_add(1, std::memory_order_relaxed);
    thread_ = PyEval_SaveThread();
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() noexcept(false) {
    calls_at_work.fetch_sub(1, std::memory_order_release);
    take_lock(thread_);
  }

 private:
  struct Stay {
    bool is_back = false;
    ~Stay() {
      while (!is_back) pause();
    }
  };
  static void take_lock(PyThreadState* thread) {
    Stay stay;
    PyEval_RestoreThread(thread);
    stay.is_back = true;
  }

  PyThreadState* thread_ = nullptr;
};

}  // namespace verglas::python
