#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/rules.hpp"

// docs/rules.md is made from rules.def. VERGLAS_UPDATE=1 writes it anew.
namespace {

using namespace verglas;

const std::vector<std::pair<std::string, std::string>> kGroups = {
    {"graph", "The description"},
    {"chain", "What is accepted as one fused kernel"},
    {"plan", "Choosing a plan"},
    {"engine", "Any engine"},
    {"sm90", "The engine for Hopper"},
    {"call", "One call of a compiled plan"},
    {"pack", "Buffers as Python passes them"},
    {"file", "Files"},
    {"op", "Ready-made operations"},
    {"tool", "The command `verglas`"},
    {"driver", "NVIDIA's driver"},
    {"nvrtc", "NVRTC"},
    {"cublaslt", "cuBLASLt"},
    {"jit", "Compiling kernels"},
    {"internal", "Defects of Verglas"},
};

std::string group_of(std::string_view id) { return std::string(id.substr(0, id.find('.'))); }

std::string cell(std::string_view text) {
  std::string s;
  for (const char c : text) s += c == '|' ? std::string("\\|") : std::string(1, c);
  return s;
}

std::string rules_md() {
  std::map<std::string, std::string> rows;
  for (int i = 0; i < rule_count(); ++i) {
    const RuleInfo& r = info_of(static_cast<Rule>(i));
    rows[group_of(r.id)] += "| `" + std::string(r.id) + "` | " + std::string(name_of(r.code)) + " | " + cell(r.holds) + " | " +
                            cell(r.remedy) + " |\n";
  }
  std::string text =
      "# Rules\n\n"
      "Everything that Verglas can refuse, by the id that stands in brackets in the message. Made from `src/base/rules.def`;\n"
      "`VERGLAS_UPDATE=1` and the test `RulesMd` write it anew. Checks of a call run in a fixed order, and all of them before "
      "anything\nis written.\n";
  for (const auto& [prefix, title] : kGroups) {
    if (rows[prefix].empty()) continue;
    text += "\n## " + title + "\n\n| rule | error | what holds | what to do |\n|---|---|---|---|\n" + rows[prefix];
    rows.erase(prefix);
  }
  std::erase_if(rows, [](const auto& left) { return left.second.empty(); });
  for (const auto& [prefix, left] : rows) ADD_FAILURE() << "no title for " << prefix << ":\n" << left;
  return text;
}

TEST(RulesMd, IsWhatTheListSays) {
  const std::filesystem::path file = std::filesystem::path(VERGLAS_SOURCE_DIR) / "docs/rules.md";
  if (std::getenv("VERGLAS_UPDATE") != nullptr) std::ofstream(file) << rules_md();
  std::stringstream there;
  there << std::ifstream(file).rdbuf();
  EXPECT_EQ(there.str(), rules_md()) << "run this test with VERGLAS_UPDATE=1";
}

}  // namespace
