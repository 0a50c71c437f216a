#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/rules.hpp"

// Every rule can be shown to refuse: a test names it.
namespace {

namespace fs = std::filesystem;

struct Named {
  const char* name;
  const char* id;
};
constexpr std::array kRules = {
#define VERGLAS_RULE(name, id, code, holds, remedy) Named{#name, id},
#include "base/rules.def"
#undef VERGLAS_RULE
};

/// All sources of tests, but this file.
std::string tests_text() {
  std::stringstream all;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(VERGLAS_SOURCE_DIR) / "tests")) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".cpp" && extension != ".hpp" && extension != ".py")) continue;
    if (entry.path().filename() == "rules_test.cpp" || entry.path().filename() == "calls_test.cpp") continue;
    all << std::ifstream(entry.path()).rdbuf() << '\n';
  }
  return all.str();
}

/// The text stands there with nothing before and behind it that would make it part of a longer word.
bool has_word(const std::string& text, const std::string& word) {
  const auto part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if ((at == 0 || !part(text[at - 1])) && !part(text[at + word.size()])) return true;
  return false;
}

TEST(Rules, EachHasATestThatNamesIt) {
  const std::string text = tests_text();
  for (const Named& rule : kRules) {
    const std::string name = rule.name;
    if (name == "internal") continue;  // says that Verglas is wrong: nothing may reach it
    const bool described = std::string(rule.id).starts_with("graph.") || std::string(rule.id).starts_with("chain.") ||
                           std::string(rule.id).starts_with("call.");
    EXPECT_TRUE(has_word(text, "REFUSES(" + name + ")") || has_word(text, "Rule::" + name) || has_word(text, rule.id))
        << rule.id << " is shown by no test: write REFUSES(" << name << ")" << (described ? " in tests/refusal" : "");
  }
}

TEST(Rules, TextsAreSentences) {
  for (int i = 0; i < verglas::rule_count(); ++i) {
    const verglas::RuleInfo& rule = verglas::info_of(static_cast<verglas::Rule>(i));
    EXPECT_FALSE(rule.holds.empty() || rule.remedy.empty()) << rule.id;
    EXPECT_TRUE(rule.holds.ends_with('.') && rule.remedy.ends_with('.')) << rule.id;
    EXPECT_NE(rule.id.find('.') == std::string_view::npos, rule.id != "internal") << rule.id;
  }
}

}  // namespace
