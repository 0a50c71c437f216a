#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace verglas {

/// The whole of an ordinary file of at most `limit` bytes. Throws file.open, file.limit.
std::string read_file(const std::string& path, std::int64_t limit);
/// Writes or replaces a file. Throws file.write; what was there before may be gone then.
void write_file(const std::string& path, std::string_view content);
/// What the system calls an errno: strerror for any number of threads.
std::string system_words(int error);

}  // namespace verglas
