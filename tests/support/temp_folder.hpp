#pragma once
#include <filesystem>
#include <string>

namespace support {

/// A folder of its own below the temporary folder; gone with all it holds at the end.
class TempFolder {
 public:
  explicit TempFolder(const std::string& name = "t");
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path root_, path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

/// Sets a variable of the environment, or unsets it (null), and puts back what was there.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_, before_;
  bool was_set_;
};

}  // namespace support
