#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "plan/tuning_record.hpp"
#include "support/child.hpp"
#include "support/temp_folder.hpp"
#include "verglas/version.hpp"

// What is kept of measurements: published whole, read with suspicion, shared by any number of processes.

namespace verglas::plan {
namespace {

TuningEntry entry(const std::string& chain = "chain A", double seconds = 2e-5) {
  return {
      .device = "NVIDIA H200, 132 multiprocessors, driver 13.0",
      .chain = chain,
      .summary = "matmul+bias",
      .extents = {1, 16, 4096, 4096},
      .when = 1764460800,
      .plans = {{"sm90", {{"TILE_M", 128}, {"TILE_N", 256}}, "NVRTC 13.0", seconds}, {"cublaslt", {{"ALGO", 66}}, "", 2.5e-5}}};
}

class TuningRecord : public ::testing::Test {
 protected:
  std::string keep(const TuningEntry& e) {
    std::string why_not;
    const std::string file = keep_tuning(e, why_not);
    EXPECT_EQ(why_not, "");
    return file;
  }
  static std::string ignored(const std::string& file, const std::string& bytes) {
    support::write_file(file, bytes);
    const TuningLookup found = find_tuning(entry().device, entry().chain);
    EXPECT_FALSE(found.entry);
    EXPECT_EQ(found.file, file);
    return found.ignored;
  }
  support::TempFolder temp;
  support::ScopedVariable cache{"VERGLAS_CACHE", (temp / "cache").c_str()};
};

TEST_F(TuningRecord, AnswersWhatWasKept) {
  EXPECT_FALSE(find_tuning(entry().device, entry().chain).entry);
  EXPECT_EQ(find_tuning(entry().device, entry().chain).file, "");
  const std::string file = keep(entry());
  EXPECT_TRUE(file.starts_with(temp / "cache/tuning/")) << file;
  const TuningLookup found = find_tuning(entry().device, entry().chain);
  ASSERT_TRUE(found.entry) << found.ignored;
  EXPECT_EQ(to_text(*found.entry), to_text(entry()));
  EXPECT_EQ(found.entry->plans[0].knobs.at("TILE_N"), 256);
  EXPECT_FALSE(find_tuning(entry().device, "chain B").entry);
  EXPECT_FALSE(find_tuning("NVIDIA H100", entry().chain).entry);
}

TEST_F(TuningRecord, OfTheSameChainReplacesTheOneBefore) {
  keep(entry());
  keep(entry("chain A", 1e-5));
  EXPECT_EQ(find_tuning(entry().device, "chain A").entry->plans[0].seconds, 1e-5);
  EXPECT_EQ(list_tuning().size(), 1U);
}

TEST_F(TuningRecord, ThatIsDamagedOldOrForeignIsIgnoredWithAReason) {
  const std::string file = keep(entry());
  const std::string good = support::read_file(file);
  EXPECT_EQ(ignored(file, ""), "it is empty");
  EXPECT_EQ(ignored(file, good.substr(0, good.size() / 2)), "it is no tuning record");
  EXPECT_EQ(ignored(file, "[1, 2]"), "it is no tuning record");
  EXPECT_EQ(ignored(file, "{\"verglas_tuning\": 2}"), "it is of format 2, not 1");
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = good;
    const std::size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), instead);
  };
  EXPECT_EQ(ignored(file, with("\"verglas\": \"", "\"verglas\": \"99.")), "Verglas 99." VERGLAS_VERSION " wrote it");
  EXPECT_EQ(ignored(file, with("2e-05", "0")), "a plan took 0 seconds");
  EXPECT_EQ(ignored(file, with("chain A", "chain B")), "it is of another device or chain");
  EXPECT_TRUE(ignored(file, with("\"seconds\": 2e-05", "\"seconds\": \"fast\"")).starts_with("it is damaged: "));
  EXPECT_EQ(ignored(file, std::string((1 << 20) + 1, ' ')), "it has 1048577 bytes");
  support::write_file(file, good);
  EXPECT_TRUE(find_tuning(entry().device, entry().chain).entry);
}

TEST_F(TuningRecord, ThatIsALinkIsIgnored) {
  const std::string file = keep(entry());
  std::filesystem::rename(file, temp / "elsewhere.json");
  std::filesystem::create_symlink(temp / "elsewhere.json", file);
  EXPECT_EQ(find_tuning(entry().device, entry().chain).ignored, "it is a link");
  EXPECT_EQ(list_tuning().at(0).fault, "it is a link");
}

TEST_F(TuningRecord, IsListedAndCleared) {
  keep(entry());
  const std::string other = keep(entry("chain B"));
  support::write_file(other, "{}");
  support::write_file(temp / "cache/tuning/notes.txt", "mine");
  const auto all = list_tuning();
  ASSERT_EQ(all.size(), 2U);
  std::multiset<std::string> faults;
  for (const TuningItem& item : all) faults.insert(item.fault);
  EXPECT_EQ(faults, (std::multiset<std::string>{"", "it is no tuning record"}));
  EXPECT_EQ(clear_tuning(), 2);
  EXPECT_TRUE(list_tuning().empty());
  EXPECT_TRUE(std::filesystem::exists(temp / "cache/tuning/notes.txt"));
}

TEST_F(TuningRecord, IsForThisUserAlone) {
  const std::string file = keep(entry());
  for (const std::string& path : {std::string(temp / "cache"), std::string(temp / "cache/tuning"), file}) {
    struct stat s{};
    ASSERT_EQ(::stat(path.c_str(), &s), 0);
    EXPECT_EQ(s.st_mode & 077, 0U) << path;
  }
}

TEST_F(TuningRecord, IsOffWhereTheUserSaysSo) {
  std::string why_not;
  {
    const support::ScopedVariable off("VERGLAS_TUNING", "off");
    EXPECT_EQ(keep_tuning(entry(), why_not), "");
    EXPECT_EQ(why_not, "VERGLAS_TUNING is \"off\"");
  }
  const support::ScopedVariable no_cache("VERGLAS_CACHE", "off");
  EXPECT_EQ(keep_tuning(entry(), why_not), "");
  EXPECT_EQ(why_not, "VERGLAS_CACHE is \"off\"");
}

TEST_F(TuningRecord, ThatCannotBeWrittenIsToldInWords) {
  support::write_file(temp / "cache", "a file");
  std::string why_not;
  EXPECT_EQ(keep_tuning(entry(), why_not), "");
  EXPECT_EQ(why_not, temp / "cache/tuning cannot be opened: Not a directory");
}

/// Writers of one chain and of their own, readers in between: never half an entry, none lost.
TEST_F(TuningRecord, IsSharedBySixteenProcesses) {
  EXPECT_EQ(support::in_children(16,
                                 [](int i) -> std::string {
                                   std::string why_not;
                                   for (int round = 0; round < 20; ++round) {
                                     keep_tuning(entry("shared", 1e-5 * (i + 1)), why_not);
                                     keep_tuning(entry("own " + std::to_string(i)), why_not);
                                     if (!why_not.empty()) return why_not;
                                     const TuningLookup found = find_tuning(entry().device, "shared");
                                     if (!found.entry) return "not found: " + found.ignored;
                                   }
                                   return {};
                                 }),
            "");
  const auto all = list_tuning();
  EXPECT_EQ(all.size(), 17U);
  for (const TuningItem& item : all) EXPECT_EQ(item.fault, "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp / "cache/tuning"), {}), 17);  // no leftovers
}

}  // namespace
}  // namespace verglas::plan
