#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "graph/json_limits.hpp"
#include "tool/command.hpp"

namespace verglas::tool {

Graph load_graph(const std::string& path) { return Graph::from_json(read_file(path, graph::kMaxFileBytes)); }

std::string text_of(const Json& j) { return j.dump(2, ' ', false, Json::error_handler_t::replace); }

namespace {

/// What was wrong with the arguments, of the command for which they were. One that is missing or unknown is told with those that
/// there are.
std::string usage_error(const CLI::App* app, const CLI::Error& e) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  std::string text = e.what(), command = app->get_name(), known;
  for (const CLI::App* parent = app->get_parent(); parent; parent = parent->get_parent())
    command = parent->get_name() + " " + command;
  for (const CLI::App* c : app->get_subcommands({})) known += (known.empty() ? "" : ", ") + c->get_name();
  if (text == CLI::RequiredError::Subcommand(1).what()) {
    const std::vector<std::string> rest = app->remaining();
    text = "got " + (rest.empty() ? std::string("no command") : "'" + rest.front() + "'") + ", wanted one of " + known;
  }
  return command + ": " + text + "\nRun '" + command + " --help' for more information.\n";
}

int run_command(int argc, char** argv) {
  CLI::App app("Verglas: fused GEMM graphs, compiled once, launched with every check.", "verglas");
  app.set_version_flag("--version", std::string("verglas ") + VERGLAS_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done, 1 refused or wrong, 2 usage. docs/tool.md has examples.");
  app.failure_message(usage_error);
  int code = kDone;
  add_doctor(app, code);
  add_run(app, code);
  add_explain(app, code);
  add_compile(app, code);
  add_tune(app, code);
  add_bench(app, code);
  add_cache(app, code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kDone : kUsage;
  }
  return code;
}

}  // namespace
}  // namespace verglas::tool

int main(int argc, char** argv) {
  try {
    return verglas::tool::run_command(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("verglas: out_of_memory: the host has not enough memory\n", stderr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "verglas: %s\n", e.what());
  }
  return verglas::tool::kRefused;
}
