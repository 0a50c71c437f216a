#include "base/environment.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace verglas::environment {
namespace {

constexpr const char* kName = "VERGLAS_TEST_VARIABLE";

class Environment : public ::testing::Test {
 protected:
  static void set(const char* value) { ::setenv(kName, value, 1); }
  void TearDown() override { ::unsetenv(kName); }
};

TEST_F(Environment, ReadsWholeNumbersWithinLimits) {
  EXPECT_EQ(integer(kName, 1, 9), std::nullopt);
  for (const char* bad : {"", "0", "10", "x", "3x", " 3", "3 ", "99999999999999999999"}) {
    set(bad);
    EXPECT_EQ(integer(kName, 1, 9), std::nullopt) << bad;
  }
  set("9");
  EXPECT_EQ(integer(kName, 1, 9), 9);
  set("-4");
  EXPECT_EQ(integer(kName, -4, 9), -4);
}

TEST_F(Environment, ReadsBytesWithUnits) {
  const std::pair<const char*, std::uint64_t> good[] = {{"0", 0},           {"512", 512},       {"2K", 2048},
                                                        {"3m", 3ULL << 20}, {"4G", 4ULL << 30}, {"99999999999999G", UINT64_MAX}};
  for (const auto& [value, want] : good) {
    set(value);
    EXPECT_EQ(bytes(kName), want) << value;
  }
  for (const char* bad : {"", "-1", "K", "1T", "1KB", "1.5G"}) {
    set(bad);
    EXPECT_EQ(bytes(kName), std::nullopt) << bad;
  }
}

TEST_F(Environment, ReadsTextAndFlags) {
  EXPECT_FALSE(flag(kName));
  EXPECT_EQ(text(kName), std::nullopt);
  set("");
  EXPECT_FALSE(flag(kName));
  EXPECT_EQ(text(kName), std::nullopt);
  set("0");
  EXPECT_FALSE(flag(kName));
  set("1");
  EXPECT_TRUE(flag(kName));
  EXPECT_EQ(text(kName), "1");
}

// A variable that the sources read and the list does not have would be missing from `doctor` and from the docs.
TEST(EnvironmentList, HasEveryVariableThatTheSourcesRead) {
  std::set<std::string> listed;
  for (const Variable& v : variables()) EXPECT_TRUE(listed.insert(v.name).second) << v.name << " stands twice";
  const std::string before = "(\"";  // of a call that is given the name
  int found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(VERGLAS_SOURCE_DIR "/src")) {
    const auto extension = entry.path().extension();
    if (extension != ".cpp" && extension != ".hpp") continue;
    std::ifstream in(entry.path());
    const std::string source{std::istreambuf_iterator<char>(in), {}};
    for (auto at = source.find(before + "VERGLAS_"); at != std::string::npos;
         at = source.find(before + "VERGLAS_", at + 1), ++found) {
      const auto first = at + before.size();
      const std::string name =
          source.substr(first, source.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", first) - first);
      EXPECT_TRUE(listed.contains(name)) << entry.path() << " reads " << name;
    }
  }
  EXPECT_GE(found, 2) << "the pattern no longer matches how variables are read";
}

}  // namespace
}  // namespace verglas::environment
