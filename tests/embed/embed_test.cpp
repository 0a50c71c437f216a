#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "jit/embedded.hpp"

namespace verglas::jit {
namespace {

std::string read(std::string_view name) {
  std::ostringstream text;
  text << std::ifstream(std::string(VERGLAS_EMBED_FOLDER "/") + std::string(name), std::ios::binary).rdbuf();
  return text.str();
}

std::string_view embedded(std::string_view name) {
  for (const EmbeddedSource& source : embedded_sources())
    if (source.name == name) return source.text;
  return "not embedded";
}

}  // namespace

TEST(Embed, KeepsQuotesBracketsSemicolonsAndItsOwnClosingMark) {
  EXPECT_GT(read("nasty.txt").size(), 100u);
  EXPECT_EQ(embedded("nasty.txt"), read("nasty.txt"));
}

TEST(Embed, KeepsATextLongerThanSixtyFourKilobytes) {
  EXPECT_GT(read("long.txt").size(), 65536u);
  EXPECT_EQ(embedded("long.txt"), read("long.txt"));
}

TEST(Embed, KeepsAnEmptyText) { EXPECT_EQ(embedded("empty.txt"), ""); }

TEST(Embed, SortsByName) {
  ASSERT_EQ(embedded_sources().size(), 3u);
  EXPECT_EQ(embedded_sources()[0].name, "empty.txt");
  EXPECT_EQ(embedded_sources()[1].name, "long.txt");
  EXPECT_EQ(embedded_sources()[2].name, "nasty.txt");
}

}  // namespace verglas::jit
