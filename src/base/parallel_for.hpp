#pragma once
#include <cstdint>

#include "base/function_ref.hpp"

namespace verglas {

/// Runs body(item, worker) for every item, handed out in increasing order.
void parallel_for(std::int64_t items, FunctionRef<void(std::int64_t item, int worker)> body) noexcept;
int thread_count() noexcept;
void set_thread_count(int n);

}  // namespace verglas
