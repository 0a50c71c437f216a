#include "base/parallel_for.hpp"

namespace verglas {

void parallel_for(std::int64_t items, FunctionRef<void(std::int64_t item, int worker)> body) noexcept {
  for (std::int64_t i = 0; i < items; ++i) body(i, 0);
}
int thread_count() noexcept { return 1; }
void set_thread_count(int) {}

}  // namespace verglas
