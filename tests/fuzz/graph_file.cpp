// Any text is read or refused with a rule file.*; what was read is saved and read again to the same graph.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "chain/analyse.hpp"
#include "graph/ir.hpp"
#include "verglas/verglas.hpp"

namespace {

/// What becomes of a graph: its chain, why it is none, or why it is not even a graph.
std::string fate_of(verglas::Graph& g) {
  try {
    g.validate();
  } catch (const verglas::Error& e) {
    return e.what();
  }
  const auto chain = verglas::chain::analyse(g.data());
  return chain ? verglas::chain::print(*chain) : chain.error().text;
}

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken law: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using verglas::Graph;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Graph g;
  try {
    g = Graph::from_json(text);
  } catch (const verglas::Error& e) {
    demand(e.rule().starts_with("file."), "a refusal names a rule of files");
    return 0;
  }
  const std::string saved = g.to_json();
  Graph again = Graph::from_json(saved);
  demand(again.to_json() == saved, "save(load(save(g))) == save(g)");
  demand(fate_of(g) == fate_of(again), "analyse(load(save(g))) == analyse(g)");
  return 0;
}
