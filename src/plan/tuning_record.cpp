#include "plan/tuning_record.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/atomic_publish.hpp"
#include "base/environment.hpp"
#include "base/file.hpp"
#include "base/sha256.hpp"
#include "cuda/driver_table.hpp"
#include "jit/cache.hpp"
#include "verglas/version.hpp"

namespace verglas::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr off_t kMostBytes = 1 << 20;

std::string name_of_file(const std::string& device, const std::string& chain) {
  return sha256_hex(fmt::format("verglas tuning {}\n{}\n{}\n{}", kFormat, VERGLAS_VERSION, device, chain)) + ".json";
}
bool is_entry(std::string_view name) {
  return name.size() == 64 + 5 && name.ends_with(".json") && name.find_first_not_of("0123456789abcdef") == 64;
}

/// The open folder, or −1. With `make` it is created, and those above it, for this user alone.
int open_folder(const std::string& folder, bool make) {
  for (std::size_t at = 1; make && at <= folder.size(); ++at)
    if (at == folder.size() || folder[at] == '/') ::mkdir(folder.substr(0, at).c_str(), 0700);
  return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/// The bytes of an ordinary file of this user; else a fault. Empty and no fault: there is none.
std::string read_entry(int folder, const std::string& name, std::string& fault) {
  const int fd = ::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    if (errno != ENOENT) fault = errno == ELOOP ? "it is a link" : system_words(errno);
    return {};
  }
  struct stat s{};
  std::string bytes;
  if (::fstat(fd, &s) != 0)
    fault = system_words(errno);
  else if (!S_ISREG(s.st_mode))
    fault = "it is no ordinary file";
  else if (s.st_uid != ::geteuid())
    fault = fmt::format("it belongs to user {}", s.st_uid);
  else if (s.st_size > kMostBytes)
    fault = fmt::format("it has {} bytes", s.st_size);
  else {
    bytes.resize(static_cast<std::size_t>(s.st_size));
    std::size_t at = 0;
    for (ssize_t n = 0; at < bytes.size(); at += static_cast<std::size_t>(n))
      if ((n = ::read(fd, bytes.data() + at, bytes.size() - at)) <= 0) break;
    bytes.resize(at);
    if (bytes.empty()) fault = "it is empty";
  }
  ::close(fd);
  return bytes;
}

/// Processor and how many there are. The file has no length that could be asked, as files of /proc have none.
std::string host_text() {
  std::string model = "processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (const std::size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos) {
      model = line.substr(colon + 2);
      break;
    }
  return fmt::format("{}, {} processors", model, ::sysconf(_SC_NPROCESSORS_CONF));
}

