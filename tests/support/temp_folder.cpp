#include "support/temp_folder.hpp"

#include <stdlib.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace support {

TempFolder::TempFolder(const std::string& name) {
  std::string pattern = (std::filesystem::temp_directory_path() / "verglas-test-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder can be made: " + pattern);
  root_ = pattern;
  path_ = root_ / name;
  std::filesystem::create_directory(path_);
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
}
TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}
void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

ScopedVariable::ScopedVariable(const char* name, const char* value) : name_(name) {
  const char* before = ::getenv(name);
  was_set_ = before != nullptr;
  if (before) before_ = before;
  if (value)
    ::setenv(name, value, 1);
  else
    ::unsetenv(name);
}
ScopedVariable::~ScopedVariable() {
  if (was_set_)
    ::setenv(name_.c_str(), before_.c_str(), 1);
  else
    ::unsetenv(name_.c_str());
}

}  // namespace support
