#include "base/file.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "base/rules.hpp"

namespace verglas {
namespace {

std::string who(const std::string& path) { return "file '" + path + "'"; }

}  // namespace

OpenFile open_ordinary(const std::string& path, const std::string& who, std::int64_t& bytes) {
  struct stat s{};
  if (stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))
    throw broken(Rule::file_open, who, "something that is no ordinary file", "an ordinary file");
  OpenFile file(std::fopen(path.c_str(), "rb"));
  if (!file || fstat(fileno(file.get()), &s) != 0)
    throw broken(Rule::file_open, who, system_words(errno), "a file that can be read");
  bytes = s.st_size;
  return file;
}

std::string read_file(const std::string& path, std::int64_t limit) {
  std::int64_t bytes = 0;
  const OpenFile file = open_ordinary(path, who(path), bytes);
  if (bytes > limit)
    throw broken(Rule::file_limit, who(path), std::to_string(bytes) + " bytes", std::to_string(limit) + " at most");
  std::string content(static_cast<std::size_t>(bytes), '\0');
  if (std::fread(content.data(), 1, content.size(), file.get()) != content.size())
    throw broken(Rule::file_open, who(path), "a read that stopped early", std::to_string(content.size()) + " bytes");
  return content;
}

void write_file(const std::string& path, std::string_view content) {
  OpenFile file(std::fopen(path.c_str(), "wb"));
  if (!file) throw broken(Rule::file_write, who(path), system_words(errno), "a file that can be written");
  const bool written = std::fwrite(content.data(), 1, content.size(), file.get()) == content.size();
  const int why = errno;
  if (std::fclose(file.release()) != 0 || !written)
    throw broken(Rule::file_write, who(path), system_words(written ? errno : why),
                 std::to_string(content.size()) + " bytes written");
}

std::string system_words(int error) { return std::generic_category().message(error); }

}  // namespace verglas
