#include "jit/cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/atomic_publish.hpp"
#include "base/file.hpp"

namespace verglas::jit {
namespace {

constexpr std::uint64_t kMostEntryBytes = std::uint64_t{256} << 20;
constexpr std::time_t kDay = 24 * 60 * 60;
constexpr std::time_t kLeftoverAge = 60 * 60;  // no writer takes an hour

bool is_entry(std::string_view name) {
  return name.size() == 64 + 4 && name.ends_with(".vgk") && name.find_first_not_of("0123456789abcdef") == 64;
}
bool is_part(std::string_view name) { return name.starts_with(".") && name.ends_with(kPartSuffix); }

/// Creates the folder and those above it, 0700. Answers 0 or errno.
int make_folders(const std::string& path) {
  for (std::size_t at = 1; at <= path.size(); ++at) {
    if (at != path.size() && path[at] != '/') continue;
    if (::mkdir(path.substr(0, at).c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      struct stat s{};
      if (::stat(path.substr(0, at).c_str(), &s) != 0) return error;  // EROFS or EACCES of a folder that exists is no failure
    }
  }
  return 0;
}

struct Found {
  std::string name;
  std::uint64_t bytes = 0;
  std::time_t last_use = 0;
};

/// Entries or leftovers of a folder, by name.
template <class Wanted>
std::vector<Found> scan(int folder_fd, Wanted wanted) {
  std::vector<Found> out;
  const int fd = ::openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* folder = fd < 0 ? nullptr : ::fdopendir(fd);
  if (!folder) {
    if (fd >= 0) ::close(fd);
    return out;
  }
  while (const dirent* item = ::readdir(folder)) {
    if (!wanted(std::string_view(item->d_name))) continue;
    struct stat s{};
    if (::fstatat(folder_fd, item->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0) continue;
    out.push_back({item->d_name, static_cast<std::uint64_t>(std::max<off_t>(s.st_size, 0)), s.st_mtime});
  }
  ::closedir(folder);
  std::sort(out.begin(), out.end(), [](const Found& a, const Found& b) { return a.name < b.name; });
  return out;
}

}  // namespace

KernelCache::KernelCache(CacheSettings settings) : settings_(std::move(settings)) {
  state_.folder = settings_.folder;
  open_folder();
}
KernelCache::~KernelCache() {
  if (folder_fd_ >= 0) ::close(folder_fd_);
}

void KernelCache::open_folder() {
  if (settings_.folder.empty()) {
    state_.why_not = settings_.why_memory_only;
    return;
  }
  const int made = make_folders(settings_.folder);
  folder_fd_ = ::open(settings_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd_ < 0) {
    const int error = errno;
    state_.why_not = fmt::format("{} cannot be {}: {}", settings_.folder, made != 0 ? "created" : "opened",
                                 system_words(made != 0 ? made : error));
    return;
  }
  struct stat s{};
  std::string refusal;
  if (::fstat(folder_fd_, &s) != 0)
    refusal = system_words(errno);
  else if (s.st_uid != ::geteuid())
    refusal = fmt::format("it belongs to user {}, not {}", s.st_uid, ::geteuid());
  else if ((s.st_mode & 022) != 0)
    refusal = fmt::format("others can write to it (mode {:03o}), and it holds code that is run", s.st_mode & 0777);
  if (!refusal.empty()) {
    state_.why_not = fmt::format("{} is not used: {}", settings_.folder, refusal);
    ::close(folder_fd_);
    folder_fd_ = -1;
    return;
  }
  state_.readable = true;
  state_.writable = ::faccessat(folder_fd_, ".", W_OK, AT_EACCESS) == 0;
  if (!state_.writable) state_.why_not = fmt::format("{} cannot be written: {}", settings_.folder, system_words(errno));
}

/// The bytes of a file that this user alone can have written; none otherwise, and `fault` says why unless there is no file.
std::optional<std::string> KernelCache::read_file(const std::string& name, std::string* fault) {
  // O_NONBLOCK: a pipe of that name must not hold us up.
  const int fd = ::openat(folder_fd_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    if (errno != ENOENT) *fault = system_words(errno);
    return std::nullopt;
  }
  std::optional<std::string> out;
  struct stat s{};
  if (::fstat(fd, &s) != 0)
    *fault = system_words(errno);
  else if (!S_ISREG(s.st_mode))
    *fault = "is not a file";
  else if (s.st_uid != ::geteuid())
    *fault = fmt::format("belongs to user {}", s.st_uid);
  else if ((s.st_mode & 022) != 0)
    *fault = fmt::format("can be written by others (mode {:03o})", s.st_mode & 0777);
  else if (static_cast<std::uint64_t>(s.st_size) > kMostEntryBytes)
    *fault = fmt::format("has {} bytes", s.st_size);
  else {
    out.emplace(static_cast<std::size_t>(s.st_size), '\0');
    std::size_t have = 0;
    while (have < out->size()) {
      const ssize_t n = ::read(fd, out->data() + have, out->size() - have);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      have += static_cast<std::size_t>(n);
    }
    out->resize(have);  // cut short by somebody: the container's length tells
    const std::time_t now = std::time(nullptr);
    if (s.st_mtime + kDay < now) {
      const timespec times[2] = {{now, 0}, {now, 0}};
      ::futimens(fd, times);  // the date of last use, at most one write a day; fails without harm where we may only read
    }
  }
  ::close(fd);
  return out;
}

std::optional<CompiledKernel> KernelCache::load(std::string_view key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = kept_by_key_.find(key); it != kept_by_key_.end()) {
      kept_.splice(kept_.begin(), kept_, it->second);
      if (auto kernel = read_entry(it->second->bytes, key)) {
        ++state_.memory_hits;
        return std::move(*kernel);
      }
    }
  }
  if (folder_fd_ >= 0) {
    const std::string name = entry_name(key);
    std::string fault;
    const auto bytes = read_file(name, &fault);
    if (bytes) {
      auto kernel = read_entry(*bytes, key);
      const std::lock_guard lock(mutex_);
      if (kernel) {
        ++state_.hits;
        return std::move(*kernel);
      }
      ++state_.damaged;
      ::unlinkat(folder_fd_, name.c_str(), 0);
    } else if (!fault.empty()) {
      const std::lock_guard lock(mutex_);
      ++state_.foreign;
    }
  }
  const std::lock_guard lock(mutex_);
  ++state_.misses;
  return std::nullopt;
}

void KernelCache::store(std::string_view key, const CompiledKernel& kernel) {
  std::string bytes = write_entry(key, kernel);
  if (folder_fd_ >= 0 && bytes.size() <= std::min(settings_.limit_bytes, kMostEntryBytes)) {
    const std::string name = entry_name(key);
    int error = publish_file(folder_fd_, name, bytes);
    // A folder of that name can only be foreign; rename cannot replace it, and it is removed if it is empty.
    if (error == EISDIR && ::unlinkat(folder_fd_, name.c_str(), AT_REMOVEDIR) == 0) error = publish_file(folder_fd_, name, bytes);
    if (error == 0) {
      {
        const std::lock_guard lock(mutex_);
        ++state_.stored;
      }
      trim(name);
      return;
    }
    const std::lock_guard lock(mutex_);
    ++state_.store_failures;
    state_.why_not = fmt::format("{} cannot be written: {}", settings_.folder, system_words(error));
  }
  keep_in_memory(key, std::move(bytes));
}

void KernelCache::keep_in_memory(std::string_view key, std::string bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes.size() > settings_.memory_limit_bytes) return;
  if (const auto it = kept_by_key_.find(key); it != kept_by_key_.end()) {
    kept_bytes_ -= it->second->bytes.size();
    const auto old = it->second;
    kept_by_key_.erase(it);
    kept_.erase(old);
  }
  kept_bytes_ += bytes.size();
  kept_.push_front({std::string(key), std::move(bytes)});
  kept_by_key_[kept_.front().key] = kept_.begin();
  while (kept_bytes_ > settings_.memory_limit_bytes) {
    kept_bytes_ -= kept_.back().bytes.size();
    kept_by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

/// Removes old leftovers, then the least recently used entries until the folder is within its limit.
void KernelCache::trim(std::string_view keep) {
  const std::time_t now = std::time(nullptr);
  for (const Found& part : scan(folder_fd_, is_part))
    if (part.last_use + kLeftoverAge < now) ::unlinkat(folder_fd_, part.name.c_str(), 0);
  std::vector<Found> entries = scan(folder_fd_, is_entry);
  std::uint64_t total = 0;
  for (const Found& entry : entries) total += entry.bytes;
  if (total <= settings_.limit_bytes) return;
  std::stable_sort(entries.begin(), entries.end(), [](const Found& a, const Found& b) { return a.last_use < b.last_use; });
  for (const Found& entry : entries) {
    if (total <= settings_.limit_bytes) break;
    if (entry.name == keep || ::unlinkat(folder_fd_, entry.name.c_str(), 0) != 0) continue;
    total -= entry.bytes;
    const std::lock_guard lock(mutex_);
    ++state_.evicted;
  }
}

CacheState KernelCache::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::vector<CacheItem> KernelCache::list() {
  std::vector<CacheItem> out;
  if (folder_fd_ < 0) return out;
  for (const Found& found : scan(folder_fd_, is_entry)) {
    CacheItem item{found.name, found.bytes, found.last_use, {}, {}, {}, 0, {}};
    if (const auto bytes = read_file(found.name, &item.fault)) {
      auto entry = read_any_entry(*bytes);
      if (!entry) {
        item.fault = entry.error().text;
      } else if (entry_name(entry->key) != found.name) {
        item.fault = "holds the kernel of another key";
      } else {
        item.kernel = entry->kernel.kernel;
        item.arch = entry->kernel.arch;
        item.report = entry->kernel.report;
        item.compile_ms = entry->kernel.compile_ms;
      }
    } else if (item.fault.empty()) {
      continue;  // removed by another process meanwhile
    }
    out.push_back(std::move(item));
  }
  return out;
}

CacheRemoval KernelCache::remove_damaged() {
  CacheRemoval removed;
  if (folder_fd_ < 0) return removed;
  for (const CacheItem& item : list()) {
    if (item.fault.empty() || ::unlinkat(folder_fd_, item.name.c_str(), 0) != 0) continue;
    ++removed.files;
    removed.bytes += item.bytes;
  }
  const std::time_t now = std::time(nullptr);
  for (const Found& part : scan(folder_fd_, is_part)) {
    if (part.last_use + kLeftoverAge >= now || ::unlinkat(folder_fd_, part.name.c_str(), 0) != 0) continue;
    ++removed.files;
    removed.bytes += part.bytes;
  }
  return removed;
}

CacheRemoval KernelCache::clear() {
  CacheRemoval removed;
  {
    const std::lock_guard lock(mutex_);
    kept_by_key_.clear();
    kept_.clear();
    kept_bytes_ = 0;
  }
  if (folder_fd_ < 0) return removed;
  for (const Found& found : scan(folder_fd_, [](std::string_view name) { return is_entry(name) || is_part(name); })) {
    if (::unlinkat(folder_fd_, found.name.c_str(), 0) != 0) continue;
    ++removed.files;
    removed.bytes += found.bytes;
  }
  return removed;
}

KernelCache& process_cache() {
  static KernelCache& cache = *new KernelCache(cache_settings_from_environment());  // never destroyed: used by plans at exit
  return cache;
}
std::vector<CacheItem> cache_list() { return process_cache().list(); }
std::vector<CacheItem> cache_verify() {
  std::vector<CacheItem> items = process_cache().list();
  std::erase_if(items, [](const CacheItem& item) { return item.fault.empty(); });
  process_cache().remove_damaged();
  return items;
}
CacheRemoval cache_clear() { return process_cache().clear(); }

}  // namespace verglas::jit
