#include "tool/drawing.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/file.hpp"
#include "base/rules.hpp"
#include "verglas/explain.hpp"

extern char** environ;

namespace verglas::tool {
namespace {

std::string escaped(const std::string& text) {
  std::string s;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      s += '?';
      continue;
    }
    if (c == '"' || c == '\\') s += '\\';
    s += c;
  }
  return s;
}

std::string tensor_text(const graph::TensorData& t) {
  if (t.value) return fmt::format("{}\\n{}", *t.value, name_of(t.dtype));
  return fmt::format("{}\\n{} {}", escaped(t.name.empty() ? "#" + std::to_string(t.uid) : t.name), name_of(t.dtype),
                     graph::text_of(t.dim));
}

struct Close {
  void operator()(std::FILE* f) const noexcept { std::fclose(f); }
};

}  // namespace

std::string draw(const graph::GraphData& g, const PlanList& plans) {
  std::string s = "digraph verglas {\n  rankdir=TB; fontname=\"Helvetica\"; labelloc=t;\n";
  s += fmt::format("  label=\"{}\\n{}\";\n", escaped(g.name), escaped(summary_of(plans)));
  s += "  node [fontname=\"Helvetica\", fontsize=11]; edge [fontname=\"Helvetica\", fontsize=9];\n";
  for (std::size_t i = 0; i < g.tensors.size(); ++i) {
    const graph::TensorData& t = g.tensors[i];
    if (t.producer >= 0 && t.is_virtual) continue;
    const char* look = t.producer >= 0         ? "style=filled, fillcolor=\"#d9ead3\""
                       : t.value || t.by_value ? "style=dashed"
                                               : "style=filled, fillcolor=\"#e8eef7\"";
    s += fmt::format("  t{} [shape=box, {}, label=\"{}\"];\n", i, look, tensor_text(t));
  }
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const graph::NodeData& n = g.nodes[i];
    const std::string what =
        n.kind == graph::NodeKind::reduction ? fmt::format("reduce {}", name_of(n.reduction)) : std::string(kind_of(n));
    s += fmt::format("  n{} [shape=ellipse{}, label=\"{}\"];\n", i,
                     n.kind == graph::NodeKind::matmul ? ", style=filled, fillcolor=\"#fce5cd\"" : "", what);
    for (const int input : n.inputs) {
      const graph::TensorData& t = g.tensors[static_cast<std::size_t>(input)];
      if (t.producer >= 0)
        s += fmt::format("  n{} -> n{} [label=\"{}\"];\n", t.producer, i, name_of(t.dtype));
      else
        s += fmt::format("  t{} -> n{};\n", input, i);
    }
    for (const int result : {n.output, n.scale})
      if (result >= 0 && !g.tensors[static_cast<std::size_t>(result)].is_virtual) s += fmt::format("  n{} -> t{};\n", i, result);
  }
  return s + "}\n";
}

void write_svg(const std::string& dot, const std::string& path) {
  const std::unique_ptr<std::FILE, Close> file(std::tmpfile());
  if (!file || std::fwrite(dot.data(), 1, dot.size(), file.get()) != dot.size() || std::fflush(file.get()) != 0 ||
      std::fseek(file.get(), 0, SEEK_SET) != 0)
    throw broken(Rule::file_write, "temporary file", system_words(errno), "room for the drawing");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(file.get()), STDIN_FILENO);
  std::string program = "dot", format = "-Tsvg", option = "-o", target = path;
  char* arguments[] = {program.data(), format.data(), option.data(), target.data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawnp(&child, "dot", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0)
    throw broken(Rule::tool_graphviz, "--svg", fmt::format("no program dot ({})", system_words(failed)),
                 "Graphviz (Debian: apt install graphviz), or --dot FILE instead");
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0)
    throw broken(Rule::tool_graphviz, "--svg " + path,
                 fmt::format("dot ended with {}", WIFEXITED(status) ? WEXITSTATUS(status) : -1), "a drawing in that file");
}

}  // namespace verglas::tool
