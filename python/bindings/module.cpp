#include "bindings.hpp"
#include "verglas/version.hpp"

NB_MODULE(_verglas, m) {
  using namespace verglas::python;
  m.attr("__version__") = VERGLAS_VERSION;
  bind_errors(m);
  bind_enums(m);
  bind_tensor(m);
  bind_plan(m);
  bind_graph(m);
}
