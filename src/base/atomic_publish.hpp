#pragma once
#include <string>
#include <string_view>

namespace verglas {

/// Suffix of files that are being written; one that is old was left by a writer that died.
inline constexpr std::string_view kPartSuffix = ".part";

/// Writes a file so that every reader sees either all of it or what was there before: a private name in the same folder
/// (O_EXCL, process id and a random number), then rename. Two writers race without harm; the last one wins. Mode 0600.
///
/// folder_fd  an open folder (AT_FDCWD: the working directory)
/// name       of the file in it
/// Answers 0, or the errno of the step that failed; then nothing is left behind and an older file stays as it was.
int publish_file(int folder_fd, const std::string& name, std::string_view bytes);

}  // namespace verglas
