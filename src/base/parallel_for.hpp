#pragma once
#include <cstdint>

#include "base/function_ref.hpp"

namespace verglas {

inline constexpr int kMaxThreads = 1024;  ///< that may be asked for

/// Runs body(item, worker) once for every item below `items`, on up to thread_count() threads, the caller among them.
/// Items are handed out in increasing order: when an item runs, every smaller one has started. `worker` is below thread_count().
/// Subnormals are numbers in a body, whatever the caller's thread is set to.
/// Allocates nothing. A nested call, and a call while another thread's is running, does its items on the calling thread alone.
void parallel_for(std::int64_t items, FunctionRef<void(std::int64_t item, int worker)> body) noexcept;

/// VERGLAS_NUM_THREADS when it is set to a number from 1 to 1024, otherwise the processors that this process may use.
int thread_count() noexcept;
/// Replaces it for this process; waits for work under way, so never from a body. Values are brought into 1 to 1024.
/// Hazard: scratch that a caller has sized by thread_count() is too small if another thread raises it before the call.
void set_thread_count(int n);

}  // namespace verglas
