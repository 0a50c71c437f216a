#include "base/atomic_publish.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>

namespace verglas {
namespace {

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

}  // namespace

int publish_file(int folder_fd, const std::string& name, std::string_view bytes) {
  for (int attempt = 0;; ++attempt) {
    // The system's random numbers: a seed shared by forked children would give them one name (O_EXCL would still tell).
    std::random_device random;
    const std::string part =
        "." + std::to_string(::getpid()) + "-" + std::to_string(random()) + std::to_string(random()) + std::string(kPartSuffix);
    const int fd = ::openat(folder_fd, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
      if (errno == EEXIST && attempt < 16) continue;
      return errno;
    }
    int error = write_all(fd, bytes);
    if (::close(fd) != 0 && error == 0) error = errno;  // hazard: NFS reports a full disk here
    if (error == 0 && ::renameat(folder_fd, part.c_str(), folder_fd, name.c_str()) != 0) error = errno;
    if (error != 0) ::unlinkat(folder_fd, part.c_str(), 0);
    return error;
  }
}

}  // namespace verglas