std::vector<std::string> names_in(int folder) {
  std::vector<std::string> names;
  const int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* d = fd < 0 ? nullptr : ::fdopendir(fd);
  if (!d) {
    if (fd >= 0) ::close(fd);
    return names;
  }
  while (const dirent* item = ::readdir(d))
    if (is_entry(item->d_name)) names.emplace_back(item->d_name);
  ::closedir(d);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string canonical_text(const chain::FusionChain& chain) {
  chain::FusionChain nameless = chain;
  for (std::size_t i = 0; i < nameless.operands.size(); ++i) {
    nameless.operands[i].name.clear();
    nameless.operands[i].uid = static_cast<std::int64_t>(i);
  }
  return chain::print(nameless);
}

bool has_tuning() {
  std::string why_not;
  const std::string folder = tuning_folder(why_not);
  return !folder.empty() && ::access(folder.c_str(), R_OK | X_OK) == 0;
}

std::string device_text(Device device) {
  if (device.type == DeviceType::cpu) {
    static const std::string host = host_text();
    return host;
  }
  const auto driver = cuda::driver();
  if (!driver || device.type != DeviceType::cuda) return {};
  // Two cheap calls: all facts of a device take milliseconds.
  cuda::CUdevice handle = 0;
  int multiprocessors = 0;
  char name[256] = {};
  if ((*driver)->cuDeviceGet(&handle, device.id) != cuda::CUDA_SUCCESS ||
      (*driver)->cuDeviceGetName(name, sizeof name - 1, handle) != cuda::CUDA_SUCCESS ||
      (*driver)->cuDeviceGetAttribute(&multiprocessors, cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle) !=
          cuda::CUDA_SUCCESS)
    return {};
  return fmt::format("{}, {} multiprocessors, driver {}.{}", name, multiprocessors, (*driver)->version / 1000,
                     (*driver)->version % 1000 / 10);
}

std::string to_text(const TuningEntry& e) {
  Json j{{"verglas_tuning", kFormat}, {"verglas", VERGLAS_VERSION}, {"device", e.device}, {"chain", e.chain},
         {"summary", e.summary},      {"extents", e.extents},       {"when", e.when},     {"plans", Json::array()}};
  for (const MeasuredPlan& p : e.plans) {
    Json knobs = Json::object();
    for (const auto& [name, value] : p.knobs) knobs[name] = value;
    j["plans"].push_back({{"engine", p.engine}, {"knobs", knobs}, {"build", p.build}, {"seconds", p.seconds}});
  }
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

TuningEntry from_text(std::string_view text, std::string& fault) {
  const Json j = Json::parse(text, nullptr, false);
  TuningEntry e;
  if (!j.is_object() || !j.contains("verglas_tuning")) {
    fault = "it is no tuning record";
    return e;
  }
  try {
    if (j.at("verglas_tuning").get<int>() != kFormat) {
      fault = fmt::format("it is of format {}, not {}", j.at("verglas_tuning").get<int>(), kFormat);
      return e;
    }
    if (const auto version = j.at("verglas").get<std::string>(); version != VERGLAS_VERSION) {
      fault = fmt::format("Verglas {} wrote it", version);
      return e;
    }
    e.device = j.at("device").get<std::string>();
    e.chain = j.at("chain").get<std::string>();
    e.summary = j.at("summary").get<std::string>();
    e.extents = j.at("extents").get<std::array<std::int64_t, 4>>();
    e.when = j.at("when").get<std::int64_t>();
    for (const Json& p : j.at("plans")) {
      MeasuredPlan m{.engine = p.at("engine").get<std::string>(),
                     .knobs = {},
                     .build = p.at("build").get<std::string>(),
                     .seconds = p.at("seconds").get<double>()};
      for (const auto& [name, value] : p.at("knobs").items()) m.knobs[name] = value.get<std::int64_t>();
      if (!(m.seconds > 0) || !std::isfinite(m.seconds)) fault = fmt::format("a plan took {} seconds", m.seconds);
      e.plans.push_back(std::move(m));
    }
    if (e.plans.empty()) fault = "it has no plans";
  } catch (const Json::exception& x) {
    fault = std::string("it is damaged: ") + x.what();
  }
  return e;
}

std::string tuning_folder(std::string& why_not) {
  if (environment::text("VERGLAS_TUNING").value_or("") == "off") {
    why_not = "VERGLAS_TUNING is \"off\"";
    return {};
  }
  const jit::CacheSettings settings = jit::cache_settings_from_environment();
  if (settings.folder.empty()) {
    why_not = settings.why_memory_only;
    return {};
  }
  return settings.folder + "/tuning";
}

TuningLookup find_tuning(const std::string& device, const std::string& chain) {
  TuningLookup out;
  std::string why_not;
  const std::string folder = device.empty() ? "" : tuning_folder(why_not);
  const int fd = folder.empty() ? -1 : open_folder(folder, false);
  if (fd < 0) return out;
  const std::string name = name_of_file(device, chain);
  const std::string bytes = read_entry(fd, name, out.ignored);
  ::close(fd);
  if (bytes.empty() && out.ignored.empty()) return out;
  out.file = folder + "/" + name;
  if (!out.ignored.empty()) return out;
  TuningEntry e = from_text(bytes, out.ignored);
  if (out.ignored.empty() && (e.device != device || e.chain != chain)) out.ignored = "it is of another device or chain";
  if (out.ignored.empty()) out.entry = std::move(e);
  return out;
}

std::string keep_tuning(const TuningEntry& e, std::string& why_not) {
  const std::string folder = tuning_folder(why_not);
  if (folder.empty()) return {};
  const int fd = open_folder(folder, true);
  if (fd < 0) {
    why_not = fmt::format("{} cannot be opened: {}", folder, system_words(errno));
    return {};
  }
  const std::string name = name_of_file(e.device, e.chain);
  const int error = publish_file(fd, name, to_text(e));
  ::close(fd);
  if (error == 0) return folder + "/" + name;
  why_not = fmt::format("{} cannot be written: {}", folder, system_words(error));
  return {};
}

std::vector<TuningItem> list_tuning() {
  std::vector<TuningItem> all;
  std::string why_not;
  const std::string folder = tuning_folder(why_not);
  const int fd = folder.empty() ? -1 : open_folder(folder, false);
  if (fd < 0) return all;
  for (const std::string& name : names_in(fd)) {
    TuningItem item{.file = folder + "/" + name, .bytes = 0, .entry = {}, .fault = {}};
    const std::string bytes = read_entry(fd, name, item.fault);
    item.bytes = bytes.size();
    if (item.fault.empty()) item.entry = from_text(bytes, item.fault);
    if (item.fault.empty() && name != name_of_file(item.entry.device, item.entry.chain))
      item.fault = "its name is another entry's";
    all.push_back(std::move(item));
  }
  ::close(fd);
  return all;
}

int clear_tuning() {
  std::string why_not;
  const std::string folder = tuning_folder(why_not);
  const int fd = folder.empty() ? -1 : open_folder(folder, false);
  if (fd < 0) return 0;
  int removed = 0;
  for (const std::string& name : names_in(fd)) removed += ::unlinkat(fd, name.c_str(), 0) == 0 ? 1 : 0;
  ::close(fd);
  return removed;
}

}  // namespace verglas::plan
