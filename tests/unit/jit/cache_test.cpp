#include "jit/cache.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

#include "support/child.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "support/temp_folder.hpp"

namespace verglas::jit {
namespace {

using support::TempFolder;
using testing::HasSubstr;

CompiledKernel kernel(const std::string& name = "vg_1", std::size_t bytes = 100) {
  CompiledKernel k;
  k.kernel = name;
  k.arch = "sm_90a";
  k.cubin = std::string(bytes, 'c') + name;
  k.log = "ptxas info";
  k.report.registers = 168;
  k.report.smem_bytes = 1024;
  k.compile_ms = 12.5;
  return k;
}

KernelCache cache_in(const std::string& folder) { return KernelCache(CacheSettings{folder, {}}); }

CacheSettings limited(const std::string& folder, std::uint64_t limit) {
  CacheSettings s{folder, {}};
  s.limit_bytes = limit;
  return s;
}

void set_age(const std::string& path, std::time_t seconds) {
  const std::time_t then = std::time(nullptr) - seconds;
  const timespec times[2] = {{then, 0}, {then, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& item : std::filesystem::directory_iterator(folder)) out.push_back(item.path().filename());
  return out;
}

TEST(KernelCache, AnswersWhatWasStoredToAnotherProcess) {
  const TempFolder folder;
  KernelCache writer(CacheSettings{folder.path(), {}}), reader(CacheSettings{folder.path(), {}});
  EXPECT_FALSE(reader.load("key"));
  writer.store("key", kernel());
  const auto got = reader.load("key");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->kernel, "vg_1");
  EXPECT_EQ(got->arch, "sm_90a");
  EXPECT_EQ(got->cubin, kernel().cubin);
  EXPECT_EQ(got->log, "ptxas info");
  EXPECT_EQ(got->report.registers, 168);
  EXPECT_EQ(got->report.smem_bytes, 1024);
  EXPECT_DOUBLE_EQ(got->compile_ms, 12.5);
  EXPECT_FALSE(reader.load("other key"));
  EXPECT_EQ(reader.state().hits, 1U);
  EXPECT_EQ(reader.state().misses, 2U);
}

TEST(KernelCache, CreatesItsFolderForThisUserAlone) {
  const TempFolder folder;
  const std::string path = folder / "a/b/c";
  KernelCache cache(CacheSettings{path, {}});
  struct stat s{};
  ASSERT_EQ(::stat(path.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0700U);
  EXPECT_TRUE(cache.state().writable);
}

TEST(KernelCache, LivesInAFolderOfAnyName) {
  for (const std::string& name : {std::string("with space"), std::string("quote'\"$(x)"), std::string("gl\xc3\xa4s\xe6\xb0\xb7"),
                                  std::string("line\nend"), std::string(255, 'n')}) {
    const TempFolder folder(name);
    KernelCache cache(CacheSettings{folder.path(), {}});
    cache.store("key", kernel());
    EXPECT_EQ(cache.state().stored, 1U) << name;
    EXPECT_TRUE(cache.load("key")) << name;
  }
}

TEST(KernelCache, LivesInAFolderWhosePathHas300Bytes) {
  const TempFolder folder;
  std::string path = folder.path();
  while (path.size() < 300)
    path += "/" + std::string(std::min<std::size_t>(40, std::max<std::size_t>(1, 299 - path.size())), 'd');
  KernelCache cache(CacheSettings{path, {}});
  cache.store("key", kernel());
  EXPECT_EQ(cache.state().stored, 1U);
  EXPECT_TRUE(cache.load("key"));
}

// What cannot be a folder: the cache lives in memory, and says why.
TEST(KernelCache, LivesInMemoryWhereThereCanBeNoFolder) {
  const TempFolder folder;
  support::write_file(folder / "file", "x");
  for (const std::string& path :
       {folder / "file", folder / "file/below", folder / std::string(300, 'n'), std::string("/proc/verglas")}) {
    KernelCache cache(CacheSettings{path, {}});
    EXPECT_FALSE(cache.load("key")) << path;
    cache.store("key", kernel());
    const auto got = cache.load("key");
    ASSERT_TRUE(got) << path;
    EXPECT_EQ(got->cubin, kernel().cubin);
    EXPECT_FALSE(cache.state().readable);
    EXPECT_THAT(cache.state().why_not, HasSubstr(path));
    EXPECT_EQ(cache.state().memory_hits, 1U);
    EXPECT_TRUE(cache.list().empty());
  }
  EXPECT_EQ(support::read_file(folder / "file"), "x");
}

TEST(KernelCache, InMemoryForgetsTheLeastRecentlyUsedBeyondItsLimit) {
  CacheSettings settings{"", "VERGLAS_CACHE is \"off\""};
  settings.memory_limit_bytes = 3 * (write_entry("k0", kernel("vg_1", 5000)).size() + 8);
  KernelCache cache(settings);
  for (const char* key : {"k0", "k1", "k2"}) cache.store(key, kernel("vg_1", 5000));
  EXPECT_TRUE(cache.load("k0"));
  cache.store("k3", kernel("vg_1", 5000));
  EXPECT_TRUE(cache.load("k0"));
  EXPECT_FALSE(cache.load("k1"));
  EXPECT_TRUE(cache.load("k3"));
  EXPECT_EQ(cache.state().why_not, "VERGLAS_CACHE is \"off\"");
}

TEST(KernelCache, RefusesAFolderThatOthersCanWrite) {
  const TempFolder folder;
  {
    cache_in(folder.path()).store("key", kernel());
  }
  for (const mode_t mode : {0770, 0707, 0777}) {
    ASSERT_EQ(::chmod(folder.path().c_str(), mode), 0);
    KernelCache cache(CacheSettings{folder.path(), {}});
    EXPECT_FALSE(cache.load("key")) << mode;
    EXPECT_THAT(cache.state().why_not, HasSubstr("others can write"));
  }
  for (const mode_t mode : {0700, 0755}) {
    ASSERT_EQ(::chmod(folder.path().c_str(), mode), 0);
    EXPECT_TRUE(cache_in(folder.path()).load("key")) << mode;
  }
}

TEST(KernelCache, RefusesAFolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a folder away";
  const TempFolder folder;
  {
    cache_in(folder.path()).store("key", kernel());
  }
  ASSERT_EQ(::chown(folder.path().c_str(), support::kNobody, support::kNobody), 0);
  KernelCache cache(CacheSettings{folder.path(), {}});
  EXPECT_FALSE(cache.load("key"));
  EXPECT_THAT(cache.state().why_not, HasSubstr("belongs to user 65534"));
  cache.store("key", kernel());
  EXPECT_TRUE(cache.load("key"));
  EXPECT_EQ(cache.state().memory_hits, 1U);
}

TEST(KernelCache, ReadsAFolderThatItCannotWriteAndKeepsTheRestInMemory) {
  const TempFolder folder;
  const bool root = ::geteuid() == 0;
  std::filesystem::permissions(std::filesystem::path(folder.path()).parent_path(), std::filesystem::perms(0755));
  if (root) {
    ASSERT_EQ(::chown(folder.path().c_str(), support::kNobody, support::kNobody), 0);
  }
  const std::string complaint = support::in_child(
      [&]() -> std::string {
        {
          cache_in(folder.path()).store("old", kernel());
        }
        ::chmod(folder.path().c_str(), 0500);
        KernelCache cache(CacheSettings{folder.path(), {}});
        if (cache.state().writable || !cache.state().readable) return "state: " + cache.state().why_not;
        if (!cache.load("old")) return "the entry that is there was not read";
        cache.store("new", kernel("vg_2"));
        if (!cache.load("new")) return "the new kernel was not kept in memory";
        if (cache.state().store_failures != 1) return "the failure was not counted";
        ::chmod(folder.path().c_str(), 0700);
        return names_in(folder.path()).size() == 1 ? "" : "something was left in the folder";
      },
      root ? support::kNobody : 0);
  EXPECT_EQ(complaint, "");
}

TEST(KernelCache, KeepsInMemoryWhatAFullDiskDoesNotTake) {
  const TempFolder folder;
  EXPECT_EQ(support::in_child([&]() -> std::string {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{4096, 4096};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              KernelCache cache(CacheSettings{folder.path(), {}});
              cache.store("key", kernel("vg_1", 100000));
              if (cache.state().store_failures != 1) return "no failure counted";
              if (!cache.load("key")) return "not kept";
              return names_in(folder.path()).empty() ? "" : "a piece was left";
            }),
            "");
}

TEST(KernelCache, EvictsTheLeastRecentlyUsedBeyondItsLimit) {
  const TempFolder folder;
  const std::uint64_t one = write_entry("k0", kernel("vg_1", 5000)).size();
  for (const char* key : {"k0", "k1", "k2"}) cache_in(folder.path()).store(key, kernel("vg_1", 5000));
  set_age(folder / entry_name("k0"), 300000);
  set_age(folder / entry_name("k1"), 400000);
  set_age(folder / entry_name("k2"), 200000);
  EXPECT_TRUE(cache_in(folder.path()).load("k1"));  // used again: now the youngest
  KernelCache cache(limited(folder.path(), 3 * one + 100));
  cache.store("k3", kernel("vg_1", 5000));
  EXPECT_EQ(cache.state().evicted, 1U);
  EXPECT_FALSE(cache.load("k0"));
  EXPECT_TRUE(cache.load("k1"));
  EXPECT_TRUE(cache.load("k2"));
  EXPECT_TRUE(cache.load("k3"));
}

TEST(KernelCache, DoesNotStoreWhatIsLargerThanItsLimit) {
  const TempFolder folder;
  KernelCache cache(limited(folder.path(), 1000));
  cache.store("key", kernel("vg_1", 5000));
  EXPECT_TRUE(names_in(folder.path()).empty());
  EXPECT_TRUE(cache.load("key"));  // from memory
}

TEST(KernelCache, WritesTheDateOfUseAtMostDaily) {
  const TempFolder folder;
  KernelCache cache(CacheSettings{folder.path(), {}});
  cache.store("key", kernel());
  const std::string path = folder / entry_name("key");
  const auto last_use = [&] {
    struct stat s{};
    ::stat(path.c_str(), &s);
    return std::time(nullptr) - s.st_mtime;
  };
  set_age(path, 20 * 3600);
  EXPECT_TRUE(cache.load("key"));
  EXPECT_GE(last_use(), 20 * 3600);
  set_age(path, 25 * 3600);
  EXPECT_TRUE(cache.load("key"));
  EXPECT_LE(last_use(), 60);
}

TEST(KernelCache, RemovesLeftoversOfWritersThatDiedAndLeavesThoseAtWork) {
  const TempFolder folder;
  support::write_file(folder / ".123-old.part", "half an ent");
  support::write_file(folder / ".124-new.part", "half an ent");
  set_age(folder / ".123-old.part", 2 * 3600);
  cache_in(folder.path()).store("key", kernel());
  EXPECT_THAT(names_in(folder.path()), testing::UnorderedElementsAre(".124-new.part", entry_name("key")));
}

TEST(KernelCache, ListsVerifiesAndClearsItsOwnFilesOnly) {
  const TempFolder folder;
  KernelCache cache(CacheSettings{folder.path(), {}});
  cache.store("k0", kernel("vg_a"));
  cache.store("k1", kernel("vg_b"));
  support::write_file(folder / "notes.txt", "mine");
  support::write_file(folder / entry_name("k1"), "broken");
  std::filesystem::copy_file(folder / entry_name("k0"), folder / entry_name("k2"));

  const auto items = cache.list();
  ASSERT_EQ(items.size(), 3U);
  int sound = 0;
  for (const CacheItem& item : items) {
    if (item.name == entry_name("k0")) {
      EXPECT_EQ(item.kernel, "vg_a");
      EXPECT_EQ(item.report.registers, 168);
      EXPECT_EQ(item.bytes, std::filesystem::file_size(folder / entry_name("k0")));
    } else {
      EXPECT_FALSE(item.fault.empty()) << item.name;
    }
    sound += item.fault.empty();
  }
  EXPECT_EQ(sound, 1);

  EXPECT_EQ(cache.remove_damaged().files, 2U);
  EXPECT_THAT(names_in(folder.path()), testing::UnorderedElementsAre("notes.txt", entry_name("k0")));
  EXPECT_EQ(cache.clear().files, 1U);
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("notes.txt"));
  EXPECT_FALSE(cache.load("k0"));
}

}  // namespace
}  // namespace verglas::jit
