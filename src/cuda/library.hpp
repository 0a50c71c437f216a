#pragma once
// Finding one of NVIDIA's shared libraries at run time. Nothing here runs before somebody asks for a GPU plan or for `doctor`.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace verglas::cuda {

/// Where one library may be. Order of the search: the variable (a file, a folder, or "off"; then nothing else is tried), what
/// the process has already loaded, the folders of `SearchPlaces`, the loader's own path.
struct LibraryRequest {
  std::string_view what;             ///< "NVRTC", for sentences
  std::string_view variable;         ///< "VERGLAS_NVRTC"
  std::vector<std::string> names;    ///< file names, best first: "libnvrtc.so.13", "libnvrtc.so.12"
  std::vector<std::string> wheels;   ///< folders below site-packages: "nvidia/cu13/lib"
  bool in_toolkit = true;            ///< look below CUDA_HOME, CUDA_PATH and /usr/local/cuda
  std::vector<std::string> folders;  ///< further folders, tried after the loader path
  std::string_view install;          ///< what to install, a clause
};

/// What the search may look at. `system()` is the real machine; a test builds its own.
struct SearchPlaces {
  std::function<const char*(const char*)> variable;  ///< getenv
  std::vector<std::string> toolkits;                 ///< roots of toolkits after CUDA_HOME and CUDA_PATH
  std::vector<std::string> site_packages;            ///< folders that hold `nvidia/…` of pip wheels
  bool loaded = true;                                ///< what this process has mapped
  bool loader_path = true;                           ///< dlopen by bare name
  bool system_folders = true;                        ///< LibraryRequest::folders

  static SearchPlaces system();
};

/// Adds a site-packages folder to `SearchPlaces::system()`, first one first; the Python package does so once, when it is
/// imported. A library that was not found before is then searched again.
void add_site_packages(std::string folder);
/// Grows with each `add_site_packages`.
unsigned site_packages_generation() noexcept;

struct Attempt {
  std::string where;    ///< path or name that was tried
  std::string outcome;  ///< "opened", or why not
};

/// The story of one search, for `doctor` and for the text of a decline.
struct LibraryReport {
  std::string what;
  bool found = false;
  std::string path;     ///< of the library that is in use
  std::string origin;   ///< "VERGLAS_NVRTC", "already loaded", "toolkit", "pip wheel", "loader path", "system folder"
  std::string version;  ///< "13.0"; empty when not found
  std::vector<Attempt> attempts;
  std::string sentence;  ///< one sentence: what is in use, or what was tried and what to install
};

struct OpenLibrary {
  void* handle = nullptr;  // owner: the process; a library whose table was handed out is never closed
  LibraryReport report;
};

/// Why a library that opened is of no use ("version 11.8, older than 12.4"), or empty: it is accepted.
using AcceptLibrary = std::function<std::string(void* handle, std::string& version)>;

/// The first library that opens and is accepted. A refused one is closed and the search goes on.
OpenLibrary open_library(const LibraryRequest& request, const SearchPlaces& places, const AcceptLibrary& accept);

/// File and build id of the library that holds `symbol`: equal for equal builds wherever they are installed.
struct LibraryBuild {
  std::string path;
  std::string build;  ///< "109338064 bytes, build id 65be…"
};
LibraryBuild build_of(const void* symbol);

}  // namespace verglas::cuda
