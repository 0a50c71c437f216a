#pragma once
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "jit/entry.hpp"

namespace verglas::jit {

/// Where compiled kernels are kept between processes.
struct CacheSettings {
  std::string folder;                                          ///< absolute; empty: memory only
  std::string why_memory_only;                                 ///< a clause, where `folder` is empty
  std::uint64_t limit_bytes = std::uint64_t{1} << 30;          ///< of the folder; least recently used entries go first
  std::uint64_t memory_limit_bytes = std::uint64_t{64} << 20;  ///< of what is kept in memory where the folder cannot be written
};

/// From VERGLAS_CACHE (a folder, or "off"), else XDG_CACHE_HOME/verglas, else HOME/.cache/verglas, else a folder of this user
/// below the temporary folder; and VERGLAS_CACHE_LIMIT (bytes, or with K, M, G). Creates nothing.
CacheSettings cache_settings_from_environment();

/// What became of a cache so far.
struct CacheState {
  std::string folder;  ///< as configured
  bool readable = false, writable = false;
  std::string why_not;  ///< why the folder is not used for reading or writing, a clause
  std::uint64_t hits = 0, memory_hits = 0, misses = 0;
  std::uint64_t damaged = 0;  ///< entries that were removed: cut short, altered, of another key
  std::uint64_t foreign = 0;  ///< entries that were passed over: not a file, of another owner, writable by others
  std::uint64_t stored = 0, store_failures = 0, evicted = 0;
};

struct CacheItem {
  std::string name;  ///< of the file
  std::uint64_t bytes = 0;
  std::int64_t last_use = 0;  ///< seconds since 1970, within a day
  std::string kernel, arch;   ///< empty where the entry is not sound
  ResourceReport report;
  double compile_ms = 0;
  std::string fault;  ///< empty: sound. Else a clause
};

struct CacheRemoval {
  std::uint64_t files = 0, bytes = 0;
};

/// Compiled kernels on disk, one file each, for this user alone; in memory where that is not possible. All members may be
/// called from any thread, and any number of processes may share a folder. Nothing here throws: a cache that fails is a miss.
///
/// An entry is executable code, so a folder or a file that others could have written is not read.
class KernelCache {
 public:
  explicit KernelCache(CacheSettings settings);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  std::optional<CompiledKernel> load(std::string_view key);
  void store(std::string_view key, const CompiledKernel& kernel);

  CacheState state() const;
  /// All entries; each is read in full, and `fault` says what is wrong with those that are not sound.
  std::vector<CacheItem> list();
  /// Removes entries that are not sound, and leftovers of writers that died.
  CacheRemoval remove_damaged();
  /// Removes all entries and leftovers. Other files in the folder stay.
  CacheRemoval clear();

 private:
  void open_folder();
  std::optional<std::string> read_file(const std::string& name, std::string* fault);
  void keep_in_memory(std::string_view key, std::string bytes);
  void trim(std::string_view keep);

  const CacheSettings settings_;
  int folder_fd_ = -1;
  mutable std::mutex mutex_;  // guards what follows
  CacheState state_;
  struct Kept {
    std::string key, bytes;
  };
  std::list<Kept> kept_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> kept_by_key_;
  std::uint64_t kept_bytes_ = 0;
};

/// The cache of this process, as the environment says on first use.
KernelCache& process_cache();

/// For `verglas cache list|verify|clear`, on the process's cache.
std::vector<CacheItem> cache_list();
std::vector<CacheItem> cache_verify();  ///< the entries that are not sound; they are removed
CacheRemoval cache_clear();

}  // namespace verglas::jit
