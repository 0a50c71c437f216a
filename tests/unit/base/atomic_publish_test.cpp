#include "base/atomic_publish.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "support/temp_folder.hpp"

namespace verglas {
namespace {

int files_in(const std::string& folder) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{}));
}

TEST(PublishFile, WritesAllForThisUserAlone) {
  const support::TempFolder folder;
  const int fd = ::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(publish_file(fd, "x", std::string("a\0b", 3)), 0);
  ::close(fd);
  EXPECT_EQ(support::read_file(folder / "x"), std::string("a\0b", 3));
  struct stat s{};
  ASSERT_EQ(::stat((folder / "x").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600U);
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(PublishFile, ReplacesWhatWasThere) {
  const support::TempFolder folder;
  support::write_file(folder / "x", "older and longer");
  const int fd = ::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(publish_file(fd, "x", "new"), 0);
  ::close(fd);
  EXPECT_EQ(support::read_file(folder / "x"), "new");
}

// A limit on the size of files stands for a full disk: write() fails half-way.
TEST(PublishFile, LeavesTheOlderFileAndNothingElseWhenTheDiskIsFull) {
  const support::TempFolder folder;
  support::write_file(folder / "x", "older");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const int fd = ::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
    ::_exit(publish_file(fd, "x", std::string(1 << 20, 'y')) == EFBIG ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(support::read_file(folder / "x"), "older");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(PublishFile, AnswersTheErrorOfAFolderThatIsGone) {
  auto folder = std::make_unique<support::TempFolder>();
  const int fd = ::open(folder->path().c_str(), O_RDONLY | O_DIRECTORY);
  folder.reset();
  EXPECT_EQ(publish_file(fd, "x", "y"), ENOENT);
  ::close(fd);
}

}  // namespace
}  // namespace verglas
