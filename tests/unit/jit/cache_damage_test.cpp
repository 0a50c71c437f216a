// What may lie in the cache in place of a sound entry. Each case: it is a miss, nothing is thrown, and after the kernel is stored
// again it is found again.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <functional>

#include "base/sha256.hpp"
#include "jit/cache.hpp"
#include "support/child.hpp"
#include "support/temp_folder.hpp"

namespace verglas::jit {
namespace {

struct Place {
  std::string path, good, folder;
};
struct Damage {
  const char* name;
  std::function<void(const Place&)> make;
  bool repairable = true;  // false: the file cannot be replaced, and the kernel is kept in memory
};

CompiledKernel kernel() {
  CompiledKernel k;
  k.kernel = "vg_1";
  k.arch = "sm_90a";
  k.cubin = std::string(3000, 'c');
  k.report.registers = 99;
  return k;
}

void put(const Place& p, const std::string& bytes) {
  std::filesystem::remove_all(p.path);
  support::write_file(p.path, bytes);
  ::chmod(p.path.c_str(), 0600);
}
std::string resealed(std::string bytes) {
  bytes.resize(bytes.size() - 32);
  return bytes + sha256(bytes);
}
Damage cut(const char* name, std::function<std::size_t(std::size_t)> keep) {
  return {name, [=](const Place& p) { put(p, p.good.substr(0, keep(p.good.size()))); }};
}
Damage flip(const char* name, std::function<std::size_t(const std::string&)> where) {
  return {name, [=](const Place& p) {
            std::string bad = p.good;
            bad[where(bad)] ^= 0x10;
            put(p, bad);
          }};
}
/// A field changed, with the checksum of the changed bytes: what another program could write by mistake.
Damage field(const char* name, std::string which, std::optional<std::string> value) {
  return {name, [=](const Place& p) {
            auto file = read_container(p.good, kCacheEntryKind, 1);
            ASSERT_TRUE(file);
            std::erase_if(file->fields, [&](const auto& f) { return f.first == which && !value; });
            for (auto& [n, v] : file->fields)
              if (n == which) v = *value;
            put(p, write_container(*file));
          }};
}

std::vector<Damage> damages() {
  return {
      cut("empty file", [](std::size_t) { return 0; }),
      cut("one byte", [](std::size_t) { return 1; }),
      cut("magic only", [](std::size_t) { return 8; }),
      cut("header only", [](std::size_t) { return 28; }),
      cut("half", [](std::size_t n) { return n / 2; }),
      cut("without checksum", [](std::size_t n) { return n - 32; }),
      cut("last byte missing", [](std::size_t n) { return n - 1; }),
      {"one byte more", [](const Place& p) { put(p, p.good + '\0'); }},
      {"twice", [](const Place& p) { put(p, p.good + p.good); }},
      {"zeros of the same length", [](const Place& p) { put(p, std::string(p.good.size(), '\0')); }},
      {"tail of zeros, as after a crash",
       [](const Place& p) { put(p, p.good.substr(0, 512) + std::string(p.good.size() - 512, '\0')); }},
      {"text", [](const Place& p) { put(p, "404 not found\n"); }},
      {"a bare cubin",
       [](const Place& p) {
         put(p,
             "\x7f"
             "ELF" +
                 std::string(200, '\1'));
       }},
      flip("bit of the magic", [](const std::string&) { return 2; }),
      flip("bit of the kind", [](const std::string&) { return 8; }),
      flip("bit of the schema", [](const std::string&) { return 12; }),
      flip("bit of the length", [](const std::string&) { return 16; }),
      flip("high bit of the length", [](const std::string&) { return 23; }),
      flip("bit of the field count", [](const std::string&) { return 24; }),
      flip("bit of a name", [](const std::string& s) { return s.find("kernel"); }),
      flip("bit of the key", [](const std::string& s) { return s.find("canonical"); }),
      flip("bit of the report", [](const std::string& s) { return s.find("registers"); }),
      flip("bit of the cubin", [](const std::string& s) { return s.size() - 1000; }),
      flip("bit of the checksum", [](const std::string& s) { return s.size() - 1; }),
      {"older schema",
       [](const Place& p) {
         auto file = read_container(p.good, kCacheEntryKind, 1);
         file->schema = 0;
         put(p, write_container(*file));
       }},
      {"newer schema",
       [](const Place& p) {
         auto file = read_container(p.good, kCacheEntryKind, 1);
         file->schema = 2;
         put(p, write_container(*file));
       }},
      {"a plan file",
       [](const Place& p) {
         auto file = read_container(p.good, kCacheEntryKind, 1);
         file->kind = kPlanFileKind;
         put(p, write_container(*file));
       }},
      {"no fields", [](const Place& p) { put(p, write_container({kCacheEntryKind, 1, {}})); }},
      {"field count of 4 billion, sealed",
       [](const Place& p) {
         std::string bad = p.good;
         for (int i = 0; i < 4; ++i) bad[24 + static_cast<std::size_t>(i)] = '\xff';
         put(p, resealed(bad));
       }},
      {"name length of 4 billion, sealed",
       [](const Place& p) {
         std::string bad = p.good;
         for (int i = 0; i < 4; ++i) bad[28 + static_cast<std::size_t>(i)] = '\xff';
         put(p, resealed(bad));
       }},
      {"the entry of another key", [](const Place& p) { put(p, write_entry("canonical another", kernel())); }},
      field("another key, sealed", "key", "canonical other"),
      field("no key", "key", std::nullopt),
      field("no cubin", "cubin", std::nullopt),
      field("empty cubin", "cubin", ""),
      field("no report", "report", std::nullopt),
      field("report that is no JSON", "report", "{\"registers\": "),
      field("report of another shape", "report", "[1, 2]"),
      field("report with text for a number", "report", "{\"registers\": \"many\"}"),
      field("compile time that is no number", "compile_us", "soon"),
      {"a folder",
       [](const Place& p) {
         std::filesystem::remove(p.path);
         std::filesystem::create_directory(p.path);
       }},
      {"a folder that is not empty",
       [](const Place& p) {
         std::filesystem::remove(p.path);
         std::filesystem::create_directory(p.path);
         support::write_file(p.path + "/x", "x");
       },
       false},
      {"a link to a sound entry elsewhere",
       [](const Place& p) {
         support::write_file(p.folder + "/elsewhere", p.good);
         std::filesystem::remove(p.path);
         std::filesystem::create_symlink(p.folder + "/elsewhere", p.path);
       }},
      {"a link to nowhere",
       [](const Place& p) {
         std::filesystem::remove(p.path);
         std::filesystem::create_symlink("/nowhere", p.path);
       }},
      {"a link to itself",
       [](const Place& p) {
         std::filesystem::remove(p.path);
         std::filesystem::create_symlink(p.path, p.path);
       }},
      {"a pipe",
       [](const Place& p) {
         std::filesystem::remove(p.path);
         ASSERT_EQ(::mkfifo(p.path.c_str(), 0600), 0);
       }},
      {"writable by the group", [](const Place& p) { ::chmod(p.path.c_str(), 0620); }},
      {"writable by everybody", [](const Place& p) { ::chmod(p.path.c_str(), 0602); }},
      {"a hole of 300 MB", [](const Place& p) { ASSERT_EQ(::truncate(p.path.c_str(), 300 << 20), 0); }},
  };
}

TEST(CacheDamage, EveryCaseIsAMissThatHealsItself) {
  ASSERT_GE(damages().size(), 40U);
  const std::string key = "canonical key\n";
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    const support::TempFolder folder;
    KernelCache cache(CacheSettings{folder.path(), {}});
    cache.store(key, kernel());
    const Place place{folder / entry_name(key), support::read_file(folder / entry_name(key)), folder.path()};
    ASSERT_TRUE(cache.load(key));
    damage.make(place);
    EXPECT_FALSE(cache.load(key));
    const CacheState state = cache.state();
    EXPECT_EQ(state.damaged + state.foreign, 1U);
    EXPECT_EQ(state.misses, 1U);
    cache.store(key, kernel());
    const auto again = cache.load(key);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->cubin, kernel().cubin);
    EXPECT_EQ(cache.state().memory_hits, damage.repairable ? 0U : 1U);
  }
}

