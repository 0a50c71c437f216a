#pragma once
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "verglas/error.hpp"

// Both directions of a refusal: REFUSES(rule) registers a test whose body shows that rule refusing, with the exact text, and the
// nearest legal neighbour accepted. rules_test.cpp reads these names: a rule without a test fails there.
#define REFUSES(rule) TEST(Refuses, rule)

namespace refusal {

/// What `action` threw, "" when it did not.
template <class F>
std::string said(F&& action) {
  try {
    std::forward<F>(action)();
  } catch (const verglas::Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace refusal
