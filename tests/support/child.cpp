#include "support/child.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <vector>

namespace support {
namespace {

std::string run(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    return std::string("threw ") + e.what();
  }
}

std::string read_all(int fd) {
  std::string out;
  char buffer[512];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<std::size_t>(n));
  ::close(fd);
  return out;
}

std::string outcome(pid_t child, std::string said) {
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status)) + ": " + said;
  if (WEXITSTATUS(status) != 0 && said.empty()) return "exit status " + std::to_string(WEXITSTATUS(status));
  return said;
}

/// Starts a child that writes what `body` says into a pipe; answers the reading end.
pid_t start(const std::function<std::string()>& body, uid_t uid, int* said) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    std::string text;
    if (uid != 0 && (::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0))
      text = "cannot become user " + std::to_string(uid);
    else
      text = run(body);
    if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(2);
    ::_exit(text.empty() ? 0 : 1);
  }
  ::close(ends[1]);
  *said = ends[0];
  return child;
}

}  // namespace

std::string in_child(const std::function<std::string()>& body, uid_t uid) {
  int said = -1;
  const pid_t child = start(body, uid, &said);
  return outcome(child, read_all(said));
}

std::string in_children(int count, const std::function<std::string(int)>& body) {
  int gate[2];
  if (::pipe(gate) != 0) return "no pipe";
  std::vector<std::pair<pid_t, int>> children;
  for (int i = 0; i < count; ++i) {
    int said = -1;
    const pid_t child = start(
        [&, i] {
          ::close(gate[1]);
          char nothing;
          if (::read(gate[0], &nothing, 1) < 0) return std::string("no gate");  // returns when the parent closes its end
          return body(i);
        },
        0, &said);
    children.emplace_back(child, said);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  std::string complaint;
  for (const auto& [child, said] : children) {
    const std::string text = outcome(child, read_all(said));
    if (complaint.empty()) complaint = text;
  }
  return complaint;
}

}  // namespace support
