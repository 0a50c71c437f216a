#pragma once
#include <chrono>
#include <cstdint>
#include <string_view>

namespace verglas::tool {

/// A bar on standard error, shown only where that is a terminal and only once the work has taken a second; erased at the end.
class Progress {
 public:
  Progress(std::string_view what, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(std::int64_t steps);

 private:
  std::string_view what_;
  std::int64_t total_, done_ = 0;
  bool terminal_, shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace verglas::tool
