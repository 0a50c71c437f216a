#include "jit/cache.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "tool/command.hpp"

namespace verglas::tool {
namespace {

std::string date_of(const jit::CacheItem& item) { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(item.last_use)); }

/// Prints entries; those that are not sound say why.
void print(const std::vector<jit::CacheItem>& items, bool as_json) {
  const jit::CacheState state = jit::process_cache().state();
  Json j{{"folder", state.folder}, {"why_not", state.why_not}, {"entries", Json::array()}};
  std::string text = state.folder.empty() || !state.readable ? "no folder is used: " + state.why_not + "\n" : state.folder + "\n";
  std::uint64_t bytes = 0;
  for (const jit::CacheItem& item : items) {
    bytes += item.bytes;
    j["entries"].push_back({{"file", item.name},
                            {"bytes", item.bytes},
                            {"last_use", date_of(item)},
                            {"kernel", item.kernel},
                            {"arch", item.arch},
                            {"registers", item.report.registers},
                            {"compile_ms", item.compile_ms},
                            {"fault", item.fault}});
    text += fmt::format("{}  {:9} bytes  {}  {}\n", item.name.substr(0, 16), item.bytes, date_of(item),
                        item.fault.empty() ? fmt::format("{} {}, {} registers, compiled in {:.0f} ms", item.kernel, item.arch,
                                                         item.report.registers, item.compile_ms)
                                           : "not sound: " + item.fault);
  }
  j["bytes"] = bytes;
  text += fmt::format("{} entries, {} bytes\n", items.size(), bytes);
  fmt::print("{}", as_json ? text_of(j) + "\n" : text);
}

}  // namespace

void add_cache(CLI::App& app, int& code) {
  CLI::App* c = app.add_subcommand("cache", "Looks after the folder of compiled kernels");
  c->require_subcommand(1);
  auto as_json = std::make_shared<bool>(false);
  CLI::App* list = c->add_subcommand("list", "Lists the kernels that are kept; each is read and checked");
  list->add_flag("--json", *as_json, "Prints the report as JSON");
  list->callback([as_json, &code] {
    print(jit::cache_list(), *as_json);
    code = kDone;
  });
  CLI::App* verify = c->add_subcommand("verify", "Removes entries that are not sound; exit code 1 if there were any");
  verify->add_flag("--json", *as_json, "Prints the report as JSON");
  verify->callback([as_json, &code] {
    const auto removed = jit::cache_verify();
    print(removed, *as_json);
    code = removed.empty() ? kDone : kRefused;
  });
  c->add_subcommand("clear", "Removes all entries")->callback([&code] {
    const jit::CacheRemoval removed = jit::cache_clear();
    fmt::print("{} files, {} bytes removed\n", removed.files, removed.bytes);
    code = kDone;
  });
}

}  // namespace verglas::tool
