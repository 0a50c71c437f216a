#include "jit/entry.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/canonical.hpp"
#include "base/sha256.hpp"

namespace verglas::jit {
namespace {

/// Raise when the meaning of a stored entry changes; older entries are then misses.
constexpr std::uint32_t kEntrySchema = 1;

tl::unexpected<ContainerFault> damaged(std::string text) {
  return tl::unexpected<ContainerFault>(ContainerFault{ContainerFault::What::damaged, std::move(text)});
}

void add_sources(CanonicalBytes& key, const CompileRequest& request) {
  key.add("source", request.source);
  std::vector<EmbeddedSource> headers = request.headers;  // the order in which they are given means nothing
  std::sort(headers.begin(), headers.end(), [](const EmbeddedSource& a, const EmbeddedSource& b) { return a.name < b.name; });
  for (const EmbeddedSource& header : headers) {
    key.add("header", header.name);
    key.add("digest", header.digest.empty() ? std::string_view(sha256_hex(header.text)) : header.digest);
  }
}

}  // namespace

std::string source_key(const CompileRequest& request) {
  CanonicalBytes key;
  key.add("arch", request.arch);
  key.add("kernel", request.kernel);
  for (const std::string& definition : request.definitions) key.add("definition", definition);
  add_sources(key, request);
  return sha256_hex(key.bytes());
}

std::string cache_key(const CompileRequest& request, const cuda::NvrtcTable& nvrtc) {
  CanonicalBytes key;
  key.add("schema", std::int64_t{kEntrySchema});
  key.add("nvrtc", std::int64_t{1000 * nvrtc.major + 10 * nvrtc.minor});
  key.add("nvrtc_build", nvrtc.build);
  key.add("arch", request.arch);
  key.add("kernel", request.kernel);
  for (const std::string& option : options_of(request, nvrtc.major, nvrtc.minor)) key.add("option", option);
  add_sources(key, request);
  return key.bytes();
}

std::string entry_name(std::string_view key) { return sha256_hex(key) + ".vgk"; }

std::string report_to_json(const ResourceReport& r) {
  return nlohmann::json{{"registers", r.registers},
                        {"stack_bytes", r.stack_bytes},
                        {"spill_store_bytes", r.spill_store_bytes},
                        {"spill_load_bytes", r.spill_load_bytes},
                        {"smem_bytes", r.smem_bytes},
                        {"barriers", r.barriers},
                        {"advice", r.advice},
                        {"warnings", r.warnings}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool report_from_json(std::string_view text, ResourceReport& report) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return false;
  const auto number = [&](const char* name, int& into) {
    const auto it = json.find(name);
    if (it == json.end() || !it->is_number_integer()) return false;
    into = it->get<int>();
    return true;
  };
  const auto lines = [&](const char* name, std::vector<std::string>& into) {
    const auto it = json.find(name);
    if (it == json.end() || !it->is_array()) return false;
    for (const auto& line : *it) {
      if (!line.is_string()) return false;
      into.push_back(line.get<std::string>());
    }
    return true;
  };
  ResourceReport out;
  const bool ok = number("registers", out.registers) && number("stack_bytes", out.stack_bytes) &&
                  number("spill_store_bytes", out.spill_store_bytes) && number("spill_load_bytes", out.spill_load_bytes) &&
                  number("smem_bytes", out.smem_bytes) && number("barriers", out.barriers) && lines("advice", out.advice) &&
                  lines("warnings", out.warnings);
  if (ok) report = std::move(out);
  return ok;
}

std::string write_entry(std::string_view key, const CompiledKernel& kernel) {
  Container file{kCacheEntryKind, kEntrySchema, {}};
  file.add("key", std::string(key));
  file.add("kernel", kernel.kernel);
  file.add("arch", kernel.arch);
  file.add("report", report_to_json(kernel.report));
  file.add("compile_us", std::to_string(static_cast<long long>(kernel.compile_ms * 1000)));
  file.add("log", kernel.log);
  file.add("cubin", kernel.cubin);
  return write_container(file);
}

tl::expected<StoredEntry, ContainerFault> read_any_entry(std::string_view bytes) {
  auto file = read_container(bytes, kCacheEntryKind, kEntrySchema);
  if (!file) return tl::unexpected<ContainerFault>(std::move(file.error()));
  StoredEntry out;
  const auto field = [&](const char* name, std::string& into) {
    std::string* value = file->find(name);
    if (value) into = std::move(*value);
    return value != nullptr;
  };
  std::string report, microseconds;
  for (const auto& [name, into] : {std::pair<const char*, std::string*>{"key", &out.key},
                                   {"kernel", &out.kernel.kernel},
                                   {"arch", &out.kernel.arch},
                                   {"report", &report},
                                   {"compile_us", &microseconds},
                                   {"log", &out.kernel.log},
                                   {"cubin", &out.kernel.cubin}})
    if (!field(name, *into)) return damaged(std::string("has no field ") + name);
  if (!report_from_json(report, out.kernel.report)) return damaged("has a report that cannot be read");
  long long us = 0;
  const char* end = microseconds.data() + microseconds.size();
  if (std::from_chars(microseconds.data(), end, us).ptr != end) return damaged("has a compile time that cannot be read");
  out.kernel.compile_ms = static_cast<double>(us) / 1000;
  if (out.kernel.cubin.empty()) return damaged("has an empty cubin");
  return out;
}

tl::expected<CompiledKernel, ContainerFault> read_entry(std::string_view bytes, std::string_view key) {
  auto entry = read_any_entry(bytes);
  if (!entry) return tl::unexpected<ContainerFault>(std::move(entry.error()));
  if (entry->key != key) return damaged("holds the kernel of another key");
  return std::move(entry->kernel);
}

}  // namespace verglas::jit
