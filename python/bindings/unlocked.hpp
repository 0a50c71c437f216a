#pragma once
#include <Python.h>
#include <unistd.h>

namespace verglas::python {

/// The interpreter's lock is let go as long as this lives. A thread that comes back when the interpreter is shutting down stays
/// here for good, as in Python 3.14: older ones end the thread by unwinding its stack, which nanobind's functions do not allow,
/// so that the process would be aborted at its end.
class Unlocked {
 public:
  Unlocked() noexcept : thread_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() noexcept(false) { take_lock(thread_); }

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

  PyThreadState* thread_;
};

}  // namespace verglas::python
