#include "cuda/library.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace verglas::cuda {
namespace {

std::mutex g_site_mutex;
std::vector<std::string> g_site_packages;
std::atomic<unsigned> g_site_generation{0};

bool exists(const std::string& path) {
  struct stat s{};
  return ::stat(path.c_str(), &s) == 0;
}
bool is_folder(const std::string& path) {
  struct stat s{};
  return ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}
std::string_view base_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }

/// Paths that the process has mapped and whose file name is one of `names`, in the order of `names`.
std::vector<std::string> loaded_paths(const std::vector<std::string>& names) {
  std::vector<std::string> all, out;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* into) {
        if (info->dlpi_name && *info->dlpi_name) static_cast<std::vector<std::string>*>(into)->emplace_back(info->dlpi_name);
        return 0;
      },
      &all);
  for (const std::string& name : names)
    for (const std::string& path : all)
      if (base_name(path) == name || base_name(path).starts_with(name + ".")) out.push_back(path);
  return out;
}

struct Search {
  const LibraryRequest& request;
  const AcceptLibrary& accept;
  OpenLibrary result{};

  bool try_open(const std::string& path, std::string_view origin, int extra_flags = 0) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | extra_flags);
    if (!handle) {
      const char* why = dlerror();
      result.report.attempts.push_back({path, why ? why : "cannot be opened"});
      return false;
    }
    std::string version;
    const std::string refusal = accept(handle, version);
    if (!refusal.empty()) {
      result.report.attempts.push_back({path, refusal});
      dlclose(handle);
      return false;
    }
    result.handle = handle;
    result.report.found = true;
    result.report.path = path;
    result.report.origin = origin;
    result.report.version = version;
    result.report.attempts.push_back({path, "opened"});
    return true;
  }

  /// A folder: only files that exist are opened, and a folder without any is one attempt in the report.
  bool try_folder(const std::string& folder, std::string_view origin) {
    if (!is_folder(folder)) {
      result.report.attempts.push_back({folder, "no such folder"});
      return false;
    }
    bool any = false;
    for (const std::string& name : request.names) {
      const std::string path = folder + "/" + name;
      if (!exists(path)) continue;
      any = true;
      if (try_open(path, origin)) return true;
    }
    if (!any) result.report.attempts.push_back({folder, fmt::format("holds none of {}", fmt::join(request.names, ", "))});
    return false;
  }

  bool run(const SearchPlaces& places) {
    if (const char* value = places.variable ? places.variable(std::string(request.variable).c_str()) : nullptr; value && *value) {
      if (std::strcmp(value, "off") == 0) {
        result.report.attempts.push_back({std::string(request.variable), "is \"off\""});
        return false;
      }
      return is_folder(value) ? try_folder(value, request.variable) : try_open(value, request.variable);
    }
    if (places.loaded)
      for (const std::string& path : loaded_paths(request.names))
        if (try_open(path, "already loaded", RTLD_NOLOAD)) return true;
    if (request.in_toolkit) {
      std::vector<std::string> roots;
      for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
        if (const char* value = places.variable ? places.variable(name) : nullptr; value && *value) roots.emplace_back(value);
      roots.insert(roots.end(), places.toolkits.begin(), places.toolkits.end());
      for (const std::string& root : roots)
        for (const char* folder : {"/lib64", "/lib"})
          if (try_folder(root + folder, "toolkit")) return true;
    }
    for (const std::string& site : places.site_packages)
      for (const std::string& wheel : request.wheels)
        if (try_folder(site + "/" + wheel, "pip wheel")) return true;
    if (places.loader_path)
      for (const std::string& name : request.names)
        if (try_open(name, "loader path")) return true;
    if (places.system_folders)
      for (const std::string& folder : request.folders)
        if (try_folder(folder, "system folder")) return true;
    return false;
  }
};

}  // namespace

SearchPlaces SearchPlaces::system() {
  SearchPlaces places;
  places.variable = [](const char* name) -> const char* { return std::getenv(name); };
  places.toolkits = {"/usr/local/cuda"};
  const std::lock_guard lock(g_site_mutex);
  places.site_packages = g_site_packages;
  return places;
}

void add_site_packages(std::string folder) {
  const std::lock_guard lock(g_site_mutex);
  if (std::find(g_site_packages.begin(), g_site_packages.end(), folder) != g_site_packages.end()) return;
  g_site_packages.push_back(std::move(folder));
  g_site_generation.fetch_add(1, std::memory_order_release);
}
unsigned site_packages_generation() noexcept { return g_site_generation.load(std::memory_order_acquire); }

OpenLibrary open_library(const LibraryRequest& request, const SearchPlaces& places, const AcceptLibrary& accept) {
  Search search{request, accept};
  search.result.report.what = request.what;
  const bool found = search.run(places);
  LibraryReport& report = search.result.report;
  if (found) {
    report.sentence = fmt::format("{} {} from {} ({})", request.what, report.version, report.path, report.origin);
  } else {
    std::vector<std::string> tried;
    for (const Attempt& a : report.attempts) tried.push_back(a.where + ": " + a.outcome);
    report.sentence = fmt::format("{} was not found (names {}; tried {}); {}, or set {} to the library or its folder",
                                  request.what, fmt::join(request.names, ", "),
                                  tried.empty() ? std::string("nothing") : fmt::format("{}", fmt::join(tried, "; ")),
                                  request.install, request.variable);
  }
  return std::move(search.result);
}

LibraryBuild build_of(const void* symbol) {
  LibraryBuild out;
  Dl_info where{};
  if (!dladdr(symbol, &where) || !where.dli_fname) return out;
  out.path = where.dli_fname;
  struct stat s{};
  out.build = ::stat(where.dli_fname, &s) == 0 ? fmt::format("{} bytes", s.st_size) : std::string("unknown size");

  struct Visit {
    const void* base;
    std::string id;
  } visit{where.dli_fbase, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto* v = static_cast<Visit*>(data);
        if (reinterpret_cast<const void*>(info->dlpi_addr) != v->base) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_NOTE) continue;
          const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr);
          const auto* end = at + segment.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof note);
            const auto* name = at + sizeof note;
            const auto* text = name + ((note.n_namesz + 3U) & ~3U);
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0 &&
                text + note.n_descsz <= end) {
              for (unsigned k = 0; k < note.n_descsz; ++k) v->id += fmt::format("{:02x}", text[k]);
              return 1;
            }
            at = text + ((note.n_descsz + 3U) & ~3U);
          }
        }
        return 1;
      },
      &visit);
  out.build += visit.id.empty() ? ", no build id" : ", build id " + visit.id;
  return out;
}

}  // namespace verglas::cuda