TEST(CacheDamage, AnEntryOfAnotherUserIsNotRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a file away";
  const support::TempFolder folder;
  KernelCache cache(CacheSettings{folder.path(), {}});
  cache.store("key", kernel());
  const std::string path = folder / entry_name("key");
  ASSERT_EQ(::chown(path.c_str(), support::kNobody, support::kNobody), 0);
  EXPECT_FALSE(cache.load("key"));
  EXPECT_EQ(cache.state().foreign, 1U);
  ASSERT_EQ(cache.list().size(), 1U);
  EXPECT_EQ(cache.list()[0].fault, "belongs to user 65534");
  cache.store("key", kernel());
  EXPECT_TRUE(cache.load("key"));
}

TEST(CacheDamage, AnEntryThatMayNotBeReadIsAMiss) {
  const support::TempFolder folder;
  std::filesystem::permissions(std::filesystem::path(folder.path()).parent_path(), std::filesystem::perms(0755));
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(folder.path().c_str(), support::kNobody, support::kNobody), 0);
  }
  EXPECT_EQ(support::in_child(
                [&]() -> std::string {
                  KernelCache cache(CacheSettings{folder.path(), {}});
                  cache.store("key", kernel());
                  ::chmod((folder / entry_name("key")).c_str(), 0);
                  if (cache.load("key")) return "read";
                  cache.store("key", kernel());
                  return cache.load("key") ? "" : "not healed";
                },
                root ? support::kNobody : 0),
            "");
}

}  // namespace
}  // namespace verglas::jit
