#include "base/file.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "base/rules.hpp"

namespace verglas {
namespace {

struct Close {
  void operator()(std::FILE* f) const noexcept { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, Close>;

std::string who(const std::string& path) { return "file '" + path + "'"; }

}  // namespace

std::string read_file(const std::string& path, std::int64_t limit) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) throw broken(Rule::file_open, who(path), system_words(errno), "a file that can be read");
  struct stat s{};
  if (fstat(fileno(file.get()), &s) != 0 || !S_ISREG(s.st_mode))
    throw broken(Rule::file_open, who(path), "something that is no ordinary file", "an ordinary file");
  if (s.st_size > limit)
    throw broken(Rule::file_limit, who(path), std::to_string(s.st_size) + " bytes", std::to_string(limit) + " at most");
  std::string content(static_cast<std::size_t>(s.st_size), '\0');
  if (std::fread(content.data(), 1, content.size(), file.get()) != content.size())
    throw broken(Rule::file_open, who(path), "a read that stopped early", std::to_string(content.size()) + " bytes");
  return content;
}

void write_file(const std::string& path, std::string_view content) {
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) throw broken(Rule::file_write, who(path), system_words(errno), "a file that can be written");
  const bool written = std::fwrite(content.data(), 1, content.size(), file.get()) == content.size();
  const int why = errno;
  if (std::fclose(file.release()) != 0 || !written)
    throw broken(Rule::file_write, who(path), system_words(written ? errno : why),
                 std::to_string(content.size()) + " bytes written");
}

std::string system_words(int error) { return std::generic_category().message(error); }

}  // namespace verglas
