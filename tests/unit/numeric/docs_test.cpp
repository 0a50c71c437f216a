// The tables of docs/numerics.md, section "Number formats", are true.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "numeric/convert.hpp"
#include "numeric/formats.hpp"
#include "oracle/formats.hpp"

namespace verglas::numeric {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const auto first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
  }
  return cells;
}

float number(const std::string& text) {
  char* end = nullptr;
  const float v = std::strtof(text.c_str(), &end);
  EXPECT_EQ(*end, '\0') << text;
  return v;
}

TEST(NumericsDocument, EveryRowOfTheValueTablesHolds) {
  std::ifstream in(VERGLAS_SOURCE_DIR "/docs/numerics.md");
  ASSERT_TRUE(in) << "docs/numerics.md cannot be read";
  std::set<DataType> seen;
  int rows = 0;
  bool in_section = false, in_table = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) in_section = line == "## Number formats";
    if (!line.starts_with("|")) in_table = false;
    if (!in_section || !line.starts_with("|")) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (cells == std::vector<std::string>{"type", "value", "bits", "reads back"}) {
      in_table = true;
      continue;
    }
    if (!in_table || cells.at(0).starts_with("--")) continue;
    ASSERT_EQ(cells.size(), 4U) << line;
    const DataType t = dtype_from_name(cells[0]);
    ASSERT_NE(t, DataType::not_set) << line;
    const float value = number(cells[1]), back = number(cells[3]);
    const std::uint64_t want = std::strtoull(cells[2].c_str(), nullptr, 16);
    std::uint64_t got = 0;
    from_float(value, &got, t);
    EXPECT_EQ(got, want) << line;
    EXPECT_EQ(std::isnan(to_float(&want, t)), std::isnan(back)) << line;
    if (!std::isnan(back)) {
      EXPECT_EQ(bits(to_float(&want, t)), bits(back)) << line;
    }
    if (!std::isnan(value) || t == DataType::fp4_e2m1 || is_integer(t)) {
      EXPECT_EQ(oracle::encode(static_cast<oracle::Format>(t), static_cast<double>(value)), want) << line;
    }
    seen.insert(t);
    ++rows;
  }
  EXPECT_GE(rows, 80);
  EXPECT_EQ(seen.size(), 11U) << "all stored types but fp32";
}

}  // namespace
}  // namespace verglas::numeric
