#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/environment.hpp"
#include "base/parallel_for.hpp"
#include "cuda/cublaslt_table.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/cpu/panels.hpp"
#include "engine/engine.hpp"
#include "jit/cache.hpp"
#include "tool/command.hpp"

namespace verglas::tool {
namespace {

/// One line of the report: what was looked for, whether it is there, and a sentence.
struct Finding {
  std::string what;
  bool there = false;
  std::string sentence;
  Json details = Json::object();
};

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const auto at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
  return "unknown processor";
}

Finding processor() {
  const unsigned cores = std::thread::hardware_concurrency();
  return {"processor",
          true,
          fmt::format("{}, {} hardware threads, {} used (VERGLAS_NUM_THREADS)", processor_name(), cores, thread_count()),
          {{"name", processor_name()}, {"hardware_threads", cores}, {"threads", thread_count()}}};
}

Finding onednn() {
  const bool there = engine::cpu::onednn_sgemm() != nullptr;
  return {"oneDNN", there,
          fmt::format("{}; products on the CPU are {}", engine::cpu::onednn_text(),
                      there                         ? "fast"
                      : engine::cpu::panels_sgemm() ? "our own by AVX-512"
                                                    : "plain loops, and slow")};
}

Finding library(const cuda::LibraryReport& r) {
  Json attempts = Json::array();
  for (const cuda::Attempt& a : r.attempts) attempts.push_back({{"where", a.where}, {"outcome", a.outcome}});
  const std::string what = r.what.starts_with("the ") ? r.what.substr(4) : r.what;
  return {what, r.found, r.sentence, {{"path", r.path}, {"origin", r.origin}, {"version", r.version}, {"attempts", attempts}}};
}

Finding devices() {
  const auto driver = cuda::driver();
  if (!driver) return {"GPU", false, "none can be used without NVIDIA's driver; plans run on the CPU"};
  const cuda::DriverTable& d = **driver;
  int count = 0;
  if (d.cuDeviceGetCount(&count) != cuda::CUDA_SUCCESS || count == 0) return {"GPU", false, "the driver sees no device"};
  Finding f{"GPU", true, ""};
  f.details["devices"] = Json::array();
  for (int i = 0; i < count; ++i) {
    cuda::CUdevice device = 0;
    char name[256] = "?";
    int major = 0, minor = 0, processors = 0;
    std::size_t bytes = 0;
    if (d.cuDeviceGet(&device, i) != cuda::CUDA_SUCCESS) continue;
    d.cuDeviceGetName(name, sizeof name, device);
    d.cuDeviceGetAttribute(&major, cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    d.cuDeviceGetAttribute(&minor, cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    d.cuDeviceGetAttribute(&processors, cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    d.cuDeviceTotalMem(&bytes, device);
    f.sentence += fmt::format("{}cuda:{} {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", i ? "; " : "", i, name,
                              major, minor, processors, static_cast<double>(bytes) / 0x1p30);
    f.details["devices"].push_back({{"name", name},
                                    {"compute_capability", fmt::format("{}.{}", major, minor)},
                                    {"multiprocessors", processors},
                                    {"bytes", bytes}});
  }
  return f;
}

Finding cache() {
  const jit::CacheState s = jit::process_cache().state();
  const bool used = s.readable && s.writable;
  std::string sentence = s.folder.empty() ? "in memory only" : s.folder;
  if (!s.why_not.empty()) sentence += ": " + s.why_not;
  if (used) {
    std::uint64_t bytes = 0;
    const auto items = jit::cache_list();
    for (const jit::CacheItem& item : items) bytes += item.bytes;
    sentence += fmt::format(", {} kernels, {} bytes", items.size(), bytes);
  }
  return {"kernel cache", used, sentence, {{"folder", s.folder}, {"readable", s.readable}, {"writable", s.writable}}};
}

/// What is set and cannot be read counts as not set; nothing but this says so.
bool is_ignored(const environment::Variable& v) {
  const std::string value = environment::text(v.name).value_or("");
  if (value.empty()) return false;
  if (v.kind == environment::Kind::integer) return !environment::integer(v.name, 1, kMaxThreads);
  if (v.kind == environment::Kind::bytes) return !environment::bytes(v.name);
  return std::string_view(v.name) == "VERGLAS_TUNING" && value != "off";
}

Finding variables() {
  Finding f{"environment", true, ""};
  const auto add = [&](const char* name) {
    const char* value = std::getenv(name);
    f.details[name] = value ? Json(value) : Json(nullptr);
    if (value) f.sentence += fmt::format("{}{}={}", f.sentence.empty() ? "" : " ", name, value);
  };
  for (const environment::Variable& v : environment::variables()) {
    add(v.name);
    if (!is_ignored(v)) continue;
    f.there = false;
    f.sentence += fmt::format(" (ignored; it is {})", v.meaning);
  }
  for (const char* name : {"CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"}) add(name);
  if (f.sentence.empty()) f.sentence = "no variable that Verglas reads is set";
  return f;
}

Finding engines() {
  Finding f{"engines", true, ""};
  f.details["names"] = Json::array();
  for (const engine::Engine* e : engine::engine_list()) {
    f.sentence += (f.sentence.empty() ? "" : ", ") + std::string(e->name());
    f.details["names"].push_back(e->name());
  }
  return f;
}

int run(bool as_json) {
  const std::vector<Finding> all = {engines(),
                                    processor(),
                                    onednn(),
                                    library(cuda::driver_report()),
                                    devices(),
                                    library(cuda::nvrtc_report()),
                                    library(cuda::cublaslt_report()),
                                    cache(),
                                    variables()};
  if (!as_json) {
    fmt::print("verglas {}\n", VERGLAS_VERSION);
    for (const Finding& f : all) fmt::print("{} {:13} {}\n", f.there ? "✓" : "–", f.what, f.sentence);
    return kDone;
  }
  Json j{{"version", VERGLAS_VERSION}, {"findings", Json::array()}};
  for (const Finding& f : all) {
    Json one{{"what", f.what}, {"there", f.there}, {"sentence", f.sentence}};
    one.update(f.details);
    j["findings"].push_back(std::move(one));
  }
  fmt::print("{}\n", text_of(j));
  return kDone;
}

}  // namespace

void add_doctor(CLI::App& app, int& code) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* c = app.add_subcommand("doctor", "Says what is here, what is missing, and how to get it");
  c->add_flag("--json", *as_json, "Prints the report as JSON");
  c->callback([as_json, &code] { code = run(*as_json); });
}

}  // namespace verglas::tool
