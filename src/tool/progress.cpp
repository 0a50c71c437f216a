#include "tool/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace verglas::tool {

Progress::Progress(std::string_view what, std::int64_t total)
    : what_(what),
      total_(total),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_(std::chrono::steady_clock::now() + std::chrono::seconds(1)) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1B[K", stderr);
}

void Progress::advance(std::int64_t steps) {
  done_ += steps;
  if (!terminal_ || total_ <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  shown_ = true;
  constexpr std::int64_t kWidth = 40;
  const auto filled = static_cast<std::size_t>(static_cast<double>(done_) / static_cast<double>(total_) * kWidth);
  fmt::print(stderr, "\r{} [{:<{}}] {:3.0f} %", what_, std::string(filled, '#'), kWidth,
             100 * static_cast<double>(done_) / static_cast<double>(total_));
  std::fflush(stderr);
}

}  // namespace verglas::tool
