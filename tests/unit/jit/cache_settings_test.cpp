#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "jit/cache.hpp"
#include "support/temp_folder.hpp"

namespace verglas::jit {
namespace {

using support::ScopedVariable;

struct Clean {
  ScopedVariable cache{"VERGLAS_CACHE", nullptr}, limit{"VERGLAS_CACHE_LIMIT", nullptr}, xdg{"XDG_CACHE_HOME", nullptr},
      home{"HOME", nullptr}, temporary{"TMPDIR", nullptr};
};

TEST(CacheSettings, TheVariableComesFirst) {
  const Clean clean;
  const ScopedVariable a("VERGLAS_CACHE", "/somewhere/a b"), b("XDG_CACHE_HOME", "/xdg"), c("HOME", "/");
  EXPECT_EQ(cache_settings_from_environment().folder, "/somewhere/a b");
}

TEST(CacheSettings, ARelativeFolderIsTakenFromTheWorkingFolder) {
  const Clean clean;
  const ScopedVariable a("VERGLAS_CACHE", "cache");
  EXPECT_EQ(cache_settings_from_environment().folder, (std::filesystem::current_path() / "cache").string());
}

TEST(CacheSettings, OffMeansMemoryOnlyAndSaysSo) {
  const Clean clean;
  const ScopedVariable a("VERGLAS_CACHE", "off");
  EXPECT_EQ(cache_settings_from_environment().folder, "");
  EXPECT_EQ(cache_settings_from_environment().why_memory_only, "VERGLAS_CACHE is \"off\"");
}

TEST(CacheSettings, ThenTheUsersCacheFolders) {
  const Clean clean;
  const support::TempFolder home;
  const ScopedVariable a("HOME", home.path().c_str());
  EXPECT_EQ(cache_settings_from_environment().folder, home / ".cache/verglas");
  const ScopedVariable b("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(cache_settings_from_environment().folder, "/xdg/verglas");
  const ScopedVariable c("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(cache_settings_from_environment().folder, home / ".cache/verglas");
  EXPECT_FALSE(std::filesystem::exists(home / ".cache"));  // nothing is created by asking
}

TEST(CacheSettings, AMissingHomeIsNotCreated) {
  const Clean clean;
  const support::TempFolder temporary;
  const ScopedVariable a("HOME", (temporary / "no/such/home").c_str()), b("TMPDIR", temporary.path().c_str());
  const CacheSettings settings = cache_settings_from_environment();
  EXPECT_EQ(settings.folder, temporary / ("verglas-" + std::to_string(::geteuid())));
  KernelCache cache(settings);
  EXPECT_TRUE(cache.state().writable);
  EXPECT_FALSE(std::filesystem::exists(temporary / "no"));
  const ScopedVariable c("HOME", nullptr);
  EXPECT_EQ(cache_settings_from_environment().folder, settings.folder);
}

TEST(CacheSettings, TheLimitMayHaveAUnit) {
  const Clean clean;
  const auto limit = [](const char* text) {
    const ScopedVariable a("VERGLAS_CACHE_LIMIT", text);
    return cache_settings_from_environment().limit_bytes;
  };
  EXPECT_EQ(limit("1000"), 1000U);
  EXPECT_EQ(limit("3K"), 3U << 10);
  EXPECT_EQ(limit("512M"), 512U << 20);
  EXPECT_EQ(limit("2G"), std::uint64_t{2} << 30);
  EXPECT_EQ(limit("0"), 0U);
  for (const char* text : {"", "many", "12T", "-1", "1.5G"}) EXPECT_EQ(limit(text), std::uint64_t{1} << 30) << text;
}

}  // namespace
}  // namespace verglas::jit
