#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace verglas {

struct CloseFile {
  void operator()(std::FILE* f) const noexcept { std::fclose(f); }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

/// A file to be read, and how many bytes it has. `who` is it in words. Throws file.open for what is no ordinary file, without
/// waiting for anybody: to open a named pipe would.
OpenFile open_ordinary(const std::string& path, const std::string& who, std::int64_t& bytes);
/// The whole of an ordinary file of at most `limit` bytes. Throws file.open, file.limit.
std::string read_file(const std::string& path, std::int64_t limit);
/// Writes or replaces a file. Throws file.write; what was there before may be gone then.
void write_file(const std::string& path, std::string_view content);
/// What the system calls an errno: strerror for any number of threads.
std::string system_words(int error);

}  // namespace verglas
