#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace support {

/// True when VERGLAS_REQUIRE, a list with commas, names this: then a skip for want of it is a failure.
inline bool is_required(std::string_view name) {
  const char* text = std::getenv("VERGLAS_REQUIRE");
  return text != nullptr && ("," + std::string(text) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

}  // namespace support

/// Ends the test in words: skipped, or failed where VERGLAS_REQUIRE names what is missing.
#define VERGLAS_SKIP_FOR_WANT_OF(name, words)          \
  do {                                                 \
    if (support::is_required(name)) FAIL() << (words); \
    GTEST_SKIP() << (words);                           \
  } while (false)
