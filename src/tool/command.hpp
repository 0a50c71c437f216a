#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "verglas/verglas.hpp"

namespace verglas::tool {

/// Reports keep their keys in the order in which they are filled.
using Json = nlohmann::ordered_json;

/// Exit codes of the command; anything else is a crash.
enum Exit { kDone = 0, kRefused = 1, kUsage = 2 };

/// Each adds its subcommand; when it was chosen it runs at the end of parsing and leaves its exit code in `code`.
void add_doctor(CLI::App& app, int& code);
void add_run(CLI::App& app, int& code);
void add_explain(CLI::App& app, int& code);
void add_cache(CLI::App& app, int& code);
void add_compile(CLI::App& app, int& code);
void add_tune(CLI::App& app, int& code);
void add_bench(CLI::App& app, int& code);

/// Of an option's value: digits of a number that an std::int64_t holds. Others would be wrapped on their way.
inline CLI::Validator whole_number() {
  return {[](const std::string& text) {
            std::int64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool is_one = error == std::errc() && end == text.data() + text.size() && value >= 0;
            return is_one ? std::string() : "'" + text + "' is no whole number from 0 to 9223372036854775807";
          },
          ""};
}

/// Of an option's value: the seconds of a window of time. A range alone lets "nan" through, which is neither below nor above.
inline CLI::Validator window_seconds() {
  return {[](const std::string& text) {
            double value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool is_one = error == std::errc() && end == text.data() + text.size() && value >= 1e-4 && value <= 10;
            return is_one ? std::string() : "'" + text + "' is no number of seconds from 0.0001 to 10";
          },
          ""};
}

Graph load_graph(const std::string& path);
/// Indented text; bytes that are no UTF-8 become question marks in a box.
std::string text_of(const Json& j);

}  // namespace verglas::tool
