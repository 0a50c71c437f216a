#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/environment.hpp"
#include "jit/cache.hpp"

namespace verglas::jit {
namespace {

std::string variable(const char* name) { return environment::text(name).value_or(""); }

bool is_folder(const std::string& path) {
  struct stat s{};
  return ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

}  // namespace

CacheSettings cache_settings_from_environment() {
  CacheSettings out;
  out.limit_bytes = environment::bytes("VERGLAS_CACHE_LIMIT").value_or(out.limit_bytes);
  const std::string asked = variable("VERGLAS_CACHE"), xdg = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (asked == "off") {
    out.why_memory_only = "VERGLAS_CACHE is \"off\"";
  } else if (!asked.empty()) {
    std::error_code error;
    out.folder = std::filesystem::absolute(std::filesystem::path(asked), error).string();
    if (error) out.folder = asked;
  } else if (xdg.starts_with("/")) {  // a relative one is to be ignored (XDG base directory specification)
    out.folder = xdg + "/verglas";
  } else if (is_folder(home)) {
    out.folder = home + "/.cache/verglas";
  } else {
    // A home that does not exist is not created: it is somebody's decision.
    const std::string temporary = variable("TMPDIR");
    out.folder = fmt::format("{}/verglas-{}", temporary.starts_with("/") ? temporary : std::string("/tmp"), ::geteuid());
  }
  return out;
}

}  // namespace verglas::jit
