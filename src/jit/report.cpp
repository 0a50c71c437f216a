#include "jit/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace verglas::jit {
namespace {

/// The number that stands before `unit` in `line` ("168" of "Used 168 registers"), or `otherwise`.
int number_before(std::string_view line, std::string_view unit, int otherwise) {
  const std::size_t at = line.find(unit);
  if (at == std::string_view::npos || at == 0) return otherwise;
  std::size_t end = at;
  while (end > 0 && line[end - 1] == ' ') --end;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = otherwise;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

/// 7508 of a line with "(C7508)"; 0 without.
int code_of(std::string_view line) {
  const std::size_t at = line.find("(C7");
  if (at == std::string_view::npos) return 0;
  int code = 0;
  std::from_chars(line.data() + at + 2, line.data() + line.size(), code);
  return code;
}

bool any_code(const std::vector<std::string>& lines, auto matches) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return matches(code_of(line)); });
}

}  // namespace

bool ResourceReport::setmaxnreg_ignored() const noexcept {
  return any_code(advice, [](int code) { return code == 7504 || code == 7507 || code == 7508 || code == 7512; });
}
bool ResourceReport::wgmma_serialised() const noexcept {
  return any_code(advice, [](int code) { return code >= 7509 && code <= 7515 && code != 7512; });
}

std::string ResourceReport::flaw() const {
  if (wgmma_serialised()) return "its products wait for each other";
  if (setmaxnreg_ignored()) return "it keeps the registers that it was entered with";
  return spills() ? fmt::format("it spills {} bytes", spill_store_bytes + spill_load_bytes) : std::string();
}

ResourceReport parse_report(std::string_view log) {
  ResourceReport report;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == '\0')) line.remove_suffix(1);
    if (code_of(line) != 0) {
      report.advice.emplace_back(line);
    } else if (line.find("warning") != std::string_view::npos) {
      report.warnings.emplace_back(line);
    } else if (line.find("bytes stack frame") != std::string_view::npos) {
      report.stack_bytes = std::max(report.stack_bytes, number_before(line, "bytes stack frame", 0));
      report.spill_store_bytes = std::max(report.spill_store_bytes, number_before(line, "bytes spill stores", 0));
      report.spill_load_bytes = std::max(report.spill_load_bytes, number_before(line, "bytes spill loads", 0));
    } else if (line.find("Used ") != std::string_view::npos && line.find("registers") != std::string_view::npos) {
      report.registers = std::max(report.registers, number_before(line, "registers", 0));
      report.barriers = std::max(report.barriers, number_before(line, "barriers", 0));
      report.smem_bytes = std::max(report.smem_bytes, number_before(line, "bytes smem", 0));
    }
  }
  return report;
}

}  // namespace verglas::jit
